"""The books of an engine: which requests are in flight, where they wait, what they hold, and how they ended."""

import threading
from bisect import insort
from collections.abc import Callable
from typing import Any

from anytime.serving.request import Request

COUNTS = ("admitted", "refused", "answered", "in_time", "late", "ready_in_time", "failed", "cancelled", "restarts")


class Books:
    """The requests in flight and the counts of an engine. Hold ``lock`` for several calls that belong together.

    Args:
        release: frees a slot of shared memory.
    """

    def __init__(self, release: Callable[[int], object]) -> None:
        self.lock = threading.RLock()
        self.requests: dict[int, Request] = {}
        self.waiting: dict[Any, list[Request]] = {}
        """By worker, the requests without an exit, earliest deadline first."""
        self.bytes = 0
        """Bytes of all inputs."""
        self.counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self.empty = threading.Condition(self.lock)
        self._release = release

    def count(self, name: str) -> None:
        """Increment a count."""
        with self.lock:
            self.counts[name] += 1

    def enter(self, request: Request) -> None:
        """Register an admitted request."""
        with self.lock:
            self.requests[request.id] = request
            self.bytes += request.bytes
            self.counts["admitted"] += 1

    def leave(self, request: Request) -> bool:
        """Remove a request and free its slot; False if it was removed before."""
        with self.lock:
            if self.requests.get(request.id) is not request:
                return False
            del self.requests[request.id]
            self.bytes -= request.bytes
            self.has_exit(request)
            if request.slot is not None:
                self._release(request.slot)
            if not self.requests:
                self.empty.notify_all()
            return True

    def assign(self, request: Request, worker: Any) -> None:
        """Assign a request to a worker."""
        with self.lock:
            request.worker, request.waits = worker, True
            insort(self.waiting.setdefault(worker, []), request, key=lambda other: other.deadline)

    def has_exit(self, request: Request) -> None:
        """Remove a request from those without an exit."""
        with self.lock:
            if request.waits:
                request.waits = False
                self.waiting[request.worker].remove(request)

    def of(self, worker: Any) -> list[Request]:
        """The requests of a worker; with None those without one."""
        with self.lock:
            return [request for request in self.requests.values() if request.worker is worker]

    def orphan(self, worker: Any) -> list[Request]:
        """Unassign all requests of a worker that died."""
        with self.lock:
            orphans = self.of(worker)
            self.waiting.pop(worker, None)
            for request in orphans:
                request.worker, request.waits, request.deaths = None, False, request.deaths + 1
            return orphans
