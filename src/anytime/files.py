"""Atomic files: written to a private folder, flushed to disk, then renamed into place; read back only if unaltered."""

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anytime.errors import AnytimeError

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, and what killed processes left behind stays
    fcntl = None

LARGEST_JSON = 8 * 2**20
"""Bytes of JSON that are read at most, also as the header of a tensor file: parsing takes about 20 times as much."""

LARGEST_FILE = 2**28
"""Bytes that the file of an image may have."""

LOCK_SECONDS = 60.0
"""How long to wait for another process that is replacing the files of a folder."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` create a temporary file, then put it in the place of ``path`` once it is safe on disk.

    A reader finds the old file or the new one, never a part of one, whatever is killed and however many write at once.
    """
    write_together(path.parent, {path.name: write})


def write_together(
    folder: Path, writers: Mapping[str, Callable[[Path], object]], remove: Iterable[str] = ()
) -> None:  # fmt: skip
    """Write several files that belong together; all are complete before the first one is put into place.

    Whoever holds ``locked(folder)`` sees all of the old files or all of the new ones. A process that is killed between
    two renames leaves a mixture: the files must say what they belong to.

    Args:
        folder: created if it does not exist.
        writers: by file name, what writes the file to a given path; put into place in this order.
        remove: names of files to delete, since they belong to the old ones.
    """
    try:
        with scratch(folder) as (temporary, mode):
            for name, write in writers.items():
                write(temporary / name)
                os.chmod(temporary / name, mode)
                with open(temporary / name, "rb+") as file:
                    os.fsync(file.fileno())
            with locked(folder) if len(writers) > 1 else nullcontext():
                for name in remove:
                    (folder / name).unlink(missing_ok=True)
                for name in writers:
                    os.replace(temporary / name, folder / name)
            _flush_folder(folder)
    except (OSError, SafetensorError) as error:
        path = folder / next(iter(writers))
        kept = f"; the previous file is untouched: {path}" if path.exists() else ""
        raise AnytimeError(f"could not write {path}: {error}{kept}. Is the disk full or read-only?") from error


_PREFIX, _SUFFIX = ".anytime-", ".tmp"


@contextmanager
def scratch(folder: Path) -> Iterator[tuple[Path, int]]:
    """A new private folder in ``folder`` and the permissions that files should get (by the umask); removed on exit.

    The name is random, so threads and processes do not collide, and nobody can put a link there beforehand. The folder
    is locked while it is in use; the next writer removes folders that are not locked: their writers were killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    while True:
        made = Path(tempfile.mkdtemp(_SUFFIX, _PREFIX, folder))
        try:
            lock = _lock(made)
        except (BlockingIOError, FileNotFoundError):  # another process is sweeping and took it for abandoned
            continue
        if made.exists():
            break
        _unlock(lock)
    try:
        probe = os.open(made / "mode", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        mode = stat.S_IMODE(os.fstat(probe).st_mode)
        os.close(probe)
        yield made, mode
    finally:
        shutil.rmtree(made, ignore_errors=True)
        _unlock(lock)


def sweep(folder: Path) -> None:
    """Remove temporary files in a folder that belong to no living process."""
    for left in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # in use, or not ours to remove
            lock = _lock(left)
            if lock is not None:
                shutil.rmtree(left, ignore_errors=True)
                _unlock(lock)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others from replacing files of a folder by ``write_together``; waits until those that do so are done.

    The folder itself is locked: that leaves no file behind, and readers need no permission to write.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            lock = _lock(folder.resolve())  # the folder's path may be a link
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise AnytimeError(f"another process has locked {folder} for {LOCK_SECONDS:.0f} seconds") from None
            time.sleep(0.005)
    try:
        yield
    finally:
        _unlock(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder, which must not be a link; None where the system cannot. BlockingIOError: someone else has it."""
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise BlockingIOError from None
        return None  # network file systems lock no folders
    return descriptor


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def why_absent(folder: Path, name: str) -> str:
    """Why a folder's file cannot be read, for an error."""
    if folder.is_dir():
        return f"it has no {name}"
    return "it is a file" if folder.exists() else "there is no such folder"


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; OSError for a pipe or a device, which might never end."""
    nonblocking = getattr(os, "O_NONBLOCK", 0)  # or opening a pipe waits for a writer
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | nonblocking)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_file(path: Path) -> bytes:
    """The bytes of a regular file of reasonable size."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE:
            raise AnytimeError(f"{path} has {size:,} bytes, more than {LARGEST_FILE:,}")
        return file.read()


