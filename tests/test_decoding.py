"""Encoded images become the right 8-bit RGB images, or are refused."""

import io
import os
import struct
import sys
import zlib

import numpy as np
import pytest
import shared_data as images
from PIL import Image

import anytime
from anytime.data.sources import read_folder
from anytime.decoding import FORMATS, check_jpeg, decode_image


def saved(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def pixels(content):
    image = decode_image(content)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_gray_of_16_bits_keeps_the_upper_8(form):
    values = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    assert (pixels(saved(Image.fromarray(values), form)) == (values >> 8)[..., None]).all()


def test_gray_of_16_bits_with_a_transparent_level():
    values = np.arange(2**16, dtype=np.uint16).reshape(256, 256)
    expected = np.where(values == 7, 255, values >> 8)
    assert (pixels(saved(Image.fromarray(values), "PNG", transparency=7)) == expected[..., None]).all()


def test_big_endian_too():
    values = np.arange(0, 2**16, 257, dtype=np.uint16).reshape(16, 16)
    content = saved(Image.fromarray(values.astype(">u2")), "TIFF")
    assert (pixels(content)[..., 0] == values >> 8).all()


def png(width, height, bits, color, data):
    """A PNG file made by hand."""
    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def test_colors_of_16_bits_keep_the_upper_8():
    values = np.random.default_rng(0).integers(2**16, size=(5, 7, 3), dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    assert (pixels(png(7, 5, 16, 2, rows)) == values >> 8).all()


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_of_unknown_range_are_refused(kind):
    with pytest.raises(ValueError, match="unknown range"):
        decode_image(saved(Image.fromarray(np.ones((4, 4), kind)), "TIFF"))


def test_transparent_parts_are_white():
    black = np.zeros((4, 4, 4), np.uint8)
    black[:2, :, 3] = 255  # the upper half is opaque
    black[2, :, 3] = 128
    expected = np.array([0, 0, 127, 255], np.uint8)[:, None, None]
    for form in ("PNG", "WEBP", "TIFF"):
        options = {"lossless": True, "exact": True} if form == "WEBP" else {}
        assert np.abs(pixels(saved(Image.fromarray(black), form, **options)).astype(int) - expected).max() <= 1
    gray = Image.fromarray(black[..., 0])
    for image, key in [(gray, 0), (gray.convert("P"), 0), (gray.convert("RGB"), (0, 0, 0))]:
        assert (pixels(saved(image, "PNG", transparency=key)) == 255).all()
    opaque = images.some_pixels(1)[0]
    assert (pixels(saved(Image.fromarray(opaque).convert("RGBA"), "PNG")) == opaque).all()


def test_palettes_and_gray_levels():
    colors = np.array([[255, 0, 0], [0, 128, 0]], np.uint8)
    image = Image.fromarray(np.eye(6, dtype=np.uint8))
    image.putpalette(colors.flatten().tolist())
    for form in ("PNG", "GIF", "BMP", "TIFF"):
        assert (pixels(saved(image, form)) == colors[np.eye(6, dtype=int)]).all()
    gray = images.some_pixels(1)[0][..., 0]
    assert (pixels(saved(Image.fromarray(gray), "PNG")) == gray[..., None]).all()
    assert (pixels(saved(Image.fromarray(gray > 99), "PNG")) == 255 * (gray > 99)[..., None]).all()


def test_every_format_is_read():
    ours = images.some_pixels(1, size=16)[0]
    for form in FORMATS:
        options = {"lossless": True} if form == "WEBP" else {}
        close = np.abs(pixels(saved(Image.fromarray(ours), form, **options)).astype(int) - ours)
        assert close.max() == 0 or form in ("JPEG", "GIF")


def test_postscript_never_reaches_ghostscript(tmp_path, monkeypatch):
    program = tmp_path / "bin/gs"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nopen({str(tmp_path / 'started')!r}, 'w')\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    images.write_class_folders(tmp_path / "data")
    (tmp_path / "data/val/a/000.jpeg").write_bytes(script)
    with pytest.raises(anytime.AnytimeError, match=r"val/a/000.jpeg: it is not an image file"):
        anytime.load_data(tmp_path / "data")
    assert not (tmp_path / "started").exists()


def test_a_damaged_png_is_refused():
    content = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(content, "PNG")
    whole = content.getvalue()
    for i in range(len(whole)):
        flipped = bytearray(whole)
        flipped[i] ^= 1
        with pytest.raises(Exception):  # noqa: B017  Pillow raises what its decoders raise
            decode_image(bytes(flipped))
        with pytest.raises(Exception):  # noqa: B017
            decode_image(whole[:i])
    assert np.asarray(decode_image(whole + b"what follows is ignored")).shape == (8, 8, 3)


def test_scans_are_counted_before_anything_is_decoded():
    """Each goes over all pixels, so a few bytes would keep a decoder busy; marks within other parts are none."""
    image = Image.fromarray(images.some_pixels(1, size=64)[0])
    assert check_jpeg(saved(image, "JPEG", comment=200 * b"\xff\xda")) == 1
    many = saved(image, "JPEG", progressive=True)
    count, last = check_jpeg(many), many[many.rindex(b"\xff\xc4") : -2]
    assert count > 5
    for more in (0, 100 - count):
        assert check_jpeg(many[:-2] + more * last + many[-2:]) == count + more
        assert decode_image(many[:-2] + more * last + many[-2:]).size == (64, 64)
    with pytest.raises(ValueError, match="more than 100 scans"):
        decode_image(many[:-2] + 100 * last + many[-2:])
    with pytest.raises(ValueError, match=f"64×64 pixels in {count + 50} scans"):
        decode_image(many[:-2] + 50 * last + many[-2:], largest=64 * 64)


def test_files_of_countless_parts_are_refused():
    jpeg = saved(Image.new("L", (8, 8)), "JPEG")
    with pytest.raises(ValueError, match="65,536 parts"):
        decode_image(jpeg[:2] + 70_000 * b"\xff\xfe\0\2" + jpeg[2:])
    whole = png(8, 8, 8, 0, bytes(72))
    empty = struct.pack(">I", 0) + b"teXt" + struct.pack(">I", zlib.crc32(b"teXt"))
    with pytest.raises(ValueError, match="65,536 parts"):
        decode_image(whole[:33] + 70_000 * empty + whole[33:])


def test_a_decompression_bomb_is_refused(tmp_path):
    (tmp_path / "train/a").mkdir(parents=True)
    (tmp_path / "train/a/0.png").write_bytes(png(10_000, 10_000, 8, 0, b""))
    with pytest.raises(anytime.AnytimeError, match=r"train/a/0.png: .*pixels"):
        read_folder(tmp_path)["train"].image(0)
