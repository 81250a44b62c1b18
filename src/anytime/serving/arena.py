"""Memory that processes share: inputs are written once, and stay where they are if a process dies."""

import mmap
import os
import tempfile
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.network import tensors_of


class Stored(NamedTuple):
    """Where a tensor is in the arena."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Arena:
    """Slots of equal size, allocated once.

    Args:
        slots: their number.
        slot_bytes: their size.
        file: descriptor of the memory of another process's arena.
    """

    def __init__(self, slots: int, slot_bytes: int, file: int | None = None) -> None:
        self.slot_bytes = -(-slot_bytes // 64) * 64
        size = max(slots * self.slot_bytes, mmap.PAGESIZE)
        if file is None:
            where = "/dev/shm" if os.path.isdir("/dev/shm") else None
            with tempfile.TemporaryFile(dir=where) as temporary:  # without a name: gone with the last process
                temporary.truncate(size)
                file = os.dup(temporary.fileno())
        self.file = file
        self._memory = mmap.mmap(file, size)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._free = list(range(slots))

    def put(self, x: Any) -> tuple[int, Any] | None:
        """Write the tensors of an input into a free slot: its number, and the input with references instead of tensors.

        None if there is no slot, or it is too small.
        """
        needed = sum(-(-tensor.nbytes // 64) * 64 for tensor in tensors_of(x))
        if not self._free or needed > self.slot_bytes:
            return None
        slot = self._free.pop()
        offset = slot * self.slot_bytes

        def stored(leaf: Any) -> Any:
            nonlocal offset
            if not isinstance(leaf, Tensor):
                return leaf
            here = Stored(offset, leaf.dtype, tuple(leaf.shape))
            self._view(here).copy_(leaf)
            offset += -(-leaf.nbytes // 64) * 64
            return here

        return slot, tree_map(stored, x)

    def get(self, x: Any) -> Any:
        """The input that ``put`` wrote, as copies."""
        return tree_map(
            lambda leaf: self._view(leaf).clone() if isinstance(leaf, Stored) else leaf,
            x,
            is_leaf=lambda leaf: isinstance(leaf, Stored),
        )

    def free(self, slot: int) -> None:
        """Give a slot back."""
        self._free.append(slot)

    def _view(self, stored: Stored) -> Tensor:
        size = stored.dtype.itemsize
        for length in stored.shape:
            size *= length
        return self._bytes[stored.offset : stored.offset + size].view(stored.dtype).view(stored.shape)
