"""Preprocessing of published models, from the configurations of timm, torchvision and transformers."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from anytime.errors import AnytimeError
from anytime.preprocessing import Preprocessing


def preprocessing_for(model: nn.Module, given: Any, channels: int, size: tuple[int, int]) -> Preprocessing | None:
    """How images become what a model was trained on; None where nothing says so.

    Args:
        model: if nothing is given, timm's description of its weights, ``model.pretrained_cfg``, is taken.
        given: a ``Preprocessing``; a dict with ``mean`` and ``std``, such as timm's description; torchvision's
            ``weights.transforms()``; or an image processor of transformers.
        channels: of the images.
        size: their height and width.
    """
    if isinstance(given, Preprocessing):
        return given
    if given is None:
        described = vars(model).get("pretrained_cfg")
        if not isinstance(described, Mapping) or len(described.get("mean") or ()) != channels:
            return None
        return _made(described["mean"], described["std"], described.get("crop_pct"), channels, size)
    if isinstance(given, Mapping):
        mean, std, crop = given.get("mean"), given.get("std"), given.get("crop_pct")
    else:
        words = {name: getattr(given, name, None) for name in _WORDS}
        mean, std = words["image_mean"] or words["mean"], words["image_std"] or words["std"]
        crop = _share(words["crop_size"], words["resize_size"])
    if not mean or not std:
        raise AnytimeError(
            f"preprocessing={given!r:.80} has no mean and std; expected an anytime.Preprocessing, a dict such as "
            "{'mean': [0.5, 0.5, 0.5], 'std': [0.5, 0.5, 0.5]}, torchvision's weights.transforms(), or an image "
            "processor of transformers"
        )
    return _made(mean, std, crop, channels, size)


_WORDS = ("image_mean", "image_std", "mean", "std", "crop_size", "resize_size")


def _made(mean: Any, std: Any, crop: Any, channels: int, size: tuple[int, int]) -> Preprocessing:
    return Preprocessing(channels, size, tuple(mean), tuple(std), crop=1.0 if crop is None else float(crop))


def _share(crop: Any, resize: Any) -> float | None:
    """The part of the image that is kept: torchvision resizes the shorter side and takes the center."""
    if isinstance(crop, list) and isinstance(resize, list) and len(crop) == len(resize) == 1:
        return min(1.0, crop[0] / resize[0])
    return None
