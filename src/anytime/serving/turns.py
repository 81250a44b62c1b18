"""Turns: the event loop begins the work of one request at a time and looks at its sockets in between.

**Given** a burst of requests that one read of the sockets brings. **Wanted**: the moment each of them came, and their
work in the order of their deadlines, replies first. **Method**: after every turn the loop reads its sockets again, so
that what comes meanwhile waits there for a turn at most. What is read while the loop was busy came since the present
turn began: that moment counts, unless the kernel knows of an earlier one (``arrival.age_of_data``).
"""

import asyncio
from bisect import bisect_right, insort
from collections.abc import Callable
from operator import itemgetter
from time import perf_counter

from anytime.serving.typical import Typical

REFUSED = 8
"""At most so many requests are refused in one turn."""

Queue = list[tuple[float, Callable[[], bool], Callable[[], bool]]]
"""Deadline, function that begins the request, and function that refuses it if it is too late."""
_due = itemgetter(0)


def _keep() -> bool:
    return False


class Turns:
    """One turn for each round of the event loop.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.began: float | None = None
        """When the present turn began; None: the loop is idle."""
        self._waiting: Queue = []
        self._replies: Queue = []
        self._worked = self._taken = False
        self._present: Queue | None = None  # that the present turn is of, if others waited there when it began
        self.typical = Typical(0.0005)
        """Seconds of a turn while others wait: what the loop takes for a request with all that comes between."""
        self.typical_reply = Typical(0.0002)
        """The same of a turn in which a reply is written."""

    def mark(self) -> float:
        """The loop has work: when the data that it reads at this moment may have come, at the earliest."""
        self._worked = True
        if self.began is None:
            self.began = self.clock()
            asyncio.get_running_loop().call_soon(self._next)
        return self.began

    def before(self, due: float) -> int:
        """Number of waiting requests with deadlines up to a moment."""
        return bisect_right(self._waiting, due, key=_due)

    def call(self, due: float, work: Callable[[], bool], refuse: Callable[[], bool] = _keep) -> None:
        """Begin a request in a turn, the present one if it is free; what is due earlier comes first.

        Args:
            due: its deadline.
            work: begins it; returns whether it did, else the turn is the next one's.
            refuse: called while it is the last one that waits; returns whether it was refused, since turns take longer
                than was thought.
        """
        self._call(self._waiting, due, work, refuse)

    async def turn(self, due: float) -> None:
        """Wait for a turn to begin a request."""
        await self._turn(self._waiting, due)

    async def reply(self, due: float) -> None:
        """Wait for a turn to reply: before all that only begins, and one by one, so that each is sent at once."""
        await self._turn(self._replies, due)

    async def _turn(self, queue: Queue, due: float) -> None:
        future = asyncio.get_running_loop().create_future()

        def wake() -> bool:
            if future.done():  # the request has ended
                return False
            future.set_result(None)
            return True

        self._call(queue, due, wake)
        await future

    def _call(self, queue: Queue, due: float, work: Callable[[], bool], refuse: Callable[[], bool] = _keep) -> None:
        self.mark()
        if self._taken:
            insort(queue, (due, work, refuse), key=_due)
        else:
            self._taken = work()

    def _next(self) -> None:
        queue = self._replies or self._waiting
        if not queue and not self._worked:  # the sockets were looked at once since the last work
            self.began, self._taken, self._present = None, False, None
            return
        asyncio.get_running_loop().call_soon(self._next)
        now, before = self.clock(), self.began
        if queue and queue is self._present and before is not None:
            typical = self.typical if queue is self._waiting else self.typical_reply
            typical.note(now - before, now)
        self.began, self._worked, self._taken, self._present = now, bool(queue), False, queue or None
        for _ in range(min(len(queue), REFUSED)):
            self._taken = queue.pop(0)[1]()
            if self._taken:
                break
        for _ in range(min(len(self._waiting), REFUSED)):
            if not self._waiting[-1][2]():
                break
            self._waiting.pop()
