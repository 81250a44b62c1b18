"""Seconds of each stage and head: measured, learned while predicting, kept beside the model."""

import platform
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anytime.errors import AnytimeError
from anytime.files import read_json, write_json
from anytime.network import AnytimeNetwork

FILE = "profile.json"


class Kind(NamedTuple):
    """What a latency depends on besides the network."""

    device: str
    threads: int
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """Type and shape of each tensor of the input; the first number of a shape is the batch size."""


@dataclass
class Profile:
    """How long each stage and each head takes, in seconds; one entry a stage, shallow to deep.

    Args:
        stages: of each stage alone.
        heads: of the head after each stage; None after a stage that has no exit.
        kind: the device, threads and input that it was measured with.
    """

    stages: list[float]
    heads: list[float | None]
    kind: Kind | None = None
    refused: int = field(default=0, repr=False, compare=False)
    """How often in a row a prediction was not begun by what is known here."""

    @property
    def through(self) -> list[float]:
        """Seconds from the start to each exit's prediction, with those of all exits before it."""
        done = accumulate(stage + (head or 0) for stage, head in zip(self.stages, self.heads, strict=True))
        return [total for total, head in zip(done, self.heads, strict=True) if head is not None]

    @property
    def alone(self) -> list[float]:
        """Seconds from the start to each exit's prediction when the heads before it are skipped.

        Example:
            >>> profile = Profile(stages=[3.0, 2.0], heads=[0.5, 0.5])
            >>> profile.through, profile.alone
            ([3.5, 6.0], [3.5, 5.5])
        """
        done = zip(accumulate(self.stages), self.heads, strict=True)
        return [stages + head for stages, head in done if head is not None]

    def deepest(self, deadline: float) -> int | None:
        """The last exit that can be reached within so many seconds, or None."""
        return next((exit for exit in reversed(range(len(self.alone))) if self.alone[exit] <= deadline), None)

    def ahead(self, stage: int, last: float = 0.0) -> float:
        """Seconds from the end of a stage (-1: from the start) to the next exit's prediction, at the fastest.

        Args:
            stage: the stage that has just ended.
            last: what it took: a stage that was never seen is guessed to take as long.
        """
        seconds = 0.0
        for i in range(stage + 1, len(self.stages)):
            seconds += self.stages[i]
            if self.heads[i] is not None:
                return seconds + self.head(i)
        return seconds + last

    def head(self, stage: int) -> float:
        """Seconds of the head after a stage, at the fastest; 0 where it is not known."""
        seconds = self.heads[stage]
        return 0.0 if seconds is None or seconds == inf else seconds

    def learn(self, stage: int, seconds: float, has_exit: bool) -> None:
        """Note how long a stage took just now; the fastest is kept, so that a slow moment does no lasting harm."""
        with _lock:  # other threads may learn too
            if stage == len(self.stages):
                self.heads.append(inf if has_exit else None)  # not seen yet
                self.stages.append(seconds)
            else:
                self.stages[stage] = min(self.stages[stage], seconds)

    def try_again(self) -> bool:
        """Whether to begin in spite of what is known: every tenth time, in case it is of a slow moment."""
        self.refused = (self.refused + 1) % 10
        return self.refused == 0

    def learn_head(self, stage: int, seconds: float) -> None:
        """Likewise of the head after a stage."""
        known = self.heads[stage]
        self.heads[stage] = min(inf if known is None else known, seconds)

    def save(self, folder: str | Path) -> Path:
        """Write it beside a model as ``profile.json``, in the place of one of the same kind if there is any."""
        path = Path(folder) / FILE
        others = [profile for profile in read_profiles(folder) if profile.kind != self.kind]
        entries = [
            {**(profile.kind._asdict() if profile.kind else {}), "stages": profile.stages, "heads": profile.heads}
            for profile in [*others, self]
        ]
        write_json(path, {"profiles": entries}, sealed=True)
        return path


