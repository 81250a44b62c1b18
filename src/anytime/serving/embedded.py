"""The model that comes with the package, and the images to try it with."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from anytime.files import read_json
from anytime.inference.policy import Policy
from anytime.network import AnytimeNetwork
from anytime.saving import load
from anytime.serving.engine import Engine
from anytime.serving.model import saved_accuracy

FOLDER = Path(__file__).with_name("embedded_model")
"""A saved model: a ResANN trained on CIFAR-10, with its record, evaluation and policy; its README says how."""

NAME = "cifar10"


def load_embedded() -> AnytimeNetwork:
    """The network, with 32 bits: processors are slow with the 16 that it is saved with."""
    return load(FOLDER).float()


def embedded_engine(folder: Path = FOLDER, **options: Any) -> Engine:
    """An engine for it, which writes nothing to the package's folder: see ``Engine`` for the options."""
    net = load(folder).float()
    return Engine(net, policy=Policy.load(folder), accuracy=saved_accuracy(folder, net.exits), **options)


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
