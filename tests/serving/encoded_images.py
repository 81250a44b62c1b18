"""Images as clients send them."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def encoded(form="PNG", size=8, seed=0):
    pixels = np.random.default_rng(seed).integers(256, size=(size, size, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(side):
    """A PNG of a few kilobytes that is side × side pixels large."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(3 * side + 1)) for _ in range(min(side, 200))) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def packed_text(kind, count, size=2**20 - 1):
    """A PNG of 8 × 8 pixels and a few kilobytes with so many parts that are unpacked to a megabyte each."""
    head = {b"zTXt": b"k\0\0", b"iTXt": b"k\0\1\0\0\0", b"iCCP": b"k\0\0"}[kind]
    part = chunk(kind, head + zlib.compress(bytes(size), 9))
    content, end = encoded(size=8), len(b"\x89PNG\r\n\x1a\n") + 25  # behind its first part
    return content[:end] + count * part + content[end:]


def many_scans(side, scans):
    """A progressive JPEG of side × side gray pixels, with so many more scans of a few bytes each."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    last = content[content.rindex(b"\xff\xc4") : -2]
    return content[:-2] + scans * last + content[-2:]
