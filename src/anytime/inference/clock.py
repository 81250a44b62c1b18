"""The time of one walk: what its stages took, and what is expected of the next ones."""

import time
from dataclasses import replace
from math import inf
from operator import lt
from typing import Any

from anytime.inference.latency import Profile, profiles_of
from anytime.inference.measuring import kind_of, synchronize
from anytime.inputs import device_of


class Clock:
    """Measures the stages and heads of one walk and compares them with the latencies known of the network.

    What is done after each stage is kept short: it adds to the time of every stage.
    """

    def __init__(self) -> None:
        self._begun = self._before = time.perf_counter()
        self._stages: list[float] = []
        self._heads: list[float | None] = []
        self._answered: list[int] = []  # the stages whose heads were evaluated
        self._actual = self._expected = 0.0  # seconds of the stages compared so far: measured, and as known
        self._compared = 0

    def recall(self, net: Any, x: Any) -> None:
        """Look up what is known of the network's latency for such an input."""
        self._device = device_of(x)
        self._kind = kind_of(x, self._device)
        self._waits = self._device.type != "cpu"
        self._profiles = profiles_of(net)
        self._known = self._profiles.get(self._kind) or Profile([], [], self._kind)

    @property
    def seconds(self) -> float:
        """Seconds since the call."""
        return time.perf_counter() - self._begun

    @property
    def first_exit(self) -> float:
        """Seconds that the first exit takes, as known and measured so far; 0 if not known."""
        known = self._known.fastest(Profile(self._stages, self._heads)) if self._stages else self._known
        return known.ahead(-1)

    def start(self) -> None:
        """The first stage is about to run."""
        self._before = time.perf_counter()

    def stage_ended(self, has_exit: bool) -> None:
        """Note the time of the stage that has just ended."""
        if self._waits:
            synchronize(self._device)
        now = time.perf_counter()
        self._stages.append(now - self._before)
        self._heads.append(inf if has_exit else None)
        self._before = now

    def head_ended(self) -> float:
        """Note the time of the latest exit's head, which has just ended; seconds since the call."""
        if self._waits:
            synchronize(self._device)
        now = time.perf_counter()
        stage = len(self._heads) - 1
        while self._heads[stage] is None:
            stage -= 1
        self._heads[stage], self._before = now - self._before, now
        self._answered.append(stage)
        return now - self._begun

    def next_answer(self, with_head: bool) -> float:
        """Seconds from the call to the next exit's prediction, as known, at the pace of this walk.

        Args:
            with_head: whether the head of the present exit is evaluated before.
        """
        stage = len(self._stages) - 1
        ahead = self._known.ahead(stage, self._stages[-1]) + (self._known.head(stage) if with_head else 0.0)
        return self._before - self._begun + ahead * self._pace()

    def _pace(self) -> float:
        """How much longer the stages of this walk took than known: the known times are the fastest."""
        for stage in range(self._compared, len(self._stages)):
            took, known = self._stages[stage], self._known.stages
            self._actual += took
            self._expected += known[stage] if stage < len(known) else took
        self._compared = len(self._stages)
        return max(1.0, self._actual / self._expected) if self._expected else 1.0

    def try_again(self) -> bool:
        """Whether to begin although the deadline seems too short: every tenth time, in case the profile is too slow."""
        refused = self._known.refused + 1
        self._profiles[self._kind] = replace(self._known, refused=refused % 10)
        return refused == 10

    def learn(self) -> None:
        """Add the times of this walk to what is known of the network."""
        known = self._profiles.get(self._kind, self._known)  # another thread may have learned meanwhile
        if (
            len(self._stages) > len(known.stages)
            or any(map(lt, self._stages, known.stages))
            or self._faster_head(known)
        ):
            self._profiles[self._kind] = known.fastest(Profile(self._stages, self._heads))

    def _faster_head(self, known: Profile) -> bool:
        for stage in self._answered:
            new, old = self._heads[stage], known.heads[stage]
            if new is not None and old is not None and new < old:
                return True
        return False
