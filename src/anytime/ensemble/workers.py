"""The workers of a team, each in a process of its own: of this machine, or an actor of a Ray cluster.

All data travel by value: through a pipe, or by Ray's own calls, with its authentication.
"""

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.ensemble.eann import EANN
from anytime.ensemble.pool import MemberError, WorkerDied
from anytime.errors import AnytimeError, require
from anytime.memory import keep_freed_memory
from anytime.network import weights_device

START_SECONDS = 300.0
"""How long an actor may take to start, which includes waiting for free CPUs and importing torch on a busy machine."""


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


_started: WeakSet[BaseProcess] = WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child: multiprocessing would end the parent's workers when the child ends."""
    process._children.difference_update(_started)  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


class LocalFactory:
    """Starts worker processes afresh (multiprocessing's *spawn*)."""

    hint = (
        '; if this is a script, make the team below if __name__ == "__main__": since each worker reads the script again'
    )

    def __init__(self, eann: EANN, threads: int) -> None:
        self.threads = threads
        self.eann: bytes = dumped(pickle.dumps, eann, "this ensemble")
        self.context = multiprocessing.get_context("spawn")

    def start(self) -> "LocalWorker":
        """Start one more."""
        try:
            return LocalWorker(self)
        except (OSError, AssertionError) as error:  # assertion: multiprocessing's daemons may have no children
            raise WorkerDied(str(error)) from error

    def pack(self, x: Any) -> bytes:
        """By value: memory shared with a process that may be killed at any moment is not safe."""
        return dumped(pickle.dumps, to_arrays(x), "this input")


class LocalWorker:
    """A process at the other end of a pipe."""

    def __init__(self, factory: LocalFactory) -> None:
        self.eann, self.sending = factory.eann, threading.Lock()
        self.pipe, theirs = factory.context.Pipe()
        try:
            arguments = (theirs, factory.threads)
            self.process = factory.context.Process(target=_serve, args=arguments, name="anytime worker", daemon=True)
            self.process.start()
            _started.add(self.process)
        except BaseException:
            self.pipe.close()
            raise
        finally:
            theirs.close()  # so that the pipe breaks when the worker dies

    def wait_until_ready(self) -> None:
        """Send it the ensemble and wait for its confirmation."""
        # Not as an argument of the process: if it dies while it starts, writing to it would block forever.
        self._send(self.eann)
        self._receive()
        self.eann = b""

    def alive(self) -> bool:
        """Whether the process is running."""
        return self.process.is_alive()

    def answers(self, run: int, member: int, x: bytes) -> Iterator[tuple[int, Tensor]]:
        """Yield the exits' answers as they arrive."""
        self._send(pickle.dumps((run, member, x)))
        while (message := self._receive()) is not None:
            if isinstance(message, str):
                raise MemberError(message)
            yield to_tensors(message)

    def halt(self, run: int) -> None:
        """Tell it to stop working for that run."""
        with suppress(WorkerDied):
            self._send(pickle.dumps((run, None, None)))

    def close(self) -> None:
        """End the process: it exits when its pipe is closed."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _send(self, message: bytes) -> None:
        try:
            with self.sending:
                self.pipe.send_bytes(message)
        except OSError as error:
            raise self._died() from error

    def _receive(self) -> Any:
        try:
            return pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._died() from error

    def _died(self) -> WorkerDied:
        self.process.join(10)  # its end of the pipe is closed, so it is ending, on a busy machine not at once
        code = self.process.exitcode
        how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
        return WorkerDied(f"process {self.process.pid}, {how}")


def _serve(pipe: Connection, threads: int) -> None:
    """Run in the worker: take one network after another until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; this process ends with its pipe
    torch.set_num_threads(threads)
    keep_freed_memory()
    halted = HaltedRuns()

    def is_halted() -> bool:
        while pipe.poll():  # while a network runs, nothing else is sent
            halted.append(pickle.loads(pipe.recv_bytes())[0])
        return run in halted

    try:
        eann = pickle.loads(pipe.recv_bytes())
        pipe.send_bytes(pickle.dumps(None))
        while True:
            run, member, x = pickle.loads(pipe.recv_bytes())
            if member is None:
                halted.append(run)
                continue
            end: str | None = None
            try:
                for answer in run_member(eann, member, to_tensors(pickle.loads(x)), is_halted):
                    pipe.send_bytes(pickle.dumps(to_arrays(answer)))
            except Exception as error:
                end = f"{type(error).__name__}: {error}"
            pipe.send_bytes(pickle.dumps(end))
    except (EOFError, OSError):
        return  # the team has closed the pipe, or its process ended


