"""Admission control: accept a request only if every waiting first exit can meet its deadline."""

from collections.abc import Sequence
from math import inf, sqrt
from typing import NamedTuple

from anytime.errors import AnytimeError
from anytime.serving.slowdown import Pace, SlowDown
from anytime.serving.ways import Tables


class OverloadedError(AnytimeError):
    """The request was not admitted: the engine is overloaded. ``retry_after``: seconds until it may be."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(f"{message}: try again in {retry_after:.2g} s")
        self.retry_after = retry_after


class Bounds(NamedTuple):
    """Limits of what may be in flight."""

    requests: int
    bytes: int
    seconds: float


def worst_lateness(tables: Tables, slow: SlowDown | Pace, waiting: Sequence[tuple[float, int]], now: float) -> float:
    """By how many seconds the worst of the first exits would be late, earliest deadline first; at most 0 if none is.

    Args:
        tables: times of the stages.
        slow: how much slower the machine is now.
        waiting: deadline and number of samples of each, earliest deadline first.
        now: when the first of them could start.
    """
    samples, worst, spread = 0, -inf, slow.high - slow.mean
    seconds, most = tables.first_exits, len(tables.first_exits)
    for deadline, size in waiting:
        samples += size
        work = seconds[min(samples, most) - 1]
        late = now + slow.mean * work + spread * sqrt(work * seconds[0]) - deadline
        if late > worst:
            worst = late
    return worst


def busy_for(tables: Tables, pace: Pace) -> float:
    """Seconds that the stage which is running may still take."""
    size = max(1, round(pace.batch))
    return pace.high * tables.longest_stage.at(size)


def lateness(tables: Tables, pace: Pace, waiting: Sequence[tuple[float, int]], now: float, busy: bool) -> float:
    """By how many seconds the worst first exit would be late if these are waiting; at most 0 if all are in time.

    Args:
        tables: times of the stages.
        pace: the machine's.
        waiting: deadline and number of samples of each request without an exit, earliest deadline first.
        now: the time.
        busy: whether a stage may be running.
    """
    return worst_lateness(tables, pace, waiting, now + (busy_for(tables, pace) if busy else 0.0))


def check_bounds(bounds: Bounds, requests: int, bytes: int, seconds: float) -> None:
    """Raise ``OverloadedError`` if more is waiting than may be.

    Args:
        bounds: what may be waiting.
        requests: in flight, with the new one.
        bytes: of their inputs.
        seconds: until the first exits of all of them, as predicted.
    """
    for name, limit, value in (("requests", bounds.requests, requests), ("bytes", bounds.bytes, bytes)):
        if value > limit:
            raise OverloadedError(f"{limit} {name} are in flight already", max(seconds, 0.001))
    if seconds > bounds.seconds:
        raise OverloadedError(f"{seconds:.2g} s of work are waiting", seconds - bounds.seconds)
