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

from collections.abc import Sequence
from functools import cached_property
from math import exp, inf

from anytime.inference.pauses import Pauses, Tail

STAGES, PREDICTIONS, SURPRISES = 3000, 100, 300
"""What was seen counts for 1/e after so many stages, or predictions; predictions that were late after so many more."""
WALKS = 8
"""After so many predictions what was seen is aged, unless there was a pause."""
SHORTEST_PAUSE = 0.0003
"""A stage that takes twice as long as expected, and so many seconds more, was interrupted."""
RESTED = 0.0005
"""Predictions that are further apart have rested."""


Ran = tuple[float, float, bool]
"""A stage that has run: when it began and ended, by the monotonic clock, and whether there is an exit after it."""


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
        """Take over typical times, since nothing is known yet; those of heads until one has run twice."""
        self.stages.update(other.stages)
        self.heads.update(other.heads)
        self.exits.update(other.exits)
        self.first_runs.update(other.first_runs)
        self.first_heads.update(other.heads)

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

    def allows(self, risk: float, allowed: float) -> bool:
        """Whether a stage may be started that makes the prediction late with this probability.

        Args:
            risk: the probability.
            allowed: that of a whole prediction, 1 − confidence.
        """
        return risk * self.surprise <= self.risk * allowed

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
