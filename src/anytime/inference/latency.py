"""Seconds of each stage and head: measured, learned while predicting, kept beside the model."""

import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, zip_longest
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from anytime.batches import batches_of
from anytime.cost import Form, form_of
from anytime.errors import AnytimeError, check_integer
from anytime.files import read_json, write_json
from anytime.inputs import as_input, device_of, explained
from anytime.network import AnytimeNetwork, eval_mode

FILE = "profile.json"


class Kind(NamedTuple):
    """What a latency depends on besides the network."""

    device: str
    threads: int
    inputs: Form


@dataclass(frozen=True)
class Profile:
    """How long each stage and each head takes, in seconds; one entry per stage, shallow to deep.

    Args:
        stages: seconds of each stage alone.
        heads: seconds of the head after each stage; None after a stage that has no exit.
        kind: the device, threads and input that it was measured with.
    """

    stages: list[float]
    heads: list[float | None]
    kind: Kind | None = None
    refused: int = field(default=0, repr=False, compare=False)
    """How many predictions in a row were refused because of this profile."""

    @property
    def through(self) -> list[float]:
        """Seconds from the start to each exit's prediction, with those of all exits before it."""
        done = accumulate(stage + (head or 0) for stage, head in zip(self.stages, self.heads, strict=True))
        return [total for total, head in zip(done, self.heads, strict=True) if head is not None]

    @property
    def alone(self) -> list[float]:
        """Seconds from the start to each exit's prediction when the heads before it are skipped.

        Examples:
            >>> profile = Profile(stages=[3.0, 2.0], heads=[0.5, 0.5])
            >>> profile.through, profile.alone
            ([3.5, 6.0], [3.5, 5.5])
        """
        done = zip(accumulate(self.stages), self.heads, strict=True)
        return [stages + head for stages, head in done if head is not None]

    def deepest(self, deadline: float) -> int | None:
        """The deepest exit that can be reached within ``deadline`` seconds, or None."""
        return next((exit for exit in reversed(range(len(self.alone))) if self.alone[exit] <= deadline), None)

    def ahead(self, stage: int, last: float = 0.0) -> float:
        """Seconds from the end of a stage (-1: from the start) to the next exit's prediction.

        Args:
            stage: the stage that has just ended.
            last: seconds that it took; a stage that was never measured is assumed to take as long.
        """
        seconds = 0.0
        for i in range(stage + 1, len(self.stages)):
            seconds += self.stages[i]
            if self.heads[i] is not None:
                return seconds + self.head(i)
        return seconds + last

    def head(self, stage: int) -> float:
        """Seconds of the head after a stage; 0 if not known."""
        seconds = self.heads[stage] if stage < len(self.heads) else None
        return 0.0 if seconds is None or seconds == inf else seconds

    def fastest(self, other: "Profile") -> "Profile":
        """The shorter time of each stage and head, so that a slow moment has no lasting effect.

        Examples:
            >>> Profile([3.0, 2.0], [0.5, None]).fastest(Profile([4.0, 1.0, 9.0], [0.25, None, inf]))
            Profile(stages=[3.0, 1.0, 9.0], heads=[0.25, None, inf], kind=None)
        """
        stages = [min(pair) for pair in zip_longest(self.stages, other.stages, fillvalue=inf)]
        pairs = zip_longest(self.heads, other.heads, fillvalue=inf)
        return Profile(stages, [None if a is None or b is None else min(a, b) for a, b in pairs], self.kind)

    def save(self, folder: str | Path) -> Path:
        """Write it beside a model as ``profile.json``, replacing one of the same kind."""
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
            f"{path} is damaged ({reason}): delete it and measure again with anytime.profile(net, x).save(folder)"
        ) from None


def _checked(entry: dict[str, Any]) -> Profile:
    stages, heads = entry["stages"], entry["heads"]
    numbers = [*stages, *(seconds for seconds in heads if seconds is not None)]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 1e9 for n in numbers):
        raise ValueError("seconds must be numbers >= 0")
    if len(stages) != len(heads) or not stages:
        raise ValueError("stages and heads must have the same length >= 1")
    inputs = tuple((str(kind), tuple(int(n) for n in shape)) for kind, shape in entry["inputs"])
    return Profile(list(stages), list(heads), Kind(str(entry["device"]), int(entry["threads"]), inputs))


def remember(net: AnytimeNetwork, profile: Profile) -> None:
    """Make predictions of the network use a profile."""
    if profile.kind is None:
        raise AnytimeError("this profile does not say what it was measured with: make it with anytime.profile(net, x)")
    if len(profile.stages) != len(net.stages):
        raise AnytimeError(
            f"the profile has {len(profile.stages)} stages, the network {len(net.stages)}: it is of another network"
        )
    profiles_of(net)[profile.kind] = profile


def profiles_of(net: Any) -> dict[Kind, Profile]:
    """The latencies known of a network, kept on it until ``net.forget()``.

    A profile is never changed, only replaced by another: so threads need no lock, and a fork cannot leave one locked.
    """
    try:
        return vars(net).setdefault("_profiles", {})
    except TypeError:  # an object without attributes of its own
        return {}


def kind_of(x: Any, device: torch.device | None = None) -> Kind:
    """The kind of an input on this machine, with the present number of threads."""
    return Kind(_name(device or device_of(x)), torch.get_num_threads(), form_of(x))


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
    """Wait until the device has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def profile(net: AnytimeNetwork, example: Any, repeats: int = 30, warmup: int = 5) -> Profile:
    """Measure how long each stage and head takes (medians); ``predict`` uses it from then on.

    Args:
        net: the network; it is measured as it is (device, threads, memory format), in eval mode.
        example: an input like those of the predictions, on the network's device; or batches (a ``DataLoader``), of
            which the first is taken.
        repeats: number of runs that the medians are taken over.
        warmup: number of runs before those, not counted.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8")
        >>> profile = anytime.profile(net, torch.zeros(1, 3, 32, 32), repeats=3)
        >>> len(profile.stages), profile.deepest(deadline=60.0)
        (3, 2)
    """
    repeats, warmup = check_integer("repeats", repeats), check_integer("warmup", warmup, least=0)
    if not isinstance(net, AnytimeNetwork):
        raise AnytimeError(
            f"profile expects an AnytimeNetwork, not a {type(net).__name__}: anytime.convert(model, example) makes one"
        )
    if isinstance(example, DataLoader):
        example = next(batches_of(net, example)).inputs
    example = as_input(net, example)
    with eval_mode(net), explained(net, example):
        runs = [list(_clocked(net, example)) for _ in range(warmup + repeats)][warmup:]
    stages, heads = [], []
    for times in zip(*runs, strict=True):
        stages.append(statistics.median(stage for stage, _ in times))
        measured = [head for _, head in times if head is not None]
        heads.append(statistics.median(measured) if measured else None)
    found = Profile(stages, heads, kind_of(example))
    remember(net, found)
    return found


def _clocked(net: AnytimeNetwork, example: Any) -> Iterator[tuple[float, float | None]]:
    """Seconds of each stage and of the head after it."""
    device = device_of(example)
    with torch.inference_mode():
        synchronize(device)
        start = time.perf_counter()
        for exit in net.walk(example):
            synchronize(device)
            reached = time.perf_counter()
            if exit is not None:
                exit()
                synchronize(device)
            end = time.perf_counter()
            yield reached - start, None if exit is None else end - reached
            start = end
