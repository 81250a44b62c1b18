"""Images that clients send, to what a network sees."""

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from anytime.decoding import decode_image, open_image
from anytime.errors import AnytimeError, require
from anytime.preprocessing import Preprocessing

FORMATS = ("PNG", "JPEG", "WEBP")
"""Pillow's names of the formats that are accepted: what browsers and cameras write, and no other decoder."""

SMALL_BYTES, SMALL_PIXELS = 2**15, 2**14
"""An image up to this size is decoded in less time than a thread takes to wake up."""

_threads = ThreadPoolExecutor(2, "decode")  # two at a time: an image of 25 megapixels takes 100 MB and more


def prepare(content: bytes, preprocessing: Preprocessing, pixels: int) -> Tensor:
    """An encoded image as the network sees it, a batch of one; at most so many pixels are decoded."""
    try:
        image = decode_image(content, FORMATS, pixels)
    except Exception as error:  # Pillow raises what its decoders raise: OSError, SyntaxError, ValueError, …
        raise _refused(error) from error
    return preprocessing(image)


async def prepare_soon(content: bytes, preprocessing: Preprocessing, pixels: int) -> Tensor:
    """The same, without keeping the event loop waiting for a large image."""
    if len(content) <= SMALL_BYTES and _pixels(content, pixels) <= SMALL_PIXELS:
        return prepare(content, preprocessing, pixels)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, prepare, content, preprocessing, pixels)


def warm_up(preprocessing: Preprocessing) -> None:
    """Prepare an image of each format, since the first one takes a hundred times as long."""
    for form in FORMATS:
        content = io.BytesIO()
        require("PIL.Image", "serve").new("RGB", (8, 8)).save(content, form)
        prepare(content.getvalue(), preprocessing, 64)


def _pixels(content: bytes, most: int) -> int:
    try:
        image = open_image(content, FORMATS, most)
    except Exception as error:
        raise _refused(error) from error
    return image.width * image.height


def _refused(error: Exception) -> AnytimeError:
    reason = "it is none" if type(error).__name__ == "UnidentifiedImageError" else str(error)
    return AnytimeError(f"cannot read the body as a PNG, JPEG or WebP image: {reason[:200]}")
