"""Labelled images: held as one tensor of bytes, given out as normalised batches."""

from dataclasses import dataclass, field, replace
from importlib import resources

import numpy as np
import torch
from torch import Tensor

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

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Tensor | slice) -> "Images":
        return Images(self.pixels[which], self.labels[which])

    def subset(self, n: int, seed: int = 0) -> "Images":
        """A random part of ``n`` images with as many of each class as can be, in the order they had."""
        if not 1 <= n <= len(self):
            raise AnytimeError(f"a subset of {n} images: there are {len(self)}, so ask for 1 to {len(self)}")
        shuffled = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        labels = self.labels[shuffled]
        # An image's rank within its class; taking the lowest ranks first takes from all classes alike.
        one_hot = torch.nn.functional.one_hot(labels)
        rank = one_hot.cumsum(0).gather(1, labels[:, None]).squeeze(1)
        return self[shuffled[rank.argsort(stable=True)[:n]].sort().values]


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

    train: Images
    validation: Images | None = None
    test: Images | None = None
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
            pixels = self.train.pixels.transpose(0, 1).flatten(1)
            scaled = [channel.double() / 255 for channel in pixels]
            object.__setattr__(self, "mean", [float(channel.mean()) for channel in scaled])
            object.__setattr__(self, "std", [max(float(channel.std()), 1e-6) for channel in scaled])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width

    def normalise(self, pixels: Tensor) -> Tensor:
        """Bytes to floats of mean 0 and deviation 1 in each channel: what the network sees."""
        scale = torch.tensor(self.std, device=pixels.device)[:, None, None] * 255
        shift = torch.tensor(self.mean, device=pixels.device)[:, None, None] * 255
        return (pixels.float() - shift) / scale

    def subset(self, n: int, seed: int = 0) -> "Data":
        """The same data with a balanced random part of the training images, normalised as before."""
        return replace(self, train=self.train.subset(n, seed))


def load_data(name: str) -> Data:
    """A data set by name.

    Args:
        name: ``digits``: 1,797 hand-written digits of 8×8 pixels that come with this library, for first steps
            and tests: 1,097 to train, 200 for validation, 500 to test.

    Example:
        >>> data = load_data("digits")
        >>> len(data.train), len(data.validation), len(data.test), data.shape
        (1097, 200, 500, (1, 8, 8))
    """
    if name != "digits":
        raise AnytimeError(f"unknown data {name!r}; there is: digits")
    return _digits()


def _digits() -> Data:
    """The test part of UCI's *Optical Recognition of Handwritten Digits* (Alpaydin and Kaynak, CC BY 4.0).

    It is the set that scikit-learn gives as ``load_digits()``, in the same order; grey levels are 0 to 16.
    """
    with resources.files("anytime").joinpath("digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        pixels, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    everything = Images(pixels[:, None], labels.long())
    return Data(
        train=everything[:1097],
        validation=everything[1097:1297],
        test=everything[1297:],
        classes=[str(i) for i in range(10)],
        name="digits",
    )
