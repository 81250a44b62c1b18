"""Seconds of each stage and head by the size of the batch: what a server plans with."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from anytime.errors import AnytimeError, check_integer
from anytime.files import read_json, write_json
from anytime.inference.latency import Kind, kind_of, synchronize
from anytime.inputs import as_input, device_of
from anytime.network import clone_tensors

FILE = "batch_times.json"
BATCHES = (1, 2, 4, 8, 16, 32)


class Line(NamedTuple):
    """Seconds as a function of the batch: ``fixed + each · batch``, α + β·b."""

    fixed: float
    each: float

    def at(self, batch: float) -> float:
        """Seconds of a batch."""
        return self.fixed + self.each * batch


@dataclass(frozen=True)
class BatchTimes:
    """How long each stage and each head takes for a batch of any size; one line per stage, shallow to deep.

    Args:
        stages: seconds of each stage alone.
        heads: seconds of the head after each stage; None after a stage that has no exit.
        kind: device, threads and input of one sample that it was measured with.
    """

    stages: list[Line]
    heads: list[Line | None]
    kind: Kind | None = None

    def scaled(self, factor: float) -> "BatchTimes":
        """All times multiplied by a factor."""
        return BatchTimes(
            [Line(*(factor * n for n in line)) for line in self.stages],
            [line and Line(*(factor * n for n in line)) for line in self.heads],
        )

    def save(self, folder: str | Path) -> Path:
        """Write it beside a model as ``batch_times.json``, replacing one of the same kind."""
        path = Path(folder) / FILE
        every = [*(times for times in read_batch_times(folder) if times.kind != self.kind), self]
        entries = [
            {**(times.kind._asdict() if times.kind else {}), "stages": times.stages, "heads": times.heads}
            for times in every
        ]
        write_json(path, {"times": entries}, sealed=True)
        return path


def read_batch_times(folder: str | Path) -> list[BatchTimes]:
    """What ``BatchTimes.save`` wrote beside a model, if anything."""
    path = Path(folder) / FILE
    if not path.is_file():
        return []
    try:
        return [_checked(entry) for entry in read_json(path, sealed=True)["times"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise AnytimeError(f"{path} is damaged ({reason}): delete it, and it is measured again") from None


def _checked(entry: dict[str, Any]) -> BatchTimes:
    stages = [Line(*map(float, line)) for line in entry["stages"]]
    heads = [line and Line(*map(float, line)) for line in entry["heads"]]
    numbers = chain(*stages, *(line for line in heads if line))
    if len(stages) != len(heads) or not stages or not all(0 <= n < 1e9 for n in numbers):
        raise ValueError("stages and heads must be as many, of seconds >= 0")
    inputs = tuple((str(kind), tuple(int(n) for n in shape)) for kind, shape in entry["inputs"])
    return BatchTimes(stages, heads, Kind(str(entry["device"]), int(entry["threads"]), inputs))


def measure_batches(
    net: Any, example: Any, batches: Sequence[int] = BATCHES, repeats: int = 7, seconds: float = 5.0
) -> BatchTimes:
    """Measure how long each stage and head takes for batches of several sizes; medians, and a line through them.

    Args:
        net: the network, in eval mode; it is measured as it is (device, threads, memory format).
        example: one sample, a batch of one, on the network's device.
        batches: the sizes.
        repeats: number of runs of each size, after one that is not counted.
        seconds: go on to no larger batch once this much time has passed.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> times = measure_batches(net, torch.zeros(1, 3, 32, 32), batches=(1, 2, 4), repeats=2)
        >>> len(times.stages), times.stages[0].at(2) > 0
        (3, True)
    """
    check_integer("repeats", repeats)
    example = as_input(net, example)
    found: dict[int, list[list[float]]] = {}
    end = time.perf_counter() + seconds
    for batch in sorted(batches):
        x = net.join([example] * check_integer("batch", batch))
        runs = [_clocked(net, x) for _ in range(1 + repeats)][1:]
        found[batch] = [list(map(statistics.median, zip(*columns, strict=True))) for columns in zip(*runs, strict=True)]
        if time.perf_counter() > end:
            break
    lines = [
        [_line({batch: rows[i][part] for batch, rows in found.items()}) for part in (0, 1)]
        for i in range(len(net.stage_exits))
    ]
    heads = [head if exit is not None else None for exit, (_, head) in zip(net.stage_exits, lines, strict=True)]
    return BatchTimes([stage for stage, _ in lines], heads, kind_of(example))


@torch.inference_mode()
def _clocked(net: Any, x: Any) -> list[tuple[float, float]]:
    """Seconds of each stage and of the head after it."""
    device, times, state = device_of(x), [], clone_tensors(x)
    for stage in range(len(net.stage_exits)):
        synchronize(device)
        start = time.perf_counter()
        state = net.run_stage(stage, state)
        synchronize(device)
        reached = time.perf_counter()
        exit = net.exit_after(stage, state)
        if exit is not None:
            exit()
            synchronize(device)
        times.append((reached - start, time.perf_counter() - reached))
    return times


def _line(seconds: dict[int, float]) -> Line:
    """The line with the least squares of the relative errors."""
    batches, times = np.array(list(seconds)), np.maximum(np.array(list(seconds.values())), 1e-9)
    if len(batches) == 1:
        return Line(0.0, float(times[0] / batches[0]))
    fixed, each = np.linalg.lstsq(np.stack([1 / times, batches / times], 1), np.ones(len(times)), rcond=None)[0]
    if each <= 0:  # as if the batch did not matter
        return Line(float(times.mean()), 0.0)
    if fixed < 0:
        return Line(0.0, float(np.median(times / batches)))
    return Line(float(fixed), float(each))


def sample_form(x: Any) -> tuple[Any, ...]:
    """What samples must have in common to be in one batch: types, and shapes without the first dimension."""
    if isinstance(x, Tensor):
        return (x.dtype, x.shape[1:])
    leaves, spec = tree_flatten(x)
    return (repr(spec), *((leaf.dtype, leaf.shape[1:]) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
