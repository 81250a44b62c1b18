"""Capacity planning: how many engine processes a load needs, and which exits answer then.

**Given** seconds of the stages by batch, the accuracy of the exits, a rate of requests and their deadline.
**Wanted** the least number of engine processes with which at most a stated share of requests is refused or late, and
for each number what clients would see.
**Method** a trace of Poisson arrivals is answered by simulated engines, which decide and admit as real ones do.
"""

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from anytime.errors import AnytimeError, check_integer, check_number
from anytime.inference.batch_times import BatchTimes, measure_batches
from anytime.measuring import kind_of
from anytime.serving.model import Model
from anytime.serving.simulation import poisson, simulate
from anytime.serving.ways import Tables

MOST_ENGINES = 32


@dataclass(frozen=True)
class Forecast:
    """What clients would see with so many engine processes."""

    engines: int
    refused: float
    """Share of the requests."""
    late: float
    """Share of the requests that are answered after their deadline."""
    exits: list[float]
    """By exit, the share of the answers that it gives."""
    accuracy: float | None
    """Of the answers, expected from that of the exits; None if that was not measured."""

    @property
    def failed(self) -> float:
        """Share of the requests that are refused or late."""
        return self.refused + self.late


def forecast(
    tables: Tables, rate: float, deadline: float, engines: int, measured: bool, requests: int = 2000, queue: int = 256
) -> Forecast:
    """Simulate a load.

    Args:
        tables: times and accuracy of the network.
        rate: requests per second.
        deadline: seconds.
        engines: number of processes.
        measured: whether the accuracy in the tables was measured.
        requests: how many are simulated.
        queue: how many may be in flight.
    """
    trace = poisson(rate, deadline, requests)
    answers = simulate(tables, trace, engines, queue, random.Random(0))
    given = [answer for answer in answers if answer is not None]
    late = sum(
        answer is not None and answer[1] > request.deadline for answer, request in zip(answers, trace, strict=True)
    )
    counts, total = Counter(exit for exit, _ in given), max(len(given), 1)
    exits = [counts[exit] / total for exit in range(len(tables.accuracy))]
    accuracy = sum(share * value for share, value in zip(exits, tables.accuracy, strict=True))
    known = accuracy if measured and given else None
    return Forecast(engines, 1 - len(given) / len(trace), late / len(trace), exits, known)


def forecasts(
    tables: Tables, rate: float, deadline: float, measured: bool, tolerated: float = 0.01, **options: Any
) -> list[Forecast]:
    """For 1, 2, 3 … engine processes what clients would see, up to where nearly all answers are complete.

    Args:
        tables: times and accuracy of the network.
        rate: requests per second.
        deadline: seconds.
        measured: whether the accuracy in the tables was measured.
        tolerated: share of the requests that may be refused or late.
        options: of ``forecast``.
    """
    check_number("rate", rate, above=0)
    check_number("deadline", deadline, above=0)
    check_number("tolerated", tolerated, most=1)
    found: list[Forecast] = []
    for engines in range(1, MOST_ENGINES + 1):
        found.append(forecast(tables, rate, deadline, engines, measured, **options))
        last = found[-1]
        if last.exits[-1] > 0.95 and last.failed <= tolerated:
            break
        if len(found) > 1 and last.failed <= tolerated and _mean(last) - _mean(found[-2]) < 0.1:
            break  # one more makes no answer deeper: the deadline is what limits them
        if last.refused == 1.0:
            break  # no first exit fits into the deadline, however many there are
    return found


def _mean(forecast: Forecast) -> float:
    return sum(exit * share for exit, share in enumerate(forecast.exits))


def enough(found: list[Forecast], tolerated: float) -> Forecast | None:
    """The least number of engine processes that refuse or are late with at most so many; None if none of these do."""
    return next((each for each in found if each.failed <= tolerated), None)


def times_of(model: Model, threads: int, largest: int) -> BatchTimes:
    """Seconds of the stages: those saved beside the model, or measured now and saved."""
    check_integer("threads", threads)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        kind = kind_of(model.example)
        known = next((times for times in model.known_times if times.kind in (kind, None)), None)
        if known is not None:
            return known
        times = measure_batches(model.net, model.example, [2**i for i in range(largest.bit_length())])
    finally:
        torch.set_num_threads(before)
    if model.source is None:
        raise AnytimeError("a plan is for the folder of a saved model")
    if model.source.may_be_written:
        times.save(model.source.times_folder)
    return times
