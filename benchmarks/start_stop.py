"""Predictions started and stopped at random moments from 8 threads: none wrong, no leak, a stop within a stage.

A leak grows with the number of predictions and the noise of the allocator does not: so memory is measured after two
numbers of predictions, one four times the other, and what the longer one takes more is what counts.

python benchmarks/start_stop.py                  # resann-9-16, 8,000 predictions after 2,000
"""

import ctypes
import gc
import random
import statistics
import sys
import threading
import time
from array import array
from pathlib import Path

import torch
from ratio import fact, machine, verdict

import anytime

THREADS = 8


def resident() -> float:
    """Megabytes of memory that the process uses, without what it has freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


class Watched(torch.nn.Module):
    """A stage that records how long it takes while all the others run."""

    def __init__(self, stage: torch.nn.Module, seconds: "array[float]") -> None:
        super().__init__()
        self.stage, self.seconds = stage, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        y = self.stage(x)
        self.seconds.append(time.perf_counter() - begun)
        return y


def main(name: str, predictions: int) -> None:
    torch.set_num_threads(1)
    net = anytime.create_model(name).eval()
    stages, stops = array("d"), array("d")
    for i, stage in enumerate(net.stages):
        net.stages[i] = Watched(stage, stages)
    inputs = torch.randn(THREADS, 1, 3, 32, 32)
    with torch.inference_mode():
        right = [net(x) for x in inputs]
    full = anytime.profile(net, inputs[0]).through[-1]
    print(f"{name}, batch 1, {machine()}; {1000 * full:.1f} ms through all exits alone, {THREADS} threads at once")
    wrong: list[str] = []

    def client(number: int, times: int) -> None:
        draw = random.Random(number)
        for _ in range(times):
            background = anytime.start(net, inputs[number])
            time.sleep(draw.uniform(0, 1.5 * full * THREADS / 2))
            begun = time.perf_counter()
            background.stop()
            stops.append(time.perf_counter() - begun)
            best = background.latest()
            if not background.done or (best and not torch.allclose(best.logits, right[number][best.exit], atol=1e-5)):
                wrong.append(f"{number}: {best}")

    def growth(predictions: int) -> float:
        """By how many megabytes the memory in use grows with this many predictions."""
        before = resident()
        clients = [threading.Thread(target=client, args=(i, predictions // THREADS)) for i in range(THREADS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        return resident() - before

    growth(80)  # what torch and the allocator take once
    threads = threading.active_count()
    short = growth(predictions // 4)
    del stages[:], stops[:]
    long = growth(predictions)
    leak = 1000 * (long - short) / (0.75 * predictions)
    sorted_stops, sorted_stages = sorted(stops), sorted(stages)
    p99, stage = sorted_stops[int(0.99 * len(stops))], sorted_stages[int(0.99 * len(stages))]
    fact("wrong", len(wrong), f"of {len(stops)} {wrong[:1] or ''}")
    fact("threads", threading.active_count() - threads, "more than before")
    fact("memory_short_mb", short, f"MB more after {predictions // 4} predictions")
    fact("memory_mb", long, f"MB more after {predictions}")
    fact("leak_mb_per_1000", leak, "MB more for every 1,000 predictions more")
    fact("stop_p50_ms", 1000 * statistics.median(stops), "ms")
    fact("stop_p99_ms", 1000 * p99, "ms")
    fact("stage_p50_ms", 1000 * statistics.median(stages), "ms under this load")
    fact("stage_p99_ms", 1000 * stage, "ms under this load")
    verdict("start_stop_wrong", len(wrong), 0)
    verdict("start_stop_threads", threading.active_count() - threads, 0)
    verdict("start_stop_leak_mb_per_1000", leak, 2)
    verdict("start_stop_p99_over_stage_plus_5ms", p99 / (stage + 0.005), 1.0)


if __name__ == "__main__":
    name, predictions = [*sys.argv[1:], *("resann-9-16", "8000")[len(sys.argv) - 1 :]]
    main(name, int(predictions))
