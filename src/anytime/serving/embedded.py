"""The model that comes with the package, and the images to try it with."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from anytime.files import read_json

FOLDER = Path(__file__).with_name("embedded_model")
"""A saved model: a ResANN trained on CIFAR-10, with its record, evaluation and policy; its README says how."""

NAME = "cifar10"


@cache
def samples() -> tuple[Path, ...]:
    """Test images of CIFAR-10, in the order of their classes."""
    return tuple(sorted((FOLDER / "images").glob("*.png")))


@cache
def _classes() -> tuple[str, ...]:
    return tuple(read_json(FOLDER / "config.json", sealed=True)["preprocessing"]["classes"])


def samples_for(classes: Iterable[str]) -> tuple[Path, ...]:
    """The sample images for a model of these classes: none, unless the classes are CIFAR-10's."""
    return samples() if tuple(classes) == _classes() else ()
