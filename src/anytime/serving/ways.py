"""The scheduler's lookup tables: for each stage and batch, the seconds and gains of the ways to deeper exits.

The symbols are those of ``scheduler``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import NamedTuple

import numpy as np

from anytime.errors import AnytimeError, check_number
from anytime.inference.batch_times import BatchTimes, Line

PRICES = 16
"""Number of prices: infinite, then from the steepest to the flattest way, in accuracy per second."""
COUNTED = 4096
"""Number of samples up to which the seconds to their first exits are tabulated."""
NOTHING = Line(0.0, 0.0)


class Way(NamedTuple):
    """From a stage, or from the end of the way before it, to a deeper exit; for one sample of a batch."""

    slope: float
    """Gain per second."""
    gain: float
    seconds: float


Hull = list[Way]
"""The ways of the upper concave hull of accuracy over time, steepest first: a flat stretch before a steep one is one
way."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Times and gains of one network for inputs of one form; made by ``make_tables``.

    Batches are tabulated by *level*: the index of the largest power of two up to their size. ``[k]`` stands for "after
    k stages".
    """

    times: BatchTimes
    stages: int
    """The number of stages."""
    largest: int
    """The largest batch."""
    every: bool
    """Whether all heads on the way are evaluated, as early exit and streams need them."""
    accuracy: list[float]
    """a_e, which rises."""
    first: int
    """The number of stages up to the first exit."""
    batches: list[int]
    """The batches that are tabulated: powers of two."""
    levels: list[int]
    """The level of each batch, from 0 to the largest."""
    slopes: list[list[float]]
    """``[level][k]``: slope of the steepest way."""
    way_seconds: list[list[float]]
    """``[level][k]``: seconds of the steepest way, per sample."""
    needs: list[list[list[float]]]
    """``[level][k][price]``: N(λ), seconds per sample of the ways that are taken at a price and of the head that
    answers."""
    goes_from: list[list[int]]
    """``[level][k]``: the first price at which a way is taken; ``PRICES`` if none is at any."""
    price_step: float
    """The logarithm of the ratio of neighboring prices."""
    next: list[float]
    """``[k]``: seconds to the next exit's prediction, for a batch of one."""
    longest_next: float
    """The longest of them, from any stage but the last."""
    answer: list[Line]
    """``[k]``: seconds of the head that answers now: of the latest exit, unless it is evaluated already."""
    longest_stage: Line
    """That of large batches."""
    first_exits: list[float]
    """Seconds to the first exits of 1, 2, 3 … samples."""

    def seconds(self, stage: int, batch: int) -> float:
        """τ_k(b): seconds of one stage for a batch, with its head if all are evaluated."""
        return _seconds(self.times, stage, batch, self.every)

    def level(self, batch: float) -> int:
        """The index of the largest power of two up to a batch."""
        return self.levels[int(batch)]

    def needs_of(self, level: int, stage: int, shift: int) -> list[float]:
        """N(λ) at each price, for a sample whose own price is ``shift`` prices away; the infinite one stays."""
        row = self.needs[level][stage]
        return row if not shift else [row[0], *(row[min(max(i + shift, 1), PRICES - 1)] for i in range(1, PRICES))]

    def shift(self, weight: float) -> int:
        """By how many prices a sample's own differs, if going on is worth ``weight`` times the average for it."""
        return round(log(max(weight, 1e-6)) / self.price_step)


def make_tables(times: BatchTimes, accuracy: Sequence[float], largest: int, every: bool = False) -> Tables:
    """The tables of a network.

    Args:
        times: seconds of stages and heads by batch.
        accuracy: of each exit, on held-out data.
        largest: the largest batch.
        every: whether all heads on the way are evaluated.

    Examples:
        >>> tables = make_tables(BatchTimes([Line(0.0, 1.0)] * 3, [NOTHING] * 3), [0.5, 0.5, 0.9], largest=1)
        >>> round(tables.slopes[0][1], 3), tables.way_seconds[0][1]  # one way of two stages
        (0.2, 2.0)
    """
    exits = [stage for stage, head in enumerate(times.heads) if head is not None]
    accuracy, first = rising_accuracy(accuracy, len(exits)), exits[0] + 1
    batches = [2**i for i in range(largest.bit_length())]
    hulls = [_hulls(times, accuracy, exits, batch, every) for batch in batches]
    prices = _prices([hull for each in hulls for hull in each[first:]])
    next = [_next(times, stage) for stage in range(len(times.stages) + 1)]
    answer = [NOTHING if every else _latest_head(times, stage) for stage in range(len(times.stages) + 1)]
    needs = [
        [
            _needs(hull, prices, line.at(b) / b, stage < first)
            for stage, (hull, line) in enumerate(zip(each, answer, strict=True))
        ]
        for each, b in zip(hulls, batches, strict=True)
    ]
    return Tables(
        times=times,
        stages=len(times.stages),
        largest=largest,
        every=every,
        accuracy=accuracy,
        first=first,
        batches=batches,
        levels=[max(batch, 1).bit_length() - 1 for batch in range(largest + 1)],
        slopes=[[hull[0].slope if hull else 0.0 for hull in each] for each in hulls],
        way_seconds=[[hull[0].seconds if hull else 0.0 for hull in each] for each in hulls],
        needs=needs,
        goes_from=[[_goes_from(row) for row in each] for each in needs],
        price_step=log(prices[1] / prices[2]),
        next=next,
        longest_next=max(next[:-1]),
        answer=answer,
        longest_stage=max(times.stages, key=lambda line: line.at(largest)),
        first_exits=_first_exits(times, first, largest),
    )


