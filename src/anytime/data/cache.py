"""Small images, decoded once: a file of bytes that every later run maps into memory."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from anytime.data.sources import Encoded
from anytime.errors import AnytimeError
from anytime.files import read_tensors, write_tensors
from anytime.progress import counted

_FORMAT = 1


def folder() -> Path:
    """Where caches are: ``$ANYTIME_CACHE``, or ``anytime`` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ANYTIME_CACHE") or Path(home) / "anytime")


def decoded(images: Encoded, title: str, show: bool = True) -> torch.Tensor:
    """All pixels, N × C × H × W with channels last in memory, uint8; from the cache, or decoded and put there.

    The file's name is a digest of the contents, and it is renamed into place when it is whole: two processes may
    build it at once, and a half one is never read.
    """
    path = folder() / f"{images.key()}-{_FORMAT}.safetensors"
    if path.is_file():
        try:
            return read_tensors(path)[0]["pixels"].movedim(-1, 1)
        except (AnytimeError, KeyError) as error:
            print(f"the cache {path} is damaged and is built anew: {error}", file=sys.stderr)
    pixels = decode(images, title, show)
    write_tensors(path, {"pixels": pixels}, {"title": title})
    return pixels.movedim(-1, 1)


def decode(images: Encoded, title: str, show: bool) -> torch.Tensor:
    """Decode all, N × H × W × C, on every core."""
    first = np.asarray(images.image(0))
    pixels = np.empty((len(images), *first.shape), dtype=np.uint8)

    def work(i: int) -> None:
        image = np.asarray(images.image(i))
        if image.shape != first.shape:
            raise AnytimeError(
                f"the image in {images.where(i)} has {image.shape[1]}×{image.shape[0]} pixels, the first one "
                f"{first.shape[1]}×{first.shape[0]}: images this small must all have one size"
            )
        pixels[i] = image

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without holding the interpreter
        try:
            for _ in counted(pool.map(work, range(len(images)), chunksize=256), len(images), f"decoding {title}", show):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return torch.from_numpy(pixels)
