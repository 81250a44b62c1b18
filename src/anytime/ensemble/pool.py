"""A pool of workers that make predictions together, first in, first out; a worker that dies is replaced."""

import itertools
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakSet

from torch import Tensor

from anytime.errors import AnytimeError
from anytime.inference.background import BackgroundPrediction
from anytime.inference.prediction import Prediction, UnfinishedError

PAUSES = (0.0, 0.2, 1.0)
"""Seconds before each attempt to start a worker: as many attempts as there are pauses."""
RETRY = 10.0
"""Seconds until the next attempts while other workers go on."""


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


class TeamPrediction(BackgroundPrediction):
    """A prediction on a team: ``Team.start`` makes it.

    Attributes:
        lost: by member, why its answers are missing, if they are.
    """

    _numbers = itertools.count()

    def __init__(self, order: list[int], exits: int, x: Any) -> None:
        self.lost: dict[int, str] = {}
        self.number, self.x = next(self._numbers), x
        self._exits, self._begun, self._process = exits, time.perf_counter(), os.getpid()
        self._latest, self._error = None, None
        self._changed = threading.Condition()
        self._unfinished, self._stopped = set(order), False
        self._workers: dict[int, Worker] = {}

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return not self._unfinished

    def begin(self, member: int, worker: Worker) -> bool:
        """Register a worker's network; False if its answers are not needed any more."""
        with self._changed:
            if not self._stopped:
                self._workers[member] = worker
                return True
        self.end(member)
        return False

    def answer(self, exit: int, logits: Tensor) -> None:
        """Keep an answer if it is better than the best so far: a later exit of the ensemble's order."""
        with self._changed:
            if self._latest is None or exit > self._latest.exit:
                complete = exit + 1 == self._exits
                seconds = time.perf_counter() - self._begun
                self._latest = Prediction(logits, exit, seconds, complete, None)
                if complete:  # there is no better one to wait for
                    self._halt_all()
                self._changed.notify_all()

    def end(self, member: int) -> None:
        """Register that a network has ended."""
        with self._changed:
            self._workers.pop(member, None)
            self._unfinished.discard(member)
            if not self._unfinished and self._latest is None and self.lost:
                reasons = set(self.lost.values())
                each = "; ".join(f"network {one}: {why}" for one, why in self.lost.items())
                self._error = AnytimeError(f"no network has answered: {reasons.pop() if len(reasons) == 1 else each}")
            self._changed.notify_all()

    def lose(self, member: int, why: str) -> None:
        """Register that a network's answers are lost, with the reason."""
        self.lost[member] = why
        try:
            if self._latest is not None or len(self._unfinished) > 1:  # otherwise ``end`` makes it an error
                said = f"network {member} of the ensemble gives no more answers: {why}; the others go on"
                with suppress(UserWarning):  # a filter that turns warnings into errors must not end this thread
                    warnings.warn(said)
        finally:
            self.end(member)

    def latest(self) -> Prediction | None:
        """The best prediction so far, without waiting; None before the first."""
        if self._error is not None:
            raise self._error
        best = self._latest
        if best is None or best.complete or not self.done:
            return best
        return replace(best, stopped_by="stop" if self._stopped else "lost")

    def result(self, timeout: float | None = None, *, wait_for_first: bool = False) -> Prediction:
        """Wait at most ``timeout`` seconds and return the best prediction. Raises ``UnfinishedError`` if none.

        Args:
            timeout: seconds from now; None waits for the end.
            wait_for_first: if there is no prediction yet after that, wait for the first one instead of raising.
        """
        try:
            return super().result(timeout, wait_for_first=wait_for_first)
        except UnfinishedError:
            if self._stopped and self.done:
                raise UnfinishedError("stop", time.perf_counter() - self._begun) from None
            raise

    def follow(self) -> Iterator[Prediction]:
        """Yield the best predictions as they come."""
        shown = None
        while True:
            check_process(self._process)
            with self._changed:
                self._changed.wait_for(lambda shown=shown: self._latest is not shown or self.done)
                if self._latest is shown:
                    break
                shown = self._latest
            if shown is not None:
                yield shown
        self.latest()  # raises if no network has answered

    def _wait(self, timeout: float | None) -> None:
        check_process(self._process)
        with self._changed:
            self._changed.wait_for(lambda: self.done or (self._latest and self._latest.complete), timeout)

    def _wait_for_first(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.done or self._latest)

    def stop(self) -> None:
        """End it; its workers are free for the next prediction within one stage. Does nothing in a forked child."""
        if os.getpid() == self._process:
            with self._changed:
                self._halt_all()

    def _halt_all(self) -> None:
        self._stopped = True
        for worker in self._workers.values():
            worker.halt(self.number)