def write_text(path: Path, text: str) -> None:
    """Write a text file, atomically."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, content: Mapping[str, Any], sealed: bool = False) -> None:
    """Write a JSON file, atomically; ``sealed`` adds a checksum of the content."""
    write_text(path, json_text(content, sealed))


def json_text(content: Mapping[str, Any], sealed: bool = False) -> str:
    """What ``write_json`` writes."""
    content = {**content, "checksum": _checksum(content)} if sealed else content
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def read_json(path: Path, sealed: bool = False) -> dict[str, Any]:
    """Read a JSON object from a file; if ``sealed``, one whose checksum must be right."""
    try:
        with open_regular(path) as file:
            text = file.read(LARGEST_JSON + 1)
        if len(text) > LARGEST_JSON:
            raise ValueError(f"it has more than {LARGEST_JSON:,} bytes")
        content = json.loads(text.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AnytimeError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise AnytimeError(f"cannot read {path}: it holds a {type(content).__name__}, not a JSON object")
    if sealed:
        _unseal(path, content)
    return content


def _unseal(path: Path, content: dict[str, Any]) -> None:
    checksum = content.pop("checksum", None)
    if checksum is None:
        raise AnytimeError(f"{path} has no checksum: it was not written by this version of anytime; write it again")
    if checksum != _checksum(content):
        raise AnytimeError(f"{path} was altered since it was written: its checksum is wrong")


def _checksum(content: Mapping[str, Any]) -> str:
    read_back = json.loads(json.dumps(content))  # keys that are numbers become text, and are sorted as such
    return hashlib.sha256(json.dumps(read_back, sort_keys=True).encode()).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a JSON object to one safetensors file, atomically, with a checksum of both."""
    packed, metadata, _ = pack(tensors, about)
    write_whole(path, lambda temporary: save_file(packed, temporary, metadata))


def pack(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, str], str]:
    """What safetensors' ``save_file`` takes, tensors and metadata, and the checksum of everything.

    Tensors that are the same memory under several names (shared parameters) are written once.
    """
    packed: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for name, tensor in tensors.items():
        memory = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        twin = first.setdefault(memory, name) if tensor.numel() else name
        if twin != name:
            same[name] = twin
            continue
        whole = tensor.detach().cpu().contiguous()
        if whole.data_ptr() == tensor.data_ptr() and whole.untyped_storage().nbytes() != whole.nbytes:
            whole = whole.clone()  # part of a larger tensor, which may be written too
        packed[name] = whole
    header = {"about": about, "same": same}
    checksum = _tensors_checksum(packed, header)
    # In one entry: safetensors writes several in random order, and equal contents make equal files.
    return packed, {"anytime": json.dumps({**header, "checksum": checksum})}, checksum


def read_tensors(path: Path, checksum: str | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What ``write_tensors`` wrote, on the CPU, if it is unaltered. Nothing in the file is executed.

    Args:
        path: the file.
        checksum: that the file must have, where another one says so.
    """
    try:
        _check_header(path)
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("anytime", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RecursionError, MemoryError) as error:
        raise AnytimeError(f"cannot read {path}: it is missing, truncated or no safetensors file ({error})") from error
    found = header.pop("checksum", None) if isinstance(header, dict) else None
    if not isinstance(found, str):
        raise AnytimeError(f"{path} has no checksum: it was not written by this version of anytime; write it again")
    if found != _tensors_checksum(tensors, header):
        raise AnytimeError(f"{path} was altered since it was written: its checksum is wrong")
    if checksum is not None and checksum != found:
        raise AnytimeError(f"{path} is another file than expected: its checksum is {found[:8]}…, not {checksum[:8]}…")
    try:
        same = {name: tensors[twin] for name, twin in header["same"].items()}
        return tensors | same, {**header["about"]}
    except (AttributeError, LookupError, TypeError) as error:
        raise AnytimeError(f"cannot read {path}: its header is not one that anytime writes ({error})") from error


def check_tensors(what: str, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise unless the tensors that were read have the names, types and shapes of those that they are for."""
    if given.keys() != expected.keys():
        different = sorted(given.keys() ^ expected.keys())
        verb = "lacks" if different[0] in expected else "has an unknown"
        raise AnytimeError(f"its {what} {verb} {different[0]} ({len(different)} names differ)")
    for name, tensor in expected.items():
        if given[name].shape != tensor.shape or given[name].dtype != tensor.dtype:
            raise AnytimeError(
                f"its {what} has {name} as {given[name].dtype} of shape {tuple(given[name].shape)}, not {tensor.dtype} "
                f"of shape {tuple(tensor.shape)}"
            )


def _check_header(path: Path) -> None:
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
    if size > LARGEST_JSON:
        raise ValueError(f"its header has {size:,} bytes, more than {LARGEST_JSON:,}")


def _tensors_checksum(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> str:
    """Names, types, shapes and bytes. CPUs have instructions for SHA-256: 415 MB in 0.4 s."""
    digest = hashlib.sha256(_checksum(header).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), tensor.shape]).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return digest.hexdigest()
