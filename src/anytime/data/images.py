"""Labeled images of one size, held in memory as bytes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anytime.data.augmentation import Augmentation
from anytime.errors import AnytimeError

MOST_CLASSES = 2**20
"""Where classes have no names, labels must be below this: one wrong label must not fill the memory with names."""


def numbered_classes(largest: int, where: str) -> list[str]:
    """Names of classes that have none: "0", "1", … up to the largest label."""
    if largest >= MOST_CLASSES:
        raise AnytimeError(
            f"{where}: label {largest} is out of range; labels must be integers from 0 to {MOST_CLASSES - 1}"
        )
    return [str(i) for i in range(largest + 1)]


@dataclass(frozen=True, repr=False)
class Images:
    """Labeled images of one size.

    Args:
        pixels: N × C × H × W, uint8.
        labels: N class numbers, int64.

    Examples:
        >>> images = Images(torch.zeros(20, 3, 32, 32, dtype=torch.uint8), torch.arange(20) % 4)
        >>> images[torch.tensor([0, 5])].labels
        tensor([0, 1])
    """

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.dtype != torch.uint8:
            raise AnytimeError(
                f"pixels are {self.pixels.dtype} of shape {tuple(self.pixels.shape)}; expected uint8, N × C × H × W"
            )
        if self.labels.shape != self.pixels.shape[:1] or self.labels.dtype != torch.int64:
            raise AnytimeError(
                f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}; expected int64, one for each "
                f"of {len(self.pixels)} images"
            )
        # Channels last in memory: each image, and each row of one, is contiguous. No copy where it is so already.
        object.__setattr__(self, "pixels", self.pixels.movedim(1, -1).contiguous().movedim(-1, 1))

    def __repr__(self) -> str:
        return f"Images({len(self):,} of {'×'.join(map(str, self.shape))}, {self.pixels.device})"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Tensor) -> "Images":
        return Images(self.pixels.movedim(1, -1).index_select(0, which).movedim(-1, 1), self.labels[which])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def to(self, device: torch.device) -> "Images":
        """The same images on a device."""
        return Images(self.pixels.to(device), self.labels.to(device))

    def batches(self, takes: "Iterable[Take]", augmentation: Augmentation | None = None) -> "Iterator[Images]":
        """One batch after the other; with an augmentation, changed at random."""
        for take in takes:
            batch = self[take.indices.to(self.labels.device)]
            if augmentation is not None:
                batch = Images(augmentation(batch.pixels, take.seed, take.first, take.total), batch.labels)
            yield batch


class Take(NamedTuple):
    """Which images make a batch, or one process's part of it."""

    indices: Tensor
    seed: int = 0
    """Seed of the random numbers of the whole batch."""
    first: int = 0
    """Position of the first of these images in the whole batch."""
    total: int = 0
    """Number of images in the whole batch."""
