"""Bodies of requests, read within bounds of size and time."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.exceptions import HTTPException
from starlette.requests import Request

from anytime.serving.service import ClientGoneError, Service

LEAST_SPEED = 2**16
"""Bytes per second that a client must send beyond the seconds that every body may take."""


@asynccontextmanager
async def body_of(request: Request, service: Service) -> AsyncIterator[bytes]:
    """The body of a request. Until the context ends its bytes count among those that the server holds."""
    held = 0
    try:
        limits, parts, size = service.limits, [], 0
        if request.headers.get("content-encoding", "identity") != "identity":
            raise HTTPException(415, "compressed bodies are not accepted: send it without Content-Encoding")
        length = request.headers.get("content-length", "0")
        too_large = int(length) > limits.body if length.isascii() and length.isdigit() else False
        async for part in _parts(request, limits.read):
            size += len(part)
            too_large = too_large or size > limits.body
            if too_large:  # read on for a while, or the client cannot read the answer
                parts.clear()
                if size > 4 * limits.body:
                    break
                continue
            parts.append(part)
            held += len(part)
            service.body_bytes += len(part)
            if service.body_bytes > limits.bodies:
                raise HTTPException(503, "the server holds too many bodies", {"Retry-After": "1"})
        if too_large:
            raise HTTPException(413, f"a body has at most {limits.body:,} bytes", {"Connection": "close"})
        yield parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        service.body_bytes -= held


async def _parts(request: Request, seconds: float) -> AsyncIterator[bytes]:
    """The body as it arrives. One that takes too long is refused."""
    end = time.monotonic() + seconds
    while True:
        try:
            async with asyncio.timeout(end - time.monotonic()):
                message = await request.receive()
        except TimeoutError:
            raise HTTPException(408, "the body took too long to arrive", {"Connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body = message.get("body", b"")
        end += len(body) / LEAST_SPEED
        if body:
            yield body
        if not message.get("more_body", False):
            return