class RayFactory:
    """Starts Ray actors with ``threads`` CPUs each; raises if the cluster is too small for all ``workers``."""

    hint = ""

    def __init__(self, eann: EANN, threads: int, workers: int) -> None:
        self.ray, self.threads = require("ray", "cluster"), threads
        if not self.ray.is_initialized():
            self.ray.init(include_dashboard=False, log_to_driver=False)
        cpus = [int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"]]
        room = sum(each // threads for each in cpus)
        if room < workers:
            raise AnytimeError(
                f"workers={workers} with threads={threads} need {workers * threads} CPUs, {threads} on one machine for "
                f"each worker; the Ray cluster has {sum(cpus)} on {len(cpus)} machines, room for {room} such workers: "
                "ask for fewer workers or threads"
            )
        # Ray's own pickle also includes classes that are defined in the main program.
        self.eann = self.ray.put(dumped(self.ray.cloudpickle.dumps, eann, "this ensemble"))
        groups = {"halt": 1, "lifetime": 1}
        self.actor: Any = self.ray.remote(num_cpus=threads, concurrency_groups=groups)(_Actor)

    def start(self) -> "RayWorker":
        """Start one more."""
        try:
            return RayWorker(self)
        except Exception as error:  # Ray has been shut down, or its control process is gone
            raise WorkerDied(_reason(error)) from error

    def pack(self, x: Any) -> Any:
        """Put the input into Ray's object store, once for all networks."""
        return dumped(self.ray.put, to_arrays(x), "this input")


class RayWorker:
    """The handle of an actor."""

    def __init__(self, factory: RayFactory) -> None:
        self.ray = factory.ray
        self.actor = factory.actor.remote(factory.eann, factory.threads)
        self.lifetime = self.actor.live.options(concurrency_group="lifetime").remote().future()

    def wait_until_ready(self) -> None:
        """Wait until the actor has a place and has read the ensemble."""
        try:
            self.ray.get(self.actor.ready.remote(), timeout=START_SECONDS)
        except self.ray.exceptions.GetTimeoutError:
            free, has = (
                resources.get("CPU", 0) for resources in (self.ray.available_resources(), self.ray.cluster_resources())
            )
            raise WorkerDied(
                f"a Ray actor did not start within {START_SECONDS:g} s: {free:g} of the cluster's {has:g} CPUs are free"
            ) from None
        except self.ray.exceptions.RayError as error:
            raise WorkerDied(_reason(error)) from error

    def alive(self) -> bool:
        """Whether the actor is running, as far as Ray knows."""
        return not self.lifetime.done()

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        """Yield the exits' answers as they arrive."""
        try:
            for answer in self.actor.answers.options(num_returns="streaming").remote(run, member, x):
                yield to_tensors(self.ray.get(answer))
        except self.ray.exceptions.RayTaskError as error:
            raise MemberError(f"{type(error.cause).__name__}: {error.cause}") from error
        except self.ray.exceptions.RayError as error:
            raise WorkerDied(_reason(error)) from error

    def halt(self, run: int) -> None:
        """Tell it to stop working for that run."""
        with suppress(Exception):  # the actor, or Ray, is gone
            self.actor.halt.options(concurrency_group="halt").remote(run)

    def close(self) -> None:
        """End the actor's process."""
        with suppress(Exception):  # Ray may have been shut down before
            self.ray.kill(self.actor)


class _Actor:
    """Runs networks in a process of the cluster; ``halt`` runs beside ``answers``, in a thread of its own."""

    def __init__(self, eann: bytes, threads: int) -> None:
        keep_freed_memory()
        self.eann, self.threads, self.halted = pickle.loads(eann), threads, HaltedRuns()

    def ready(self) -> None:
        """Return once ``__init__`` has."""

    def live(self) -> None:
        """Never return: Ray ends this call when the actor ends, however that happens."""
        threading.Event().wait()

    def answers(self, run: int, member: int, x: Any) -> Iterator[Any]:
        torch.set_num_threads(self.threads)  # a setting of the thread, and Ray chooses which one runs this
        for answer in run_member(self.eann, member, to_tensors(x), lambda: run in self.halted):
            yield to_arrays(answer)

    def halt(self, run: int) -> None:
        self.halted.append(run)


def _reason(error: Exception) -> str:
    """The line of Ray's long message that says what has happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if "creation task" in lines[0] else 0]  # the error that was raised there stands last