def rising_accuracy(accuracy: Sequence[float], exits: int) -> list[float]:
    """The accuracy of each exit, made to rise: a deeper exit that is worse on held-out data is hardly worth more.

    Examples:
        >>> [round(a, 3) for a in rising_accuracy([0.5, 0.4, 0.9], 3)]
        [0.5, 0.5, 0.9]
    """
    values = [check_number("accuracy", float(value), most=1) for value in accuracy]
    if len(values) != exits:
        raise AnytimeError(f"accuracy has {len(values)} numbers, the network {exits} exits: give one for each")
    best = np.maximum.accumulate(np.array(values))
    return [float(value) for value in best + 1e-6 * np.arange(1, exits + 1)]


def _seconds(times: BatchTimes, stage: int, batch: int, every: bool) -> float:
    head = times.heads[stage]
    return times.stages[stage].at(batch) + (head.at(batch) if head and every else 0.0)


def _latest_head(times: BatchTimes, stage: int) -> Line:
    """The head of the latest exit before a stage."""
    return next((head for head in reversed(times.heads[:stage]) if head is not None), NOTHING)


def _next(times: BatchTimes, stage: int) -> float:
    """Seconds from a stage to the next exit's prediction, for a batch of one; infinite if there is none."""
    spent = 0.0
    for line, head in zip(times.stages[stage:], times.heads[stage:], strict=True):
        spent += line.at(1)
        if head is not None:
            return spent + head.at(1)
    return inf


def _hulls(times: BatchTimes, accuracy: list[float], exits: list[int], batch: int, every: bool) -> list[Hull]:
    """The hull from each stage, for samples of a batch."""
    stages = range(len(times.stages))
    spent = np.cumsum([0.0] + [_seconds(times, stage, batch, every) / batch for stage in stages])
    head = [0.0 if every else _latest_head(times, exit + 1).at(batch) / batch for exit in exits]
    reach, level = spent[[exit + 1 for exit in exits]] + head, np.array(accuracy)
    hulls = []
    for stage in range(len(times.stages) + 1):
        passed = sum(exit < stage for exit in exits)
        # Going on saves the head of the exit that it has.
        done = spent[stage] if every or not passed else max(spent[stage], reach[passed - 1])
        now = accuracy[passed - 1] if passed else 0.0
        hulls.append(_hull(level[passed:], reach[passed:], now, done, to_first=stage <= exits[0]))
    return hulls


def _hull(level: np.ndarray, reach: np.ndarray, now: float, done: float, to_first: bool) -> Hull:
    """The hull over exits with these accuracies, reached after these seconds; its first way may have to end at the
    first of them.
    """
    hull: Hull = []
    while len(level):
        slopes = (level - now) / np.maximum(reach - done, 1e-9)
        best = 0 if to_first and not hull else int(np.argmax(slopes))
        hull.append(Way(float(slopes[best]), float(level[best] - now), float(reach[best] - done)))
        now, done, level, reach = level[best], reach[best], level[best + 1 :], reach[best + 1 :]
    return hull


def _prices(hulls: list[Hull]) -> list[float]:
    """The prices; gains below 0.1 points are ignored."""
    slopes = [way.slope for hull in hulls for way in hull if way.gain > 0.001]
    high, low = max(slopes, default=1.0), min(slopes, default=1.0)
    return [inf, *np.geomspace(high, min(low, high / 2), PRICES - 1).tolist()]


def _needs(hull: Hull, prices: list[float], head: float, to_first: bool) -> list[float]:
    """N(λ) at each price: the ways at least as steep, and the head; everyone gets a first exit, whatever the price."""
    needs = []
    for price in prices:
        taken = head
        for i, way in enumerate(hull):
            if way.slope < price * (1 - 1e-9) and not (to_first and i == 0):
                break
            taken += way.seconds
        needs.append(taken)
    return needs


def _goes_from(needs: list[float]) -> int:
    return next((price for price, seconds in enumerate(needs) if seconds > needs[0]), PRICES)


def _first_exits(times: BatchTimes, first: int, largest: int) -> list[float]:
    lines = [line for line in [*times.stages[:first], *times.heads[:first]] if line is not None]
    counts = np.arange(1, COUNTED + 1)
    seconds = sum(line.fixed * np.ceil(counts / largest) + line.each * counts for line in lines)
    return np.asarray(seconds).tolist()
