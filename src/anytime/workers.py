"""Workers that run the networks of an ensemble elsewhere: processes of this machine, or actors of a Ray cluster."""

import multiprocessing
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.ensemble import EANN
from anytime.errors import AnytimeError, require
from anytime.memory import keep_freed_memory


class Worker(Protocol):
    """Runs one network at a time, elsewhere."""

    def ready(self) -> None:
        """Wait until it can work."""

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        """The offered exits of one network, as they are reached; ends early once the run is halted."""
        ...

    def halt(self, run: int) -> None:
        """Stop what it does for that run, within one stage."""

    def close(self) -> None:
        """Send it home."""


class Died(Exception):
    """The worker is no more."""


class Refused(Exception):
    """The network raised an error."""


def _play(eann: EANN, member: int, x: Any, halted: Callable[[], bool]) -> Iterator[tuple[int, Tensor]]:
    """What a worker does: the walk of one network, with the number of each exit in the ensemble."""
    numbers = iter([i for i, (one, _) in enumerate(eann.offered) if one == member])
    device = next(eann.parameters()).device
    with torch.inference_mode():
        x = tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, x)
        for head in eann.walk_member(member, x):
            if halted():
                return
            if head is not None:
                yield next(numbers), head().cpu()


def _packed(leaf: Any) -> Any:
    """Tensors as arrays, which pickle packs many times faster."""
    try:
        return leaf.numpy() if isinstance(leaf, Tensor) else leaf
    except TypeError:  # bfloat16, which arrays do not know
        return leaf


def _unpacked(leaf: Any) -> Any:
    return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf


class Processes:
    """Makes workers that are processes of this machine."""

    def __init__(self, eann: EANN, threads: int) -> None:
        self.threads = threads
        try:
            self.packed = pickle.dumps(eann)
        except Exception as error:
            raise AnytimeError(f"this ensemble cannot be sent to other processes: {error}") from error
        self.context = multiprocessing.get_context("spawn")

    def __call__(self) -> "_Process":
        """One more."""
        return _Process(self)


class _Process:
    def __init__(self, hire: Processes) -> None:
        self.pipe, theirs = hire.context.Pipe()
        args = (theirs, hire.packed, hire.threads)
        self.process = hire.context.Process(target=_serve, args=args, name="anytime worker", daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe breaks when the worker dies
        self.sending = threading.Lock()

    def ready(self) -> None:
        self._receive()

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        self._send((run, member, tree_map(_packed, x)))
        while (message := self._receive()) is not None:
            if isinstance(message, str):
                raise Refused(message)
            exit, logits = message
            yield exit, _unpacked(logits)

    def halt(self, run: int) -> None:
        with suppress(Died):  # then it halts for good
            self._send((run, None, None))

    def close(self) -> None:
        self.pipe.close()  # it goes home once it reads that
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _send(self, message: Any) -> None:
        # By value: memory shared with a process that is killed would be a trap.
        try:
            with self.sending:
                self.pipe.send_bytes(pickle.dumps(message))
        except OSError as error:
            raise self._death() from error

    def _receive(self) -> Any:
        try:
            return pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death() from error

    def _death(self) -> Died:
        self.process.join(1)
        code = self.process.exitcode
        return Died(f"process {self.process.pid}, " + (f"signal {-code}" if code and code < 0 else f"exit code {code}"))


def _serve(pipe: Any, packed: bytes, threads: int) -> None:
    """A worker process."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    eann = pickle.loads(packed)
    pipe.send_bytes(pickle.dumps(None))
    halted = _Halted()

    def is_halted() -> bool:
        while pipe.poll():  # while it works it is sent nothing else
            halted.add(pickle.loads(pipe.recv_bytes())[0])
        return run in halted

    try:
        while True:
            run, member, x = pickle.loads(pipe.recv_bytes())
            if member is None:
                halted.add(run)
                continue
            end: str | None = None
            try:
                for exit, logits in _play(eann, member, tree_map(_unpacked, x), is_halted):
                    pipe.send_bytes(pickle.dumps((exit, _packed(logits))))
            except Exception as error:
                end = f"{type(error).__name__}: {error}"
            pipe.send_bytes(pickle.dumps(end))
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the team is gone


class _Halted(deque[int]):
    """The runs that a worker was told to halt: the latest of them, since numbers only grow."""

    def __init__(self) -> None:
        super().__init__(maxlen=1000)

    def add(self, run: int) -> None:
        self.append(run)


RAY_PAUSE = 0.005
"""Seconds between two answers of a Ray actor: to send one takes it, and who receives it, a millisecond or two."""


class RayActors:
    """Makes workers that are Ray actors."""

    def __init__(self, eann: EANN, threads: int) -> None:
        self.ray, self.threads = require("ray", "cluster"), threads
        if not self.ray.is_initialized():
            self.ray.init(include_dashboard=False, log_to_driver=False)
        self.eann = self.ray.put(eann)  # Ray also packs classes of the main program

    def __call__(self) -> "_RayActor":
        """One more."""
        return _RayActor(self)


class _RayActor:
    def __init__(self, hire: RayActors) -> None:
        self.ray = hire.ray
        # A second thread, to be told to halt while the first one works.
        actor: Any = self.ray.remote(num_cpus=hire.threads, max_concurrency=2)(_Player)
        self.actor = actor.remote(hire.eann, hire.threads)

    def ready(self) -> None:
        self._get(lambda: self.ray.get(self.actor.halt.remote(-1)))

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        answers = self.actor.answers.options(num_returns="streaming").remote(run, member, x)
        while True:
            try:
                yield self._get(lambda: self.ray.get(next(answers)))
            except StopIteration:
                return

    def _get(self, wait: Callable[[], Any]) -> Any:
        try:
            return wait()
        except self.ray.exceptions.RayActorError as error:
            raise Died(str(error).splitlines()[0]) from error
        except self.ray.exceptions.RayTaskError as error:
            raise Refused(str(error.cause or error).splitlines()[0]) from error

    def halt(self, run: int) -> None:
        self.actor.halt.remote(run)

    def close(self) -> None:
        self.ray.kill(self.actor)


class _Player:
    def __init__(self, eann: EANN, threads: int) -> None:
        self.eann, self.threads, self.halted = eann, threads, _Halted()
        keep_freed_memory()

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        torch.set_num_threads(self.threads)  # each thread has its own number
        held, sent = None, 0.0
        for held in _play(self.eann, member, x, lambda: run in self.halted):
            now = time.perf_counter()
            if now - sent >= RAY_PAUSE:
                sent = now
                yield held
                held = None
        if held is not None:
            yield held

    def halt(self, run: int) -> None:
        self.halted.add(run)
