"""An EANN on two workers of one thread each, against one network after another on one thread and on two threads.

The ratio is that of the times to the last prediction. On one thread it shows what the schedule gives; two threads are
what one would use on the same two cores instead of a team.

python benchmarks/eann_parallel.py                # networks whose costs are 1 : 2 : 4, 16 images
python benchmarks/eann_parallel.py 100 --ray      # on a local Ray cluster of two actors
"""

import multiprocessing
import os
import statistics
import sys
import threading
import time

import torch
from ratio import interleaved, machine, report, verdict

import anytime
from anytime.ensemble.theory import schedule
from anytime.memory import keep_freed_memory

NAMES = ("resann-4-32", "resann-8-32", "resann-16-32")
LIMIT = 0.78


def main(repeats: int, ray: bool) -> None:
    keep_freed_memory()  # as in the workers
    torch.manual_seed(0)
    eann = anytime.EANN([anytime.create_model(name) for name in NAMES]).eval()
    x = torch.randn(16, 3, 32, 32)
    macs = [anytime.costs(member, x[:1]).macs[-1] for member in eann.members]  # type: ignore[arg-type]
    print(f"{', '.join(NAMES)}, batch {len(x)}, {machine()}")
    print("costs " + " : ".join(f"{m / macs[0]:.2f}" for m in macs))
    print(f"the schedule's own limit, first in, first out: {schedule(2, 2, 3)[-1][1] / 7:.3f}")
    with anytime.Team(eann, workers=2, threads=1, cluster=ray) as team:

        def sequential(threads: int) -> torch.Tensor:
            torch.set_num_threads(threads)
            with torch.inference_mode():
                return list(eann.steps(x))[-1].logits

        expected = sequential(1)
        for step in team.steps(x):
            with torch.inference_mode():
                torch.testing.assert_close(step.logits, eann(x, [step.exit])[0])
        print("same answers at every exit that was seen")
        first_answer(team, eann, x, repeats)
        ratios = {}
        for threads in ("one", "two"):
            count = 1 if threads == "one" else 2
            pairs = interleaved(lambda: team.predict(x), lambda count=count: sequential(count), repeats)
            what = f"two workers of one thread / one after the other on {threads} thread{'s'[: count - 1]}"
            ratios[threads] = report(what, [a / b for a, b in pairs])
        if not ray:
            killed_mid_run(team, x, expected)
    name = "eann_parallel_ray" if ray else "eann_parallel"
    verdict(f"{name}_two", ratios["two"], 1.0)  # at most 1: a team is worth its processes on one machine
    verdict(name, ratios["one"], LIMIT)


def first_answer(team: anytime.Team, eann: anytime.EANN, x: torch.Tensor, repeats: int) -> None:
    """Print how much later the first answer comes from another process: the latency of sending and of the answer."""

    def here() -> None:
        with torch.inference_mode():
            next(eann.steps(x))

    def there() -> None:
        with team.start(x) as run:
            next(run.follow())

    torch.set_num_threads(1)
    later = [1000 * (a - b) for a, b in interleaved(there, here, repeats)]
    print(f"the first answer of the team comes {statistics.median(later):.2f} ms later (median, n={len(later)})")


def killed_mid_run(team: anytime.Team, x: torch.Tensor, expected: torch.Tensor) -> None:
    """Kill the workers once the last network has answered twice: what has arrived is the answer."""
    whole = team.eann(x)
    last = [exit for exit, (member, _) in enumerate(team.eann.offered) if member == team.eann.order[-1]]
    run = team.start(x)
    while (best := run.latest()) is None or best.exit < last[1]:
        time.sleep(0.0005)
    for worker in multiprocessing.active_children():  # both: the other one is idle by now or soon
        os.kill(worker.pid or 0, 9)
    best = run.result(60)
    torch.testing.assert_close(best.logits, whole[best.exit])
    print(f"workers killed during {NAMES[-1]}: exit {best.exit + 1} of {team.eann.exits} answers, lost {run.lost}")
    torch.testing.assert_close(team.predict(x).logits, expected)
    print(f"the next run is complete again; {threading.active_count()} threads")


if __name__ == "__main__":
    repeats = next((int(word) for word in sys.argv[1:] if word.isdigit()), 60)
    main(repeats, "--ray" in sys.argv)
