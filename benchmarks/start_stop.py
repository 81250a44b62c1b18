"""Runs started and stopped at random moments from 8 threads: no wrong answer, no leak, a stop within a stage.

python benchmarks/start_stop.py                  # resann-9-16, 1,000 runs
"""

import gc
import random
import statistics
import sys
import threading
import time
from pathlib import Path

import torch
from ratio import machine, verdict

import anytime

THREADS = 8


def resident() -> float:
    """Megabytes of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


class Watched(torch.nn.Module):
    """A stage that notes how long it takes while all the others run."""

    def __init__(self, stage: torch.nn.Module, seconds: list[float]) -> None:
        super().__init__()
        self.stage, self.seconds = stage, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        y = self.stage(x)
        self.seconds.append(time.perf_counter() - begun)
        return y


def main(name: str, runs: int) -> None:
    torch.set_num_threads(1)
    net = anytime.create_model(name).eval()
    stages: list[float] = []
    for i, stage in enumerate(net.stages):
        net.stages[i] = Watched(stage, stages)
    inputs = torch.randn(THREADS, 1, 3, 32, 32)
    with torch.inference_mode():
        right = [net(x) for x in inputs]
    full = anytime.profile(net, inputs[0]).through[-1]
    print(f"{name}, batch 1, {machine()}; {1000 * full:.1f} ms through all exits alone, {THREADS} threads at once")
    stops: list[float] = []
    wrong: list[str] = []

    def client(number: int, times: int) -> None:
        draw = random.Random(number)
        for _ in range(times):
            run = anytime.start(net, inputs[number])
            time.sleep(draw.uniform(0, 1.5 * full * THREADS / 2))
            begun = time.perf_counter()
            run.stop()
            stops.append(time.perf_counter() - begun)
            best = run.latest()
            if not run.done or (best and not torch.allclose(best.logits, right[number][best.exit], atol=1e-5)):
                wrong.append(f"{number}: {best}")

    def storm(times: int) -> None:
        clients = [threading.Thread(target=client, args=(number, times)) for number in range(THREADS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()

    storm(10)  # what torch and the allocator take once
    gc.collect()
    stages.clear()
    stops.clear()
    threads, memory = threading.active_count(), resident()
    storm(runs // THREADS)
    gc.collect()
    drift = resident() - memory
    stops.sort()
    stages.sort()
    p99, stage = stops[int(0.99 * len(stops))], stages[int(0.99 * len(stages))]
    print(f"{len(stops)} runs; stop: median {1000 * statistics.median(stops):.2f} ms, p99 {1000 * p99:.2f} ms")
    print(f"a stage under this load: median {1000 * statistics.median(stages):.2f} ms, p99 {1000 * stage:.2f} ms")
    print(f"threads: {threading.active_count() - threads:+d}; memory: {drift:+.1f} MB; wrong: {len(wrong)} {wrong[:1]}")
    verdict("start_stop_wrong", len(wrong), 0)
    verdict("start_stop_threads", threading.active_count() - threads, 0)
    verdict("start_stop_memory_mb", drift, 20)
    verdict("start_stop_p99_over_stage_plus_5ms", p99 / (stage + 0.005), 1.0)


if __name__ == "__main__":
    name, runs = [*sys.argv[1:], *("resann-9-16", "1000")[len(sys.argv) - 1 :]]
    main(name, int(runs))
