"""The model that comes with the package, and the images to try it with."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from anytime.errors import AnytimeError
from anytime.files import read_json
from anytime.serving.engine import Engine

FOLDER = Path(__file__).with_name("embedded_model")
"""A saved model: the ConvANN of docs/published.md, with its record, evaluation and policy; its README says how."""

NAME = "cifar10"


def check_backend(folder: Path, backend: str) -> None:
    """Refuse to export it: nothing is written to the package's folder."""
    if folder == FOLDER and backend == "onnx":
        raise AnytimeError(f"--backend {backend} exports a model beside itself: copy {FOLDER} and give the copy's path")


def start_engine(folder: Path, backend: str = "auto", **options: Any) -> Engine:
    """An engine for a model, this one or another: see ``Engine`` for the options.

    Args:
        folder: of a run, a saved model or an exported network.
        backend: ``eager`` (PyTorch), ``onnx`` (ONNX Runtime) or ``auto``.
        options: of the engine.
    """
    check_backend(folder, backend)
    return Engine(folder, backend=backend, **options)


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
