"""Files that are whole or not there: written beside, flushed to disk, then renamed."""

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anytime.errors import AnytimeError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a temporary file and put it in the place of ``path`` once it is safe on disk.

    Whatever happens, a reader finds the old file or the new one, never a part of one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        kept = f"; the one from before is untouched: {path}" if path.exists() else ""
        raise AnytimeError(f"could not write {path}: {error}{kept}. Is the disk full or read-only?") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not there."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file, whole or not there."""
    write_text(path, json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or an error that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AnytimeError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise AnytimeError(f"cannot read {path}: it holds a {type(content).__name__}, not a JSON object")
    return content


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors and a JSON object in one safetensors file, whole or not there."""
    packed = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    metadata = {"anytime": json.dumps(about)}
    write_whole(path, lambda temporary: save_file(packed, temporary, metadata))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``write_tensors`` wrote, on the CPU. Nothing in the file is executed."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("anytime", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise AnytimeError(f"cannot read {path}: it is missing, truncated or no safetensors file ({error})") from error
