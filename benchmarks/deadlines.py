"""The share of answers in time by the caller's clock, and their exits, for deadlines up to 1.5 times the full time.

python benchmarks/deadlines.py                       # resann-9-16, one thread: quiet, then beside busy processes
python benchmarks/deadlines.py --frames 300 --only busy --confidence 0.95
python benchmarks/deadlines.py --realtime            # the same within anytime.realtime(), as root or with ulimit -r

A frame asks ``predict`` and counts as in time if the call returned before the deadline; errors and refusals count as
not in time. Every fourth frame is a walk through the whole network whose stages are timed: how deep the deadline would
have let it come is the hindsight. There are four times as many frames in a row as at 30 a second. "Busy" is one process
per core that never sleeps. A goal counts where the hindsight has an answer in 97 % of the frames.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import NamedTuple

import torch
from ratio import RESULTS, fact, machine, verdict

import anytime
from anytime.distributed import cores

SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
RHYTHMS = {"30hz": 1 / 30, "in_a_row": 0.0}
WALKS = 4
"""One in so many frames is a walk through the whole network."""


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


def frames(
    net: anytime.Network, x: torch.Tensor, deadline: float, count: int, pause: float, confidence: float
) -> tuple[list[bool], list[int], list[bool], list[int]]:
    """For each frame whether it was in time, and its exit, 0 if none; for the walks between whether an exit was
    reachable, and how many."""
    in_time, exits, hindsight = [], [], []
    following = time.perf_counter()
    for i in range(count):
        if pause:
            following = max(following + pause, time.perf_counter())
            time.sleep(max(following - time.perf_counter(), 0.0))
        if i % WALKS == WALKS - 1:
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
    return in_time, exits, [exit > 0 for exit in hindsight], hindsight


def main(model: str, count: int, only: str, confidence: float, realtime: bool) -> None:
    """Print a row for each load, backend, rhythm and deadline, and the verdicts on the worst of them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32)
    eager = anytime.create_model(model).eval()
    nets = {"eager": eager, "onnx": anytime.load_exported(anytime.export.onnx(eager, x, tempfile.mkdtemp()))}
    print(f"{model}, batch 1, one thread, confidence {confidence:g}, {machine()}")
    with anytime.realtime() if realtime else nullcontext():
        full = {name: statistics.median(full_walk(net, x)[-1] for _ in range(100)) for name, net in nets.items()}
    for name, seconds in full.items():
        fact(f"full_{name}_ms", 1000 * seconds, "ms to the last exit")
    rows: dict[str, list[Row]] = {}
    for load in ("quiet", "busy") if only == "all" else (only,):
        for (name, net), (rhythm, pause) in product(nets.items(), RHYTHMS.items()):
            with (
                busy_processes() if load == "busy" else nullcontext(),
                anytime.realtime() if realtime else nullcontext(),
            ):
                frames(net, x, full[name], 100, pause, confidence)  # it learns
                for share in SHARES:
                    asked = frames(net, x, share * full[name], count if pause else 4 * count, pause, confidence)
                    found = Row(share, *map(statistics.mean, asked))
                    found.show(f"{load}_{name}_{rhythm}")
                    rows.setdefault(load, []).append(found)
    judge(rows, realtime)


class Row(NamedTuple):
    """One deadline, as a share of the time to the last exit."""

    share: float
    in_time: float
    exit: float
    possible: float
    hindsight: float

    @property
    def depth(self) -> float:
        """The mean exit as a share of the mean exit in hindsight."""
        return self.exit / max(self.hindsight, 1e-9)

    def show(self, name: str) -> None:
        """Print it, and keep it as facts."""
        print(
            f"{name:20} {self.share:4.2f} T: {self.in_time:6.1%} in time (possible in {self.possible:6.1%}), mean exit "
            f"{self.exit:4.1f} (in hindsight {self.hindsight:4.1f})",
            flush=True,
        )
        RESULTS["facts"] |= {f"{what}_{name}_{self.share:g}": getattr(self, what) for what in self._fields[1:]}


def judge(rows: dict[str, list[Row]], realtime: bool) -> None:
    """Compare the worst deadline of each load with its goal."""
    able = {load: [row for row in found if row.possible >= 0.97] for load, found in rows.items()}
    if realtime:
        verdict("deadlines_realtime", min(row.in_time for found in able.values() for row in found), 0.999, least=True)
        return
    if quiet := able.get("quiet"):
        verdict("deadlines_quiet", min(row.in_time for row in quiet), 0.99, least=True)
        verdict("deadlines_quiet_depth", min(row.depth for row in quiet if row.share >= 0.5), 0.85, least=True)
        verdict("deadlines_quiet_depth_early", min(row.depth for row in quiet if row.share < 0.5), 0.5, least=True)
    if busy := able.get("busy"):
        verdict("deadlines_busy", min(row.in_time for row in busy), 0.95, least=True)
        verdict("deadlines_busy_depth", min(row.depth for row in busy), 0.45, least=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="resann-9-16")
    parser.add_argument("--frames", type=int, default=1000, help="per deadline, at 30 a second; default: 1000")
    parser.add_argument("--only", choices=("all", "quiet", "busy"), default="all")
    parser.add_argument("--confidence", type=float, default=0.99)
    parser.add_argument("--realtime", action="store_true", help="within anytime.realtime()")
    arguments = parser.parse_args()
    main(arguments.model, arguments.frames, arguments.only, arguments.confidence, arguments.realtime)
