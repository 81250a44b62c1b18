"""An engine under faults: processes killed, requests cancelled, hours in minutes. Everything is accounted for.

python benchmarks/serving_faults.py kills FOLDER --seconds 60       # an engine process is killed every 5 seconds
python benchmarks/serving_faults.py cancels FOLDER --seconds 30     # half of the requests are cancelled on the way
python benchmarks/serving_faults.py soak FOLDER --seconds 600       # twice the load of full depth; memory and latency

FOLDER may be the name of a model instead: then it is not trained, which these counts do not depend on.
"""

import argparse
import os
import random
import signal
import statistics
import threading
import time
from array import array
from pathlib import Path
from typing import Any

import torch
from ratio import fact, verdict

import anytime
from anytime.serving.engine import EngineDiedError, OverloadedError


class Tally:
    """What became of every request."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("sent", "refused", "answered", "in_time", "died", "failed", "cancelled"), 0)
        self.wrong, self.open, self.latencies = 0, 0, array("d")  # small: memory is what is measured
        self.lock = threading.Lock()

    def done(self, future: Any, expected: list[torch.Tensor], deadline: float) -> None:
        with self.lock:
            self.open -= 1
            if future.cancelled():
                self.counts["cancelled"] += 1
            elif isinstance(future.exception(), EngineDiedError):
                self.counts["died"] += 1
            elif future.exception() is not None:
                self.counts["failed"] += 1
            else:
                answer = future.result()
                self.counts["answered"] += 1
                self.counts["in_time"] += answer.seconds <= deadline
                self.wrong += not torch.allclose(answer.logits, expected[answer.exit], atol=1e-4)
                self.latencies.append(answer.seconds)


def resident(pids: list[int]) -> float:
    """Megabytes of memory that processes hold."""
    kilobytes = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        kilobytes += int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
    return kilobytes / 1024


def watch(pids: list[int], minutes: list[float], stop: threading.Event) -> None:
    """Note the memory every minute."""
    while not stop.wait(60):
        minutes.append(resident(pids))
        print(f"minute {len(minutes)}: {minutes[-1]:.1f} MB", flush=True)


def send(engine: anytime.Engine, what: str, rate: float, seconds: float, xs: Any, expected: Any, tally: Tally) -> None:
    """Send requests at random moments; kill or cancel on the way."""
    draw, begun = random.Random(0), time.perf_counter()
    next_kill, moment = begun + 5.0, begun
    while moment < begun + seconds:
        moment += draw.expovariate(rate)
        time.sleep(max(moment - time.perf_counter(), 0.0))
        if what == "kills" and time.perf_counter() > next_kill and engine._crew.workers:
            os.kill(engine._crew.workers[0].process.pid, signal.SIGKILL)
            next_kill += 5.0
        i, deadline = draw.randrange(len(xs)), draw.choice((0.05, 0.1, 0.5))
        tally.counts["sent"] += 1
        try:
            future = engine.submit(xs[i], deadline=deadline)
        except OverloadedError:
            tally.counts["refused"] += 1
            continue
        with tally.lock:
            tally.open += 1
        future.add_done_callback(lambda f, i=i, deadline=deadline: tally.done(f, expected[i], deadline))
        if what == "cancels" and draw.random() < 0.5:
            threading.Timer(draw.uniform(0, 0.02), future.cancel).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("kills", "cancels", "soak"))
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--load", type=float, default=None, help="in multiples of full depth; default 1, soak 2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    saved = Path(options.folder).is_dir()
    net = anytime.load(options.folder) if saved else anytime.create_model(options.folder).eval()
    xs = [torch.randn(1, 3, 32, 32) for _ in range(32)]
    with torch.inference_mode():
        expected = [net(x) for x in xs]
    tally = Tally()
    with anytime.Engine(options.folder if saved else net) as engine:
        full = 8 / (sum(line.at(8) for line in engine.times.stages))
        rate = full * (options.load or (2.0 if options.what == "soak" else 1.0))
        pids = [os.getpid(), *(worker.process.pid for worker in engine._crew.workers)]
        time.sleep(10)  # until the spare is ready
        send(engine, options.what, rate, min(options.seconds * 0.1, 30), xs, expected, Tally())
        before, stop = [resident([pid]) for pid in pids], threading.Event()
        threading.Thread(target=watch, args=(pids, [], stop), daemon=True).start()
        send(engine, options.what, rate, options.seconds, xs, expected, tally)
        after, restarts = [resident([pid]) for pid in pids], engine.stats()["restarts"]
        stop.set()
        time.sleep(2)
    for name, count in tally.counts.items():
        fact(f"{options.what}_{name}", count)
    fact(f"{options.what}_restarts", restarts)
    admitted = tally.counts["sent"] - tally.counts["refused"]
    settled = sum(tally.counts[name] for name in ("answered", "died", "failed", "cancelled"))
    verdict(f"serving_{options.what}_lost", admitted - settled, 0)
    verdict(f"serving_{options.what}_wrong", tally.wrong, 0)
    verdict(f"serving_{options.what}_failed", tally.counts["failed"], 0)
    if options.what == "soak":
        for name, first, last in zip(("program", "engine"), before, after, strict=True):
            fact(f"soak_growth_{name}_mb", last - first, f"MB, from {first:.0f} to {last:.0f}")
        verdict("serving_soak_growth_mb", sum(after) - sum(before), 50)
        middle = len(tally.latencies) // 2
        fact("soak_latency_ms_first_half", 1000 * statistics.median(tally.latencies[:middle]))
        fact("soak_latency_ms_second_half", 1000 * statistics.median(tally.latencies[middle:]))


if __name__ == "__main__":
    main()
