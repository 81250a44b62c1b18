"""Labeled images of one size, held in memory as bytes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anytime.data.augmentation import Augmentation
from anytime.errors import AnytimeError


@dataclass(frozen=True)
class Images:
    """Labelled images of one size.

    Args:
        pixels: N × C × H × W, uint8.
        labels: N class numbers, int64.
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
                f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}; expected int64, one for each of "
                f"{len(self.pixels)} images"
            )
        # Channels last in memory: an image, and a row of one, is a single run of bytes. No copy where it is so already.
        object.__setattr__(self, "pixels", self.pixels.movedim(1, -1).contiguous().movedim(-1, 1))

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
        """One batch after the other, augmented if asked."""
        for take in takes:
            batch = self[take.indices.to(self.labels.device)]
            if augmentation is not None:
                batch = Images(augmentation(batch.pixels, take.seed, take.first, take.total), batch.labels)
            yield batch


class Take(NamedTuple):
    """Which images make a batch, or a process's part of one."""

    indices: Tensor
    seed: int = 0
    """Of the whole batch's random numbers."""
    first: int = 0
    """Where in the whole batch this part begins."""
    total: int = 0
    """How many images the whole batch has."""
