"""Supervision of an engine: overdue requests fail, silent workers are replaced, and engines left open are closed."""

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from anytime.inference.batch_times import Line
from anytime.serving.books import Books
from anytime.serving.crew import TICK, Crew
from anytime.serving.request import Request
from anytime.serving.slowdown import Pace

GRACE = 1.0
"""Seconds after its deadline in which a request may still be answered; then it fails, whatever the workers do."""


class Watch:
    """A thread that checks requests and workers four times a second.

    Args:
        books: of the engine.
        crew: its workers.
        overdue: called with each request that is not answered in time, in that thread.
        silence: seconds without a sign of life after which a worker is replaced; ten times its longest stage is added.
        stage: seconds of the longest stage by batch.
        largest: the largest batch.
        sample_bytes: of the example.
    """

    def __init__(
        self,
        books: Books,
        crew: Crew,
        overdue: Callable[[Request, float], object],
        silence: float,
        stage: Line,
        largest: int,
        sample_bytes: int,
    ) -> None:
        self._books, self._crew, self._overdue = books, crew, overdue
        self._silence, self._stage, self._largest, self._sample_bytes = silence, stage, largest, sample_bytes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="anytime engine watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._stopped.wait(TICK):
            seconds, before = time.monotonic() - before, time.monotonic()
            self._settle_overdue()
            self._crew.check(seconds, self._may_be_silent)

    def _settle_overdue(self) -> None:
        """Fail overdue requests, except those whose answers may have arrived unread."""
        now = time.perf_counter()
        unread = {worker for worker in self._crew.workers if worker.unread}
        with self._books.lock:
            requests = list(self._books.requests.values())
        for request in requests:
            if now > request.deadline + GRACE and request.worker not in unread:
                self._overdue(request, now - request.begun)

    def _may_be_silent(self, worker: Any) -> float:
        """Seconds that a worker may be silent: with room for one stage of the largest batch that it may run."""
        pace = self._crew.pace.get(worker, Pace()).at(time.perf_counter())
        held = sum(request.bytes for request in self._books.of(worker))
        samples = max(self._largest, round(held / self._sample_bytes))
        return self._silence + 10 * min(pace.high, 3.0) * self._stage.at(samples)


class Closable(Protocol):
    """An engine."""

    def close(self, drain: bool = True) -> None:
        """End it."""


_open: WeakSet[Closable] = WeakSet()


def close_at_exit(engine: Closable) -> None:
    """Close an engine when the interpreter ends, if the program has not: else its threads would abort the process."""
    _open.add(engine)


@atexit.register
def _close_all() -> None:
    for engine in list(_open):
        engine.close(drain=False)
