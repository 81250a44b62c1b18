"""Where the stages run: a thread of this process, or a process at the other end of a socket."""

import asyncio
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.inference.batch_times import is_outdated, measure_batches
from anytime.inference.policy import Policy
from anytime.memory import keep_freed_memory, steady
from anytime.serving.arena import Arena
from anytime.serving.model import Source
from anytime.serving.runner import Event, Runner, Settings
from anytime.serving.wire import Wire

News = tuple[list[Event], float, float, float]
"""Events, then the slow-down's mean and 95th percentile, and the usual batch."""


CLOSING = 5.0
"""Seconds that a worker may take to end; a process is killed then."""


class Job(NamedTuple):
    """Everything that a worker needs to begin."""

    net: Any
    """The network, or the ``Source`` that it is loaded from."""
    settings: Settings
    example: Any
    threads: int
    arena: tuple[int, int] | None
    """Number and size of the slots."""
    checks: bool = False
    """Whether the times of the stages were read from a file, and are measured anew if they are outdated."""


Add = tuple[int, int | None, Any, float, bool]
"""A request for a worker: its number, its slot in the arena, what describes the input there (without a slot the input
itself), its deadline, and whether every exit is wanted. A plain tuple: those are pickled several times faster."""


PING = "ping"
"""Answered at the next stage boundary with news without events."""


def start_runner(job: Job, tell: Callable[[News], object]) -> Runner:
    """A runner for a job, after measuring what is not known."""

    def news(events: list[Event]) -> None:
        scheduler = runner.scheduler
        tell((events, scheduler.slow.mean, scheduler.slow.high, scheduler.usual))

    settings = job.settings
    net = job.net.load() if isinstance(job.net, Source) else job.net
    if settings.times is None or (job.checks and is_outdated(settings.times, net, job.example)):
        batches = [2**i for i in range(settings.largest.bit_length())]
        settings = settings._replace(times=measure_batches(net, job.example, batches))
    runner = Runner(net, settings, news)
    return runner


def warm_up(net: Any, example: Any) -> None:
    """Run every stage and head once: the first time, libraries load and allocate, which may take a second."""
    with torch.inference_mode():
        for _ in net.steps(example):
            pass


@torch.inference_mode()  # entered once: at every stage it would take as long as the decision
def run(runner: Runner, receive: Callable[[bool], list[Any]], unpack: Callable[[int, Any], Any]) -> None:
    """Take messages and run stages until told to end. ``receive(wait)`` gives all that have come, or waits for one."""
    while True:
        if runner.idle:
            messages = receive(True)
            runner.resume()
        else:
            messages = receive(False)
        for message in messages:
            if message is None:
                return
            if message == PING:
                runner.tell([])
            elif isinstance(message, Policy):
                runner.settings = runner.settings._replace(policy=message)
            elif isinstance(message, int):
                runner.cancel(message)
            else:
                id, slot, x, deadline, streams = message
                runner.add(id, x if slot is None else unpack(slot, x), deadline, streams)
        runner.step()


class ThreadWorker:
    """Runs in a thread of this process."""

    def __init__(self, job: Job, tell: Callable[["ThreadWorker", News], object], died: Any) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.runner = start_runner(
            job, lambda news: tell(self, _decoded(_encoded(news)))
        )  # logits in memory of their own
        self.settings, self.died = self.runner.settings, died
        self.name, self.unsent, self.unread = "thread", 0, False
        self.thread = threading.Thread(target=self._work, name="anytime engine", daemon=True)

    def begin(self, loop: asyncio.AbstractEventLoop | None = None) -> None:  # noqa: ARG002
        """Start working."""
        self.thread.start()

    def _work(self) -> None:
        try:
            run(self.runner, self._receive, lambda _, x: x)
        except BaseException as error:
            self.died(self, f"the engine's thread ended with {type(error).__name__}: {error}")
            raise

    def _receive(self, wait: bool) -> list[Any]:
        messages = [self.inbox.get()] if wait else []
        with suppress(queue.Empty):
            while True:
                messages.append(self.inbox.get_nowait())
        return messages

    def send(self, message: Any) -> None:
        """Pass a message on."""
        self.inbox.put(message)

    def dismiss(self) -> None:
        """Tell the thread to end after the present stage."""
        self.inbox.put(None)

    def close(self, seconds: float = CLOSING) -> None:
        """End the thread after the present stage, for which it waits a while."""
        self.dismiss()
        if self.thread is not threading.current_thread():
            self.thread.join(seconds)

    def leave(self) -> None:
        """For a forked process, which has no such thread."""


