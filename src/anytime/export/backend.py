"""The network of a run folder on the backend that is asked for."""

from pathlib import Path

import torch
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.export.description import FILE as DESCRIPTION
from anytime.export.description import read_description
from anytime.export.exported import load_exported
from anytime.export.quantization import policy_in_int8
from anytime.export.write import executorch, onnx
from anytime.files import read_json
from anytime.inference.policy import FILE as POLICY
from anytime.inference.policy import Policy
from anytime.network import Network
from anytime.saving import CONFIG, load

BACKENDS = ("auto", "eager", "onnx")


def is_exported(folder: Path) -> bool:
    """Whether a folder holds an exported network and no model that it was made from."""
    return (folder / DESCRIPTION).is_file() and not (folder / CONFIG).is_file()


def load_backend(folder: str | Path, backend: str = "auto") -> Network:
    """Load a saved model to be run by PyTorch (``eager``) or by ONNX Runtime (``onnx``), or an exported network.

    For ``onnx`` a saved model is exported to ``onnx/`` in its folder, unless that is there and of this model.

    Args:
        folder: of a finished run, a saved model or an exported network.
        backend: ``eager`` or ``onnx``; ``auto``: an exported network runs as it was exported, a saved one with PyTorch.
    """
    folder = Path(folder)
    if backend not in BACKENDS:
        raise AnytimeError(f"backend={backend!r} must be one of {', '.join(BACKENDS)}")
    if is_exported(folder):
        if backend == "eager":
            raise AnytimeError(f"{folder} holds an exported network, which PyTorch does not run: backend='auto'")
        return load_exported(folder)
    return load_exported(export_run(folder)) if backend == "onnx" else load(folder)


def export_run(folder: Path, output: Path | None = None, to: str = "onnx", **options: object) -> Path:
    """Export a saved model with its policy, by default to ``onnx/`` in its folder; not again if that has been done.

    Args:
        folder: of a finished run or a saved model.
        output: where to write it.
        to: ``onnx`` or ``executorch``.
        options: of ``anytime.export.onnx``; with any, the model is always exported. A policy is for all exits: with
            ``exits`` it is left out.
    """
    target, export = output or folder / to, {"onnx": onnx, "executorch": executorch}[to]
    net = load(folder)
    source = str(read_json(folder / CONFIG)["weights"])
    policy = Policy.load(folder) if (folder / POLICY).is_file() and "exits" not in options else None
    if not options and output is None and (target / DESCRIPTION).is_file():
        found = read_description(target)
        expected = policy_in_int8(policy) if found.about.get("precision") else policy
        there = (found.about.get("source"), found.policy, found.preprocessing, len(found.exits))
        if there == (source, expected, net.preprocessing, net.exits):
            return target
    return export(net, example_for(net), target, policy=policy, about={"source": source}, **options)  # type: ignore[arg-type]


def example_for(net: Network, size: int | None = None) -> Tensor:
    """Two random images of the size that a network was trained with, or was made for."""
    channels, height, width = net.input_shape()
    return torch.randn(2, channels, size or height, size or width, generator=torch.Generator().manual_seed(0))
