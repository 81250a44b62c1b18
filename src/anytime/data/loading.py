"""Data sets by name, from the Hugging Face Hub or from a folder."""

import logging
import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anytime.data import sources
from anytime.data.cache import decoded
from anytime.data.dataset import Data, balanced
from anytime.data.encoded import Encoded
from anytime.data.images import Images
from anytime.data.stream import Stream
from anytime.errors import AnytimeError, check_integer

SHORT_NAMES = {
    "cifar10": ("uoft-cs/cifar10", None),
    "cifar100": ("uoft-cs/cifar100", None),
    "svhn": ("ufldl-stanford/svhn", "cropped_digits"),
    "imagenet": ("ILSVRC/imagenet-1k", None),
}
"""Data sets on the Hugging Face Hub (id and configuration) that have a short name here."""

SMALL = 64
"""Images up to this height and width are held decoded in memory; larger ones are streamed."""

logger = logging.getLogger(__name__)


Place = str | os.PathLike[str]


def load_data(
    name: Place | Sequence[Place], *, size: int | None = None, extra: bool = False, show: bool = True
) -> Data:
    """A data set by name, or from a folder, or from several that hold parts of it.

    Small images (up to 64×64, all of one size) are decoded once and cached; larger ones are streamed.

    A data set must have a train split, and a test or a validation split. If it has both, they are used as such. If it
    has one of them, that is for test (as the validation images of ILSVRC are in the paper), and validation is held
    out from the training images: the last 5,000, or a tenth where there are fewer than 10,000; a balanced part where
    they are sorted by class.

    Args:
        name: ``digits`` (1,797 hand-written digits of 8×8 pixels that come with this library); ``cifar10``,
            ``cifar100``, ``svhn``, ``imagenet`` or any other id with columns of images and labels on the Hugging Face
            Hub; or a local folder with parquet files as the Hub has them, or with one folder of images per class. A
            list of these is one data set: the images of each split one after the other, numbered by the classes of
            the first.
        size: height and width that images are resized to. Default: small ones keep theirs, streamed ones get 224.
        extra: add the ``extra`` split to the training images (SVHN has one).
        show: whether to show progress while decoding.

    Examples:
        >>> load_data("digits")
        Data('digits': 1,097 train, 200 validation, 500 test images of 1×8×8, 10 classes)
    """
    places = [name] if isinstance(name, str | os.PathLike) or not isinstance(name, Sequence) else list(name)
    if not places or any(not isinstance(place, str | os.PathLike) for place in places):
        raise AnytimeError(f"name={name!r} must be a string: the name of a data set, or a folder; or a list of these")
    names = [os.fspath(place) for place in places]
    if size is not None:
        check_integer("size", size)
    if names == ["digits"]:
        if size is not None or extra:
            raise AnytimeError("digits have one size, 8×8, and no extra images; use load_data('digits')")
        return _digits()
    parts: dict[str, list[Encoded]] = {}
    titles = []
    for each in names:
        title, splits = _read(each)
        titles.append(title)
        for split, part in splits.items():
            parts.setdefault(split, []).append(part)
    return _assemble("+".join(titles), _choose(", ".join(names), parts, extra), size, show)


