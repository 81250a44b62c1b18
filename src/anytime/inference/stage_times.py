"""What the stages and heads of a network take, as a distribution that is learned while it runs.

**Given** the seconds of every stage that ran lately, for inputs of one kind on one device. **Wanted** before a stage
starts: the probability that the next exit's answer comes too late. **Model**: a stage of typical seconds τ takes

    pace · τ · noise + pauses

where the *pace* changes slowly (a throttled processor), the *noise* varies from stage to stage by some per cent, and a
*pause* is the time for which the operating system gives the processor to somebody else. Pauses are rare on a quiet
machine. Beside a busy process they take milliseconds, and they are not memoryless: Linux takes the processor away at
ticks, every 4 ms or so, and mostly from whoever has had it for some milliseconds. So their rate is learned separately
at ticks and between them, by the time since the last pause.

| symbol | is |
|---|---|
| τ | ``stages``: typical seconds of each stage; goes down fast and up slowly, so it ends up among the faster times |
| pace | running mean of a stage's seconds / τ, pauses left out |
| noise | share of stages that took longer than a multiple of pace · τ |
| rate | pauses per tick, and per second of running between them, by the seconds since the last pause |
| length | share of the pauses that were longer than given seconds |

A network that has rested finds caches cold and runs slower than one that runs in a row: its times are ``rested``.
All of it is forgotten at a stated rate, see ``STAGES``.
Nothing locks: threads that learn at once may lose a number, and a forked process has a copy of its own.
"""

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from math import exp, inf
from time import clock_getres

STAGES, PREDICTIONS, PAUSES, SURPRISES = 3000, 100, 64, 300
"""What was seen counts for 1/e after so many stages, or predictions; lengths of pauses after so many pauses; and
predictions that were late after so many more."""
_PAUSE = exp(1 / PAUSES)
WALKS = 8
"""After so many predictions what was seen is aged, unless there was a pause."""
SHORTEST_PAUSE = 0.0003
"""A stage that takes twice as long as expected, and so many seconds more, was interrupted."""
RESTED = 0.0005
"""Predictions that are further apart have rested."""


def _tick() -> float:
    """Seconds between the scheduler's ticks, where the system tells: the resolution of its coarse clock."""
    return clock_getres(6) if sys.platform == "linux" else inf  # CLOCK_MONOTONIC_COARSE, which the module time lacks


TICK = _tick()

Ran = tuple[float, float, bool]
"""A stage that has run: when it began and ended, by the monotonic clock, and whether there is an exit after it."""


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
        self.lengths.age(_PAUSE)
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


