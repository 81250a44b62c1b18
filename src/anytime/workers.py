"""Workers that run the networks of an ensemble elsewhere: processes of this machine, or actors of a Ray cluster."""

import multiprocessing
import pickle
import signal
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

    def alive(self) -> bool:
        """Whether it still does."""
        ...

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        """The offered exits of one network, as they are reached; ends early once the run is halted."""
        ...

    def halt(self, run: int) -> None:
        """Stop what it does for that run, within one stage."""

    def close(self) -> None:
        """Send it home."""


class Workshop(Protocol):
    """Makes workers of one kind."""

    def hire(self) -> Worker:
        """One more; it begins to get ready."""
        ...

    def pack(self, x: Any) -> Any:
        """An input as its workers take it; packed once for all networks."""


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
        for head in eann.walk_member(member, x, eann.offered_by(member)):
            if halted():
                return
            if head is not None:
                yield next(numbers), head().cpu()


class _Halted(deque[int]):
    """The runs that a worker was told to halt: the latest of them, since numbers only grow."""

    def __init__(self) -> None:
        super().__init__(maxlen=1000)


class _Array:
    """A tensor as an array, which pickle packs many times faster."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def _packed(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    leaf = leaf.resolve_conj().resolve_neg()
    try:
        return _Array(leaf.numpy())
    except TypeError:  # bfloat16, which arrays do not know
        return leaf


def _unpacked(leaf: Any) -> Any:
    return torch.from_numpy(leaf.array) if isinstance(leaf, _Array) else leaf


def _dumped(thing: Any, what: str) -> bytes:
    try:
        return pickle.dumps(thing)
    except Exception as error:
        raise AnytimeError(f"{what} cannot be sent to other processes: {error}") from error


class Processes:
    """Makes workers that are processes of this machine."""

    def __init__(self, eann: EANN, threads: int) -> None:
        self.threads = threads
        self.eann = _dumped(eann, "this ensemble")
        self.context = multiprocessing.get_context("spawn")

    def hire(self) -> "_Process":
        """One more."""
        return _Process(self)

    def pack(self, x: Any) -> bytes:
        """By value: memory shared with a process that is killed would be a trap."""
        return _dumped(tree_map(_packed, x), "this input")


class _Process:
    def __init__(self, made_by: Processes) -> None:
        self.pipe, theirs = made_by.context.Pipe()
        self.process = made_by.context.Process(
            target=_serve, args=(theirs, made_by.threads), name="anytime worker", daemon=True
        )
        self.process.start()
        theirs.close()  # so that the pipe breaks when the worker dies
        self.sending = threading.Lock()
        self.eann = made_by.eann

    def ready(self) -> None:
        self._send(self.eann)  # not as an argument: a process that dies as it starts would never read it
        self._receive()
        self.eann = b""

    def alive(self) -> bool:
        return self.process.is_alive()

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        self._send(pickle.dumps((run, member, x)))
        while (message := self._receive()) is not None:
            if isinstance(message, str):
                raise Refused(message)
            exit, logits = message
            yield exit, _unpacked(logits)

    def halt(self, run: int) -> None:
        with suppress(Died):  # then it halts for good
            self._send(pickle.dumps((run, None, None)))

    def close(self) -> None:
        self.pipe.close()  # it goes home once it reads that
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _send(self, message: bytes) -> None:
        try:
            with self.sending:
                self.pipe.send_bytes(message)
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
        how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
        return Died(f"process {self.process.pid}, {how}")


def _serve(pipe: Any, threads: int) -> None:
    """A worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; this one ends with its pipe
    torch.set_num_threads(threads)
    keep_freed_memory()
    halted = _Halted()

    def is_halted() -> bool:
        while pipe.poll():  # while it works it is sent nothing else
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
                for exit, logits in _play(eann, member, tree_map(_unpacked, pickle.loads(x)), is_halted):
                    pipe.send_bytes(pickle.dumps((exit, _packed(logits))))
            except Exception as error:
                end = f"{type(error).__name__}: {error}"
            pipe.send_bytes(pickle.dumps(end))
    except (EOFError, OSError):
        return  # the team is gone


RAY_PAUSE = 0.005
"""Seconds between two answers of a Ray actor: to send one takes it, and who receives it, a millisecond or two."""


class RayActors:
    """Makes workers that are Ray actors."""

    def __init__(self, eann: EANN, threads: int) -> None:
        self.ray, self.threads = require("ray", "cluster"), threads
        if not self.ray.is_initialized():
            self.ray.init(include_dashboard=False, log_to_driver=False)
        self.eann = self.ray.put(eann)  # Ray also packs classes of the main program
        # A second thread, to be told to halt while the first one works.
        self.actor: Any = self.ray.remote(num_cpus=threads, max_concurrency=2)(_Player)

    def hire(self) -> "_RayActor":
        """One more."""
        return _RayActor(self.ray, self.actor.remote(self.eann, self.threads))

    def pack(self, x: Any) -> Any:
        """Into Ray's store, once."""
        try:
            return self.ray.put(x)
        except Exception as error:
            raise AnytimeError(f"this input cannot be sent to other processes: {error}") from error


class _RayActor:
    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor

    def ready(self) -> None:
        self._get(lambda: self.ray.get(self.actor.halt.remote(-1)))

    def alive(self) -> bool:
        try:
            self.ready()
            return True
        except Died:
            return False

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
    """What runs in a Ray actor."""

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
        self.halted.append(run)
