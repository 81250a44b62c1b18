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

All of it is forgotten at a stated rate, see ``STAGES``.
Nothing locks: threads that learn at once may lose a number, and a forked process has a copy of its own.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import exp, inf

STAGES, PREDICTIONS, PAUSES = 3000, 100, 64
"""After so many stages, or predictions, what was seen counts for 1/e; lengths of pauses after so many pauses too."""
_PAUSE = exp(1 / PAUSES)
SHORTEST_PAUSE = 0.0003
"""A stage that takes twice as long as expected, and so many seconds more, was interrupted."""


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
        self.levels, self.counts = levels, [0.0] * len(levels)
        self.total, self.weight = 0.0, 1.0

    def note(self, value: float) -> None:
        """Take a value into account."""
        self.total += self.weight
        for i in range(bisect_left(self.levels, value)):
            self.counts[i] += self.weight

    def age(self, factor: float) -> None:
        """Let what was seen so far count for less by a factor."""
        self.weight *= factor  # of what comes: that is quicker
        if self.weight > 1e12:
            self.counts, self.total = [n / self.weight for n in self.counts], self.total / self.weight
            self.weight = 1.0

    def above(self, level: float) -> float:
        """The share above the largest of the levels that is not above ``level``; 0 before the first value."""
        return self.counts[max(bisect_right(self.levels, level) - 1, 0)] / self.total if self.total else 0.0


class Pauses:
    """How often a running process is interrupted, by the seconds since its last pause, and for how long.

    Examples:
        >>> pauses = Pauses()
        >>> for _ in range(100):                    # it runs for 3 ms, then it is interrupted for 4
        ...     for since in (0.0, 0.001, 0.002):
        ...         pauses.ran(0.001, since)
        ...     pauses.interrupted(0.004, since=0.0035)
        >>> pauses.longer(0.001, 0.003, since=0.0) < 0.05 < 0.5 < pauses.longer(0.001, 0.003, since=0.003)
        True
        >>> pauses.longer(0.001, 0.005, since=0.003)
        0.0
    """

    __slots__ = ("count", "lengths", "pauses", "running", "seconds", "weight")

    BINS, PER_SECOND = 120, 5000
    PRIOR = 3
    """Where little has been seen, the mean rate counts too: as much as so many stages."""

    def __init__(self) -> None:
        self.pauses, self.running = [0.0] * self.BINS, [0.0] * self.BINS
        self.count = self.seconds = 0.0
        self.weight = 1.0
        self.lengths = Tail([0.0002 * 1.2**i for i in range(40)])

    def ran(self, seconds: float, since: float) -> None:
        """A stage ran without a pause, ``since`` seconds after the last one."""
        amount = seconds * self.weight
        self.running[min(int((since + 0.5 * seconds) * self.PER_SECOND), self.BINS - 1)] += amount
        self.seconds += amount

    def interrupted(self, seconds: float, since: float) -> None:
        """A pause came ``since`` seconds after the last one and took so long."""
        self.pauses[min(int(since * self.PER_SECOND), self.BINS - 1)] += self.weight
        self.count += self.weight
        self.lengths.age(_PAUSE)
        self.lengths.note(seconds)

    def longer(self, running: float, slack: float, since: float) -> float:
        """The probability of a pause longer than ``slack`` in the next ``running`` seconds."""
        longer = self.lengths.above(slack)
        if not longer:
            return 0.0
        i = min(int((since + 0.5 * running) * self.PER_SECOND), self.BINS - 1)
        near = slice(max(i - 1, 0), i + 2)
        known = self.PRIOR * running * self.weight
        mean = self.count / max(self.seconds, 1e-9)
        rate = (sum(self.pauses[near]) + known * mean) / (sum(self.running[near]) + known)
        return (1 - exp(-rate * running)) * longer

    def age(self, factor: float) -> None:
        """Let what was seen so far count for less by a factor."""
        self.lengths.age(factor)
        self.weight *= factor
        if self.weight > 1e12:
            self.pauses, self.running = [n / self.weight for n in self.pauses], [n / self.weight for n in self.running]
            self.count, self.seconds, self.weight = self.count / self.weight, self.seconds / self.weight, 1.0


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
        self.noise = Tail([1.005, *(1.01 * 1.02**i for i in range(8)), *(1.2 * 1.1**i for i in range(16))])
        self.pauses = Pauses()
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

    def after(self, stage: int, seconds: float, since: float) -> float:
        """Seconds since the last pause after a stage has run; it was interrupted if it took far longer than expected.

        Args:
            stage: the stage.
            seconds: that it took.
            since: seconds since the last pause when it began.
        """
        known = self.stages.get(stage)
        if not known:
            return since + seconds
        if seconds > 2 * self.pace * known + SHORTEST_PAUSE:
            return 0.0
        self.pace += 0.15 * (seconds / known - self.pace)
        return since + seconds

    def walked(self, stages: Sequence[float], exits: Iterable[int], since: float) -> None:
        """Learn from a walk.

        Args:
            stages: seconds of the stages that ran.
            exits: the stages of them that have an exit.
            since: seconds since the last pause when the first began.
        """
        known, pace, noise, pauses = self.stages, self.pace, self.noise, self.pauses
        self.exits.update(exits)
        factor = exp(len(stages) / STAGES + 1 / PREDICTIONS)
        noise.age(factor)
        pauses.age(factor)
        for stage, seconds in enumerate(stages):
            typical = known.get(stage)
            if typical is None:
                known[stage] = _first(seconds, known.get(stage - 1))
                since += seconds
                continue
            expected = pace * typical
            known[stage] = _moved(typical, seconds)
            if seconds > 2 * expected + SHORTEST_PAUSE:
                pauses.ran(expected, since)
                pauses.interrupted(seconds - expected, since + 0.5 * expected)
                since = 0.0
                continue
            pauses.ran(seconds, since)
            since += seconds
            if expected > 0:
                noise.note(seconds / expected)

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
        taken = 0.5 * min(expected, 1.0) + 0.5 * late
        self.risk = min(max(self.risk * exp(0.02 * (1 - taken / (0.75 * allowed))), 0.01), 1.5)


def _first(seconds: float, neighbor: float | None) -> float:
    """The typical time of what ran for the first time: little more than twice its neighbor's, in case of a pause."""
    return seconds if neighbor is None else min(seconds, 2 * neighbor + SHORTEST_PAUSE)


def _moved(known: float, seconds: float) -> float:
    """A typical time after another one was seen: down fast, up slowly, by one slow moment hardly."""
    if seconds < 0.5 * known:  # it was measured in a slow moment, or the machine has become faster
        return seconds
    if seconds < known:
        return known + 0.3 * (seconds - known)
    return known + 0.03 * min(seconds - known, 0.5 * known)
