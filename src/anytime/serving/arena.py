"""Memory that processes share: inputs are written once, and stay where they are if a process dies."""

import mmap
import os
import pickle
import tempfile
import warnings
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.network import tensors_of

_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()


class Stored(NamedTuple):
    """The position of a tensor in its slot."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Arena:
    """Slots of equal size in a file in memory, each reserved when it is used for the first time.

    Args:
        slots: their number.
        slot_bytes: their size.
        file: descriptor of the memory of another process's arena.
    """

    def __init__(self, slots: int, slot_bytes: int, file: int | None = None) -> None:
        self.slot_bytes = -(-slot_bytes // 64) * 64
        size = max(slots * self.slot_bytes, mmap.PAGESIZE)
        if file is None:
            with tempfile.TemporaryFile(dir=_FOLDER) as temporary:  # without a name: gone with the last process
                temporary.truncate(size)
                file = os.dup(temporary.fileno())
            room = os.fstatvfs(file)
            if room.f_bavail * room.f_frsize < size:
                _warn(size)
        self.file, self._size = file, size
        self._memory = mmap.mmap(file, size)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._free = list(range(slots))
        self._reserved: set[int] = set()
        self._views: dict[int, tuple[bytes, Any]] = {}  # of each slot, as it was used last

    def put(self, x: Any) -> tuple[int, bytes] | None:
        """Write the tensors of an input into a free slot: its number, and what ``get`` must know to read it.

        None if there is no slot, or it is too small: the input is sent as a message then.
        """
        tensors = tensors_of(x)
        if not self._free or sum(-(-tensor.nbytes // 64) * 64 for tensor in tensors) > self.slot_bytes:
            return None
        slot = self._free[-1]
        if slot not in self._reserved and not self._reserve(slot):
            return None
        described = _described(x.dtype, x.shape) if isinstance(x, Tensor) else _described_tree(x)
        for place, tensor in zip(tensors_of(self.get(slot, described)), tensors, strict=True):
            place.copy_(tensor.detach())
        self._free.pop()  # now that nothing can fail any more
        return slot, described

    def _reserve(self, slot: int) -> bool:
        """Write a slot by a call that fails if there is no room: to touch a page without room ends the process."""
        try:
            written = os.pwrite(self.file, bytes(self.slot_bytes), slot * self.slot_bytes)
        except OSError:
            written = 0
        if written < self.slot_bytes:
            _warn(self._size)
            return False
        self._reserved.add(slot)
        return True

    def get(self, slot: int, described: bytes) -> Any:
        """The input that ``put`` wrote: a view, valid until the slot is freed."""
        before, views = self._views.get(slot, (b"", None))
        if before != described:  # most inputs are alike
            views = tree_map(
                lambda leaf: self._view(slot, leaf) if isinstance(leaf, Stored) else leaf,
                pickle.loads(described),
                is_leaf=lambda leaf: isinstance(leaf, Stored),
            )
            self._views[slot] = described, views
        return views

    def close(self) -> None:
        """Close the descriptors: the memory is freed with the last process that has it. It cannot be used any more."""
        if self.file >= 0:
            self._views.clear()
            self._free.clear()
            del self._bytes  # refers to the memory
            self._memory.close()
            os.close(self.file)
            self.file = -1

    def free(self, slot: int) -> None:
        """Free a slot."""
        self._free.append(slot)

    def _view(self, slot: int, stored: Stored) -> Tensor:
        begin = slot * self.slot_bytes + stored.offset
        size = stored.dtype.itemsize * prod(stored.shape)
        with torch.inference_mode(False):  # those made in inference mode could not be written to outside of it
            return self._bytes[begin : begin + size].view(stored.dtype).view(stored.shape)


def _warn(size: int) -> None:
    megabytes = -(-size // 2**20)
    warnings.warn(
        f"{_FOLDER} has less room than the {megabytes} MB of inputs of a full queue: some are sent as messages, "
        f"which is slower; docker run --shm-size={megabytes + 64}m gives it more, or a smaller queue needs less",
        stacklevel=2,
    )


def _described_tree(x: Any) -> bytes:
    offset = 0

    def stored(leaf: Any) -> Any:
        nonlocal offset
        if not isinstance(leaf, Tensor):
            return leaf
        here = Stored(offset, leaf.dtype, tuple(leaf.shape))
        offset += -(-leaf.nbytes // 64) * 64
        return here

    return pickle.dumps(tree_map(stored, x))


@lru_cache(64)
def _described(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """Cached for single-tensor inputs."""
    return pickle.dumps(Stored(0, dtype, tuple(shape)))
