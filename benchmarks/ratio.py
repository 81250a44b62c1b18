"""Two things run in turn in one process, and what their times say."""

import statistics
import time
from collections.abc import Callable

import torch


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> list[tuple[float, float]]:
    """Seconds of each in turn, after a run of both that does not count; each is first every other time."""
    ours()
    theirs()
    pairs = []
    for i in range(repeats):
        if i % 2:
            after = seconds(theirs)
            pairs.append((seconds(ours), after))
        else:
            pairs.append((seconds(ours), seconds(theirs)))
    return pairs


def report(what: str, ratios: list[float]) -> float:
    """Print median and spread; the median."""
    middle = statistics.median(ratios)
    print(f"{what}: median {middle:.3f}, from {min(ratios):.3f} to {max(ratios):.3f}, n={len(ratios)}")
    return middle


def verdict(name: str, ratio: float, limit: float, least: bool = False) -> None:
    """The last line: the ratio is at most the limit, or at least."""
    ok = ratio >= limit if least else ratio <= limit
    print(f"{name} ratio={ratio:.3f} limit={limit} {'ok' if ok else 'short'}")


def machine() -> str:
    return f"{torch.get_num_threads()} threads, torch {torch.__version__}"
