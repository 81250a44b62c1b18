"""Open-loop load on one core: our engine against servers of full depth, a fixed exit, and one that just calls predict.

python benchmarks/serving_load.py FOLDER                        # a trained network; CIFAR-10 from --data
python benchmarks/serving_load.py FOLDER --systems engine,full,plain --loads 0.5,1,2,3,5 --seconds 5 --rounds 3
python benchmarks/serving_load.py FOLDER --systems http,litserve_fixed,ray_fixed   # pip install litserve "ray[serve]"
python benchmarks/serving_load.py FOLDER --tune                           # which batches are best for those two

``engine`` is called in this process, as by a program that uses the library; ``http`` is the same engine behind
``anytime serve``, which is what is compared with LitServe and Ray Serve, since they are asked over HTTP too.

Arrivals are fixed beforehand, half Poisson, half in bursts; deadlines of 25, 50 and 100 ms are mixed; latency counts
from the moment at which a request should have been sent. What runs the network has core 0; the generator and every
system's front have core 1. Systems take turns; a run in which the generator was later than 1 ms (p99, --lag) is
thrown away, counted, and repeated once; what a system's own call takes to send is the system's. 1× is the best
closed-loop throughput at full depth over all batches. The fixed exit is the one that is best for each load in
hindsight: the two that a simulation of the very trace finds best are run. ``litserve_fixed`` and ``ray_fixed`` are
the servers of others with the best of them. While a server is asked over HTTP, the generator has priority where that
is allowed, since the server's front shares its core. A system of which less than 5 % is left at a load is not run at
higher ones. The score is the share of the offered requests that were answered in time and correctly.
"""

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from ratio import fact, verdict
from serving_optimum import Arrival
from serving_peers import REFUSED, Batching, FixedServer, HttpEngineServer, LitServer, PredictServer, RayServer
from serving_rush import first_come, score, to_exit

import anytime
from anytime.inference.batch_times import measure_batches
from anytime.serving.engine import OverloadedError
from anytime.serving.model import saved_accuracy
from anytime.serving.ways import make_tables

DEADLINES = (0.025, 0.05, 0.1)
FRESH = ("fixed", "fixed2", "litserve", "ray", "litserve_fixed", "ray_fixed")
"""Systems that are started anew for each trace: with another exit, or since they work on what has expired."""
IN_PROCESS, OVER_HTTP = ("full", "fixed", "fixed2", "plain"), ("litserve", "ray", "litserve_fixed", "ray_fixed")
"""What the engine is compared with, called in process and behind HTTP."""
BATCHING = {"litserve": Batching(4, 0.0), "ray": Batching(16, 0.0)}
"""The best that ``--tune`` found for each."""


class Asked(NamedTuple):
    """One request of a trace: when it is due, for which image, and its deadline."""

    moment: float
    image: int
    deadline: float


class Result(NamedTuple):
    """What became of a trace."""

    score: float
    in_time: float
    """Of those admitted."""
    admitted: float
    exits: float
    """The mean exit of those answered in time."""
    overrun_p99: float
    refusal_p99: float
    lag_p99: float
    ready: float
    """Of the engine's answers: the share that was ready before the deadline, by the clock of the engine's process."""


def trace(rate: float, seconds: float, images: int, seed: int) -> list[Asked]:
    """Arrivals at a rate: in the first half Poisson, in the second in bursts of 1 to 20."""
    draw, moment, asked = random.Random(seed), 0.05, []
    while moment < seconds:
        burst = 1 if moment < seconds / 2 else draw.randint(1, 20)
        moment += draw.expovariate(rate / (1 if burst == 1 else 10.5))
        asked += [Asked(moment, draw.randrange(images), draw.choice(DEADLINES)) for _ in range(burst)]
    return asked


