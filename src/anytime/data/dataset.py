"""Labelled images: held as one tensor of bytes, given out as normalized batches."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from anytime.data.images import Images, Take
from anytime.data.stream import Stream
from anytime.errors import AnytimeError


@dataclass(frozen=True)
class Data:
    """A data set: what to train on, what to look at meanwhile, what to report.

    Args:
        train: the images to train on.
        validation: held out from training; its errors are logged after every epoch.
        test: what results are reported on, once, at the end.
        classes: their names; a label is an index into them.
        name: as it was asked for.
        mean: of each channel over the training images, with pixels from 0 to 1; computed if not given.
        std: likewise the standard deviation.
    """

    train: Images | Stream
    validation: Images | Stream | None = None
    test: Images | Stream | None = None
    classes: list[str] = field(default_factory=list)
    name: str = "data"
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        splits = [split for split in (self.train, self.validation, self.test) if split is not None]
        if not self.classes:
            names = [str(i) for i in range(1 + max(int(split.labels.max()) for split in splits))]
            object.__setattr__(self, "classes", names)
        for split in splits:
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= len(self.classes):
                raise AnytimeError(
                    f"data {self.name!r} has labels from {low} to {high}, but {len(self.classes)} classes: "
                    f"labels are 0 to {len(self.classes) - 1}"
                )
        if not self.mean:
            mean, std = _statistics(self.train.pixels) if isinstance(self.train, Images) else IMAGENET
            object.__setattr__(self, "mean", mean)
            object.__setattr__(self, "std", std)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.train.shape

    def to(self, device: torch.device) -> "Data":
        """The same data, those images on the device that are held in memory."""
        moved = {name: getattr(self, name) for name in ("train", "validation", "test")}
        return replace(self, **{name: split and split.to(device) for name, split in moved.items()})

    def normalize(self, pixels: Tensor) -> Tensor:
        """Bytes to floats of mean 0 and deviation 1 in each channel: what the network sees."""
        n, channels, height, width = pixels.shape
        scale, shift = _row_scale(tuple(self.mean), tuple(self.std), width, pixels.device)
        # Whole rows at once: three channels alone are too few to be fast.
        rows = pixels.movedim(1, -1).reshape(n, height, width * channels)
        return torch.addcmul(shift, rows.float(), scale).view(n, height, width, channels).movedim(-1, 1)

    def batches(
        self, images: Images | Stream | None, batch_size: int = 500, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images as the network sees them and their labels, batch by batch, in order.

        Example:
            >>> data = load_data("digits")
            >>> [tuple(x.shape) for x, labels in data.batches(data.validation, batch_size=150)]
            [(150, 1, 8, 8), (50, 1, 8, 8)]
        """
        if images is None:
            raise AnytimeError(f"data {self.name!r} has no such images")
        for batch in images.batches(Take(indices) for indices in torch.arange(len(images)).split(batch_size)):
            yield self.normalize(batch.pixels.to(device)), batch.labels.to(device)

    def digest(self) -> str:
        """A short name for what is trained on: labels, classes, normalisation and a thousand of the images."""
        digest = hashlib.blake2b(repr((self.classes, self.mean, self.std)).encode(), digest_size=8)
        digest.update(self.train.labels.cpu().numpy().tobytes())
        if isinstance(self.train, Images):
            some = self.train.pixels[:: max(1, len(self.train) // 1000)]
            digest.update(some.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def subset(self, n: int, seed: int = 0) -> "Data":
        """The same data with a balanced random part of the training images, normalized as before."""
        if not 1 <= n <= len(self.train):
            raise AnytimeError(
                f"a subset of {n} images: there are {len(self.train)}, so ask for 1 to {len(self.train)}"
            )
        return replace(self, train=self.train[balanced(self.train.labels, n, seed)])


@lru_cache(16)
def _row_scale(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What a row of bytes is multiplied with, and what is added, channel after channel, pixel after pixel."""
    scale = [1 / (255 * s) for s in std]
    shift = [-m / s for m, s in zip(mean, std, strict=True)]
    return torch.tensor(scale * width, device=device), torch.tensor(shift * width, device=device)


IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""Mean and deviation that large images are normalized by, as everywhere."""


def _statistics(pixels: Tensor) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel, pixels from 0 to 1, from exact counts of the 256 values."""
    mean, std = [], []
    for channel in pixels.unbind(1):
        counts = channel.flatten().to(torch.int64).bincount(minlength=256).double()
        values = torch.arange(256, dtype=torch.float64, device=pixels.device) / 255
        average = (counts @ values / counts.sum()).item()
        mean.append(average)
        std.append(max((counts @ (values - average).square() / counts.sum()).item() ** 0.5, 1e-6))
    return mean, std


def balanced(labels: Tensor, n: int, seed: int = 0) -> Tensor:
    """Indices of a random part of ``n`` with as many of each class as can be, in the order they had."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()
    # An image's rank within its class; taking the lowest ranks first takes from all classes alike.
    rank = torch.cat([torch.arange(int(count)) for count in counts])
    order = torch.empty_like(rank)
    order[by_class] = rank
    return shuffled[order[shuffled].argsort(stable=True)[:n]].sort().values