def read_profiles(folder: str | Path) -> list[Profile]:
    """What ``Profile.save`` wrote beside a model, if anything."""
    path = Path(folder) / FILE
    if not path.is_file():
        return []
    try:
        return [_checked(entry) for entry in read_json(path, sealed=True)["profiles"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise AnytimeError(
            f"{path} is damaged ({reason}): delete it and measure again with anytime profile --save"
        ) from None


def _checked(entry: dict[str, Any]) -> Profile:
    stages, heads = entry["stages"], entry["heads"]
    numbers = [*stages, *(seconds for seconds in heads if seconds is not None)]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 1e9 for n in numbers):
        raise ValueError("seconds are numbers from 0")
    if len(stages) != len(heads) or not stages:
        raise ValueError("there is one head for each stage")
    inputs = tuple((str(kind), tuple(int(n) for n in shape)) for kind, shape in entry["inputs"])
    return Profile(list(stages), list(heads), Kind(str(entry["device"]), int(entry["threads"]), inputs))


_known: "WeakKeyDictionary[Any, dict[Kind, Profile]]" = WeakKeyDictionary()
_lock = threading.Lock()


def remember(net: Any, profile: Profile) -> None:
    """Let predictions of the network go by a profile; what they learn goes to a copy."""
    if profile.kind is None:
        raise AnytimeError("this profile does not say what it was measured with: make it with anytime.profile(net, x)")
    if isinstance(net, AnytimeNetwork) and len(profile.stages) != len(net.stages):
        raise AnytimeError(f"a profile of {len(profile.stages)} stages is not one of this network: {len(net.stages)}")
    with _lock:
        _known.setdefault(net, {})[profile.kind] = Profile([*profile.stages], [*profile.heads], profile.kind)


def forget(net: Any) -> None:
    """What was known of a network's latency, since its stages have changed."""
    with _lock:
        _known.pop(net, None)


def recall(net: Any, x: Any) -> Profile:
    """What is known of the network's latency for such an input; an empty profile, to be filled, if nothing is."""
    kind = kind_of(x)
    fresh = Profile([], [], kind)
    try:
        with _lock:
            return _known.setdefault(net, {}).setdefault(kind, fresh)
    except TypeError:  # what has no hash or takes no weak references is not remembered
        return fresh


def kind_of(x: Any) -> Kind:
    """The kind of an input, here and now."""
    leaves = [leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor)]
    inputs = tuple((str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)) for leaf in leaves)
    return Kind(_name(device_of(x)), torch.get_num_threads(), inputs)


def device_of(x: Any) -> torch.device:
    """Where an input is."""
    return next((leaf.device for leaf in tree_leaves(x) if isinstance(leaf, Tensor)), torch.device("cpu"))


@cache
def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return device.type
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"cpu, {model or platform.processor() or platform.machine()}"


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given: its clock time is what users feel."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def profile(net: AnytimeNetwork, example: Any, repeats: int = 30, warmup: int = 5) -> Profile:
    """Measure how long each stage and head takes (medians), and let ``predict`` go by it from now on.

    Args:
        net: the network; it is measured as it stands (its device, threads, memory format), in eval mode.
        example: an input of the kind that predictions will have, on the network's device.
        repeats: how many runs the medians are taken over.
        warmup: runs before those, not counted.

    Example:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8")
        >>> profile = anytime.profile(net, torch.zeros(1, 3, 32, 32), repeats=3)
        >>> len(profile.stages), profile.deepest(deadline=60.0)
        (3, 2)
    """
    if repeats < 1 or warmup < 0:
        raise AnytimeError(f"repeats={repeats}, warmup={warmup}: the median needs at least one run, and none is undone")
    if not isinstance(net, AnytimeNetwork):
        raise AnytimeError(
            f"a {type(net).__name__} is no anytime network: its predictions are learned from as they come"
        )
    was_training = net.training
    net.eval()
    try:
        runs = [list(_clocked(net, example)) for _ in range(warmup + repeats)][warmup:]
    finally:
        net.train(was_training)
    stages = [statistics.median(stage for stage, _ in times) for times in zip(*runs, strict=True)]
    heads = [
        None if None in (h := [head for _, head in times]) else statistics.median(h)
        for times in zip(*runs, strict=True)
    ]
    measured = Profile(stages, heads, kind_of(example))
    remember(net, measured)
    return measured


def _clocked(net: AnytimeNetwork, example: Any) -> Iterator[tuple[float, float | None]]:
    """Seconds of each stage and of the head after it."""
    device = device_of(example)
    with torch.inference_mode():
        synchronize(device)
        start = time.perf_counter()
        for head in net.walk(example):
            synchronize(device)
            reached = time.perf_counter()
            if head is not None:
                head()
                synchronize(device)
            end = time.perf_counter()
            yield reached - start, None if head is None else end - reached
            start = end
