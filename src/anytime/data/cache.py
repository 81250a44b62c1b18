"""A cache of small images: decoded once into a file that later runs map into memory."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from anytime.data.encoded import Encoded
from anytime.distributed import cores
from anytime.errors import AnytimeError
from anytime.files import read_tensors, write_tensors
from anytime.progress import counted

_FORMAT = 2
"""Part of the names of the files: to be increased when images are decoded differently."""

logger = logging.getLogger(__name__)


def folder() -> Path:
    """The folder of the cache: ``$ANYTIME_CACHE``, or ``anytime`` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ANYTIME_CACHE") or Path(home) / "anytime")


def decoded(images: Encoded, title: str, show: bool = True) -> torch.Tensor:
    """All pixels, N × C × H × W with channels last in memory, uint8; from the cache, or decoded and added to it.

    A file is named after a digest of the encoded images, and carries a checksum of the decoded ones. It is put into
    place when it is complete, so two processes may build it at once. Without a usable cache, images are decoded again.
    """
    path = folder() / f"{images.key()}-{_FORMAT}.safetensors"
    if os.path.exists(path):
        try:
            return read_tensors(path)[0]["pixels"].movedim(-1, 1)
        except (AnytimeError, LookupError) as error:
            logger.warning("decoding %s again, since the cached images cannot be used: %s", title, error)
    pixels = decode(images, title, show)
    try:
        write_tensors(path, {"pixels": pixels}, {"title": title})
    except AnytimeError as error:
        logger.warning("the decoded images of %s are not cached: %s", title, error)
    return pixels.movedim(-1, 1)


def decode(images: Encoded, title: str, show: bool) -> torch.Tensor:
    """Decode all images, N × H × W × C, on all cores."""
    first = np.asarray(images.image(0))
    pixels = np.empty((len(images), *first.shape), dtype=np.uint8)

    def work(i: int) -> None:
        image = np.asarray(images.image(i))
        if image.shape != first.shape:
            raise AnytimeError(
                f"the image in {images.where(i)} has {image.shape[1]}×{image.shape[0]} pixels, the first one "
                f"{first.shape[1]}×{first.shape[0]}: small images must all have the same size, "
                "unless they are resized to more than 64 pixels (--size 96)"
            )
        pixels[i] = image

    with ThreadPoolExecutor(cores()) as pool:  # Pillow releases the global interpreter lock while it decodes
        try:
            for _ in counted(pool.map(work, range(len(images)), chunksize=256), len(images), f"decoding {title}", show):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return torch.from_numpy(pixels)
