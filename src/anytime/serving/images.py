"""Images that clients send, to what a network sees."""

import io
from typing import Any

from torch import Tensor

from anytime.decoding import open_image, to_rgb
from anytime.errors import AnytimeError, require
from anytime.preprocessing import Preprocessing

FORMATS = ("PNG", "JPEG", "WEBP")
"""Pillow's names of the formats that are accepted: what browsers and cameras write, and no other decoder."""

SMALL_BYTES, SMALL_PIXELS = 2**15, 2**14
"""An image up to this size is decoded in less time than a thread takes to wake up."""

PACKED = (b"zTXt", b"iTXt", b"iCCP")
"""Parts of a PNG file that are unpacked as its header is read: 30 KB of them to 30 MB."""


def prepare(content: bytes, preprocessing: Preprocessing, pixels: int) -> Tensor:
    """An encoded image as the network sees it, a batch of one; at most so many pixels are decoded."""
    return prepared(_opened(content, pixels), preprocessing)


def small(content: bytes, pixels: int) -> Any:
    """An image that needs no thread, its header read; None if it needs one."""
    if len(content) > SMALL_BYTES or any(kind in content for kind in PACKED):
        return None
    image = _opened(content, pixels)
    return image if image.width * image.height <= SMALL_PIXELS else None


def warm_up(preprocessing: Preprocessing) -> None:
    """Prepare an image of each format, since the first one takes a hundred times as long."""
    for form in FORMATS:
        content = io.BytesIO()
        require("PIL.Image", "serve").new("RGB", (8, 8)).save(content, form)
        prepare(content.getvalue(), preprocessing, 64)


def _opened(content: bytes, pixels: int) -> Any:
    try:
        return open_image(content, FORMATS, pixels)
    except Exception as error:  # Pillow raises what its decoders raise: OSError, SyntaxError, ValueError, …
        raise _refused(error) from error


def prepared(image: Any, preprocessing: Preprocessing) -> Tensor:
    """A Pillow image as the network sees it, a batch of one."""
    try:
        image = to_rgb(image)
    except Exception as error:
        raise _refused(error) from error
    return preprocessing(image)


def _refused(error: Exception) -> AnytimeError:
    reason = "it is none" if type(error).__name__ == "UnidentifiedImageError" else str(error)
    return AnytimeError(f"cannot read the body as a PNG, JPEG or WebP image: {reason[:200]}")