class StageTimes:
    """Seconds of each stage and head of a network for inputs of one kind; see the head of this file.

    Args:
        stages: typical seconds of each stage; empty if nothing is known.
        heads: of the head after each stage; None where there is none.
    """

    def __init__(self, stages: Sequence[float] = (), heads: Sequence[float | None] = ()) -> None:
        # Dicts: threads that see a stage for the first time at once agree on one entry.
        self.stages = dict(enumerate(stages))
        self.heads = {stage: seconds for stage, seconds in enumerate(heads) if seconds is not None}
        self.exits = set(self.heads)
        self.first_runs: dict[int, float] = {}
        """Seconds of stages that ran once: what they took may include what only a first run takes."""
        self.first_heads: set[int] = set()
        """Heads that ran once."""
        self._guesses: dict[int, float] = {}
        self.noise = Tail([1.005, *(1.01 * 1.02**i for i in range(8)), *(1.2 * 1.1**i for i in range(16))])
        self.pauses = Pauses()
        self.pace = 1.0
        self.returning = 0.00005
        """Seconds between the end of a head and the return of the prediction; most take less."""
        self.risk = 0.25
        """The risk that starting one stage may take, as a share of what a prediction may take in all."""
        self.surprise = 1.0
        """How many times more predictions were late than expected."""
        self._late = self._expected = 0.0
        self._walks = self._stages_ran = 0
        self._interrupted = False
        self.since = 0.0
        """Seconds that the process has run since its last pause, when the latest walk ended."""
        self.ended = -inf
        """When that was."""
        self.refused = 0
        """How many predictions in a row were refused before they began."""
        self.kept = self.missed = 0
        """Predictions that were returned before their deadline, and those that were not."""
        self.enough: list[float] = []
        """After each stage: with so many seconds left the next exit is surely in time, by all that was seen lately."""

    @cached_property
    def rested(self) -> "StageTimes":
        """The times of a network that has not run just before."""
        return StageTimes()

    def begin_with(self, other: "StageTimes") -> None:
        """Take over typical times, since nothing is known yet."""
        self.stages.update(other.stages)
        self.heads.update(other.heads)
        self.exits.update(other.exits)
        self.first_runs.update(other.first_runs)
        self.first_heads.update(other.first_heads)

    def head(self, stage: int) -> float:
        """Typical seconds of the head after a stage; if it ran at most once, of the nearest that ran more often."""
        if stage in self.heads and stage not in self.first_heads:
            return self.heads[stage]
        if stage not in self._guesses:
            known = [other for other in self.heads if other not in self.first_heads] or list(self.heads)
            nearest = min(known, key=lambda other: abs(other - stage), default=None)
            self._guesses[stage] = 0.0 if nearest is None else self.heads[nearest]
        return self._guesses[stage]

    def ahead(self, stage: int, last: float = 0.0) -> float:
        """Typical seconds from the end of a stage (-1: from the start) to the next exit's prediction."""
        seconds = 0.0
        for i in range(stage + 1, len(self.stages)):
            seconds += self.stages[i]
            if i in self.exits:
                return seconds + self.head(i)
        return seconds + last

    @property
    def first_exit(self) -> float:
        """Typical seconds to the first exit's prediction; 0 if not known."""
        return self.ahead(-1)

    def try_again(self) -> bool:
        """Whether to begin although the deadline seems too short: every tenth time, in case it has become faster.

        What has run once is tried at once: it is faster the second time.
        """
        self.refused = (self.refused + 1) % 10
        first = min(self.exits, default=0)
        return self.refused == 0 or first in self.first_heads or min(self.first_runs, default=first + 1) <= first

    def late(self, seconds: float, slack: float, since: float, now: float) -> float:
        """The probability that work of typically ``seconds`` takes longer than ``slack``.

        Args:
            seconds: at the present pace.
            slack: seconds that are left.
            since: seconds since the last pause.
            now: by the monotonic clock.
        """
        if slack < seconds or seconds <= 0:
            return float(slack < seconds)
        # What takes longer than that counts as interrupted.
        slower = self.noise.above(slack / seconds) if slack < 2 * seconds + SHORTEST_PAUSE else 0.0
        return min(1.0, slower + self.pauses.longer(now, seconds, slack - seconds, since))

    def ran(self, stages: Sequence[Ran], since: float, first: int = 0) -> float:
        """Learn from stages that have run; seconds since the last pause when the last of them ended.

        Args:
            stages: those of a walk so far.
            since: seconds since the last pause when the first of those to learn from began.
            first: the number of that stage.
        """
        known, exits, noise, pace = self.stages, self.exits, self.noise.note, self.pace
        start, begun = stages[first][0], since
        for stage in range(first, len(stages)):
            before, end, has_exit = stages[stage]
            seconds, typical = end - before, known.get(stage)
            if has_exit and stage not in exits:
                exits.add(stage)
            if typical is None:
                self.first_runs[stage] = seconds
                known[stage] = min(seconds, known.get(stage - 1, seconds))
                continue
            if stage in self.first_runs:
                known[stage] = min(seconds, self.first_runs.pop(stage))
                later = stage + 1
                while later in self.first_runs:
                    known[later] = min(self.first_runs[later], known[later - 1])
                    later += 1
                continue
            expected = pace * typical
            known[stage] = _moved(typical, seconds)
            if seconds > 2 * expected + SHORTEST_PAUSE:
                self._interrupted = True
                self.pauses.ran(start, before, begun)
                self.pauses.interrupted(
                    before, before + 1.5 * expected + 0.0001, seconds - expected, begun + before - start
                )
                start, begun = end, 0.0
            elif expected > 0:
                noise(seconds / expected)
                pace += 0.15 * (seconds / typical - pace)
        self.pace = pace
        ended = stages[-1][1]
        self.pauses.ran(start, ended, begun)
        return begun + ended - start

    def measured(self, runs: Sequence[Sequence[tuple[float, float | None]]]) -> None:
        """Learn from measured runs: seconds of each stage and of the head after it."""
        for run in runs:
            now, stages = 0.0, []
            for seconds, head in run:
                stages.append((now, now + seconds, head is not None))
                now += seconds
            self.ran(stages, since=0.0)
            self.walked(len(run))

    def head_ran(self, stage: int, seconds: float) -> None:
        """Learn from a head."""
        known = self.heads.get(stage)
        if known is None:
            self.heads[stage] = seconds
            self.first_heads.add(stage)
        elif stage in self.first_heads:
            self.heads[stage] = min(seconds, known)
            self.first_heads.discard(stage)
        else:
            self.heads[stage] = _moved(known, seconds)
            return
        self._guesses = {}

    def walked(self, stages: int) -> None:
        """A walk of so many stages has ended: what was seen before counts for less.

        That is done after several walks at once, since it takes time in which a prediction is not returned yet.
        """
        self._walks, self._stages_ran = self._walks + 1, self._stages_ran + stages
        if self._walks < WALKS and len(self.enough) == len(self.stages) and not self._interrupted:
            return
        factor = exp(self._stages_ran / STAGES + self._walks / PREDICTIONS)
        self._walks = self._stages_ran = 0
        self._interrupted = False
        self.noise.age(factor)
        self.pauses.age(factor)
        slower, longest = self.noise.top(0.0001), self.pauses.lengths.top(0.0) if self.pauses.likely else 0.0
        enough, ahead = [0.0] * len(self.stages), 0.0
        for stage in range(len(self.stages) - 1, -1, -1):
            seconds = max(self.pace, 1.0) * ahead
            enough[stage] = min(slower * seconds, 2 * seconds + SHORTEST_PAUSE) + longest if ahead else inf
            ahead = self.stages[stage] + (self.head(stage) if stage in self.exits else ahead)
        self.enough = enough

    def returned(self, seconds: float) -> None:
        """Learn how long it took from the end of a head to the return of the prediction: up fast, down slowly."""
        self.returning += (0.3 if seconds > self.returning else 0.02) * (min(seconds, 0.001) - self.returning)

    def answered(self, late: bool, expected: float, allowed: float) -> None:
        """Adjust the risk of one stage so that predictions take three quarters of the allowed risk in all.

        Args:
            late: whether the prediction was late and an earlier exit would have been in time.
            expected: the sum of the probabilities of being late that its stages were started with.
            allowed: 1 − confidence.
        """
        self._late += late - self._late / SURPRISES
        self._expected += min(expected, 1.0) - self._expected / SURPRISES
        self.surprise = max((self._late + 1.5) / (self._expected + 1.5), 1.0)
        taken = self.surprise * min(expected, 1.0)
        self.risk = min(max(self.risk * exp(0.05 * (1 - taken / (0.75 * allowed))), 0.01), 1.0)


def _moved(known: float, seconds: float) -> float:
    """A typical time after another one was seen: down fast, up slowly, by one slow moment hardly."""
    if seconds < 0.5 * known:  # it was measured in a slow moment, or the machine has become faster
        return seconds
    if seconds < known:
        return known + 0.3 * (seconds - known)
    return known + 0.03 * min(seconds - known, 0.5 * known)
