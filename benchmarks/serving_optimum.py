"""The scheduler against the optimum, in simulation: random traces, the same time model, batches of one.

python benchmarks/serving_optimum.py             # 200 traces

The simulator runs the engine's own decision code and admission on a clock that it sets. The optimum knows the whole
trace beforehand: dynamic programming over the requests in the order of their deadlines, the least time in which each
reward can be reached (Yao et al., arXiv 2011.01112), exact where no request overtakes another: all arrive at once, or
all have the same relative deadline. Where deadlines are mixed, requests may start before they arrive: a bound that
nobody can reach.
"""

import random
import sys
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from ratio import fact, report, verdict

from anytime.inference.batch_times import BatchTimes, Line
from anytime.serving.admission import worst_lateness
from anytime.serving.flight import EngineTask, by_deadline
from anytime.serving.scheduler import Scheduler
from anytime.serving.simulation import Arrival, SimulatedEngine
from anytime.serving.ways import Tables, make_tables


def simulate(
    tables: Tables,
    trace: Sequence[Arrival],
    noise: random.Random | None = None,
    refused: list[int] | None = None,
) -> list[int | None]:
    """The exit that answers each request in time, None where there is none; stages take as long as the tables say.

    Args:
        tables: times and accuracy.
        trace: the requests, in the order of their arrival.
        noise: vary the time of every stage by a factor around 1.
        refused: the numbers of requests that were not admitted are added to it.
    """
    engine = SimulatedEngine(tables, noise)
    scheduler, arrived = engine.scheduler, 0
    while arrived < len(trace) or scheduler.tasks:
        if not scheduler.tasks and arrived < len(trace):
            engine.now = max(engine.now, trace[arrived].moment)
        while arrived < len(trace) and trace[arrived].moment <= engine.now:
            task = EngineTask(arrived, trace[arrived].deadline)
            if not _admit(scheduler, tables, task, engine.now) and refused is not None:
                refused.append(arrived)
            arrived += 1
        engine.step()
    in_time = {id: exit for id, (exit, moment) in engine.answers.items() if moment <= trace[id].deadline + 1e-9}
    return [in_time.get(i) for i in range(len(trace))]


def _admit(scheduler: Scheduler, tables: Tables, task: EngineTask, now: float) -> bool:
    waiting = sorted([*(t for t in scheduler.tasks if t.exit < 0), task], key=by_deadline)
    fits = worst_lateness(tables, scheduler.slow, [(t.deadline, t.size) for t in waiting], now) <= 0
    if fits:
        scheduler.add(task)
    return fits


def optimum(tables: Tables, trace: Sequence[Arrival], units: int = 500) -> float:
    """The greatest sum of accuracies that any schedule of single requests can reach; rewards are rounded up to 1/units.

    ``least[r]``: the earliest moment at which the requests so far can be done with a reward of at least r units.
    """
    order = sorted(trace, key=lambda request: (request.deadline, request.moment))
    # A request may start when one with a later deadline has arrived: only that keeps to one order.
    starts = list(accumulate((request.moment for request in reversed(order)), min))[::-1]
    spent = np.cumsum([tables.times.stages[s].at(1) for s in range(tables.stages)])
    heads = tables.times.heads
    ways = [(spent[s] + head.at(1)) for s, head in enumerate(heads) if head is not None]
    rewards = [int(np.ceil(accuracy * units)) for accuracy in tables.accuracy]
    least = np.full(len(order) * max(rewards) + 1, np.inf)
    least[0] = 0.0
    for start, request in zip(starts, order, strict=True):
        best = least.copy()
        begin = np.maximum(least, start)
        for seconds, reward in zip(ways, rewards, strict=True):
            done = begin[: len(least) - reward] + seconds
            done[done > request.deadline] = np.inf
            np.minimum(best[reward:], done, out=best[reward:])
        least = best
    return float(np.flatnonzero(np.isfinite(least))[-1] / units)


def random_tables(draw: random.Random) -> Tables:
    """A network of 5 to 27 stages; its accuracy rises in steps, with flat stretches before steep ones."""
    stages = draw.randint(5, 27)
    full = draw.uniform(5e-3, 20e-3)
    shares = [draw.uniform(0.5, 1.5) for _ in range(stages)]
    times = [Line(0.0, full * share / sum(shares)) for share in shares]
    heads: list[Line | None] = [Line(0.0, full / stages * draw.uniform(0.05, 0.3)) for _ in range(stages)]
    gains = [draw.expovariate(1) ** 2 * 0.9**i for i in range(stages)]
    first, last = draw.uniform(0.3, 0.6), draw.uniform(0.85, 0.97)
    rises = list(accumulate(gains))
    accuracy = [first + (last - first) * (rise - gains[0]) / max(rises[-1] - gains[0], 1e-9) for rise in rises]
    return make_tables(BatchTimes(times, heads), accuracy, largest=1)


def random_trace(draw: random.Random, kind: str, load: float, full: float, requests: int = 60) -> list[Arrival]:
    """Requests at a load: ``once`` (all at the same moment), ``same`` (one relative deadline), ``mixed``."""
    deadlines = [0.025, 0.05, 0.1]
    one, moment, trace = draw.choice(deadlines), 0.0, []
    if kind == "once":
        requests = max(2, round(load * 0.05 / full * 2))
    for _ in range(requests):
        moment += 0.0 if kind == "once" else draw.expovariate(load / full)
        trace.append(Arrival(moment, moment + (one if kind == "same" else draw.choice(deadlines))))
    return trace


def main(traces: int) -> None:
    draw = random.Random(0)
    ratios: dict[str, list[float]] = {"once": [], "same": [], "mixed": []}
    sums = {kind: [0.0, 0.0] for kind in ratios}
    for i in range(traces):
        kind = list(ratios)[i % 3]
        tables = random_tables(draw)
        full = sum(line.at(1) for line in tables.times.stages)
        trace = random_trace(draw, kind, draw.choice([0.5, 1, 2, 3, 5]), full)
        exits = simulate(tables, trace)
        ours = sum(tables.accuracy[exit] for exit in exits if exit is not None)
        best = optimum(tables, trace)
        ratios[kind].append(ours / best if best else 1.0)
        sums[kind] = [sums[kind][0] + ours, sums[kind][1] + best]
    for kind, what in (("once", "all at once"), ("same", "one deadline"), ("mixed", "mixed deadlines, bound")):
        report(f"reward of the optimum, {what}", ratios[kind])
        fact(f"optimum_{kind}_mean", float(np.mean(ratios[kind])))
        fact(f"optimum_{kind}_sum", sums[kind][0] / sums[kind][1])
    every = [ratio for each in ratios.values() for ratio in each]
    fact("traces", len(every))
    verdict("serving_optimum", float(np.mean(every)), 0.98, least=True)
    exact = ratios["once"] + ratios["same"]
    verdict("serving_optimum_exact", float(np.mean(exact)), 0.98, least=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
