"""Request bodies, read within limits of size and time."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.exceptions import HTTPException
from starlette.requests import Request

from anytime.serving.service import ClientGoneError, Service

LEAST_SPEED = 2**16
"""Bytes per second that a client must send beyond the seconds that every body may take."""


@asynccontextmanager
async def body_of(request: Request, service: Service) -> AsyncIterator[bytes]:
    """The body of a request. Until the context ends its bytes count among those that the server holds."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "compressed bodies are not accepted: send it without Content-Encoding")
    limits, parts, size, held, more = service.limits, [], 0, 0, True
    end = time.monotonic() + limits.read
    try:
        while more:
            part, more = await _next(request, end)
            size += len(part)
            end += len(part) / LEAST_SPEED
            if size > limits.body:  # read on for a while, or the client cannot read the answer
                parts.clear()
                if size > 4 * limits.body:
                    break
                continue
            parts.append(part)
            held += len(part)
            service.body_bytes += len(part)
            _check_bodies(service)
        if size > limits.body:
            raise HTTPException(413, f"a body has at most {limits.body:,} bytes", {"Connection": "close"})
        yield parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        service.body_bytes -= held


@contextmanager
def held(size: int, service: Service) -> Iterator[None]:
    """Count the bytes of a body that was read elsewhere, until the context ends."""
    service.body_bytes += size
    try:
        _check_bodies(service)
        yield
    finally:
        service.body_bytes -= size


def _check_bodies(service: Service) -> None:
    if service.body_bytes > service.limits.bodies:
        raise HTTPException(503, "the server holds too many bodies", {"Retry-After": "1"})


async def _next(request: Request, end: float) -> tuple[bytes, bool]:
    """The next chunk of a body, and whether there are more; 408 after the time limit."""
    try:
        async with asyncio.timeout(end - time.monotonic()):
            message = await request.receive()
    except TimeoutError:
        raise HTTPException(408, "the body took too long to arrive", {"Connection": "close"}) from None
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), message.get("more_body", False)
