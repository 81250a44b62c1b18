"""Encoded image files to RGB images of 8 bits per channel."""

import io
import re
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from anytime.errors import require

FORMATS = {
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "PPM": (".ppm", ".pgm"),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
}
"""Pillow's names of the formats that are read, and the endings of their files.

No other format is tried, whatever a file is called: Pillow would start Ghostscript for PostScript.
"""

LARGEST = 89_478_485
"""Pixels that an image may have: the number from which Pillow warns of a decompression bomb."""


PNG = b"\x89PNG\r\n\x1a\n"

MOST_SCANS = 100
"""Scans that a JPEG file may have: each goes over all of its pixels, even one of 42 bytes. Encoders write about ten."""

FULL_SCANS = 16
"""Scans of a JPEG file with as many pixels as are allowed; smaller ones may have more."""

MOST_PARTS = 2**16
"""Parts that a JPEG or PNG file may have: Pillow reads them one by one, in Python."""

_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")
"""The next part of a JPEG file: not a byte of pixels (0), nor one of the marks within them or without a length."""


def decode_image(content: bytes, formats: Iterable[str] = FORMATS, largest: int = LARGEST) -> Any:
    """The first frame of an encoded image as a Pillow image, RGB.

    Args:
        content: the bytes of the file.
        formats: Pillow's names of the formats that are accepted.
        largest: pixels that the image may have; looked at before anything is decoded.

    Gray levels of 16 bits keep their upper 8, as those of colors do (Pillow's ``convert`` would clip them instead);
    transparent parts are shown on white. Pixels without a known range, such as floats, are refused with
    ``ValueError``; what Pillow cannot decode raises whatever its decoders raise.
    """
    return to_rgb(open_image(content, formats, largest))


def to_rgb(image: Any) -> Any:
    """A Pillow image as ``decode_image`` gives it."""
    pillow = require("PIL.Image", "data")
    # TIFF has 32-bit integers of mode I, too; those of PNG and PPM are of 16 bits.
    sixteen_bits = image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM"))
    if sixteen_bits:
        levels = np.asarray(image)
        gray = (levels >> 8).astype(np.uint8)
        gray[levels == image.info.get("transparency", -1)] = 255  # the level that stands for nothing: white
        return pillow.fromarray(gray).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are 32-bit numbers (mode {image.mode}) of unknown range; save it with 8 bits")
    if image.has_transparency_data:
        page = pillow.new("RGBA", image.size, "white")
        page.alpha_composite(image.convert("RGBA"))
        image = page
    return image.convert("RGB")


def open_image(content: bytes, formats: Iterable[str] = FORMATS, largest: int = LARGEST) -> Any:
    """A Pillow image whose header has been read and whose pixels have not; see ``decode_image``."""
    pillow = require("PIL.Image", "data")
    scans = check_jpeg(content) if content.startswith(b"\xff\xd8") else 1
    if content.startswith(PNG):
        check_png(content)
    try:
        image = pillow.open(io.BytesIO(content), formats=list(formats))
    except pillow.UnidentifiedImageError:  # its message names an object in memory
        message = f"it is not an image file of a known format ({', '.join(formats)})"
        raise pillow.UnidentifiedImageError(message) from None
    if image.width * image.height > largest:
        raise ValueError(f"it has {image.width}×{image.height} pixels; at most {largest:,} are allowed")
    if scans * image.width * image.height > FULL_SCANS * largest:
        raise ValueError(f"it has {image.width}×{image.height} pixels in {scans} scans; save it as a baseline JPEG")
    return image


def check_jpeg(content: bytes) -> int:
    """The number of scans of a JPEG file, at most so many parts and scans; raises ``ValueError`` if there are more."""
    scans = parts = at = 0
    while (marker := _MARKER.search(content, at)) and content[marker.start() + 1] != 0xD9:  # its end
        scans, parts = scans + (content[marker.start() + 1] == 0xDA), parts + 1
        if scans > MOST_SCANS or parts > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_SCANS} scans or {MOST_PARTS:,} parts; save it as a baseline JPEG")
        at = marker.end() + max(2, int.from_bytes(content[marker.end() : marker.end() + 2]))
    return scans


def check_png(content: bytes) -> None:
    """Compare the checksums of a PNG file's parts, which decoding does not; raises ``ValueError`` if one is wrong."""
    at, kind, parts = len(PNG), b"", 0
    while kind != b"IEND":
        parts += 1
        if parts > MOST_PARTS:
            raise ValueError(f"the file has more than {MOST_PARTS:,} parts")
        if at + 12 > len(content) or (end := at + 8 + int.from_bytes(content[at : at + 4])) + 4 > len(content):
            raise ValueError("the file is cut short")
        kind = content[at + 4 : at + 8]
        if zlib.crc32(memoryview(content)[at + 4 : end]) != int.from_bytes(content[end : end + 4]):
            raise ValueError(f"the file is damaged: the checksum of its part {kind.decode('latin-1')} is wrong")
        at = end + 4
