"""One decision of the scheduler with up to 4,096 requests in flight: how long it takes. No network runs.

python benchmarks/serving_decision.py

The clock is that of the thread: it stands still while other programs have the processor. Python's garbage collector
waits meanwhile, as in ``timeit``: what it would collect is the benchmark's.
"""

import gc
import random
import statistics
import time

from ratio import fact, report, verdict

from anytime.inference.batch_times import BatchTimes, Line
from anytime.serving.flight import EngineTask
from anytime.serving.scheduler import Scheduler
from anytime.serving.ways import Tables, make_tables

LIMITS = {64: 50, 1024: 100, 4096: 200}
"""Microseconds of a decision, by requests in flight."""


def in_flight(draw: random.Random, tables: Tables, count: int) -> Scheduler:
    """A scheduler with requests at all stages, as under load: most have few exits, deadlines up to 100 ms."""
    scheduler = Scheduler(lambda _: tables, tables.largest)
    for i in range(count):
        stage = min(int(draw.expovariate(0.25)), tables.stages - 1)
        left = draw.uniform(0.01, 0.1)
        scheduler.add(EngineTask(i, left, stage=stage, exit=stage - 1))
    for _ in range(200):
        scheduler.slow.note(1.0, draw.lognormvariate(0, 0.2))
    scheduler.usual = 8.0
    return scheduler


def main() -> None:
    draw = random.Random(0)
    stages = [Line(1e-4, 1.5e-4)] * 27
    accuracy = [0.45 + 0.45 * (1 - 0.85**i) for i in range(27)]
    tables = make_tables(BatchTimes(stages, [Line(3e-5, 1e-5)] * 27), accuracy, largest=32)
    for count in (1, 8, 64, 256, 1024, 4096):
        times = []
        for _ in range(300 if count < 256 else 60):
            scheduler = in_flight(draw, tables, count)
            scheduler.decide(0.0)  # the search for prices begins where the decision before has ended
            gc.disable()
            begun = time.thread_time()
            scheduler.decide(0.0005)
            times.append(1e6 * (time.thread_time() - begun))
            gc.enable()
        report(f"microseconds of a decision, {count} in flight", times)
        fact(f"decision_{count}_us", statistics.median(times), "µs")
        if count in LIMITS:
            verdict(f"serving_decision_{count}_us", statistics.median(times), LIMITS[count])


if __name__ == "__main__":
    main()
