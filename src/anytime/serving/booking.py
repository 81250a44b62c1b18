"""The event loop's time: how long requests take it, and when each reply must be written.

**Given** requests i with deadlines d_i; w, the seconds that the loop spends on one before the engine has it; r, the
seconds of its reply; a, how long before the deadline a reply should be written. All three are learned by route.
**Wanted**: the latest moment s_i by which the engine must have the answer, such that all replies are in time, and a
refusal at once where that is too early for a first exit. **Method**: the loop writes one reply at a time, so each
request books the latest r seconds before d_i − a that nobody has booked.
"""

from bisect import insort
from math import inf
from time import perf_counter

from anytime.serving.admission import OverloadedError
from anytime.serving.engine import Engine
from anytime.serving.turns import Turns
from anytime.serving.typical import Typical

ROUTES = ("predict", "stream", "infer", "ModelInfer", "ModelStreamInfer")
"""The last two are gRPC's."""


WAY = 0.002
"""Seconds that a reply has on its way to the client: so long before the deadline it should be written."""
LEAST, MOST = 0.002, 0.02
"""Bounds of a."""
RESERVE = 0.1
"""Who comes is admitted if the turns before it may take longer by this share; who waits, if they take as long as is
thought: so most of those that are refused are refused at once."""


class Route:
    """What the event loop spends on requests of one route."""

    def __init__(self) -> None:
        # A first burst corrects what is too low as it goes; what is too high would refuse it.
        self.take = Typical(0.00035)
        """w: from its turn until the engine has it."""
        self.reply = Typical(0.00015)
        """r: from the answer until the reply is written."""
        self.ahead = 0.003
        """a: late replies add to it, those in time take a little of it, so that less than one in a hundred is late."""

    def replied(self, left: float, ahead: float) -> None:
        """Learn from a reply whose answer waited for its deadline.

        Args:
            left: seconds from the reply until the deadline.
            ahead: what a was when its time was booked. Many of a burst are late for the same reason: they add no more
                than would have been enough.
        """
        missed = WAY - left
        if missed > 0:
            self.ahead = max(self.ahead, min(self.ahead + 0.0005, ahead + missed, MOST))
        else:
            self.ahead = max(self.ahead - 0.0000015, LEAST)


class Calendar:
    """The moments that are booked for replies: beginnings and ends.

    Examples:
        >>> calendar = Calendar()
        >>> [calendar.book(end, 2.0) for end in (10.0, 10.0, 9.0, 20.0)]
        [(8.0, 10.0), (6.0, 8.0), (4.0, 6.0), (18.0, 20.0)]
        >>> calendar.free((6.0, 8.0))
        >>> calendar.latest(10.0, 2.0), calendar.busy(0.0, 8.0)
        (8.0, 2.0)
    """

    def __init__(self) -> None:
        self._booked: list[tuple[float, float]] = []  # in order, none overlaps another

    def latest(self, end: float, seconds: float) -> float:
        """The end of the latest moments up to ``end`` that are free."""
        for begun, ended in reversed(self._booked):
            if ended <= end - seconds:
                break
            end = min(end, begun)
        return end

    def book(self, end: float, seconds: float) -> tuple[float, float]:
        """Book the latest moments up to ``end`` that are free."""
        end = self.latest(end, seconds)
        slot = (end - seconds, end)
        insort(self._booked, slot)
        return slot

    def free(self, slot: tuple[float, float]) -> None:
        """Free what was booked."""
        self._booked.remove(slot)

    def busy(self, now: float, until: float) -> float:
        """Seconds that are booked between two moments."""
        return sum(ended - begun for begun, ended in self._booked if now <= begun < until)


class Work:
    """The event loop's work: who waits for a turn, and which moments are booked for replies."""

    def __init__(self) -> None:
        self.turns, self.calendar = Turns(), Calendar()
        self.routes = {name: Route() for name in ROUTES}
        self._first_exits: dict[tuple[Engine, int], float] = {}
        self._moment: float | None = None

    def check(self, engine: Engine, route: Route, due: float, waits: bool = False, reserve: float = RESERVE) -> None:
        """Raise ``OverloadedError`` if the reply to a request would be late; an idle loop tries all.

        Args:
            engine: the model's.
            route: of the request.
            due: its deadline; those that are due earlier have their turns before.
            waits: whether it is among those that wait for a turn already.
            reserve: share by which the turns before it may take longer.
        """
        now, before = perf_counter(), self.turns.before(due) - waits
        reply = self.reply_seconds(route, now)
        # Those before it book their replies once it is their turn.
        begin = self.calendar.latest(due - route.ahead, reply) - (before + 1) * reply
        turns = (1 + reserve) * before * self.turns.typical.at(now)
        late, work = now - begin, turns + self.calendar.busy(now, begin)
        if work:
            # Those before it come to the engine one by one, and are all that it does if it is the slower one.
            alone = work + route.take.at(now) + self._first_exit(engine, 1)
            late += max(alone, self._first_exit(engine, before + 1))
        if late == inf:
            raise OverloadedError("no engine process is ready: one is being started", 1.0)
        if late > 0:
            raise OverloadedError("its reply would be late", late)

    def check_turn(self, engine: Engine, route: Route, due: float) -> None:
        """The same once it is its turn: the engine says whether it would take it."""
        self.check(engine, route, due, reserve=0.0)
        now = perf_counter()
        reply = self.reply_seconds(route, now)
        engine.check(self.calendar.latest(due - route.ahead, reply) - reply - route.take.at(now) - now)

    def reply_seconds(self, route: Route, now: float) -> float:
        """Seconds to book for a reply, among others."""
        return max(route.reply.at(now), self.turns.typical_reply.at(now))

    def _first_exit(self, engine: Engine, more: int) -> float:
        """Seconds to the first exits of so many more, as predicted; asked for once in a turn."""
        if self._moment is None or self._moment != self.turns.began:
            self._first_exits, self._moment = {}, self.turns.began
        if (engine, more) not in self._first_exits:
            self._first_exits[engine, more] = engine.first_exit(more)
        return self._first_exits[engine, more]