class WorkerPool:
    """Keeps ``size`` workers busy, each with a thread that hands it one network after another.

    A worker that has died is replaced. Where that fails repeatedly, the other workers go on without it, a warning says
    so, and it is tried again later. Once there are no workers at all, predictions fail with the reason; each new
    prediction tries again, so the pool recovers when the cause is gone.

    Raises:
        AnytimeError: the workers cannot be started.
    """

    def __init__(self, factory: WorkerFactory, size: int) -> None:
        self.problem: str | None = None
        """Why there is no worker, if there is none."""
        self._factory, self._size = factory, size
        self._tasks: deque[tuple[TeamPrediction, int]] = deque()
        self._predictions: WeakSet[TeamPrediction] = WeakSet()
        self._changed, self._closed = threading.Condition(), False
        self._failed: set[int] = set()  # places whose worker could not be started
        workers: list[Worker] = []
        try:
            for _ in range(size):
                workers.append(factory.start())
            for worker in workers:
                worker.wait_until_ready()
            self._threads = [
                threading.Thread(target=self._serve, args=each, name="anytime", daemon=True)
                for each in enumerate(workers)
            ]
            for thread in self._threads:
                thread.start()
        except BaseException as error:
            self._closed = True
            for worker in workers:
                worker.close()
            if isinstance(error, WorkerDied):
                raise AnytimeError(f"a worker could not be started ({error}){factory.hint}") from None
            raise

    def submit(self, prediction: TeamPrediction, members: list[int]) -> None:
        """Queue the networks of a prediction."""
        with self._changed:
            if self._closed:
                raise AnytimeError("the team is closed: make another one with anytime.Team(eann)")
            self._predictions.add(prediction)
            self._tasks.extend((prediction, member) for member in members)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop all predictions and end the workers."""
        with self._changed:
            self._closed = True
            dropped, self._tasks = self._tasks, deque()
            self._changed.notify_all()
        for prediction in list(self._predictions):
            prediction.stop()
        for prediction, member in dropped:
            prediction.end(member)
        for thread in self._threads:
            thread.join()

    def _serve(self, place: int, worker: Worker | None) -> None:
        """Hand one worker a network after another, and replace the worker when it has died."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._tasks)
                if self._closed:
                    break
                usable = worker is not None and worker.alive()
                task = self._tasks.popleft() if usable else None
            if worker is None or task is None or not _run(worker, *task):
                if worker is not None:
                    worker.close()
                worker = self._start_again(place)
        if worker is not None:
            worker.close()

    def _start_again(self, place: int) -> Worker | None:
        """Start a worker in this place; None if that fails repeatedly, after a wait, or when the pool is closed."""
        with self._changed:
            self._failed.discard(place)
        reason = ""
        for pause in PAUSES:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, pause):
                    return None
            worker = None
            try:
                worker = self._factory.start()
                worker.wait_until_ready()
                self.problem = None
                return worker
            except Exception as error:
                reason = str(error)
                if worker is not None:
                    worker.close()
        self._give_up(place, reason)
        return None

    def _give_up(self, place: int, reason: str) -> None:
        """Warn that a worker cannot be started, fail the queue if there is no other worker, and wait."""
        reason = f"{len(PAUSES)} attempts to start a worker have failed: {reason}"
        lost: deque[tuple[TeamPrediction, int]] = deque()
        with self._changed:
            self._failed.add(place)
            left = self._size - len(self._failed)
            if not left:
                self.problem = reason
                lost, self._tasks = self._tasks, lost
        for prediction, member in lost:
            prediction.lose(member, reason)
        with suppress(UserWarning):  # a filter that turns warnings into errors must not end this thread
            when = f"in {RETRY:g} s" if left else "at the next prediction, since no worker is left"
            warnings.warn(f"{reason}; trying again {when}")
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (len(self._failed) == self._size and len(self._tasks) > 0), RETRY
            )


def _run(worker: Worker, prediction: TeamPrediction, member: int) -> bool:
    """Run one network on a worker; returns whether the worker survived."""
    try:
        if prediction.begin(member, worker):
            for exit, logits in worker.answers(prediction.number, member, prediction.x):
                prediction.answer(exit, logits)
            prediction.end(member)
        return True
    except MemberError as error:
        prediction.lose(member, str(error))
        return True
    except Exception as error:
        prediction.lose(member, f"its worker died ({error})")
        return False


def check_process(owner: int) -> None:
    """Raise if this process is not the owner of the team, but a forked child of it."""
    if os.getpid() != owner:
        raise AnytimeError(
            f"this team belongs to process {owner} and cannot be used in its forked child {os.getpid()}: make a Team "
            "in the child, or start the child with multiprocessing's 'spawn' method"
        )
