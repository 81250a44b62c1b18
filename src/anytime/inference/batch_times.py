"""Seconds of each stage and head by batch size: used for planning by the server."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_flatten

from anytime.errors import check_integer
from anytime.inputs import as_input, explained
from anytime.measuring import Kind, add_to_file, joined, kind_of, measure, read_from_file

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
            self.kind,
        )

    def save(self, folder: str | Path) -> Path:
        """Write it beside a model as ``batch_times.json``, replacing one of the same kind."""
        return add_to_file(Path(folder) / FILE, "times", read_batch_times(folder), self)


def read_batch_times(folder: str | Path) -> list[BatchTimes]:
    """Read the times that ``BatchTimes.save`` wrote beside a model."""
    return read_from_file(Path(folder) / FILE, "times", _checked, "delete it, and it is measured again")


def _checked(entry: dict[str, Any], kind: Kind) -> BatchTimes:
    lines = [Line(*map(float, line)) for line in entry["stages"]]
    after = [None if line is None else Line(*map(float, line)) for line in entry["heads"]]
    if not all(0 <= n < 1e9 for n in chain(*lines, *(line for line in after if line))):
        raise ValueError("seconds must be numbers >= 0")
    return BatchTimes(lines, after, kind)


def measure_batches(
    net: Any, example: Any, batches: Sequence[int] = BATCHES, repeats: int = 7, seconds: float = 5.0
) -> BatchTimes:
    """Measure how long each stage and head takes for batches of several sizes, and draw a line through the times.

    The shortest times count: what a busy moment adds says nothing about the network. How much slower the machine is
    while it serves is learned by the engine.

    Args:
        net: the network, in eval mode; it is measured as it is (device, threads, memory format).
        example: one sample, a batch of one, on the network's device.
        batches: the sizes.
        repeats: number of runs of each size, after one that is not counted.
        seconds: go on to no larger batch once this much time has passed.

    Examples:
        >>> import anytime
        >>> import torch
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> times = measure_batches(net, torch.zeros(1, 3, 32, 32), batches=(1, 2, 4), repeats=2)
        >>> len(times.stages), times.stages[0].at(2) > 0
        (3, True)
    """
    check_integer("repeats", repeats)
    example = as_input(net, example)
    found = {}
    end = time.perf_counter() + seconds
    for batch in sorted(batches):
        x = net.join([example] * check_integer("batch", batch))
        with explained(net, x):
            found[batch] = joined(measure(net, x, repeats, warmup=1), min)
        if time.perf_counter() > end:
            break
    stages, heads = [], []
    for i, (_, head) in enumerate(next(iter(found.values()))):
        stages.append(_line({batch: times[i][0] for batch, times in found.items()}))
        heads.append(None if head is None else _line({batch: times[i][1] for batch, times in found.items()}))
    return BatchTimes(stages, heads, kind_of(example))


def is_outdated(times: BatchTimes, net: Any, example: Any) -> bool:
    """Whether stages take less than half of what was measured once: the machine was busy then, or is another one."""
    now = joined(measure(net, as_input(net, example), repeats=5, warmup=2), min)
    return sum(stage for stage, _ in now) < 0.5 * sum(line.at(1) for line in times.stages)


def _line(seconds: dict[int, float]) -> Line:
    """The line with the least squares of the relative errors."""
    batches, times = np.array(list(seconds)), np.maximum(np.array(list(seconds.values())), 1e-9)
    if len(batches) == 1:
        return Line(0.0, float(times[0] / batches[0]))
    fixed, each = np.linalg.lstsq(np.stack([1 / times, batches / times], 1), np.ones(len(times)), rcond=None)[0]
    if each <= 0:  # a constant
        return Line(float(times.mean()), 0.0)
    if fixed < 0:
        return Line(0.0, float(np.median(times / batches)))
    return Line(float(fixed), float(each))


def sample_form(x: Any) -> tuple[Any, ...]:
    """The form of samples that can share a batch: dtypes, and shapes without the batch dimension."""
    if isinstance(x, Tensor):
        return (x.dtype, x.shape[1:])
    leaves, spec = tree_flatten(x)
    return (repr(spec), *((leaf.dtype, leaf.shape[1:]) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
