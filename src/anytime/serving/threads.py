"""Thread pools for work that would block the event loop: parsing large bodies and decoding large images."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from torch import Tensor

from anytime.preprocessing import Preprocessing
from anytime.serving.exchange import LATE, Exchange
from anytime.serving.images import prepare, prepared, small
from anytime.serving.service import ClientGoneError, answers_of

SMALL_BODY = 2**15
"""Bytes that are parsed in less time than a thread takes to wake up, nearly always."""

_parsing = ThreadPoolExecutor(1, "parse")  # one at a time: a body of 4 MB of JSON takes 100 MB
_decoding = ThreadPoolExecutor(2, "decode")  # two at a time: an image of 25 megapixels takes 100 MB and more


async def parse_soon(
    request: Request, exchange: Exchange, parse: Callable[[Any], Any], body: Any, size: int | None = None
) -> Any:
    """``parse(body)``; ``size``: its bytes, if it is a message that is not bytes any more."""
    small = (len(body) if size is None else size) <= SMALL_BODY
    return parse(body) if small else await _in_thread(_parsing, request, exchange, parse, body)


async def prepare_soon(request: Request, exchange: Exchange, content: bytes, preprocessing: Preprocessing) -> Tensor:
    """An encoded image as the network sees it, a batch of one."""
    _ = exchange.left  # raises after the deadline
    if request.scope["connection"].lost:
        raise ClientGoneError
    pixels = request.scope["service"].limits.pixels
    image = small(content, pixels)
    if image is not None:
        return prepared(image, preprocessing)
    return await _in_thread(_decoding, request, exchange, prepare, content, preprocessing, pixels)


async def _in_thread(
    pool: ThreadPoolExecutor, request: Request, exchange: Exchange, work: Callable[..., Any], *arguments: Any
) -> Any:
    """Wait for work until the deadline or a disconnect. Work that has begun goes on, so it must be bounded itself."""
    limit = None if exchange.deadline is None else exchange.left
    exchange.threaded = True
    future = asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
    try:
        async with asyncio.timeout(limit):
            (result,) = await answers_of(request, [future])
    except TimeoutError:
        raise HTTPException(504, LATE) from None
    return result