class ProcessWorker:
    """A process of its own. It begins with a fresh interpreter: nothing of the program's main module runs again.

    Args:
        job: what to do.
        arena: the memory with the inputs.
        tell: called with news.
        died: called with the reason when the process has ended by itself, in a thread.
    """

    def __init__(
        self,
        job: bytes,
        arena: Arena,
        tell: Callable[["ProcessWorker", News], object],
        died: Callable[["ProcessWorker", str], object],
    ) -> None:
        self.tell, self.died = tell, died
        self.closed = self.begun = False
        self.signs = 0
        """How many signs of life were heard, written by whoever listens."""
        self.seen, self.silent = 0, 0.0
        """Those that ``Crew.check`` has seen, and the seconds since then, written by it alone."""
        self._listener: threading.Thread | None = None
        ours, theirs = socket.socketpair()
        code = f"from anytime.serving.worker import serve; serve({theirs.fileno()}, {arena.file})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code], pass_fds=(theirs.fileno(), arena.file), env=environment
            )
        self.wire = Wire(ours)
        self.name = f"process {self.process.pid}"
        self.job = job

    def wait_until_ready(self) -> Settings:
        """Give it the network and wait until it can take requests; the settings with the times that it measured."""
        try:
            self.wire.send_pickled(self.job)
            (answer,) = self.wire.receive()
        except (EOFError, OSError) as error:
            self.wire.close()
            raise AnytimeError(f"an engine could not be started: {self._how_it_ended()}") from error
        finally:
            self.job = b""
        if isinstance(answer, str):
            self.close()
            raise AnytimeError(f"an engine could not be started: {answer}")
        return answer

    def begin(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Listen to its news: in an event loop, or a thread."""
        self.begun = True
        if loop is None:
            self._listener = self._thread(self._listen)
        else:
            hear = partial(self._hear_in, loop)
            loop.call_soon_threadsafe(loop.add_reader, self.wire.fileno(), hear)

    def _thread(self, work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, name="anytime engine", daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        while self._hear():
            pass
        self._ended()

    def _hear_in(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._hear(wait=False):
            loop.remove_reader(self.wire.fileno())
            self._thread(self._ended)  # it may wait

    def _hear(self, wait: bool = True) -> bool:
        """Pass news on; False if there will be no more."""
        try:
            for news in self.wire.receive(wait):
                self.signs += 1
                if news[0]:
                    self.tell(self, _decoded(news))
        except (EOFError, OSError):
            return False
        return True

    def _ended(self) -> None:
        how = self._how_it_ended()
        if not self.closed:
            self.died(self, how)
        self.wire.close()

    def send(self, message: Any) -> None:
        """Pass a message on, without waiting. If the process is gone, ``died`` is called with all of its requests."""
        self.wire.post(message)

    @property
    def unsent(self) -> int:
        """Bytes of messages that the process has not taken yet."""
        return self.wire.unsent

    @property
    def unread(self) -> bool:
        """Whether there is news that nobody has looked at."""
        return self.wire.unread

    def abandon(self) -> None:
        """End a process that does not react; its news is of no interest any more."""
        self.closed = True
        self.process.kill()

    def dismiss(self) -> None:
        """Tell the process to end after its present stage; its news is of no interest any more."""
        self.closed = True
        self.send(None)

    def close(self, seconds: float = CLOSING) -> None:
        """End the process after its present stage, for which it waits a while (it ends itself if ours is gone)."""
        self.dismiss()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if not self.begun:  # else whoever listens closes it
            self.wire.close()
        elif self._listener is not None and self._listener is not threading.current_thread():
            self._listener.join(CLOSING)

    def leave(self) -> None:
        """For a forked process, which shares the descriptor: close its own without a word to the engine's process."""
        self.wire.socket.close()

    def _how_it_ended(self) -> str:
        try:
            code = self.process.wait(CLOSING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"{self.name} ended with {how}"


def pack(job: Job) -> bytes:
    """The job as a process gets it."""
    try:
        return pickle.dumps(job)
    except Exception as error:
        raise AnytimeError(
            f"this network cannot be sent to another process ({error}): use Engine(folder), which loads it there, or "
            "Engine(net, processes=0), which runs in a thread"
        ) from error


def serve(wire_file: int, arena_file: int) -> None:
    """The main function of an engine's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; this process ends with its pipe
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wire = Wire(socket.socket(fileno=wire_file))
    try:
        try:
            job: Job = wire.receive()[0]
            torch.set_num_threads(job.threads)
            keep_freed_memory()
            assert job.arena is not None
            arena = Arena(*job.arena, file=arena_file)
            runner = start_runner(job, lambda news: wire.send(_encoded(news)))
            warm_up(runner.net, job.example)
        except (EOFError, OSError):
            return
        except Exception as error:
            wire.send(f"{type(error).__name__}: {error}")
            return
        steady()
        wire.send(runner.settings)
        run(runner, wire.receive, arena.get)
    except (EOFError, OSError):
        return  # the engine has closed the socket, or is gone


def _encoded(news: News) -> Any:
    """News as they are sent: plain tuples and bytes, which are pickled many times faster than tensors."""
    return ([(*e[:3], None if e.logits is None else _packed(e.logits), *e[4:]) for e in news[0]], *news[1:])


def _packed(logits: Tensor) -> tuple[bytearray, tuple[int, ...]]:
    return bytearray(logits.float().numpy()), tuple(logits.shape)


def _decoded(news: Any) -> News:
    """The news as they were before ``_encoded``."""
    events = [
        Event(id, kind, exit, logits and _unpacked(*logits), *others) for id, kind, exit, logits, *others in news[0]
    ]
    return (events, *news[1:])


def _unpacked(content: bytearray, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.float32).reshape(shape))
