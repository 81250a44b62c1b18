"""Workers that take the networks of predictions first in, first out; a worker that dies is replaced."""

import threading
import warnings
from collections import deque
from contextlib import suppress
from weakref import WeakSet

from anytime.ensemble.prediction import TeamPrediction
from anytime.ensemble.workers import MemberError, Worker, WorkerDied, WorkerFactory
from anytime.errors import AnytimeError

PAUSES = (0.0, 0.2, 1.0)
"""Seconds before each attempt to start a worker: as many attempts as there are pauses."""
RETRY = 10.0
"""Seconds until the next attempts while other workers go on."""


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
        """Say that a worker cannot be started, fail what is queued if there is no other worker, and wait."""
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
