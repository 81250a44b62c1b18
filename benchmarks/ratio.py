"""Compare two things that run in turn in one process, and report what their times say.

Every benchmark prints text; with ``--json`` it prints one JSON object instead, which ``docs/figures.py`` keeps:
``{"figures": {what: {"median": …, "low": …, "high": …, "n": …}}, "facts": {…}, "verdicts": {name: {"ratio": …, …}}}``.
"""

import atexit
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

_script = sys.modules["__main__"]
if sys.argv[1:] in (["--help"], ["-h"]) and not hasattr(_script, "argparse"):  # which prints its own
    print(_script.__doc__)
    sys.exit()
RESULTS: dict[str, dict[str, Any]] = {"figures": {}, "facts": {}, "verdicts": {}}
JSON = "--json" in sys.argv
if JSON:
    sys.argv.remove("--json")
    atexit.register(lambda out=sys.stdout: print(json.dumps(RESULTS), file=out))
    sys.stdout = sys.stderr  # the text


Timer = Callable[[], float]


def seconds(work: Callable[[], object], timer: Timer = time.perf_counter) -> float:
    """Seconds that a call takes.

    With ``time.thread_time`` those that the processor spent on it: for work of one thread that waits for nothing, it is
    the time without that of other programs on the machine.
    """
    start = timer()
    work()
    return timer() - start


def interleaved(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int, timer: Timer = time.perf_counter
) -> list[tuple[float, float]]:
    """Seconds of each in turn, after one run of both that does not count; each is first every other time."""
    ours()
    theirs()
    pairs = []
    for i in range(repeats):
        if i % 2:
            after = seconds(theirs, timer)
            pairs.append((seconds(ours, timer), after))
        else:
            pairs.append((seconds(ours, timer), seconds(theirs, timer)))
    return pairs


def report(what: str, ratios: list[float]) -> float:
    """Print median and spread; returns the median."""
    middle = statistics.median(ratios)
    print(f"{what}: median {middle:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}, n={len(ratios)}")
    RESULTS["figures"][what] = {"median": middle, "low": min(ratios), "high": max(ratios), "n": len(ratios)}
    return middle


def fact(name: str, value: float | None, unit: str = "") -> None:
    """Print a measured number that is no ratio."""
    assert value is not None, f"{name} was not measured"
    print(f"{name}: {value:g} {unit}".rstrip())
    RESULTS["facts"][name] = value


def verdict(name: str, ratio: float, limit: float, least: bool = False) -> None:
    """Print whether a ratio is at most the limit, or at least with ``least``."""
    ok = ratio >= limit if least else ratio <= limit
    print(f"{name} ratio={ratio:.3f} limit={limit} {'ok' if ok else 'missed'}")
    bound = None if limit == float("inf") else limit
    RESULTS["verdicts"][name] = {"ratio": ratio, "limit": bound, "least": least, "ok": ok}


def machine() -> str:
    """Number of threads and version of torch."""
    return f"{torch.get_num_threads()} threads, torch {torch.__version__}"
