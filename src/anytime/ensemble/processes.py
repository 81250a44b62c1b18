"""Workers that are processes of this machine, each at the other end of a pipe."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from anytime.ensemble.eann import EANN
from anytime.ensemble.workers import HaltedRuns, MemberError, WorkerDied, dumped, run_member, to_arrays, to_tensors
from anytime.memory import keep_freed_memory

_started: WeakSet[BaseProcess] = WeakSet()


def _leave_to_the_parent() -> None:
    """In a forked child: multiprocessing would end the parent's workers when the child ends."""
    process._children.difference_update(_started)  # type: ignore[attr-defined]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


class ProcessFactory:
    """Starts worker processes afresh (multiprocessing's *spawn*)."""

    hint = (
        '; if this is a script, make the team below if __name__ == "__main__": since each worker reads the script again'
    )

    def __init__(self, eann: EANN, threads: int) -> None:
        self.threads = threads
        self.eann: bytes = dumped(pickle.dumps, eann, "this ensemble")
        self.context = multiprocessing.get_context("spawn")

    def start(self) -> "ProcessWorker":
        """Start one more."""
        try:
            return ProcessWorker(self)
        except (OSError, AssertionError) as error:  # assertion: multiprocessing's daemons may have no children
            raise WorkerDied(str(error)) from error

    def pack(self, x: Any) -> bytes:
        """By value: memory shared with a process that may be killed at any moment is not safe."""
        return dumped(pickle.dumps, to_arrays(x), "this input")


class ProcessWorker:
    """A process at the other end of a pipe."""

    def __init__(self, factory: ProcessFactory) -> None:
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
        return  # the team has closed the pipe, or is gone
