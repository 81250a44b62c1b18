"""How long runs would take here: a few steps of each kind are timed."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from anytime.distributed import cores
from anytime.memory import keep_freed_memory
from anytime.progress import counted
from experiments.runner import Run


def estimate(
    runs: list[Run], data: Path | None, at_once: int, compiled: bool = False, precision: str = "float32"
) -> float:
    """Print each kind of run with its time, and the whole; gives the whole in seconds."""
    keep_freed_memory()
    torch.set_num_threads(max(1, cores() // at_once))
    kinds = Counter(_any_seed(run).name for run in runs)
    examples = {_any_seed(run).name: run for run in runs}
    timed = counted(kinds, len(kinds), "timing a few steps of each kind")
    spent = {kind: seconds(examples[kind], data, compiled, precision) for kind in timed}
    for kind, many in kinds.items():
        print(f"{many:3} × {kind:70} {spent[kind] / 60:7.1f} min each")
    whole = sum(spent[kind] * many for kind, many in kinds.items()) / min(at_once, max(1, len(runs)))
    time = f"{whole / 3600:.1f} hours" if whole >= 3600 else f"{whole / 60:.0f} minutes"
    print(f"{len(runs)} runs, {at_once} at a time: {time}")
    return whole


def _any_seed(run: Run) -> Run:
    return replace(run, seed=0)


def seconds(run: Run, folder: Path | None, compiled: bool, precision: str) -> float:
    """What a run would take: epochs of a few steps are timed, the first is not counted."""
    data = run.load_data(folder)
    steps = 4
    few = data.subset(min(len(data.train), steps * run.recipe["batch_size"]), 0)
    short = replace(run, recipe={**run.recipe, "epochs": 3})
    _, _, result = short.fit(run.network(data), few, compiled, precision, show=False)
    speed = max(record["samples_per_second"] for record in result.history[1:])
    evaluation = (len(data.test or ()) + len(data.validation or ())) / (3 * speed)
    return len(data.train) * run.recipe["epochs"] / speed + evaluation
