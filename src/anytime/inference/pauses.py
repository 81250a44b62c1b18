"""How often the operating system interrupts a running process, and for how long; see ``stage_times``."""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import exp, inf
from time import clock_getres

PAUSES = 64
"""After so many pauses the length of one counts for 1/e."""


def _tick() -> float:
    """Seconds between the scheduler's ticks, where the system tells: the resolution of its coarse clock."""
    return clock_getres(6) if sys.platform == "linux" else inf  # CLOCK_MONOTONIC_COARSE, which the module time lacks


TICK = _tick()


class Tail:
    """The share of the latest values that were above a level.

    Args:
        levels: rising.

    Examples:
        >>> tail = Tail([1.0, 2.0, 4.0])
        >>> for value in (0.5, 1.5, 3.0, 3.0):
        ...     tail.note(value)
        >>> tail.above(2.5), tail.above(4.0)
        (0.5, 0.0)
    """

    __slots__ = ("counts", "levels", "total", "weight")

    def __init__(self, levels: Sequence[float]) -> None:
        self.levels, self.counts = levels, [0.0] * (len(levels) + 1)  # of the values between two levels
        self.total, self.weight = 0.0, 1.0

    def note(self, value: float) -> None:
        """Take a value into account."""
        self.total += self.weight
        self.counts[bisect_left(self.levels, value)] += self.weight

    def age(self, factor: float) -> None:
        """Let what was seen so far count for less by a factor."""
        self.weight *= factor  # of what comes: that is quicker
        if self.weight > 1e12:
            self.counts, self.total = [n / self.weight for n in self.counts], self.total / self.weight
            self.weight = 1.0

    def above(self, level: float) -> float:
        """The share above the largest of the levels that is not above ``level``; 0 before the first value."""
        if not self.total:
            return 0.0
        return sum(self.counts[max(bisect_right(self.levels, level), 1) :]) / self.total

    def top(self, least: float) -> float:
        """The level that nothing was above, up to a share of ``least``; infinite if it is the last one."""
        left = least * self.total
        for i in range(len(self.levels), 0, -1):
            left -= self.counts[i]
            if left < 0:
                return inf if i == len(self.levels) else self.levels[i]
        return self.levels[0]


class Hazard:
    """How often pauses begin, per unit of exposure to them, by the seconds since the last pause."""

    __slots__ = ("exposure", "pauses", "seen", "total")

    BINS, WIDTH = 60, 0.0004

    def __init__(self) -> None:
        self.pauses, self.exposure = [0.0] * self.BINS, [0.0] * self.BINS
        self.total = self.seen = 0.0

    def note(self, since: float, exposure: float, pauses: float = 0.0) -> None:
        """So much exposure, and so many pauses, ``since`` seconds after the last pause."""
        i = min(int(since / self.WIDTH), self.BINS - 1)
        self.pauses[i] += pauses
        self.exposure[i] += exposure
        self.total += pauses
        self.seen += exposure

    def rate(self, since: float, prior: float) -> float:
        """Pauses per unit; the mean rate counts as much as ``prior`` of exposure, for where little has been seen.

        The mean, as if no pause had come in some more exposure: pauses that are never risked are forgotten at last.
        """
        if not self.total:
            return 0.0
        i = min(int(since / self.WIDTH), self.BINS - 1)
        near = slice(max(i - 1, 0), i + 2)
        mean = self.total / (self.seen + 3 * prior)
        return (sum(self.pauses[near]) + prior * mean) / (sum(self.exposure[near]) + prior)

    def divide(self, weight: float) -> None:
        """Divide all counts."""
        self.pauses, self.exposure = [n / weight for n in self.pauses], [n / weight for n in self.exposure]
        self.total, self.seen = self.total / weight, self.seen / weight


class Pauses:
    """How often a running process is interrupted, and for how long.

    Args:
        tick: seconds between the moments at which the operating system gives the processor to somebody else.

    Examples:
        >>> pauses = Pauses(tick=0.004)
        >>> for i in range(100):                    # it runs for 3 ms, and is interrupted for 4 ms at the next tick
        ...     pauses.ran(0.008 * i + 0.001, 0.008 * i + 0.0035, since=0.0)
        ...     pauses.interrupted(0.008 * i + 0.0035, 0.008 * i + 0.0045, 0.004, since=0.0025)
        >>> pauses.longer(0.801, 0.001, slack=0.003, since=0.0) < 0.05
        True
        >>> pauses.longer(0.8035, 0.001, slack=0.003, since=0.0025) > 0.9
        True
        >>> pauses.longer(0.8035, 0.001, slack=0.005, since=0.0025)
        0.0
    """

    __slots__ = ("at_ticks", "between", "lengths", "tick", "weight")

    PRIOR = 2
    """Where little has been seen, the mean rate counts too: as much as so many ticks, or stages."""

    def __init__(self, tick: float = TICK) -> None:
        self.tick = tick
        self.at_ticks, self.between = Hazard(), Hazard()  # exposure in ticks, and in seconds
        self.weight = 1.0
        self.lengths = Tail([0.0002 * 1.08**i for i in range(90)])

    def ran(self, start: float, end: float, since: float) -> None:
        """The process ran without a pause from ``start``, ``since`` seconds after the last one, to ``end``."""
        at = start
        while at < end:
            step = min(Hazard.WIDTH, end - at)
            self.between.note(since + at - start, step * self.weight)
            at += Hazard.WIDTH
        at = self.next_tick(start)
        while at < end:
            self.at_ticks.note(since + at - start, self.weight)
            at += self.tick

    def interrupted(self, start: float, end: float, seconds: float, since: float) -> None:
        """A stage that would have run from ``start`` to ``end`` was interrupted for so many seconds."""
        tick = self.next_tick(start)
        if tick < end:
            self.at_ticks.note(since + tick - start, self.weight, self.weight)
        else:
            self.between.note(since + 0.5 * (end - start), (end - start) * self.weight, self.weight)
        self.lengths.age(exp(1 / PAUSES))
        self.lengths.note(seconds)

    def next_tick(self, now: float) -> float:
        """The first tick after ``now``."""
        return (now // self.tick + 1) * self.tick if self.tick < inf else inf

    def longer(self, start: float, seconds: float, slack: float, since: float) -> float:
        """The probability of a pause longer than ``slack`` in the ``seconds`` from ``start`` on."""
        longer = self.lengths.above(slack)
        if not longer:
            return 0.0
        none = exp(-seconds * self.between.rate(since + 0.5 * seconds, self.PRIOR * seconds * self.weight))
        tick = self.next_tick(start)
        while tick < start + seconds:
            none *= 1 - self.at_ticks.rate(since + tick - start, self.PRIOR * self.weight)
            tick += self.tick
        return (1 - none) * longer

    @property
    def likely(self) -> bool:
        """Whether pauses were seen lately: more often than one in ten seconds."""
        return self.at_ticks.total + self.between.total > 0.1 * self.between.seen

    def age(self, factor: float) -> None:
        """Let what was seen so far count for less by a factor."""
        self.lengths.age(factor)
        self.weight *= factor
        if self.weight > 1e12:
            self.at_ticks.divide(self.weight)
            self.between.divide(self.weight)
            self.weight = 1.0
