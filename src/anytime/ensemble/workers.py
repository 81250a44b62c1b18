"""The interface of workers, which run one network of an ensemble at a time elsewhere, and what both kinds share."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.ensemble.eann import EANN
from anytime.errors import AnytimeError
from anytime.network import weights_device


class Worker(Protocol):
    """Runs one network at a time, in another process."""

    def wait_until_ready(self) -> None:
        """Wait until it can take a network. Raises ``WorkerDied`` if it cannot be started."""

    def alive(self) -> bool:
        """Whether its process is running."""
        ...

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        """Yield the logits of one network's offered exits as they are reached; ends early once the run is halted."""
        ...

    def halt(self, run: int) -> None:
        """Stop working for that run, within one stage. Returns at once."""

    def close(self) -> None:
        """End the process."""


class WorkerFactory(Protocol):
    """Starts workers of one kind."""

    hint: str
    """What to check if the first workers cannot be started; follows the reason in the error message."""

    def start(self) -> Worker:
        """Start one more, without waiting until it is ready. Raises ``WorkerDied`` if that is not possible."""
        ...

    def pack(self, x: Any) -> Any:
        """Convert an input to what the workers' ``answers`` takes; done once for all networks."""


class WorkerDied(Exception):
    """The worker's process has ended, or could not be started."""


class MemberError(Exception):
    """The network raised an error; the worker itself is well."""


def run_member(eann: EANN, member: int, x: Any, halted: Callable[[], bool]) -> Iterator[tuple[int, Tensor]]:
    """Run one network in a worker: yield the index of each offered exit in the ensemble, and its logits."""
    network = eann.network(member)
    offered = {exit: index for index, (one, exit) in enumerate(eann.offered) if one == member}
    last = max(offered)
    device = weights_device(eann)
    with torch.inference_mode():
        x = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, x)
        for reached in network.walk(x):
            if halted() or reached is None:
                return
            if reached.exit in offered:
                yield offered[reached.exit], reached().cpu()
            if reached.exit == last:
                return


class HaltedRuns(deque[int]):
    """The runs that a worker was told to halt. Runs are numbered in order, so the latest ones are enough."""

    def __init__(self) -> None:
        super().__init__(maxlen=1000)


class _Array:
    """A tensor as an array, which pickle handles many times faster."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def to_arrays(x: Any) -> Any:
    """Replace the tensors in ``x`` by what can be pickled fast."""
    return tree_map(_to_array, x)


def to_tensors(x: Any) -> Any:
    """Undo ``to_arrays``."""
    return tree_map(_to_tensor, x)


def _to_array(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    leaf = leaf.resolve_conj().resolve_neg()
    try:
        return _Array(leaf.numpy())
    except TypeError:  # bfloat16, which NumPy does not have
        return leaf


def _to_tensor(leaf: Any) -> Any:
    if not isinstance(leaf, _Array):
        return leaf
    # Ray gives out its shared memory, read-only; a network may work in place.
    return torch.from_numpy(leaf.array if leaf.array.flags.writeable else leaf.array.copy())


def dumped(dumps: Callable[[Any], Any], value: Any, what: str) -> Any:
    """Serialize with ``dumps``; raises an ``AnytimeError`` where that is not possible."""
    try:
        return dumps(value)
    except Exception as error:
        raise AnytimeError(f"{what} cannot be sent to other processes: {error}") from error


def check_process(owner: int) -> None:
    """Raise if this process is not the owner of the team, but a forked child of it."""
    if os.getpid() != owner:
        raise AnytimeError(
            f"this team belongs to process {owner} and cannot be used in its forked child {os.getpid()}: make a Team "
            "in the child, or start the child with multiprocessing's 'spawn' method"
        )