class EngineServer:
    """Ours."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self.engine = anytime.Engine(folder, spare=False, **options)
        for worker in self.engine._crew.workers:
            os.sched_setaffinity(worker.process.pid, {0})
        self.before = 0, 0

    def ask(self, x: torch.Tensor, left: float, done: Callable[[Any, int], object]) -> None:
        future = self.engine.submit(x, deadline=max(left, 0.0))
        future.add_done_callback(
            lambda f: done(None, -1) if f.exception() else done(f.result().logits, f.result().exit)
        )

    def ready(self) -> float:
        """The share of the answers since the last time that were ready before their deadlines."""
        stats = self.engine.stats()
        now, (ready, answered) = (stats["ready_in_time"], stats["answered"]), self.before
        self.before = now
        return (now[0] - ready) / max(now[1] - answered, 1)

    def close(self) -> None:
        self.engine.close(drain=False)


def run(server: Any, asked: list[Asked], images: torch.Tensor, labels: torch.Tensor) -> Result:
    """Send a trace and wait until everything is answered or long over."""
    outcomes: list[tuple[float, bool, int] | None] = [None] * len(asked)
    refusals, lags = [], []
    sent_at, left, all_done = [0.0] * len(asked), [len(asked)], threading.Event()
    lock = threading.Lock()
    begin = free = time.perf_counter() + 0.2  # free: when the generator had sent the request before

    def answered(i: int, logits: Any, exit: int) -> None:
        now = time.perf_counter() - begin
        right = logits is not None and int(torch.as_tensor(logits).argmax()) == int(labels[asked[i].image])
        if exit == REFUSED:
            refusals.append(begin + now - sent_at[i])
        outcomes[i] = (now - asked[i].moment - asked[i].deadline, right, exit) if logits is not None else None
        finish()

    def finish() -> None:
        with lock:
            left[0] -= 1
            if not left[0]:
                all_done.set()

    if isinstance(server, (HttpEngineServer, LitServer, RayServer)):
        first()
    for i, request in enumerate(asked):
        ahead = begin + request.moment - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
        sent = sent_at[i] = time.perf_counter()
        late = sent - begin - request.moment
        lags.append(sent - max(begin + request.moment, free))  # the time that sending takes is the system's
        image = images[request.image : request.image + 1]
        try:
            server.ask(image, request.deadline - late, lambda logits, exit, i=i: answered(i, logits, exit))
        except OverloadedError:
            refusals.append(time.perf_counter() - sent)
            finish()
        free = time.perf_counter()
    all_done.wait(1.5)  # systems without a bound work on what has long expired
    got = [outcome for outcome in outcomes if outcome is not None]
    in_time = [outcome for outcome in got if outcome[0] <= 0]
    admitted = len(asked) - len(refusals)
    return Result(
        sum(right for _, right, _ in in_time) / len(asked),
        len(in_time) / max(admitted, 1),
        admitted / len(asked),
        statistics.fmean([exit for _, _, exit in in_time] or [0]),
        percentile([late for late, _, _ in got], 0.99),
        percentile(refusals, 0.99),
        percentile(lags, 0.99),
        server.ready() if isinstance(server, EngineServer) else 0.0,
    )


def first() -> None:
    """Give all threads of this process priority where that is allowed: fronts of servers share its core."""
    with suppress(PermissionError):
        for thread in Path("/proc/self/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), -10)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def systems(folder: str, net: Any, best: int, options: dict[str, Any]) -> dict[str, Callable]:
    """How each system is started for a trace."""
    times = measure_batches(net, torch.zeros(1, 3, 32, 32), batches=(1, 2, 4, 8, 16, 32), repeats=5)
    tables = make_tables(times, saved_accuracy(Path(folder), net.exits) or [0.0] * net.exits, largest=32)

    def best_exit(asked: list[Asked], rank: int = 1) -> int:
        trace = [Arrival(request.moment, request.moment + request.deadline) for request in asked]
        scores = [score(tables, first_come(trace, best, to_exit(tables, exit))) for exit in range(net.exits)]
        return sorted(range(net.exits), key=scores.__getitem__)[-rank]

    return {
        "engine": lambda _: EngineServer(folder, options),
        "http": lambda _: HttpEngineServer(folder, options["backend"]),
        "full": lambda _: FixedServer(folder, net.exits - 1, best),
        "fixed": lambda asked: FixedServer(folder, best_exit(asked), best),
        "fixed2": lambda asked: FixedServer(folder, best_exit(asked, 2), best),
        "plain": lambda _: PredictServer(folder),
        "litserve": lambda _: LitServer(folder, BATCHING["litserve"], net.exits - 1),
        "ray": lambda _: RayServer(folder, BATCHING["ray"], net.exits - 1),
        "litserve_fixed": lambda asked: LitServer(folder, BATCHING["litserve"], best_exit(asked)),
        "ray_fixed": lambda asked: RayServer(folder, BATCHING["ray"], best_exit(asked)),
    }


def tune(folder: str, full: float, images: torch.Tensor, labels: torch.Tensor) -> None:
    """The scores of LitServe and Ray Serve with different batches, at half of the load of full depth."""
    for name, server_of in (("litserve", LitServer), ("ray", RayServer)):
        for batching in [Batching(b, 0.0) for b in (1, 2, 4, 8, 16, 32)] + [Batching(b, 0.002) for b in (8, 32)]:
            server = server_of(folder, batching, -1)
            run(server, trace(0.25 * full, 0.5, len(images), seed=1), images, labels)  # not counted
            result = run(server, trace(0.5 * full, 2.0, len(images), seed=2), images, labels)
            print(f"{name} {batching}: score {result.score:.3f}, in time {result.in_time:.3f}", flush=True)
            server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--systems", default="engine,full,fixed,fixed2,plain")
    parser.add_argument("--loads", default="0.5,1,2,3,5")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--seed", type=int, default=0, help="of the first trace")
    parser.add_argument("--tune", action="store_true", help="try the batches of LitServe and Ray Serve, and end")
    parser.add_argument("--out", type=Path, default=None, help="write every run to this file, as a line of JSON")
    parser.add_argument("--lag", type=float, default=1.0, help="milliseconds (p99) by which the generator may be late")
    parser.add_argument("--resume", action="store_true", help="go on where that file ends")
    options = parser.parse_args()
    if options.resume and not options.out:
        parser.error("--resume goes on with a file of earlier runs: say which with --out")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {1})
    sys.setswitchinterval(0.0005)
    net = anytime.load(options.folder)
    data = anytime.load_data(options.data, show=False)
    assert isinstance(data.test, anytime.Images)
    images, labels = net.preprocess(data.test.pixels[:2000]), data.test.labels[:2000]

    os.sched_setaffinity(0, {0})
    full, best = best_throughput(net)
    known = systems(options.folder, net, best, {"backend": options.backend})
    os.sched_setaffinity(0, {1})
    fact("full_depth_per_second", full, f"images/s at batch {best}: 1×")
    if options.tune:
        tune(options.folder, full, images, labels)
        return
    results: dict[tuple[str, float], list[Result]] = {}
    thrown_away, saved = 0, read(options.out) if options.resume else {}
    if options.out and not options.resume:
        options.out.write_text("", encoding="utf-8")  # results of other code must not be taken for new ones
    loads = [float(load) for load in options.loads.split(",")]
    for turn in range(options.rounds):
        for name in options.systems.split(","):
            server, left = None, 1.0
            for load in loads:
                if left < 0.05:  # nothing is left of it at higher loads
                    break
                for attempt in range(2):
                    result = saved.pop((name, load, turn, attempt), None)
                    if result is None:
                        seed = options.seed + 100 * turn + attempt
                        asked = trace(load * full, options.seconds, len(images), seed)
                        if server is None or name in FRESH:
                            if server is not None:
                                server.close()
                            server = known[name](asked)
                        result = run(server, asked, images, labels)
                        keep(options.out, {"system": name, "load": load, "turn": turn, "attempt": attempt}, result)
                    left = result.score
                    if result.lag_p99 <= options.lag / 1000:
                        results.setdefault((name, load), []).append(result)
                        break
                    thrown_away += 1
            if server is not None:
                server.close()
    fact("thrown_away", thrown_away, "runs in which the generator was late")
    conclude(results)


def keep(path: Path | None, what: dict[str, Any], result: Result) -> None:
    """Print a run, and append it to the file."""
    line = json.dumps(what | result._asdict())
    print(line, flush=True)
    if path:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def read(path: Path) -> dict[tuple[str, float, int, int], Result]:
    """The runs that a file has, by system, load, turn and attempt."""
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {
        (run["system"], run["load"], run["turn"], run["attempt"]): Result(*(run[name] for name in Result._fields))
        for run in runs
    }


def best_throughput(net: Any) -> tuple[float, int]:
    """Images per second at full depth, and the batch with which it is reached."""
    rates = {}
    with torch.inference_mode():
        for batch in (1, 2, 4, 8, 16, 32):
            x, spent = torch.randn(batch, 3, 32, 32), []
            for _ in range(8):
                begun = time.perf_counter()
                net(x, [-1])
                spent.append(time.perf_counter() - begun)
            rates[batch] = batch / statistics.median(spent)
    best = max(rates, key=rates.__getitem__)
    return rates[best], best


def conclude(results: dict[tuple[str, float], list[Result]]) -> None:
    """Median and spread of each, and the verdicts."""
    medians: dict[tuple[str, float], float] = {}
    for (name, load), runs in results.items():
        scores = [run.score for run in runs]
        medians[name, load] = statistics.median(scores)
        key = f"{name}_{load:g}x"
        fact(f"score_{key}", statistics.median(scores), f"from {min(scores):.3f} to {max(scores):.3f}, n={len(scores)}")
        for field in ("in_time", "admitted", "exits", "overrun_p99", "refusal_p99", "ready"):
            values = [getattr(run, field) for run in runs]
            fact(f"{field}_{key}", statistics.median(values), f"from {min(values):.4g} to {max(values):.4g}")
    for load in sorted({load for _, load in results}):
        if ("engine", load) in medians:
            runs = results["engine", load]
            verdict(f"serving_in_time_{load:g}x", statistics.median(run.in_time for run in runs), 0.99, least=True)
            verdict(f"serving_ready_{load:g}x", statistics.median(run.ready for run in runs), 0.999, least=True)
            verdict(f"serving_refusal_ms_{load:g}x", 1000 * statistics.median(run.refusal_p99 for run in runs), 5)
        for name, ours, rivals in (("lead", "engine", IN_PROCESS), ("http_lead", "http", OVER_HTTP)):
            others = [medians[rival, load] for rival in rivals if (rival, load) in medians]
            if others and (ours, load) in medians:
                lead, limit = medians[ours, load] - max(others), 0.03 if load >= 2 else -0.005
                verdict(f"serving_{name}_{load:g}x", lead, limit, least=True)


if __name__ == "__main__":
    main()
