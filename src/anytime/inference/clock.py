"""The time of one walk: what its stages took, and whether the next answer would be in time."""

import time
from typing import Any

from anytime.inference.latency import times_of
from anytime.inference.stage_times import RESTED, Ran, StageTimes
from anytime.inputs import device_of
from anytime.measuring import kind_of, synchronize


class Clock:
    """Measures the stages and heads of one walk; plans with, and adds to, what is known of the network's times.

    What is done after each stage adds to its time. So most stages are only noted, and learned from when the next exit
    is not surely in time, or at the end.
    """

    def __init__(self) -> None:
        self._begun = self._before = time.perf_counter()
        self._stages: list[Ran] = []
        self._learned = 0  # how many of them were learned from
        self._exit = -1  # the latest stage that has an exit
        self._risk = 0.0  # the sum of the probabilities of being late that stages were started with

    def recall(self, net: Any, x: Any) -> None:
        """Look up what is known of the network's times for such an input."""
        self._device = device_of(x)
        self._waits = self._device.type != "cpu"
        times, kind = times_of(net), kind_of(x, self._device)
        self.all = times.get(kind) or times.setdefault(kind, StageTimes())
        rested = self._begun - self.all.ended > RESTED
        self.known, other = (self.all.rested, self.all) if rested else (self.all, self.all.rested)
        if not self.known.stages:
            self.known.begin_with(other)
        self._since = 0.0 if rested else self.all.since

    @property
    def seconds(self) -> float:
        """Seconds since the call."""
        return time.perf_counter() - self._begun

    def start(self) -> None:
        """The first stage is about to run."""
        self._before = time.perf_counter()

    def stage_ended(self, has_exit: bool) -> None:
        """Note the time of the stage that has just ended."""
        if self._waits:
            synchronize(self._device)
        now = time.perf_counter()
        if has_exit:
            self._exit = len(self._stages)
        self._stages.append((self._before, now, has_exit))
        self._before = now

    def head_ended(self) -> float:
        """Note and learn the time of the latest exit's head, which has just ended; seconds since the call."""
        if self._waits:
            synchronize(self._device)
        now = time.perf_counter()
        self._learn()
        self.known.head_ran(self._exit, now - self._before)
        self._since += now - self._before
        self._before = now
        return now - self._begun

    def fits(self, deadline: float, confidence: float, with_head: bool) -> bool:
        """Whether the next exit's prediction is expected in time.

        Args:
            deadline: seconds since the call.
            confidence: the probability with which predictions are to be in time.
            with_head: whether the head of the present exit is evaluated before.
        """
        known, stage = self.known, len(self._stages) - 1
        slack = deadline - (self._before - self._begun) - known.returning
        if with_head:
            slack -= known.pace * known.head(stage)
        if stage < len(known.enough) and slack > known.enough[stage]:
            return True
        self._learn()
        start, end, _ = self._stages[-1]
        risk = known.late(known.pace * known.ahead(stage, end - start), slack, self._since, self._before)
        if not known.allows(risk, 1 - confidence):
            return False
        self._risk += risk
        return True

    def finish(self, deadline: float | None, confidence: float) -> bool:
        """Learn from the walk, since the prediction is about to be returned; whether that is late."""
        known, every = self.known, self.all
        self._learn()
        known.walked(len(self._stages))
        now = time.perf_counter()
        every.since, every.ended = self._since, now
        if deadline is None:
            return False
        late = now - self._begun > deadline
        first = next(stage for stage, (_, _, has_exit) in enumerate(self._stages) if has_exit)
        first_in_time = self._stages[first][1] + known.head(first) - self._begun <= deadline
        avoidable = late and self._exit > first and first_in_time and self._exit not in known.first_heads
        known.answered(avoidable, self._risk, 1 - confidence)
        every.kept, every.missed = every.kept + (not late), every.missed + late
        return late

    def returned(self) -> None:
        """The prediction is being returned."""
        self.known.returned(time.perf_counter() - self._before)

    def _learn(self) -> None:
        """Learn from the stages that have run since this was called last."""
        if self._learned < len(self._stages):
            self._since = self.known.ran(self._stages, self._since, self._learned)
            self._learned = len(self._stages)
