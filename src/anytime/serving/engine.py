"""Engine: answers requests under deadlines; the more there are, the shallower the exits that answer."""

import asyncio
import os
import threading
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
from anytime.inputs import as_input
from anytime.network import AnytimeNetwork, tensors_of
from anytime.serving.admission import Bounds, OverloadedError, check_bounds, lateness
from anytime.serving.crew import Crew, EngineDiedError
from anytime.serving.model import Model
from anytime.serving.request import Answer, Request, settle
from anytime.serving.runner import Event
from anytime.serving.slowdown import Ahead
from anytime.serving.tables import Tables
from anytime.serving.worker import Add

__all__ = ["Answer", "Engine", "EngineDiedError", "OverloadedError"]


class Engine:
    """Answers requests under deadlines, with batches that requests join and leave at every stage boundary.

    A request is admitted only if the first exits of all that are waiting, its own too, fit before their deadlines; if
    not, ``submit`` raises ``OverloadedError`` at once. What is admitted is answered, with the deepest exit that the
    load allows. A network that was converted without a graph (``net.paused_because``) shares batches only at its first
    stage, and cannot be served here.

    Args:
        net: the network, or the folder of a saved one.
        policy: samples that an exit is sure of leave there. Default: the folder's, if it has one; False for none.
        accuracy: of each exit, on held-out data: what a deeper exit is worth. Default: the folder's evaluation; where
            there is none, every exit is assumed to be better than the one before by as much.
        profile: seconds of the stages by batch. Default: those saved in the folder; where there are none, measured now.
        example: one sample, a batch of one. Default: an image as the network's preprocessing or architecture says.
        backend: what runs a saved network: ``eager`` (PyTorch) or ``onnx`` (its exported stages on ONNX Runtime).
        processes: number of engine processes, each with a copy of the network. 0: a thread of this process, which is
            for tests and simple programs: Python's lock is shared with everything else here.
        threads: torch's threads in each process.
        spare: keep one more process ready, which takes over within milliseconds when one dies.
        queue: number of requests that may be in flight.
        queue_bytes: of their inputs.
        queue_seconds: predicted time until all of them have their first exit.
        max_batch: the largest number of samples that run together.
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
        net: AnytimeNetwork | str | Path,
        *,
        policy: Policy | bool | None = None,
        accuracy: Sequence[float] | None = None,
        profile: BatchTimes | None = None,
        example: Any = None,
        backend: str = "eager",
        processes: int = 1,
        threads: int = 1,
        spare: bool = True,
        queue: int = 256,
        queue_bytes: int = 2**28,
        queue_seconds: float = 1.0,
        max_batch: int = 32,
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
        self._lock = threading.RLock()
        self._requests: dict[int, Request] = {}
        self._waiting: dict[Any, list[Request]] = {}
        self._number, self._bytes, self._closing = 0, 0, False
        self._empty = threading.Condition(self._lock)
        self._ahead = Ahead()
        self._owner = os.getpid()
        names = (
            "admitted",
            "refused",
            "answered",
            "in_time",
            "late",
            "ready_in_time",
            "failed",
            "cancelled",
            "restarts",
        )
        self._counts = dict.fromkeys(names, 0)
        self._crew = Crew(self.model, processes, threads, spare, queue, max_batch, self._heard, self._died, loop)
        settings = self._crew.settings
        self._tables = Tables(settings.times, settings.accuracy, max_batch, every=settings.policy is not None)
        self._exits = [0] * len(settings.accuracy)
        self.times: BatchTimes = settings.times

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
                self._counts["refused"] += 1
                raise
            self._requests[request.id] = request
            self._bytes += nbytes
            self._counts["admitted"] += 1
        future.add_done_callback(lambda _: self._cancelled(request) if future.cancelled() else None)
        return future

    def check(self, deadline: float) -> None:
        """Raise ``OverloadedError`` if a request with this deadline, in seconds from now, could not be admitted now."""
        now = time.perf_counter()
        with self._lock:
            self._admit(now + deadline, 1, 0, now)

    def _admit(self, due: float, size: int, nbytes: int, now: float) -> Any:
        """The worker that takes a request; raises if none can."""
        if self._closing:
            raise OverloadedError("the engine is closing", 1.0)
        if os.getpid() != self._owner:
            raise AnytimeError("this engine belongs to the parent process: make an Engine in this one")
        workers = self._crew.workers
        if not workers and not self._crew.replaces:
            raise EngineDiedError("the engine's thread has ended: make a new Engine; a process would be replaced")
        if not workers:
            raise OverloadedError("no engine process is ready: one is being started", 1.0)
        worst, seconds, best = inf, 0.0, None
        in_flight = self._requests.values()
        for worker in workers:
            waiting = self._waiting.setdefault(worker, [])
            entries = [(other.deadline, other.size) for other in waiting]
            insort(entries, (due, size))
            entries = [(deadline - self._ahead.seconds, size) for deadline, size in entries]
            pace = self._crew.pace[worker].at(now)
            late = lateness(self._tables, pace, entries, now, busy=any(r.worker is worker for r in in_flight))
            if late < worst:
                worst, best = late, worker
                work = self._tables.first_exits[min(sum(size for _, size in entries), 4096) - 1]
                seconds = pace.mean * work
        check_bounds(self._bounds, len(self._requests) + 1, self._bytes + nbytes, seconds)
        if worst > 0:
            raise OverloadedError("its first exit, or that of a request before it, would be late", max(worst, 0.001))
        return best

    def _send(self, request: Request, worker: Any) -> None:
        """Give a request to a worker."""
        request.worker, request.waits = worker, True
        insort(self._waiting.setdefault(worker, []), request, key=lambda r: r.deadline)
        if request.slot is None and (stored := self._crew.store(request.x)) is not None:
            request.slot, request.x = stored
        deadline, streams = request.deadline - self._ahead.seconds, request.on_exit is not None
        message: Add = (request.id, request.slot, request.x, deadline, streams)
        worker.send(message)

    def _cancelled(self, request: Request) -> None:
        with self._lock:
            if self._requests.get(request.id) is not request:
                return
            self._counts["cancelled"] += 1
            worker = request.worker
            self._forget(request)
        worker.send(request.id)

    def _forget(self, request: Request) -> None:
        """Free what a request holds; call it with the lock."""
        del self._requests[request.id]
        self._bytes -= request.bytes
        self._no_longer_waits(request)
        if request.slot is not None:
            self._crew.release(request.slot)
        if not self._requests:
            self._empty.notify_all()

    def _no_longer_waits(self, request: Request) -> None:
        if request.waits:
            request.waits = False
            self._waiting[request.worker].remove(request)

    def _heard(self, events: list[Event]) -> None:
        """News of a worker, in its thread."""
        waited, late = False, self._counts["late"]
        for event in events:
            with self._lock:
                request = self._requests.get(event.id)
                if request is None:
                    continue
                if event.kind == "first":
                    self._no_longer_waits(request)
                    continue
                if event.kind != "exit":
                    self._forget(request)
            if event.kind == "failed":
                self._fail(request, AnytimeError(f"the network failed on this input: {event.stopped_by}"))
            else:
                waited = waited or event.stopped_by == "deadline"
                self._answered(request, event)
        if waited or self._counts["late"] > late:
            self._ahead.note(late=self._counts["late"] > late)

    def _answered(self, request: Request, event: Event) -> None:
        complete, now = event.exit + 1 == len(self._exits), time.perf_counter()
        answer = Answer(event.logits, event.exit, complete, now - request.begun, event.stopped_by)
        if event.kind == "exit":
            if request.on_exit is None or event.exit <= request.shown:  # run again after a death
                return
            request.shown = event.exit
            try:
                request.on_exit(answer)
            except Exception as error:  # the caller's mistake: its request ends with it, the engine goes on
                with self._lock:
                    if request.id in self._requests:
                        self._forget(request)
                        request.worker.send(request.id)
                self._fail(request, error)
            return
        if not settle(request.future, answer):
            return
        with self._lock:
            self._counts["answered"] += 1
            self._counts["in_time" if now <= request.deadline else "late"] += 1
            self._counts["ready_in_time"] += event.moment <= request.deadline
            self._exits[event.exit] += 1

    def _fail(self, request: Request, error: Exception) -> None:
        if settle(request.future, error):
            with self._lock:
                self._counts["failed"] += 1

    def _died(self, worker: Any, reason: str) -> None:
        """Its process has ended: run its requests elsewhere if there is time, else say why they failed."""
        with self._lock:
            self._counts["restarts"] += 1
            orphans = [request for request in self._requests.values() if request.worker is worker]
            self._waiting.pop(worker, None)
            lost = []
            for request in orphans:
                request.deaths, request.waits = request.deaths + 1, False
                others = self._crew.workers
                ready = time.perf_counter() + self._tables.first_exits[0]
                if others and request.deaths < 3 and ready < request.deadline and not self._closing_now:
                    self._send(request, min(others, key=lambda w: len(self._waiting.get(w, ()))))
                else:
                    self._forget(request)
                    lost.append(request)
        for request in lost:
            self._fail(request, EngineDiedError(f"{reason}, and the request could not be run again"))

    _closing_now = False

    def load(self) -> dict[str, float]:
        """What is going on: ``in_flight``, ``waiting`` (without an exit yet), ``bytes``, ``slow_down`` and its 95th
        percentile, ``first_exit_seconds`` (predicted, for one more request), ``workers``.
        """
        with self._lock:
            waiting = {worker: sum(r.size for r in self._waiting.get(worker, ())) for worker in self._crew.workers}
            paces = [self._crew.pace[worker] for worker in waiting]
            return {
                "in_flight": len(self._requests),
                "waiting": sum(waiting.values()),
                "bytes": self._bytes,
                "slow_down": max((pace.mean for pace in paces), default=1.0),
                "slow_down_95": max((pace.high for pace in paces), default=1.0),
                "first_exit_seconds": min((self._first_exit(*each) for each in waiting.items()), default=inf),
                "workers": len(waiting),
            }

    def _first_exit(self, worker: Any, waiting: int) -> float:
        """Seconds from now to the first exit of one more sample, as admission predicts them."""
        now, busy = time.perf_counter(), any(request.worker is worker for request in self._requests.values())
        pace = self._crew.pace[worker].at(now)
        return lateness(self._tables, pace, [(now, waiting + 1)], now, busy) + self._ahead.seconds

    def stats(self) -> dict[str, Any]:
        """Counts since the start: ``admitted``, ``refused``, ``answered`` (``in_time`` and ``late``; ``ready_in_time``:
        before the deadline by the clock of the process that made them), ``failed``, ``cancelled``, ``restarts``;
        ``exits``: how many answers each exit gave; and what ``load`` says.
        """
        with self._lock:
            return {**self._counts, "exits": list(self._exits), **self.load()}

    def close(self, drain: bool = True) -> None:
        """Admit nothing more, and end; with ``drain`` after everything admitted is answered."""
        with self._lock:
            self._closing = True
            while drain and self._requests and self._crew.workers:
                self._empty.wait(timeout=1.0)
            self._closing_now = True
            left = list(self._requests.values())
            for request in left:
                self._forget(request)
        for request in left:
            self._fail(request, AnytimeError("the engine was closed before this request was answered"))
        self._crew.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(drain=kind is None)
