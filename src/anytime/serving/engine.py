"""Engine: answers requests under deadlines; the more there are, the shallower the exits that answer."""

import asyncio
import os
import time
from bisect import insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from math import inf
from pathlib import Path
from typing import Any, Self

from anytime.errors import AnytimeError, check_integer, check_number
from anytime.inference.batch_times import BatchTimes
from anytime.inference.policy import Policy
from anytime.inference.prediction import UnfinishedError
from anytime.inputs import as_input
from anytime.network import Network, tensors_of
from anytime.serving.admission import Bounds, OverloadedError, check_bounds, lateness
from anytime.serving.books import Books
from anytime.serving.crew import Crew, EngineDiedError
from anytime.serving.model import Model
from anytime.serving.request import Answer, Request, settle
from anytime.serving.runner import Event
from anytime.serving.slowdown import Ahead
from anytime.serving.watch import Watch, close_at_exit
from anytime.serving.ways import make_tables
from anytime.serving.worker import Add

__all__ = ["Answer", "Engine", "EngineDiedError", "OverloadedError"]

UNSENT = 2**20
"""Bytes of messages, beyond the inputs in flight, that a process has not taken: with more it gets no new requests."""


class Engine:
    """Answers requests under deadlines, with batches that requests join and leave at every stage boundary.

    A request is admitted only if the first exits of all that are waiting, its own too, fit before their deadlines; if
    not, ``submit`` raises ``OverloadedError`` at once. What is admitted is answered, with the deepest exit that the
    load allows; one second after its deadline it fails with ``UnfinishedError``. A network that was converted without a
    graph (``net.paused_because``) shares batches only at its first stage, and cannot be served here.

    Args:
        net: the network, or the folder of a saved or an exported one.
        policy: samples that an exit is sure of leave there. Default: the folder's, if it has one; False for none.
        accuracy: of each exit, on held-out data: what a deeper exit is worth. Default: the folder's evaluation; where
            there is none, every exit is assumed to be better than the one before by as much.
        profile: seconds of the stages by batch. Default: those saved in the folder; where there are none, measured now.
        example: one sample, a batch of one. Default: an image as the network's preprocessing or architecture says.
        backend: what runs the network of a folder: ``eager`` (PyTorch), ``onnx`` (its exported stages on ONNX Runtime),
            or ``auto``: an exported network runs as it was exported, a saved one with PyTorch.
        processes: number of engine processes, each with a copy of the network. 0: a thread of this process, which is
            for tests and simple programs: Python's lock is shared with everything else here.
        threads: torch's threads in each process.
        spare: keep one more process ready, which takes over within milliseconds when one dies.
        queue: number of requests that may be in flight.
        queue_bytes: of their inputs.
        queue_seconds: predicted time until all of them have their first exit.
        max_batch: the largest number of samples that run together.
        silence: seconds without a sign of life after which a process is killed and replaced; ten times its longest
            stage is added.
        loop: the event loop that reads the answers, sooner than a thread would, if requests come from it.

    Examples:
        >>> import anytime, torch
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> with anytime.Engine(net, processes=0, max_batch=4) as engine:
        ...     answer = engine.submit(torch.zeros(1, 3, 32, 32), deadline=60.0).result()
        >>> answer.exit, answer.complete, answer.logits.shape
        (2, True, torch.Size([1, 10]))
    """

    def __init__(
        self,
        net: Network | str | Path,
        *,
        policy: Policy | bool | None = None,
        accuracy: Sequence[float] | None = None,
        profile: BatchTimes | None = None,
        example: Any = None,
        backend: str = "auto",
        processes: int = 1,
        threads: int = 1,
        spare: bool = True,
        queue: int = 256,
        queue_bytes: int = 2**28,
        queue_seconds: float = 1.0,
        max_batch: int = 32,
        silence: float = 10.0,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        check_integer("processes", processes, least=0)
        check_integer("max_batch", max_batch)
        self._bounds = Bounds(
            check_integer("queue", queue),
            check_integer("queue_bytes", queue_bytes),
            check_number("queue_seconds", queue_seconds, above=0),
        )
        self.model = Model.of(net, policy, accuracy, profile, example, backend)
        self._books = Books(lambda slot: self._crew.release(slot))
        self._lock = self._books.lock
        self._number, self._closing, self._idle_refusals = 0, False, 0
        self._ahead = Ahead()
        self._owner = os.getpid()
        check_number("silence", silence, above=0)
        news = (self._heard, self._died, self._joined)
        self._crew = Crew(self.model, processes, threads, spare, queue, max_batch, *news, loop)
        settings = self._crew.settings
        self._tables = make_tables(settings.times, settings.accuracy, max_batch, every=settings.policy is not None)
        self._exits = [0] * len(settings.accuracy)
        self.times: BatchTimes = settings.times
        stage, nbytes = self._tables.longest_stage, sum(tensor.nbytes for tensor in tensors_of(self.model.example))
        self._watch = Watch(self._books, self._crew, self._overdue, silence, stage, max_batch, nbytes)
        close_at_exit(self)

    def submit(
        self, x: Any, deadline: float | None = None, on_exit: Callable[[Answer], object] | None = None
    ) -> "Future[Answer]":
        """Ask for a prediction; returns at once. ``future.cancel()`` takes it out at the next stage boundary.

        Args:
            x: the input as ``predict`` takes it: a batch, usually of one.
            deadline: seconds from now until the answer is needed; None for no limit.
            on_exit: called with the answer of every exit on the way, the last one included, in a thread of the engine:
                it must be quick.

        Raises:
            OverloadedError: if it cannot be admitted; ``retry_after`` says when to try again.
        """
        return self._submit(x, deadline, on_exit, Future())

    def asubmit(
        self, x: Any, deadline: float | None = None, on_exit: Callable[[Answer], object] | None = None
    ) -> "asyncio.Future[Answer]":
        """The same for async code, ``await engine.asubmit(x)``; if the task is cancelled, so is the request."""
        return self._submit(x, deadline, on_exit, asyncio.get_running_loop().create_future())

    def _submit(self, x: Any, deadline: float | None, on_exit: Callable[[Answer], object] | None, future: Any) -> Any:
        if os.getpid() != self._owner:
            raise AnytimeError("this engine belongs to the parent process: make an Engine in this one")
        begun = time.perf_counter()
        limit = begun + (inf if deadline is None else check_number("deadline", deadline))
        x = as_input(self.model.net, x)
        size = self.model.check_input(x, self._tables.largest)
        nbytes = sum(tensor.nbytes for tensor in tensors_of(x))
        with self._lock:
            self._number += 1
            request = Request(self._number, x, size, nbytes, begun, limit, on_exit, future)
            try:
                self._send(request, self._admit(limit, size, nbytes, begun))
            except OverloadedError:
                self._books.count("refused")
                raise
            self._books.enter(request)
        future.add_done_callback(lambda _: self._cancelled(request) if future.cancelled() else None)
        return future

    def check(self, deadline: float) -> None:
        """Raise ``OverloadedError`` if a request with this deadline, in seconds from now, could not be admitted now."""
        now = time.perf_counter()
        with self._lock:
            self._admit(now + deadline, 1, 0, now, only_asked=True)

    def _admit(self, due: float, size: int, nbytes: int, now: float, only_asked: bool = False) -> Any:
        """The worker that takes a request; raises if none can."""
        if self._closing:
            raise OverloadedError("the engine is closing", 1.0)
        workers = self._crew.workers
        if not workers and not self._crew.replaces:
            raise EngineDiedError("the engine's thread has ended: make a new Engine; a process would be replaced")
        if not workers:
            raise OverloadedError("no engine process is ready: one is being started", 1.0)
        books = self._books
        workers = [worker for worker in workers if worker.unsent <= UNSENT + books.bytes]
        if not workers:
            raise OverloadedError("the engine's process takes no messages", 1.0)
        worst, seconds, best = inf, 0.0, None
        busy = {other.worker for other in books.requests.values()}
        for worker in workers:
            waiting = books.waiting.setdefault(worker, [])
            entries = [(other.deadline, other.size) for other in waiting]
            insort(entries, (due, size))
            entries = [(deadline - self._ahead.seconds, size) for deadline, size in entries]
            pace = self._crew.pace[worker].at(now)
            late = lateness(self._tables, pace, entries, now, busy=worker in busy)
            if late < worst:
                worst, best = late, worker
                work = self._tables.first_exits[min(sum(size for _, size in entries), 4096) - 1]
                seconds = pace.mean * work
        tried = (worst > 0 or seconds > self._bounds.seconds) and self._tries(best in busy, only_asked)
        waits = 0.0 if tried else seconds
        check_bounds(self._bounds, len(books.requests) + 1, books.bytes + nbytes, waits)
        if worst > 0 and not tried:
            raise OverloadedError("its first exit, or that of a request before it, would be late", max(worst, 0.001))
        return best

    def _tries(self, busy: bool, only_asked: bool) -> bool:
        """Whether to try a request that seems too late: every tenth if the worker is idle, as times may be wrong."""
        self._idle_refusals = 0 if busy else min(self._idle_refusals + 1, 10)
        tries = self._idle_refusals == 10
        if tries and not only_asked:
            self._idle_refusals = 0
        return tries

    def _send(self, request: Request, worker: Any) -> None:
        """Send a request to a worker."""
        self._books.assign(request, worker)
        if request.slot is None and (stored := self._crew.store(request.x)) is not None:
            request.slot, request.x = stored
        deadline, streams = request.deadline - self._ahead.seconds, request.on_exit is not None
        message: Add = (request.id, request.slot, request.x, deadline, streams)
        worker.send(message)

    def _cancelled(self, request: Request) -> None:
        if os.getpid() == self._owner and self._withdraw(request):
            self._books.count("cancelled")

    def _withdraw(self, request: Request) -> bool:
        """Withdraw a request from its worker; False if it has been answered."""
        with self._lock:
            if not self._books.leave(request):
                return False
            if request.worker is not None:
                request.worker.send(request.id)
        return True

    def _heard(self, worker: Any, events: list[Event]) -> None:
        """Handle a worker's events, in its thread."""
        waited, books, late = False, self._books, self._books.counts["late"]
        for event in events:
            with self._lock:
                request = books.requests.get(event.id)
                if request is None or request.worker is not worker:
                    continue
                if event.kind == "first":
                    books.has_exit(request)
                    continue
                if event.kind != "exit":
                    books.leave(request)
            if event.kind == "failed":
                self._fail(request, AnytimeError(f"the network failed on this input: {event.stopped_by}"))
            else:
                waited = waited or event.stopped_by == "deadline"
                self._answered(request, event)
        if waited or books.counts["late"] > late:
            self._ahead.note(late=books.counts["late"] > late)

    def _answered(self, request: Request, event: Event) -> None:
        complete, now = event.exit + 1 == len(self._exits), time.perf_counter()
        answer = Answer(event.logits, event.exit, complete, now - request.begun, event.stopped_by, event.score)
        if event.kind == "exit":
            if request.on_exit is None or event.exit <= request.shown:  # run again after a death
                return
            request.shown = event.exit
            try:
                request.on_exit(answer)
            except Exception as error:  # the caller's mistake: its request ends with it, the engine goes on
                self._withdraw(request)
                self._fail(request, error)
            return
        if not settle(request.future, answer):
            return
        with self._lock:
            self._books.count("answered")
            self._books.count("in_time" if now <= request.deadline else "late")
            if event.moment <= request.deadline:
                self._books.count("ready_in_time")
            self._exits[event.exit] += 1

    def _fail(self, request: Request, error: Exception) -> None:
        if settle(request.future, error):
            self._books.count("failed")

    def _died(self, worker: Any, reason: str) -> None:
        """Its process has ended: run its requests elsewhere if there is time, else say why they failed."""
        now, lost = time.perf_counter(), []
        with self._lock:
            self._books.count("restarts")
            for request in self._books.orphan(worker):
                in_time = now + self._tables.first_exits[0] < request.deadline
                if not self._crew.replaces or request.deaths == 3 or not in_time or self._closing_now:
                    self._books.leave(request)
                    lost.append(request)
            self._send_again()
        for request in lost:
            self._fail(request, EngineDiedError(f"{reason}, and the request could not be run again"))

    def _send_again(self) -> None:
        """Give the requests that have lost their worker to others, if there are any; else they wait for a new one."""
        workers, waiting = self._crew.workers, self._books.waiting
        for request in self._books.of(None) if workers else ():
            self._send(request, min(workers, key=lambda worker: len(waiting.get(worker, ()))))

    def _joined(self) -> None:
        """Handle a new worker."""
        with self._lock:
            self._send_again()

    def _overdue(self, request: Request, seconds: float) -> None:
        if self._withdraw(request):
            self._fail(request, UnfinishedError("deadline", seconds))

    def use(self, policy: Policy) -> None:
        """Let samples leave by another policy from now on; one of the same score, for an engine that has a policy."""
        if self.model.policy is None or self.model.policy.score != policy.score:
            raise AnytimeError("an engine's policy is replaced by one with the same score: start it with such a policy")
        self._crew.use(policy)

    @property
    def ready(self) -> bool:
        """Whether a worker can take requests."""
        return bool(self._crew.workers) and not self._closing

    _closing_now = False

    def status(self) -> dict[str, float]:
        """What is going on: ``in_flight``, ``waiting`` (without an exit yet), ``bytes``, ``slow_down`` and its 95th
        percentile, ``first_exit_seconds`` (predicted, for one more request), ``workers``.
        """
        with self._lock:
            books = self._books
            waiting = {worker: sum(r.size for r in books.waiting.get(worker, ())) for worker in self._crew.workers}
            paces = [self._crew.pace[worker] for worker in waiting]
            return {
                "in_flight": len(books.requests),
                "waiting": sum(waiting.values()),
                "bytes": books.bytes,
                "slow_down": max((pace.mean for pace in paces), default=1.0),
                "slow_down_95": max((pace.high for pace in paces), default=1.0),
                "first_exit_seconds": self.first_exit(),
                "workers": len(waiting),
            }

    def first_exit(self, more: int = 1) -> float:
        """Seconds from now until the first exits of ``more`` samples that come now, as admission predicts them."""
        with self._lock:
            workers = self._crew.workers
            each = -(-more // max(len(workers), 1))
            return min((self._first_exit(worker, each) for worker in workers), default=inf)

    def _first_exit(self, worker: Any, more: int) -> float:
        samples = more + sum(request.size for request in self._books.waiting.get(worker, ()))
        now, busy = time.perf_counter(), any(request.worker is worker for request in self._books.requests.values())
        pace = self._crew.pace[worker].at(now)
        return lateness(self._tables, pace, [(now, samples)], now, busy) + self._ahead.seconds

    def stats(self) -> dict[str, Any]:
        """Counts since the start: ``admitted``, ``refused``, ``answered`` (``in_time`` and ``late``; ``ready_in_time``:
        before the deadline by the clock of the process that made them), ``failed``, ``cancelled``, ``restarts``;
        ``exits``: how many answers each exit gave; and what ``status`` says.
        """
        with self._lock:
            return {**self._books.counts, "exits": list(self._exits), **self.status()}

    def close(self, drain: bool = True) -> None:
        """Admit nothing more, and end; with ``drain`` after everything admitted is answered.

        In a forked process it closes what that has of it; the engine goes on.
        """
        if os.getpid() != self._owner:
            self._crew.close()
            return
        with self._lock:
            self._closing = True
            while drain and self._books.requests and (self._crew.workers or self._crew.replaces):
                self._books.empty.wait(timeout=1.0)
            self._closing_now = True
            left = list(self._books.requests.values())
            for request in left:
                self._books.leave(request)
        for request in left:
            self._fail(request, AnytimeError("the engine was closed before this request was answered"))
        self._watch.stop()
        self._crew.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(drain=kind is None)
