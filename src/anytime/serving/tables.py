"""What the scheduler looks up: for each stage and batch, how long the way to each exit is and what it is worth."""

from collections.abc import Sequence
from math import inf, log
from typing import Any

import numpy as np

from anytime.errors import AnytimeError, check_number
from anytime.inference.batch_times import BatchTimes, Line

PRICES = 16
"""Number of prices: infinite, then from the steepest to the flattest way, in accuracy per second."""


class Tables:
    """Times and gains of one network for inputs of one shape.

    A request at stage s may go on to any exit behind it. The way to an exit has a slope: the gain in accuracy per
    second. Only ways along the upper hull of the accuracy curve count: a flat stretch before a steep one is one way.
    A *price* is a slope: at a price, a request goes on as long as its ways are at least as steep.

    Args:
        times: seconds of stages and heads by batch.
        accuracy: of each exit, on held-out data.
        largest: the largest batch.
        every: whether all heads on the way are evaluated, as early exit and streams need them.
    """

    def __init__(self, times: BatchTimes, accuracy: Sequence[float], largest: int, every: bool = False) -> None:
        self.times, self.largest, self.every = times, largest, every
        self.stages = len(times.stages)
        exits = [stage for stage, head in enumerate(times.heads) if head is not None]
        self.accuracy = check_accuracy(accuracy, len(exits))
        self.first = exits[0] + 1
        """The number of stages up to the first exit."""
        self.batches = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
        self._levels = [max(batch, 1).bit_length() - 1 for batch in range(largest + 1)]
        self._ways = [self._ways_for(batch, exits) for batch in self.batches]
        # First exits have no price, and gains below 0.1 points are ignored.
        hulls = [hull for ways in self._ways for hull in ways[self.first :]]
        slopes = [slope for hull in hulls for slope, gain, _ in hull if gain > 0.001]
        high, low = max(slopes, default=1.0), min(slopes, default=1.0)
        self.prices = [inf, *np.geomspace(high, min(low, high / 2), PRICES - 1).tolist()]
        self._step = log(self.prices[1] / self.prices[2])
        self.held = [
            [0.0 if every or s < self.first else self._head(s - 1, b) / b for s in range(self.stages + 1)]
            for b in self.batches
        ]
        self._demand = [self._demand_of(*pair) for pair in zip(self._ways, self.held, strict=True)]
        self._shifted: dict[tuple[int, int], list[list[float]]] = {}
        self.slopes = [[hull[0][0] if hull else 0.0 for hull in ways] for ways in self._ways]
        """The steepest way from each stage, by batch, in accuracy per second and sample."""
        self.ways = [[hull[0][2] if hull else 0.0 for hull in ways] for ways in self._ways]
        """Its seconds, per sample."""
        self.next = [self._next(stage) for stage in range(self.stages + 1)]
        """Seconds from each stage to the next exit's prediction, for a batch of one."""
        self.answer = [self._answer(stage) for stage in range(self.stages + 1)]
        """Seconds of the head that answers at each stage: of the latest exit before it."""
        self.longest, self.most_held = max(self.next[:-1]), max(line.at(1) for line in self.answer)
        """The longest way to a next exit and the longest head, for a batch of one."""
        self.longest_stage = max(times.stages, key=lambda line: line.at(largest))
        """That of large batches."""
        counts = np.arange(1, 4097)
        self.first_exits: list[float] = sum(
            (line.fixed * np.ceil(counts / largest) + line.each * counts for line in self._first_lines()),
            np.zeros(len(counts)),
        ).tolist()
        """Seconds to the first exits of 1, 2, 3 … samples."""

    def _first_lines(self) -> list[Any]:
        heads = [line for line in self.times.heads[: self.first] if line is not None]
        return [*self.times.stages[: self.first], *heads]

    def seconds(self, stage: int, batch: int) -> float:
        """Seconds of one stage for a batch, with its head if all are evaluated."""
        line, head = self.times.stages[stage], self.times.heads[stage]
        return line.at(batch) + (head.at(batch) if head and self.every else 0.0)

    def level(self, batch: float) -> int:
        """The index of the largest power of two up to a batch."""
        return self._levels[int(batch)]

    def _head(self, stage: int, batch: int) -> float:
        """Seconds of the head of the latest exit after or before a stage."""
        while stage >= 0 and self.times.heads[stage] is None:
            stage -= 1
        head = self.times.heads[stage] if stage >= 0 else None
        return 0.0 if head is None else head.at(batch)

    def _answer(self, stage: int) -> Line:
        heads = [head for head in self.times.heads[:stage] if head is not None]
        return Line(0.0, 0.0) if self.every or not heads else heads[-1]

    def _next(self, stage: int) -> float:
        spent = 0.0
        for i in range(stage, self.stages):
            spent += self.times.stages[i].at(1)
            head = self.times.heads[i]
            if head is not None:
                return spent + head.at(1)
        return float("inf")

    def _ways_for(self, batch: int, exits: list[int]) -> list[list[tuple[float, float, float]]]:
        """From each stage, the hull: slope, gain and seconds per sample of each of its segments."""
        spent = np.cumsum([0.0] + [self.seconds(stage, batch) / batch for stage in range(self.stages)])
        reach = np.array([spent[exit + 1] + (0 if self.every else self._head(exit, batch) / batch) for exit in exits])
        level = np.array(self.accuracy)
        ways = []
        for stage in range(self.stages + 1):
            passed = sum(exit < stage for exit in exits)  # exits that this request has passed
            now = self.accuracy[passed - 1] if passed else 0.0
            # What the answer that it has would cost is not spent again by going on.
            done = spent[stage] if self.every or not passed else max(spent[stage], reach[passed - 1])
            hull, first = [], True
            while passed < len(exits):
                slopes = (level[passed:] - now) / np.maximum(reach[passed:] - done, 1e-9)
                best = 0 if first and stage <= exits[0] else int(np.argmax(slopes))
                hull.append(
                    (float(slopes[best]), float(level[passed + best] - now), float(reach[passed + best] - done))
                )
                now, done, first = level[passed + best], reach[passed + best], False
                passed += best + 1
            ways.append(hull)
        return ways

    def _demand_of(self, ways: list[list[tuple[float, float, float]]], held: list[float]) -> list[list[float]]:
        table = [[seconds] * PRICES for seconds in held]
        for row, hull, stage in zip(table, ways, range(self.stages + 1), strict=True):
            for i, price in enumerate(self.prices):
                for j, (slope, _, seconds) in enumerate(hull):
                    # Everyone gets a first exit, whatever the price.
                    if slope < price * (1 - 1e-9) and not (j == 0 and stage < self.first):
                        break
                    row[i] += seconds
        return table

    def demand(self, level: int, shift: int = 0) -> list[list[float]]:
        """Seconds per sample that are needed from each stage at each price, the answer's head included.

        Args:
            level: of the batch.
            shift: of a sample that is worth more or less than others, see ``shift``.
        """
        if not shift:
            return self._demand[level]
        found = self._shifted.get((level, shift))
        if found is None:
            places = [0, *(min(max(i + shift, 1), PRICES - 1) for i in range(1, PRICES))]
            found = [[row[i] for i in places] for row in self._demand[level]]
            self._shifted[level, shift] = found
        return found

    def shift(self, weight: float) -> int:
        """By how many prices a sample's own differ, if going on is worth ``weight`` times the average for it."""
        return round(log(max(weight, 1e-6)) / self._step)


def check_accuracy(accuracy: Sequence[float], exits: int) -> list[float]:
    """The accuracy of each exit, made to rise: a deeper exit that is worse on held-out data is hardly worth more.

    Examples:
        >>> [round(a, 3) for a in check_accuracy([0.5, 0.4, 0.9], 3)]
        [0.5, 0.5, 0.9]
    """
    values = [check_number("accuracy", float(value), most=1) for value in accuracy]
    if len(values) != exits:
        raise AnytimeError(f"accuracy has {len(values)} numbers, the network {exits} exits: give one for each")
    best = np.maximum.accumulate(np.array(values))
    return [float(value) for value in best + 1e-6 * np.arange(1, exits + 1)]
