"""The time of one walk: what its stages took, and whether the next answer would be in time."""

import time
from typing import Any

from anytime.inference.latency import times_of
from anytime.inference.measuring import kind_of, synchronize
from anytime.inference.stage_times import StageTimes
from anytime.inputs import device_of

IDLE = 0.0005
"""Between predictions that are further apart the process has slept: it starts afresh with the processor."""


class Clock:
    """Measures the stages and heads of one walk; plans with, and adds to, what is known of the network's times.

    What is done after each stage is kept short: it adds to the time of every stage.
    """

    def __init__(self) -> None:
        self._begun = self._before = time.perf_counter()
        self._stages: list[float] = []  # seconds of those that have ended
        self._exits: list[int] = []  # those of them that have an exit
        self._risk = 0.0  # the sum of the probabilities of being late that stages were started with
        self._first_exit_at = 0.0

    def recall(self, net: Any, x: Any) -> None:
        """Look up what is known of the network's times for such an input."""
        self._device = device_of(x)
        self._waits = self._device.type != "cpu"
        times, kind = times_of(net), kind_of(x, self._device)
        self.known = times.get(kind) or times.setdefault(kind, StageTimes())
        self._since = self._began_since = self.known.since if self._begun - self.known.ended < IDLE else 0.0

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
        took, stage, self._before = now - self._before, len(self._stages), now
        self._stages.append(took)
        self._since = self.known.after(stage, took, self._since)
        if has_exit:
            if not self._exits:
                self._first_exit_at = now - self._begun
            self._exits.append(stage)

    def head_ended(self) -> float:
        """Note and learn the time of the latest exit's head, which has just ended; seconds since the call."""
        if self._waits:
            synchronize(self._device)
        now = time.perf_counter()
        self.known.head_ended(self._exits[-1], now - self._before)
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
        ahead = known.ahead(stage, self._stages[-1]) + (known.head(stage) if with_head else 0.0)
        slack = deadline - (self._before - self._begun) - known.returning
        risk = known.late(ahead * known.pace, slack, self._since)
        if risk > known.risk * (1 - confidence):
            return False
        self._risk += risk
        return True

    def finish(self, deadline: float | None, confidence: float) -> bool:
        """Learn from the walk, since the prediction is about to be returned; whether that is late."""
        known = self.known
        known.walked(self._stages, self._exits, self._began_since)
        now = time.perf_counter()
        known.since, known.ended = self._since, now
        known.returning += 0.1 * (min(now - self._before, 0.001) - known.returning)
        if deadline is None:
            return False
        late = now - self._begun > deadline
        in_time = self._first_exit_at + known.head(self._exits[0]) <= deadline  # it could have been, at the first exit
        known.answered(late and in_time and len(self._stages) > 1, self._risk, 1 - confidence)
        known.kept, known.missed = known.kept + (not late), known.missed + late
        return late
