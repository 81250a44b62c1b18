"""A prediction that the workers of a team make together."""

import itertools
import os
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor

from anytime.ensemble.workers import Worker, check_process
from anytime.errors import AnytimeError
from anytime.inference.background import BackgroundPrediction
from anytime.inference.limits import Prediction, UnfinishedError


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
        """Note that a worker takes a network; returns False if its answers are not needed any more."""
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
        """Note that a network gives no more answers."""
        with self._changed:
            self._workers.pop(member, None)
            self._unfinished.discard(member)
            if not self._unfinished and self._latest is None and self.lost:
                reasons = set(self.lost.values())
                each = "; ".join(f"network {one}: {why}" for one, why in self.lost.items())
                self._error = AnytimeError(f"no network has answered: {reasons.pop() if len(reasons) == 1 else each}")
            self._changed.notify_all()

    def lose(self, member: int, why: str) -> None:
        """Note that a network's answers will not come, and why."""
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

    def result(self, timeout: float | None = None) -> Prediction:
        """Wait at most ``timeout`` seconds and return the best prediction. Raises ``UnfinishedError`` if none."""
        try:
            return super().result(timeout)
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

    def stop(self) -> None:
        """End it; its workers are free for the next prediction within one stage. Does nothing in a forked child."""
        if os.getpid() == self._process:
            with self._changed:
                self._halt_all()

    def _halt_all(self) -> None:
        self._stopped = True
        for worker in self._workers.values():
            worker.halt(self.number)
