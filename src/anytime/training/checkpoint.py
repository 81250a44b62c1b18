"""Checkpoints: the whole state of a training run in one file."""

from pathlib import Path
from typing import Any

from torch import Tensor

from anytime.files import read_tensors, write_tensors

CHECKPOINT = "checkpoint.safetensors"

Groups = dict[str, dict[str, Tensor]]
"""Groups of named tensors."""


def has_checkpoint(folder: Path) -> bool:
    """Whether there is something to resume."""
    return (folder / CHECKPOINT).is_file()


def save_checkpoint(folder: Path, tensors: Groups, about: dict[str, Any]) -> None:
    """Write the whole state of a run, groups of named tensors and a JSON object, in place of the one before."""
    flat = {f"{group}/{name}": tensor for group, named in tensors.items() for name, tensor in named.items()}
    write_tensors(folder / CHECKPOINT, flat, about)


def load_checkpoint(folder: Path) -> tuple[Groups, dict[str, Any]]:
    """What ``save_checkpoint`` wrote."""
    flat, about = read_tensors(folder / CHECKPOINT)
    groups: Groups = {}
    for path, tensor in flat.items():
        group, _, name = path.partition("/")
        groups.setdefault(group, {})[name] = tensor
    return groups, about
