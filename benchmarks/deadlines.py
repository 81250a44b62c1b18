"""The share of answers in time by the caller's clock, and their exits, for deadlines up to 1.5 times the full time.

python benchmarks/deadlines.py                       # resann-9-16, one thread: quiet, then beside busy processes
python benchmarks/deadlines.py --frames 300 --only busy --confidence 0.95
python benchmarks/deadlines.py --realtime            # the same within anytime.realtime(), as root or with ulimit -r

A frame asks ``predict`` and counts as in time if the call returned before the deadline; errors and refusals count as
not in time. Every other frame is a walk through the whole network whose stages are timed: how deep the deadline would
have let it come is the hindsight. "Busy" is one process per core that never sleeps.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from ratio import fact, machine, verdict

import anytime
from anytime.distributed import cores

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
QUIET, BUSY, DEPTH, EARLY_DEPTH, BUSY_DEPTH = 0.99, 0.95, 0.85, 0.5, 0.45


@contextmanager
def busy_processes() -> Iterator[None]:
    """One process per core that never sleeps."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores())]
    time.sleep(0.5)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@torch.inference_mode()
def full_walk(net: anytime.Network, x: torch.Tensor) -> list[float]:
    """Seconds to each exit's prediction in one walk; only the last head runs, and counts for each."""
    begun, ends = time.perf_counter(), []
    walk = net.walk(x)
    for _ in range(net.exits - 1):
        next(walk)
        ends.append(time.perf_counter() - begun)
    last = next(walk)
    ends.append(time.perf_counter() - begun)
    assert last is not None
    last()
    head = time.perf_counter() - begun - ends[-1]
    return [end + head for end in ends]


def frames(net: anytime.Network, x: torch.Tensor, deadline: float, count: int, pause: float, confidence: float):
    """For each frame whether it was in time and its exit (0 if none); the exits reachable in the walks between."""
    in_time, exits, hindsight = [], [], []
    following = time.perf_counter()
    for i in range(2 * count):
        if pause:
            following = max(following + pause, time.perf_counter())
            time.sleep(max(following - time.perf_counter(), 0.0))
        if i % 2:
            hindsight.append(sum(seconds <= deadline for seconds in full_walk(net, x)))
            continue
        begun = time.perf_counter()
        try:
            prediction = anytime.predict(net, x, deadline=deadline, confidence=confidence)
        except anytime.UnfinishedError:
            in_time.append(False)
            exits.append(0)
        else:
            in_time.append(time.perf_counter() - begun <= deadline)
            exits.append(prediction.exit + 1)
    return in_time, exits, hindsight


def main(model: str, count: int, only: str, confidence: float, realtime: bool) -> None:
    """Print a row for each backend, load, rhythm and deadline, and a verdict for each."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32)
    eager = anytime.create_model(model).eval()
    nets = {"eager": eager, "onnx": anytime.load_exported(anytime.export.onnx(eager, x, tempfile.mkdtemp()))}
    print(f"{model}, batch 1, one thread, confidence {confidence:g}, {machine()}")
    for load in ("quiet", "busy") if only == "all" else (only,):
        for backend, net in nets.items():
            full = statistics.median(full_walk(net, x)[-1] for _ in range(100))
            if load == "quiet":
                fact(f"full_{backend}_ms", 1000 * full, "ms to the last exit")
            for rhythm, pause in (("30hz", 1 / 30), ("in_a_row", 0.0)):
                with (
                    busy_processes() if load == "busy" else nullcontext(),
                    anytime.realtime() if realtime else nullcontext(),
                ):
                    frames(net, x, full, 100, pause, confidence)  # it learns
                    for share in SHARES:
                        row(net, x, share, full, count, pause, confidence, f"{load}_{backend}_{rhythm}", realtime)


def row(net, x, share, full, count, pause, confidence, name, realtime) -> None:
    """One deadline."""
    in_time, exits, hindsight = frames(net, x, share * full, count, pause, confidence)
    kept, mean, best = statistics.mean(in_time), statistics.mean(exits), statistics.mean(hindsight)
    possible = statistics.mean(exit > 0 for exit in hindsight)
    print(
        f"{name:24} {share:4.2f} T: {kept:6.1%} in time (possible in {possible:6.1%}), mean exit {mean:4.1f} "
        f"(hindsight {best:4.1f})",
        flush=True,
    )
    key = f"{name}_{share:g}"
    if realtime:
        verdict(f"deadlines_realtime_in_time_{key}", kept, 0.999, least=True)
    elif name.startswith("quiet"):
        verdict(f"deadlines_in_time_{key}", kept, QUIET, least=True)
        verdict(f"deadlines_depth_{key}", mean / max(best, 1e-9), EARLY_DEPTH if share < 0.5 else DEPTH, least=True)
    elif possible >= 0.97:
        verdict(f"deadlines_in_time_{key}", kept, BUSY, least=True)
        verdict(f"deadlines_depth_{key}", mean / max(best, 1e-9), BUSY_DEPTH, least=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="resann-9-16")
    parser.add_argument("--frames", type=int, default=1000, help="per deadline; default: 1000")
    parser.add_argument("--only", choices=("all", "quiet", "busy"), default="all")
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--realtime", action="store_true", help="within anytime.realtime()")
    arguments = parser.parse_args()
    main(arguments.model, arguments.frames, arguments.only, arguments.confidence, arguments.realtime)