def _read(name: str) -> tuple[str, dict[str, Encoded]]:
    """A short name for the data, and their splits."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return os.path.basename(os.path.abspath(path)), sources.read_folder(Path(path))
    if os.path.exists(path):
        raise AnytimeError(f"{name} is not a folder; expected one with parquet files or folders of images")
    if name in SHORT_NAMES:
        return name, sources.read_hub(*SHORT_NAMES[name])
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return name, sources.read_hub(name)
    if os.path.basename(path) != path:
        raise AnytimeError(
            f"no such folder: {os.path.abspath(path)}; expected one with parquet files or folders of images, or "
            f"digits, {', '.join(SHORT_NAMES)} or owner/name on the Hugging Face Hub"
        )
    raise AnytimeError(
        f"unknown data {name!r}, and no such folder; expected digits, {', '.join(SHORT_NAMES)}, owner/name on the "
        "Hugging Face Hub, or a local folder"
    )


def _choose(name: str, splits: dict[str, list[Encoded]], extra: bool) -> dict[str, list[Encoded]]:
    """The splits to use: train, test, and validation and extra where there are."""
    wanted = ("train", "validation", "test", *(["extra"] if extra else []))
    chosen = {split: splits[split] for split in wanted if split in splits}
    if "test" in chosen and "validation" in chosen and not any(part.labeled for part in chosen["test"]):
        logger.warning("%s: the split 'test' has no labels; 'validation' is used for test", name)
        del chosen["test"]
    if "test" not in chosen and "validation" in chosen:
        chosen["test"] = chosen.pop("validation")
    for split in wanted:
        if split not in chosen and split != "validation":
            raise AnytimeError(f"{name} has no split {split!r}; it has: {', '.join(splits)}")
    for split, part in ((split, part) for split, parts in chosen.items() for part in parts):
        if not part.labeled:
            raise AnytimeError(f"{part.where(0)}: the split {split!r} has no labels (in folders: one folder per class)")
    return chosen


def _assemble(name: str, splits: dict[str, list[Encoded]], size: int | None, show: bool) -> Data:
    classes = splits["train"][0].classes
    every = [part for parts in splits.values() for part in parts]
    for part in every:
        part.number_by(classes)
    large = max(size or 0, *(max(part.image(0).size) for part in every)) > SMALL
    opened = {
        split: _joined([_open(part, f"{name}, {split}", size, show, large) for part in parts], name)
        for split, parts in splits.items()
    }
    training, validation = opened["train"], opened.get("validation")
    if validation is None:
        held_out = _held_out(training.labels)
        kept = torch.ones(len(training), dtype=torch.bool)
        kept[held_out] = False
        training, validation = training[kept.nonzero().squeeze(1)], training[held_out] if len(held_out) else None
    if "extra" in opened:
        training = _joined([training, opened["extra"]], name)
    return Data(training, validation, opened["test"], classes, name)


def _held_out(labels: Tensor) -> Tensor:
    """Indices of the training images that are for validation where a data set has none."""
    n = 5000 if len(labels) >= 10_000 else len(labels) // 10
    if bool((labels.diff() >= 0).all()):  # sorted by class: the last ones would be of one class
        return balanced(labels, n)
    return torch.arange(len(labels) - n, len(labels))


def _open(part: Encoded, title: str, size: int | None, show: bool, large: bool) -> Images | Stream:
    if large:
        return Stream(part, torch.arange(len(part)), size or 224)
    pixels = decoded(part, title, show)
    return Images(pixels if size is None else _resized(pixels, size), part.labels)


def _resized(pixels: Tensor, size: int) -> Tensor:
    """Small images in another size; each new pixel is the average of those it covers."""
    parts = [F.interpolate(part.float(), (size, size), mode="area").round().byte() for part in pixels.split(1000)]
    return torch.cat(parts)


def _joined(parts: Sequence[Images | Stream], name: str) -> Images | Stream:
    """Images one after the other; those that are streamed cannot be joined."""
    if len(parts) == 1:
        return parts[0]
    held = [part for part in parts if isinstance(part, Images)]
    if len(held) < len(parts):
        raise AnytimeError(
            f"{name}: extra=True and several folders need images of up to {SMALL}×{SMALL}, which are held in memory"
        )
    if len({part.shape for part in held}) > 1:
        sizes = ", ".join("×".join(map(str, part.shape)) for part in held)
        raise AnytimeError(f"{name}: the parts must have images of one size, and have {sizes}; pass size=32, say")
    return Images(torch.cat([part.pixels for part in held]), torch.cat([part.labels for part in held]))


def _digits() -> Data:
    """The test part of UCI's *Optical Recognition of Handwritten Digits* (Alpaydin and Kaynak, CC BY 4.0).

    The same images as scikit-learn's ``load_digits()``, in the same order; its gray levels, 0 to 16, become 0 to 255 as
    in image files.
    """
    with resources.files("anytime.data").joinpath("digits.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        pixels, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    pixels = (pixels.float() * (255 / 16)).round().byte()
    everything = Images(pixels[:, None], labels.long())
    return Data(
        train=everything[torch.arange(1097)],
        validation=everything[torch.arange(1097, 1297)],
        test=everything[torch.arange(1297, 1797)],
        classes=[str(i) for i in range(10)],
        name="digits",
    )
