"""Preprocessing: how images become what a network sees, and what its classes are called. Saved with the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anytime.decoding import decode_image, to_rgb
from anytime.errors import AnytimeError, check_integer, check_number, require
from anytime.files import read_file


@dataclass(frozen=True)
class Preprocessing:
    """What a network expects of its images.

    Args:
        channels: number of channels; images from files are RGB (3) or gray (1).
        size: height and width that images from files are resized to.
        mean: mean of each channel, with pixels from 0 to 1.
        std: standard deviation of each channel, likewise.
        classes: names of the classes.
        crop: share of height and width that is kept, in the middle, when an image is resized.

    Examples:
        >>> import anytime
        >>> gray = anytime.Preprocessing(channels=1, size=(8, 8), mean=[0.5], std=[0.25], classes=["cat", "dog"])
        >>> gray(torch.full((1, 1, 8, 8), 255, dtype=torch.uint8)).mean().round()
        tensor(2.)
    """

    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    crop: float = 1.0

    def __post_init__(self) -> None:
        check_integer("channels", self.channels, most=2**24)
        check_number("crop", self.crop, above=0, most=1)
        for name in ("size", "mean", "std", "classes"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple):
                raise AnytimeError(f"{name}={value!r} must be a list")
            object.__setattr__(self, name, tuple(value))
        for size in self.size:
            check_integer("size", size, most=2**14)
        if len(self.size) != 2 or len(self.mean) != self.channels or len(self.std) != self.channels:
            raise AnytimeError(
                f"size={self.size}, mean={self.mean}, std={self.std}: size must be (height, width), mean and std need "
                f"one entry for each channel: {self.channels}"
            )
        for mean, std in zip(self.mean, self.std, strict=True):
            check_number("mean", mean, least=-1e6, most=1e6)
            check_number("std", std, least=1e-12, most=1e6)
        if not all(isinstance(name, str) for name in self.classes):
            raise AnytimeError("classes must be strings")

    def __call__(self, images: Any) -> Tensor:
        """Batch of images as the network sees them: N × C × H × W, floats.

        Args:
            images: uint8 pixels N × C × H × W, as a tensor or a numpy array; or an image, or a list of images, each a
                path or a Pillow image, which are resized.
        """
        if isinstance(images, np.ndarray):
            images = torch.from_numpy(np.ascontiguousarray(images))
        if not isinstance(images, Tensor):
            several = isinstance(images, Sequence) and not isinstance(images, str | bytes)
            images = self._pixels(images if several else [images])
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != self.channels:
            raise AnytimeError(
                f"got images of type {images.dtype} and shape {tuple(images.shape)}; expected torch.uint8 (0 to 255) "
                f"and N × {self.channels} × height × width"
            )
        return self.normalize(images)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Bytes to floats of mean 0 and standard deviation 1 in each channel."""
        n, channels, height, width = pixels.shape
        scale, shift = _row_scale(self.mean, self.std, width, pixels.device)
        # By whole rows: an inner dimension of three channels would be slow.
        rows = pixels.movedim(1, -1).reshape(n, height, width * channels)
        return torch.addcmul(shift, rows.float(), scale).view(n, height, width, channels).movedim(-1, 1)

    def _pixels(self, images: Sequence[Any]) -> Tensor:
        if self.channels not in (1, 3) or not images:
            raise AnytimeError(
                f"{len(images)} images for a network with channels={self.channels}: give at least one image, and uint8 "
                f"pixels N × {self.channels} × height × width unless it has 1 or 3 channels"
            )
        decoded = [center_crop(_rgb(image), self.size, self.crop) for image in images]
        arrays = [np.array(image if self.channels == 3 else image.convert("L")) for image in decoded]
        pixels = torch.from_numpy(np.stack(arrays))
        return pixels[:, None] if self.channels == 1 else pixels.movedim(-1, 1)


def _rgb(image: Any) -> Any:
    """A path or a Pillow image as a Pillow image, RGB."""
    pillow = require("PIL.Image", "data")
    try:
        if isinstance(image, str | Path):
            return decode_image(read_file(Path(image)))
        if isinstance(image, pillow.Image):
            return to_rgb(image)
    except Exception as error:  # Pillow raises what its decoders raise: OSError, SyntaxError, ValueError, …
        reason = getattr(error, "strerror", None) or error  # without errno and the path again
        raise AnytimeError(f"cannot read the image {image}: {reason}") from error
    raise AnytimeError(f"got a {type(image).__name__} for an image; expected a path, a Pillow image, or uint8 pixels")


def center_crop(image: Any, size: tuple[int, int], crop: float) -> Any:
    """Resize the middle of a Pillow image: the largest part with the proportions of ``size``, times ``crop``."""
    pillow = require("PIL.Image", "data")
    height, width = size
    box_width = min(image.width, image.height * (width / height)) * crop
    box_height = min(image.height, image.width * (height / width)) * crop
    left, top = (image.width - box_width) / 2, (image.height - box_height) / 2
    box = (left, top, left + box_width, top + box_height)
    return image.resize((width, height), pillow.Resampling.BILINEAR, box=box, reducing_gap=2.0)


@lru_cache(16)
def _row_scale(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Factor and summand for each byte of a row: of every channel of the first pixel, then of the next, and so on."""
    scale = [1 / (255 * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    return torch.tensor(scale * width, device=device), torch.tensor(shift * width, device=device)
