"""Large images: decoded, cut and mirrored by worker processes while the network trains."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from anytime.data.augmentation import Augmentation, mix
from anytime.data.images import Images, Take
from anytime.data.sources import Encoded
from anytime.errors import AnytimeError, require


@dataclass(frozen=True)
class Stream:
    """A split of images that are too large, or too unlike in size, to be held decoded.

    For training each is cut out at random, 8 % to all of its area and 3:4 to 4:3 in shape, brought to one size
    and mirrored at random; for evaluation its shorter side is brought to 8/7 of the size and the middle is cut out: the
    usual treatment of ILSVRC (256 and 224).

    Args:
        encoded: the images on disk.
        which: which of them, in what order.
        size: height and width they are brought to.
        workers: processes that decode; 0 decodes in this one.
    """

    encoded: Encoded
    which: Tensor
    size: int = 224
    workers: int = os.cpu_count() or 1

    def __post_init__(self) -> None:
        if self.size < 8:
            raise AnytimeError(f"size={self.size}: images are brought to 8×8 pixels or more")

    def __len__(self) -> int:
        return len(self.which)

    @property
    def labels(self) -> Tensor:
        """The class numbers."""
        return self.encoded.labels[self.which]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width that they are brought to."""
        return 3, self.size, self.size

    def __getitem__(self, which: Tensor | slice) -> "Stream":
        return Stream(self.encoded, self.which[which], self.size, self.workers)

    def to(self, _device: torch.device) -> "Stream":
        """They stay on disk."""
        return self

    def batches(self, takes: Iterable[Take], augmentation: Augmentation | None = None) -> Iterator[Images]:
        """One batch after the other, decoded ahead; with an augmentation, cropped at random."""
        jobs = [
            [(int(self.which[i]), mix(take.seed, take.first + place)) for place, i in enumerate(take.indices.tolist())]
            for take in takes
        ]
        cuts = _Cuts(self.encoded, self.size, augmentation is not None, augmentation is not None and augmentation.flip)
        for batch in DataLoader(cuts, batch_sampler=jobs, num_workers=self.workers, collate_fn=_together):
            if isinstance(batch, str):  # what went wrong in a worker, without the trace that it would add
                raise AnytimeError(batch)
            yield batch


class _Cuts(Dataset[Any]):
    """Decoded and cut images by (index, seed)."""

    def __init__(self, encoded: Encoded, size: int, random: bool, flip: bool) -> None:
        self.encoded, self.size, self.random, self.flip = encoded, size, random, flip

    def __getitem__(self, job: tuple[int, int]) -> tuple[np.ndarray, int] | str:
        index, seed = job
        try:
            image = self.encoded.image(index)
        except AnytimeError as error:
            return str(error)
        if self.random:
            image = self._random_cut(image, np.random.default_rng(seed))
        else:
            image = self._middle(image)
        return np.array(image), int(self.encoded.labels[index])

    def _random_cut(self, image: Any, draw: np.random.Generator) -> Any:
        pillow = require("PIL.Image", "data")
        width, height = image.size
        box = _random_box(width, height, draw)
        image = image.resize((self.size, self.size), pillow.Resampling.BILINEAR, box=box, reducing_gap=2.0)
        if self.flip and draw.random() < 0.5:
            image = image.transpose(pillow.Transpose.FLIP_LEFT_RIGHT)
        return image

    def _middle(self, image: Any) -> Any:
        pillow = require("PIL.Image", "data")
        width, height = image.size
        side = min(width, height) * 7 / 8
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        return image.resize((self.size, self.size), pillow.Resampling.BILINEAR, box=box, reducing_gap=2.0)


def _random_box(width: int, height: int, draw: np.random.Generator) -> tuple[float, float, float, float]:
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1.0)
        ratio = np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.integers(0, width - w + 1), draw.integers(0, height - h + 1)
            return left, top, left + w, top + h
    side = min(width, height)  # a shape so extreme that no cut fitted: the middle
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def _together(samples: list[tuple[np.ndarray, int] | str]) -> Images | str:
    if wrong := [sample for sample in samples if isinstance(sample, str)]:
        return wrong[0]
    pixels = torch.from_numpy(np.stack([sample[0] for sample in samples])).movedim(-1, 1)
    return Images(pixels, torch.tensor([sample[1] for sample in samples]))
