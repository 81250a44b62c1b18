"""Workers that run the networks of an ensemble elsewhere: processes of this machine, or actors of a Ray cluster.

Either kind serves at the other end of a connection (``_serve``). Ray finds an actor its place and tells of its end;
what is asked and answered does not go through Ray, which takes a millisecond or two for each message.
"""

import multiprocessing
import os
import pickle
import secrets
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.ensemble.eann import EANN
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


def _dumped(dumps: Callable[[Any], bytes], thing: Any, what: str) -> bytes:
    try:
        return dumps(thing)
    except Exception as error:
        raise AnytimeError(f"{what} cannot be sent to other processes: {error}") from error


class _Link:
    """A worker at the other end of a connection."""

    pipe: Connection

    def __init__(self, eann: bytes) -> None:
        self.eann, self.sending = eann, threading.Lock()

    def ready(self) -> None:
        """Send it the ensemble and wait for its word."""
        # Not as an argument of the process: one that dies as it starts would never read it.
        self._send(self.eann)
        self._receive()
        self.eann = b""

    def answers(self, run: int, member: int, x: bytes) -> Iterator[tuple[int, Tensor]]:
        """As ``Worker`` says."""
        self._send(pickle.dumps((run, member, x)))
        while (message := self._receive()) is not None:
            if isinstance(message, str):
                raise Refused(message)
            exit, logits = message
            yield exit, _unpacked(logits)

    def halt(self, run: int) -> None:
        """As ``Worker`` says."""
        with suppress(Died):  # then it halts for good
            self._send(pickle.dumps((run, None, None)))

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
        raise NotImplementedError


def _serve(pipe: Any, threads: int) -> None:
    """What a worker does all its life."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; this one ends with its connection
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


class Processes:
    """Makes workers that are processes of this machine."""

    def __init__(self, eann: EANN, threads: int) -> None:
        self.threads = threads
        self.eann = _dumped(pickle.dumps, eann, "this ensemble")
        self.context = multiprocessing.get_context("spawn")

    def hire(self) -> "_Process":
        """One more."""
        return _Process(self)

    def pack(self, x: Any) -> bytes:
        """By value: memory shared with a process that is killed would be a trap."""
        return _dumped(pickle.dumps, tree_map(_packed, x), "this input")


class _Process(_Link):
    def __init__(self, made_by: Processes) -> None:
        super().__init__(made_by.eann)
        self.pipe, theirs = made_by.context.Pipe()
        arguments = (theirs, made_by.threads)
        self.process = made_by.context.Process(target=_serve, args=arguments, name="anytime worker", daemon=True)
        self.process.start()
        theirs.close()  # so that the pipe breaks when the worker dies

    def alive(self) -> bool:
        return self.process.is_alive()

    def close(self) -> None:
        self.pipe.close()  # it goes home once it reads that
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _death(self) -> Died:
        self.process.join(1)
        code = self.process.exitcode
        how = f"signal {-code}" if code and code < 0 else f"exit code {code}"
        return Died(f"process {self.process.pid}, {how}")


class RayActors:
    """Makes workers that are Ray actors."""

    def __init__(self, eann: EANN, threads: int) -> None:
        self.ray, self.threads = require("ray", "cluster"), threads
        if not self.ray.is_initialized():
            self.ray.init(include_dashboard=False, log_to_driver=False)
        # Ray's own pickle also takes classes of the main program along.
        self.eann = _dumped(self.ray.cloudpickle.dumps, eann, "this ensemble")
        self.actor: Any = self.ray.remote(num_cpus=threads)(_Actor)

    def hire(self) -> "_RayActor":
        """One more."""
        if self.ray.cluster_resources().get("CPU", 0) < self.threads:
            raise AnytimeError(f"the Ray cluster has no {self.threads} cores for a worker: ask for fewer threads")
        return _RayActor(self)

    def pack(self, x: Any) -> bytes:
        """By value."""
        return _dumped(self.ray.cloudpickle.dumps, tree_map(_packed, x), "this input")


class _Actor:
    """What Ray places somewhere; it calls back."""

    def serve(self, address: tuple[str, int], key: bytes, threads: int) -> None:
        with Client(address, authkey=key) as pipe:
            _send_at_once(pipe)
            _serve(pipe, threads)


class _RayActor(_Link):
    def __init__(self, made_by: RayActors) -> None:
        super().__init__(made_by.eann)
        self.ray, self.actor, self.ended, key = made_by.ray, made_by.actor.remote(), "", secrets.token_bytes(32)
        self.listener = Listener((self.ray.util.get_node_ip_address(), 0), authkey=key)
        self.serving = self.actor.serve.remote(self.listener.address, key, made_by.threads)
        threading.Thread(target=self._watch, name="anytime", daemon=True).start()

    def ready(self) -> None:
        try:
            self.pipe = self.listener.accept()
        except OSError as error:
            raise self._death() from error
        _send_at_once(self.pipe)
        super().ready()

    def _watch(self) -> None:
        """Break the connection when the actor ends: that of a machine that is gone would not break by itself."""
        try:
            self.ray.get(self.serving)
            self.ended = "it has ended"
        except Exception as error:
            self.ended = str(error).splitlines()[0]
        self.close()

    def alive(self) -> bool:
        return not self.ended

    def close(self) -> None:
        for connection in (getattr(self, "pipe", None), self.listener):
            with suppress(OSError):
                _shut(connection)
        if not self.ended:
            with suppress(Exception):  # Ray may have ended before
                self.ray.kill(self.actor)

    def _death(self) -> Died:
        for _ in range(50):  # Ray is a little slower than the connection
            if self.ended:
                break
            threading.Event().wait(0.1)
        return Died(self.ended or "its connection broke")


def _shut(connection: Any) -> None:
    """Close it, and wake who waits in it."""
    if isinstance(connection, Connection):
        with socket.socket(fileno=os.dup(connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
    if connection is not None:
        connection.close()


def _send_at_once(connection: Any) -> None:
    """Small messages are not to wait for others to join them."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
