"""Labelled images: held as one tensor of bytes, given out as normalised batches."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.recipe import Recipe

if TYPE_CHECKING:
    from anytime.encoded import Encoded
    from anytime.stream import Stream


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

    def batches(self, takes: "Iterable[Take]", recipe: Recipe | None = None) -> "Iterator[Images]":
        """One batch after the other; with a recipe, augmented as it says."""
        for take in takes:
            batch = self[take.indices.to(self.labels.device)]
            if recipe is not None:
                batch = Images(recipe.augment(batch.pixels, take.seed, take.first, take.total), batch.labels)
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

    train: "Images | Stream"
    validation: "Images | Stream | None" = None
    test: "Images | Stream | None" = None
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

    def normalise(self, pixels: Tensor) -> Tensor:
        """Bytes to floats of mean 0 and deviation 1 in each channel: what the network sees."""
        n, channels, height, width = pixels.shape
        scale, shift = _row_scale(tuple(self.mean), tuple(self.std), width, pixels.device)
        # Whole rows at once: three channels alone are too few to be fast.
        rows = pixels.movedim(1, -1).reshape(n, height, width * channels)
        return torch.addcmul(shift, rows.float(), scale).view(n, height, width, channels).movedim(-1, 1)

    def batches(
        self, images: "Images | Stream | None", batch_size: int = 500, device: torch.device | str = "cpu"
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
            yield self.normalise(batch.pixels.to(device)), batch.labels.to(device)

    def digest(self) -> str:
        """A short name for what is trained on: labels, classes, normalisation and a thousand of the images."""
        digest = hashlib.blake2b(repr((self.classes, self.mean, self.std)).encode(), digest_size=8)
        digest.update(self.train.labels.cpu().numpy().tobytes())
        if isinstance(self.train, Images):
            some = self.train.pixels[:: max(1, len(self.train) // 1000)]
            digest.update(some.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def subset(self, n: int, seed: int = 0) -> "Data":
        """The same data with a balanced random part of the training images, normalised as before."""
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
"""Mean and deviation that large images are normalised by, as everywhere."""


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


SHORT_NAMES = {
    "cifar10": ("uoft-cs/cifar10", None),
    "cifar100": ("uoft-cs/cifar100", None),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits"),
    "imagenet": ("ILSVRC/imagenet-1k", None),
}
"""Data sets on the Hugging Face Hub that have a name of their own here."""

SMALL = 64
"""Images up to this height and width are held decoded, larger ones streamed."""


def load_data(name: str, *, size: int | None = None, extra: bool = False, show: bool = True) -> Data:
    """A data set by name, or from a folder.

    Small images (up to 64×64, all of one size) are decoded once and kept in a cache; larger ones are streamed.
    Validation is the last 5,000 training images as in the paper, or a tenth where there are fewer than 10,000; where
    they are sorted by class, a balanced part. It is never taken from the test images.

    Args:
        name: ``digits`` (1,797 hand-written digits of 8×8 pixels that come with this library); ``cifar10``,
            ``cifar100``, ``svhn``, ``imagenet`` or any other id with columns of images and labels on the Hugging Face
            Hub; or a local folder with parquet files of the Hub's form or a folder a class of images.
        size: height and width that images are brought to. Default: small ones keep theirs, streamed ones get 224.
        extra: add the ``extra`` split to the training images (SVHN has one).
        show: whether to show progress while decoding.

    Example:
        >>> data = load_data("digits")
        >>> len(data.train), len(data.validation), len(data.test), data.shape
        (1097, 200, 500, (1, 8, 8))
    """
    if name == "digits":
        if size is not None or extra:
            raise AnytimeError("digits have one size, 8×8, and no extra images: leave --size and --extra out")
        return _digits()
    from anytime import encoded

    path = Path(name).expanduser()
    if path.is_dir():
        splits = encoded.read_folder(path)
    elif name in SHORT_NAMES:
        splits = encoded.read_hub(*SHORT_NAMES[name])
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        splits = encoded.read_hub(name)
    else:
        raise AnytimeError(
            f"unknown data {name!r}; there are: digits, {', '.join(SHORT_NAMES)}, any owner/name on the Hugging Face "
            "Hub, or a local folder"
        )
    wanted = ["train", "test", *(["extra"] if extra else [])]
    for split in wanted:
        if split not in splits:
            there = ", ".join(splits) or "none"
            raise AnytimeError(f"{name} has no split {split!r}; it has: {there}")
    return _assemble(path.name if path.is_dir() else name, {split: splits[split] for split in wanted}, size, show)


def _assemble(name: str, splits: "dict[str, Encoded]", size: int | None, show: bool) -> Data:
    train, classes = splits["train"], splits["train"].classes
    for part in splits.values():
        part.number_by(classes)
    parts = {split: _open(part, f"{name}, {split}", size, show) for split, part in splits.items()}
    everything = parts["train"]
    held_out = 5000 if len(train) >= 10_000 else len(train) // 10
    held = torch.arange(len(train) - held_out, len(train))
    if bool((train.labels.diff() >= 0).all()):  # sorted by class: the last ones would be of one class
        held = balanced(train.labels, held_out)
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[held] = False
    training = everything[kept.nonzero().squeeze(1)]
    if "extra" in parts:
        training = _joined(training, parts["extra"])
    return Data(training, everything[held] if held_out else None, parts["test"], classes, name)


def _open(part: "Encoded", title: str, size: int | None, show: bool) -> "Images | Stream":
    from anytime.cache import decoded
    from anytime.stream import Stream

    if max(part.image(0).size) > SMALL or (size or 0) > SMALL:
        return Stream(part, torch.arange(len(part)), size or 224)
    pixels = decoded(part, title, show)
    return Images(pixels if size is None else _resized(pixels, size), part.labels)


def _resized(pixels: Tensor, size: int) -> Tensor:
    """Small images brought to another size, each new pixel the average of those it covers."""
    if size < 1:
        raise AnytimeError(f"--size {size}: it is a whole number from 1")
    parts = [F.interpolate(part.float(), (size, size), mode="area").round().byte() for part in pixels.split(1000)]
    return torch.cat(parts)


def _joined(one: "Images | Stream", other: "Images | Stream") -> Images:
    if not (isinstance(one, Images) and isinstance(other, Images)):
        raise AnytimeError("extra images can only be added to small ones, which are held in memory")
    return Images(torch.cat([one.pixels, other.pixels]), torch.cat([one.labels, other.labels]))


def _digits() -> Data:
    """The test part of UCI's *Optical Recognition of Handwritten Digits* (Alpaydin and Kaynak, CC BY 4.0).

    It is the set that scikit-learn gives as ``load_digits()``, in the same order; grey levels are 0 to 16.
    """
    with resources.files("anytime").joinpath("digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        pixels, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    everything = Images(pixels[:, None], labels.long())
    return Data(
        train=everything[torch.arange(1097)],
        validation=everything[torch.arange(1097, 1297)],
        test=everything[torch.arange(1297, 1797)],
        classes=[str(i) for i in range(10)],
        name="digits",
    )
