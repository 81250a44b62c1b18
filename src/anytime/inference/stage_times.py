"""What the stages and heads of a network take, as a distribution that is learned while it runs.

**Given** the seconds of every stage that ran lately, for inputs of one kind on one device. **Wanted** before a stage
starts: the probability that the next exit's answer comes too late. **Model**: a stage of typical seconds τ takes

    pace · τ · noise + pauses

where the *pace* changes slowly (a throttled processor), the *noise* varies from stage to stage by some per cent, and a
*pause* is the time for which the operating system gives the processor to somebody else. Pauses are rare on a quiet
machine. Beside a busy process they take milliseconds, and they are not memoryless: a process that has just got the
processor keeps it for some milliseconds. So their rate is learned as a function of the time since the last one.

| symbol | is |
|---|---|
| τ | ``typical``: seconds of each stage; goes down fast and up slowly, so it ends up among the faster times |
| pace | running mean of a stage's seconds / τ, pauses left out |
| noise | share of stages that took longer than a multiple of pace · τ |
| rate | pauses per second of running, by the seconds since the last pause |
| length | share of the pauses that were longer than given seconds |

All of it is forgotten at a stated rate: the noise and the rate over ``STAGES`` stages, the lengths over 64 pauses.
Nothing locks: threads that learn at once may lose a number, and a forked process has a copy of its own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import exp, inf, log

STAGES, PREDICTIONS = 3000, 100
"""After so many stages, or so many predictions, what was seen counts for 1/e."""
SHORTEST_PAUSE = 0.0003
"""A stage that takes twice as long as expected, and so many seconds more, was interrupted."""


def _geometric(first: float, ratio: float, count: int) -> list[float]:
    return [first * ratio**i for i in range(count)]


class Tail:
    """The share of the latest values that were above a level; older values count less.

    Args:
        levels: rising.
        memory: number of values after which one counts for 1/e.

    Examples:
        >>> tail = Tail([1.0, 2.0, 4.0], memory=100)
        >>> for value in (0.5, 1.5, 3.0, 3.0):
        ...     tail.note(value)
        >>> round(tail.above(2.5), 2), tail.above(4.0)
        (0.5, 0.0)
    """

    __slots__ = ("counts", "growth", "levels", "total", "weight")

    def __init__(self, levels: Sequence[float], memory: float) -> None:
        self.levels, self.counts = levels, [0.0] * len(levels)
        self.total, self.weight, self.growth = 0.0, 1.0, exp(1 / memory)

    def note(self, value: float) -> None:
        """Take a value into account."""
        self.weight *= self.growth
        self.total += self.weight
        for i in range(bisect_left(self.levels, value)):
            self.counts[i] += self.weight
        if self.weight > 1e12:
            self.counts, self.total = [n / self.weight for n in self.counts], self.total / self.weight
            self.weight = 1.0

    def age(self, factor: float) -> None:
        """Let all that was seen count for less."""
        self.weight *= factor

    def above(self, level: float) -> float:
        """The share above the largest of the levels that is not above ``level``; 0 before the first value."""
        return self.counts[max(bisect_right(self.levels, level) - 1, 0)] / self.total if self.total else 0.0


class Pauses:
    """How often a running process is interrupted, by the seconds since its last pause, and for how long.

    Examples:
        >>> pauses = Pauses(memory=1000)
        >>> for _ in range(100):                    # it runs for 3 ms, then it is interrupted for 4
        ...     pauses.ran(0.001, since=0.0)
        ...     pauses.ran(0.001, since=0.001)
        ...     pauses.ran(0.001, since=0.002)
        ...     pauses.interrupted(0.004, since=0.0035)
        >>> pauses.longer(0.001, 0.003, since=0.0) < 0.02 < 0.5 < pauses.longer(0.001, 0.003, since=0.003)
        True
        >>> pauses.longer(0.001, 0.005, since=0.003)
        0.0
    """

    __slots__ = ("count", "growth", "lengths", "pauses", "running", "seconds", "weight")

    BINS, FIRST, RATIO, PRIOR = 80, 0.0001, 1.08, 3

    def __init__(self, memory: float) -> None:
        self.pauses, self.running = [0.0] * self.BINS, [0.0] * self.BINS
        self.count = self.seconds = 0.0
        self.weight, self.growth = 1.0, exp(1 / memory)
        self.lengths = Tail(_geometric(0.0002, 1.2, 40), memory=64)

    def _bin(self, since: float) -> int:
        return min(int(log(since / self.FIRST) / _LOG_RATIO), self.BINS - 1) if since > self.FIRST else 0

    def ran(self, seconds: float, since: float) -> None:
        """A stage ran without a pause, ``since`` seconds after the last one."""
        self.weight *= self.growth
        amount = seconds * self.weight
        self.running[self._bin(since + 0.5 * seconds)] += amount
        self.seconds += amount
        if self.weight > 1e12:
            self._scale(1 / self.weight)

    def interrupted(self, seconds: float, since: float) -> None:
        """A pause came ``since`` seconds after the last one and took so long."""
        self.pauses[self._bin(since)] += self.weight
        self.count += self.weight
        self.lengths.note(seconds)

    def longer(self, running: float, slack: float, since: float) -> float:
        """The probability of a pause longer than ``slack`` in the next ``running`` seconds."""
        if not self.count:
            return 0.0
        i = self._bin(since + 0.5 * running)
        near = slice(max(i - 1, 0), i + 2)
        # Where little has been seen, the mean rate counts too: as much as a few such stages.
        known = self.PRIOR * running * self.weight
        rate = (sum(self.pauses[near]) + known * self.count / max(self.seconds, 1e-9)) / (
            sum(self.running[near]) + known
        )
        return (1 - exp(-rate * running)) * self.lengths.above(slack)

    def age(self, factor: float) -> None:
        """Let all that was seen count for less, the lengths too: they were those of another time."""
        self.weight *= factor
        self.lengths.age(factor)

    def _scale(self, factor: float) -> None:
        self.pauses, self.running = [n * factor for n in self.pauses], [n * factor for n in self.running]
        self.count, self.seconds, self.weight = self.count * factor, self.seconds * factor, self.weight * factor


_LOG_RATIO = log(Pauses.RATIO)
_AGE = exp(1 / PREDICTIONS)


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
        memory = STAGES
        self.noise = Tail([1.005, *_geometric(1.01, 1.02, 8), *_geometric(1.2, 1.1, 16)], memory)
        self.pauses = Pauses(memory)
        self.pace = 1.0
        self.returning = 0.00003
        """Seconds between the end of a head and the return of the prediction."""
        self.risk = 0.25
        """The risk that starting one stage may take, as a share of what a prediction may take in all."""
        self.since = 0.0
        """Seconds that the process has run since its last pause, when the latest walk ended."""
        self.ended = -inf
        """When that was."""
        self.refused = 0
        """How many predictions in a row were refused before they began."""
        self.kept = self.missed = 0
        """Predictions that were returned before their deadline, and those that were not."""

    def head(self, stage: int) -> float:
        """Typical seconds of the head after a stage; 0 if not known."""
        return self.heads.get(stage) or 0.0

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
        """Whether to begin although the deadline seems too short: every tenth time, in case it has become faster."""
        self.refused = (self.refused + 1) % 10
        return self.refused == 0

    def late(self, seconds: float, slack: float, since: float) -> float:
        """The probability that work of typically ``seconds`` takes longer than ``slack``.

        Args:
            seconds: at the present pace.
            slack: seconds that are left.
            since: seconds since the last pause.
        """
        if slack < seconds:
            return 1.0
        slower = self.noise.above(slack / seconds) if seconds > 0 else 0.0
        return min(1.0, slower + self.pauses.longer(seconds, slack - seconds, since))

    def stage_ended(self, stage: int, seconds: float, has_exit: bool, since: float) -> float:
        """Learn from a stage; returns the seconds since the last pause."""
        if stage not in self.stages:
            self.stages[stage] = _first(seconds, self.stages.get(stage - 1))
            if has_exit:
                self.exits.add(stage)
            return since + seconds
        known = self.stages[stage]
        expected = self.pace * known
        self.stages[stage] = _moved(known, seconds)
        if seconds > 2 * expected + SHORTEST_PAUSE:
            self.pauses.ran(expected, since)
            self.pauses.interrupted(seconds - expected, since + 0.5 * expected)
            return 0.0
        self.pauses.ran(seconds, since)
        if expected > 0:
            self.noise.note(seconds / expected)
            self.pace += 0.15 * (seconds / known - self.pace)
        return since + seconds

    def head_ended(self, stage: int, seconds: float) -> None:
        """Learn from a head."""
        known = self.heads.get(stage)
        if known is None:
            nearest = min(self.heads, key=lambda other: abs(other - stage), default=None)
            self.heads[stage] = _first(seconds, None if nearest is None else self.heads[nearest])
        else:
            self.heads[stage] = _moved(known, seconds)

    def answered(self, late: bool, expected: float, allowed: float) -> None:
        """Adjust the risk of one stage so that predictions take three quarters of the allowed risk in all.

        Args:
            late: whether the prediction was late and an earlier exit would have been in time.
            expected: the sum of the probabilities of being late that its stages were started with.
            allowed: 1 − confidence.
        """
        self.noise.age(_AGE)
        self.pauses.age(_AGE)
        taken = 0.5 * min(expected, 1.0) + 0.5 * late
        self.risk = min(max(self.risk * exp(0.02 * (1 - taken / (0.75 * allowed))), 0.01), 1.5)


def _first(seconds: float, neighbor: float | None) -> float:
    """The typical time of what ran for the first time: at most twice its neighbor's, for it may have been interrupted."""
    return seconds if neighbor is None else min(seconds, 2 * neighbor + SHORTEST_PAUSE)


def _moved(known: float, seconds: float) -> float:
    """A typical time after another one was seen: down fast, up slowly, by one slow moment hardly."""
    if seconds < 0.5 * known:  # it was measured in a slow moment, or the machine has become faster
        return seconds
    if seconds < known:
        return known + 0.3 * (seconds - known)
    return known + 0.03 * min(seconds - known, 0.5 * known)
