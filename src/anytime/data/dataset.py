"""A data set of labeled images: its splits, classes and normalization."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from anytime.data.images import Images, Take, numbered_classes
from anytime.data.stream import CROP, Stream
from anytime.errors import AnytimeError, check_integer
from anytime.preprocessing import Preprocessing


@dataclass(frozen=True, repr=False)
class Data:
    """A data set of labeled images.

    Args:
        train: images to train on.
        validation: images held out from training; their errors are logged after every epoch.
        test: images that results are reported on, once, at the end.
        classes: names of the classes; a label is an index into them. Default: numbers.
        name: for messages and records.
        mean: mean of each channel over the training images, with pixels from 0 to 1. Default: computed.
        std: standard deviation, likewise.

    Examples:
        >>> images = Images(torch.zeros(20, 3, 32, 32, dtype=torch.uint8), torch.arange(20) % 4)
        >>> Data(train=images, test=images, classes=["cat", "dog", "hen", "owl"], name="pets")
        Data('pets': 20 train, 20 test images of 3×32×32, 4 classes)
    """

    train: Images | Stream
    validation: Images | Stream | None = None
    test: Images | Stream | None = None
    classes: list[str] = field(default_factory=list)
    name: str = "data"
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, split in self.splits().items():
            if len(split) == 0:
                raise AnytimeError(f"data {self.name!r} has no images in the split {name!r}")
        shapes = {name: "×".join(map(str, split.shape)) for name, split in self.splits().items()}
        if len(set(shapes.values())) > 1:
            each = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise AnytimeError(f"data {self.name!r}: the splits must have images of one size, and have {each}")
        if not self.classes:
            largest = max(int(split.labels.max()) for split in self.splits().values())
            object.__setattr__(self, "classes", numbered_classes(largest, f"data {self.name!r}"))
        for split in self.splits().values():
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= len(self.classes):
                raise AnytimeError(
                    f"data {self.name!r} has labels from {low} to {high}, but {len(self.classes)} classes: "
                    f"labels must be integers from 0 to {len(self.classes) - 1}"
                )
        if not self.mean:
            mean, std = _statistics(self.train.pixels) if isinstance(self.train, Images) else IMAGENET
            object.__setattr__(self, "mean", mean)
            object.__setattr__(self, "std", std)

    def splits(self) -> dict[str, Images | Stream]:
        """The splits that the data set has, by name: train, validation, test."""
        found = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in found.items() if split is not None}

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(split):,} {name}" for name, split in self.splits().items())
        return f"Data({self.name!r}: {sizes} images of {'×'.join(map(str, self.shape))}, {len(self.classes)} classes)"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.train.shape

    def to(self, device: torch.device) -> "Data":
        """The same data; images that are held in memory are moved to the device."""
        return replace(self, **{name: split.to(device) for name, split in self.splits().items()})

    def normalize(self, pixels: Tensor) -> Tensor:
        """Bytes to floats of mean 0 and standard deviation 1 in each channel: what the network sees."""
        return self.preprocessing.normalize(pixels)

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """What a network trained on these images expects of others."""
        channels, height, width = self.shape
        crop = CROP if isinstance(self.train, Stream) else 1.0
        mean, std, classes = tuple(self.mean), tuple(self.std), tuple(self.classes)
        return Preprocessing(channels, (height, width), mean, std, classes, crop)

    def matching(self, preprocessing: Preprocessing | None) -> "Data":
        """The same images, normalized as those that a network was trained on; None: as they are.

        Raises:
            AnytimeError: the network was trained for other classes or another number of channels.
        """
        if preprocessing is None:
            return self
        classes = list(preprocessing.classes) or self.classes  # none: their names are not known
        if classes != self.classes or preprocessing.channels != self.shape[0]:
            raise AnytimeError(
                f"the network was trained for {_some(classes)} and images of "
                f"{_channels(preprocessing.channels)}; data {self.name!r} has {_some(self.classes)} and "
                f"{_channels(self.shape[0])}"
            )
        return self.normalized_as(preprocessing)

    def normalized_as(self, preprocessing: Preprocessing) -> "Data":
        """The same images and classes, normalized by the mean and deviation that a network expects."""
        if preprocessing.channels != self.shape[0]:
            raise AnytimeError(
                f"the network is for images of {_channels(preprocessing.channels)}; data {self.name!r} has "
                f"{_channels(self.shape[0])}"
            )
        return replace(self, mean=list(preprocessing.mean), std=list(preprocessing.std))

    def batches(
        self, images: Images | Stream | None, batch_size: int = 500, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images as the network sees them and their labels, batch by batch, in order.

        Examples:
            >>> import anytime
            >>> data = anytime.load_data("digits")
            >>> [tuple(x.shape) for x, labels in data.batches(data.validation, batch_size=150)]
            [(150, 1, 8, 8), (50, 1, 8, 8)]
        """
        if images is None:
            missing = " and no ".join(name for name in ("train", "validation", "test") if name not in self.splits())
            raise AnytimeError(f"data {self.name!r} has no {missing} images; it has: {', '.join(self.splits())}")
        check_integer("batch_size", batch_size)
        for batch in images.batches(Take(indices) for indices in torch.arange(len(images)).split(batch_size)):
            yield self.normalize(batch.pixels.to(device)), batch.labels.to(device)

    def digest(self) -> str:
        """A digest of what is trained on: labels, classes, normalization, size and about a thousand of the images."""
        digest = hashlib.blake2b(repr((self.classes, self.mean, self.std)).encode(), digest_size=8)
        digest.update(self.train.labels.cpu().numpy().tobytes())
        step = max(1, len(self.train) // 1000)
        if isinstance(self.train, Images):
            digest.update(self.train.pixels[::step].cpu().contiguous().numpy().tobytes())
        else:
            digest.update(repr(self.train.shape).encode())
            for i in self.train.which[::step].tolist():
                digest.update(self.train.encoded.content(i))
        return digest.hexdigest()

    def subset(self, n: int, seed: int = 0) -> "Data":
        """The same data with a balanced random subset of ``n`` training images, normalized as before."""
        if check_integer("n", n) > len(self.train):
            raise AnytimeError(f"n={n} must be an integer from 1 to {len(self.train)}, the number of training images")
        return replace(self, train=self.train[balanced(self.train.labels, n, seed)])


def _some(classes: Sequence[str]) -> str:
    return f"{len(classes)} classes ({', '.join(classes[:3])}{', …' if len(classes) > 3 else ''})"


def _channels(n: int) -> str:
    return f"{n} channel{'s' * (n != 1)}"


IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""Mean and standard deviation of the channels of ImageNet, by which streamed images are normalized."""


def _statistics(pixels: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, pixels from 0 to 1, from exact counts of the 256 values."""
    mean, std = [], []
    for channel in pixels.unbind(1):
        # Double precision, which not every device has: on the CPU.
        counts = channel.flatten().to(torch.int64).bincount(minlength=256).cpu().double()
        values = torch.arange(256, dtype=torch.float64) / 255
        average = (counts @ values / counts.sum()).item()
        mean.append(average)
        std.append(max((counts @ (values - average).square() / counts.sum()).item() ** 0.5, 1e-6))
    return mean, std


def balanced(labels: Tensor, n: int, seed: int = 0) -> Tensor:
    """Indices, in ascending order, of a random subset of ``n`` with equally many of each class, as far as possible."""
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    counts = labels.bincount()
    # The rank of an image within its class; taking the lowest ranks first takes equally from all classes.
    rank = torch.cat([torch.arange(int(count)) for count in counts])
    order = torch.empty_like(rank)
    order[by_class] = rank
    return shuffled[order[shuffled].argsort(stable=True)[:n]].sort().values
