"""Data sets by name, from the Hugging Face Hub or from a folder."""

import re
from importlib import resources
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anytime.data import sources
from anytime.data.cache import decoded
from anytime.data.dataset import Data, balanced
from anytime.data.images import Images
from anytime.data.sources import Encoded
from anytime.data.stream import Stream
from anytime.errors import AnytimeError

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

    path = Path(name).expanduser()
    if path.is_dir():
        splits = sources.read_folder(path)
    elif name in SHORT_NAMES:
        splits = sources.read_hub(*SHORT_NAMES[name])
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        splits = sources.read_hub(name)
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


def _assemble(name: str, splits: dict[str, Encoded], size: int | None, show: bool) -> Data:
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


def _open(part: Encoded, title: str, size: int | None, show: bool) -> Images | Stream:

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


def _joined(one: Images | Stream, other: Images | Stream) -> Images:
    if not (isinstance(one, Images) and isinstance(other, Images)):
        raise AnytimeError("extra images can only be added to small ones, which are held in memory")
    return Images(torch.cat([one.pixels, other.pixels]), torch.cat([one.labels, other.labels]))


def _digits() -> Data:
    """The test part of UCI's *Optical Recognition of Handwritten Digits* (Alpaydin and Kaynak, CC BY 4.0).

    It is the set that scikit-learn gives as ``load_digits()``, in the same order; grey levels are 0 to 16.
    """
    with resources.files("anytime.data").joinpath("digits.npz").open("rb") as file:
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
