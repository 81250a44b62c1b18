"""What load does to exits and errors, in simulation: the engine's own decisions and admission, a network's own times.

python benchmarks/serving_rush.py FOLDER        # a saved network with evaluation.json and batch_times.json beside it

No other program disturbs a simulation: it shows what the scheduling does. The servers that it is compared with have the
same times: batches to the last exit, first come, first served; the same to the one exit that is best for each load in
hindsight; one request after another, each to the deepest exit that its deadline allows. All of them drop requests that
have expired in their queue. Arrivals are Poisson in the first half of a trace and bursts of 1 to 20 in the second;
deadlines of 25, 50 and 100 ms are mixed; 1× is the best throughput
at full depth over all batches. The score is the share of the offered requests that are answered in time and right, by
the accuracy of the exits that answer.
"""

import random
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ratio import fact, verdict
from serving_optimum import Arrival, simulate

from anytime.inference.batch_times import read_batch_times
from anytime.serving.model import saved_accuracy
from anytime.serving.ways import Tables, make_tables

LOADS = (0.25, 0.5, 1, 1.5, 2, 3, 4, 5)


def arrivals(rate: float, seconds: float, seed: int) -> list[Arrival]:
    draw, moment, trace = random.Random(seed), 0.0, []
    while moment < seconds:
        burst = 1 if moment < seconds / 2 else draw.randint(1, 20)
        moment += draw.expovariate(rate / (1 if burst == 1 else 10.5))
        trace += [Arrival(moment, moment + draw.choice((0.025, 0.05, 0.1))) for _ in range(burst)]
    return trace


def first_come(
    trace: Sequence[Arrival], batch: int, serve: Callable[[list[Arrival], float], tuple[float, int | None]]
) -> list[int | None]:
    """The exits of a server that takes what waits, in order: ``serve(batch, now)`` gives seconds and the exit."""
    exits: list[int | None] = [None] * len(trace)
    now, arrived, queue = 0.0, 0, list[int]()
    while arrived < len(trace) or queue:
        if not queue:
            now = max(now, trace[arrived].moment)
        while arrived < len(trace) and trace[arrived].moment <= now:
            queue.append(arrived)
            arrived += 1
        queue = [i for i in queue if trace[i].deadline > now]
        taken, queue = queue[:batch], queue[batch:]
        if not taken:
            continue
        seconds, exit = serve([trace[i] for i in taken], now)
        now += seconds
        for i in taken:
            exits[i] = exit if exit is not None and now <= trace[i].deadline else None
    return exits


def seconds_to(tables: Tables, exit: int, batch: int) -> float:
    head = tables.times.heads[exit]
    return sum(line.at(batch) for line in tables.times.stages[: exit + 1]) + (head.at(batch) if head else 0.0)


def to_exit(tables: Tables, exit: int) -> Callable[[list[Arrival], float], tuple[float, int | None]]:
    """A server that runs every batch to one exit."""
    return lambda taken, _: (seconds_to(tables, exit, len(taken)), exit)


def score(tables: Tables, exits: Sequence[int | None]) -> float:
    return sum(tables.accuracy[exit] for exit in exits if exit is not None) / len(exits)


def main(folder: Path) -> None:
    times = read_batch_times(folder)[0]
    accuracy = saved_accuracy(folder, len(times.stages))
    assert accuracy is not None
    tables = make_tables(times, accuracy, largest=32)
    last = tables.stages - 1
    rates = {batch: batch / seconds_to(tables, last, batch) for batch in tables.batches}
    batch = max(rates, key=rates.__getitem__)
    fact("full_depth_per_second", rates[batch], f"images/s at batch {batch}: 1×")

    def plain(taken: list[Arrival], now: float) -> tuple[float, int | None]:
        fits = [exit for exit in range(last + 1) if now + seconds_to(tables, exit, 1) <= taken[0].deadline]
        return (seconds_to(tables, fits[-1], 1), fits[-1]) if fits else (1e-4, None)

    for load in LOADS:
        scores: dict[str, list[float]] = {"engine": [], "full": [], "fixed": [], "plain": []}
        shares: dict[str, list[float]] = {"admitted": [], "in_time": [], "exit": []}
        for seed in range(3):
            trace = arrivals(load * rates[batch], 4.0, seed)
            refused: list[int] = []
            exits = simulate(tables, trace, random.Random(seed), refused)
            scores["engine"].append(score(tables, exits))
            shares["admitted"].append(1 - len(refused) / len(trace))
            answered = [exit for exit in exits if exit is not None]
            shares["in_time"].append(len(answered) / (len(trace) - len(refused)))
            shares["exit"].append(statistics.fmean(answered) + 1)
            scores["full"].append(score(tables, first_come(trace, batch, to_exit(tables, last))))
            scores["fixed"].append(
                max(score(tables, first_come(trace, batch, to_exit(tables, e))) for e in range(last + 1))
            )
            scores["plain"].append(score(tables, first_come(trace, 1, plain)))
        middle = {name: statistics.median(values) for name, values in (scores | shares).items()}
        for name, value in middle.items():
            fact(f"{name}_{load:g}x", value)
        others = max(middle[name] for name in ("full", "fixed", "plain"))
        verdict(f"rush_lead_{load:g}x", middle["engine"] - others, 0.03 if load >= 2 else -0.005, least=True)
        verdict(f"rush_in_time_{load:g}x", middle["in_time"], 0.999, least=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
