"""Seconds of each stage and head: measured, learned while predicting, kept beside the model."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from anytime.batches import batches_of
from anytime.drawing import OTHER_COLORS, finish, new_axes
from anytime.errors import AnytimeError, check_integer
from anytime.inference.stage_times import StageTimes
from anytime.inputs import as_input, explained
from anytime.measuring import Kind, add_to_file, joined, kind_of, measure, read_from_file
from anytime.network import Network, eval_mode
from anytime.tables import Table

FILE = "profile.json"
PAUSE = 0.01
"""Seconds of sleep after which a network has rested, where that is measured."""


@dataclass(frozen=True)
class Profile:
    """How long each stage and each head takes, in seconds; one entry per stage, shallow to deep.

    Args:
        stages: seconds of each stage alone.
        heads: seconds of the head after each stage; None after a stage that has no exit.
        kind: the device, threads and input that it was measured with.
        rested: seconds of each stage after a pause, which take longer: caches are cold.
    """

    stages: list[float]
    heads: list[float | None]
    kind: Kind | None = None
    rested: list[float] | None = None

    def __str__(self) -> str:
        """One line per exit: milliseconds of its stages and head, and up to its prediction."""
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        ends = [i for i, head in enumerate(self.heads) if head is not None]
        begins = [0, *(end + 1 for end in ends)]
        rows = []
        for exit, (begin, end) in enumerate(zip(begins, ends, strict=False)):
            seconds = [sum(self.stages[begin : end + 1]), self.heads[end] or 0, self.alone[exit], self.through[exit]]
            rows.append([str(exit + 1), *(f"{1000 * each:.2f}" for each in seconds)])
        return Table(["exit", "stages ms", "head ms", "this head only", "all heads"], rows)

    def plot(self, ax: Any = None) -> Any:
        """Draw when each stage and each head runs, from the input on.

        Args:
            ax: the axes to draw on; by default new ones.

        Returns:
            The axes.
        """
        axis = new_axes() if ax is None else ax
        ends = [1000 * end for end in accumulate(self.stages)]
        rows = range(1, len(ends) + 1)
        axis.barh(
            rows, [1000 * each for each in self.stages], left=[0, *ends[:-1]], color=OTHER_COLORS[0], label="stage"
        )
        heads = [
            (row, end, 1000 * head) for row, end, head in zip(rows, ends, self.heads, strict=True) if head is not None
        ]
        places, begins, widths = zip(*heads, strict=True)
        axis.barh(places, widths, left=begins, color=OTHER_COLORS[1], label="head: an answer at its end")
        axis.invert_yaxis()
        axis.yaxis.get_major_locator().set_params(integer=True)
        axis.set(xlabel="milliseconds since the input, without the heads of earlier exits", ylabel="stage")
        finish(axis)
        return axis

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

    def save(self, folder: str | Path) -> Path:
        """Write it beside a model as ``profile.json``, replacing one of the same kind."""
        return add_to_file(Path(folder) / FILE, "profiles", read_profiles(folder), self)


def read_profiles(folder: str | Path) -> list[Profile]:
    """Read the profiles that ``Profile.save`` wrote beside a model."""
    fix = "delete it and measure again with anytime.profile(net, x).save(folder)"
    return read_from_file(Path(folder) / FILE, "profiles", _checked, fix)


def _checked(entry: dict[str, Any], kind: Kind) -> Profile:
    stages, heads, rested = list(entry["stages"]), list(entry["heads"]), list(entry.get("rested") or entry["stages"])
    numbers = [*stages, *rested, *(seconds for seconds in heads if seconds is not None)]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < 1e9 for n in numbers):
        raise ValueError("seconds must be numbers >= 0")
    if len(rested) != len(stages):
        raise ValueError("stages and rested must have the same length")
    return Profile(stages, heads, kind, rested)


def remember(net: Network, profile: Profile) -> StageTimes:
    """Make predictions of the network use a profile."""
    if profile.kind is None:
        raise AnytimeError("this profile does not say what it was measured with: make it with anytime.profile(net, x)")
    if len(profile.stages) != len(net.stage_exits):
        raise AnytimeError(
            f"the profile has {len(profile.stages)} stages, the network {len(net.stage_exits)}: it is of another "
            "network"
        )
    times_of(net)[profile.kind] = times = StageTimes(profile.stages, profile.heads)
    times.rested = StageTimes(profile.rested or profile.stages, profile.heads)
    return times


def times_of(net: Any) -> dict[Kind, StageTimes]:
    """The times known of a network, kept on it until ``net.forget()``; predictions learn them."""
    try:
        return vars(net).setdefault("_times", {})
    except TypeError:  # an object with __slots__
        return {}


def profile(net: Network, example: Any, repeats: int = 30, warmup: int = 5) -> Profile:
    """Measure how long each stage and head takes (medians), in a row and rested; ``predict`` uses it from then on.

    Args:
        net: the network; it is measured as it is (device, threads, memory format), in eval mode.
        example: an input like those of the predictions, on the network's device; or batches (a ``DataLoader``), of
            which the first is taken.
        repeats: number of runs that the medians are taken over; half as many after a pause each.
        warmup: number of runs before those, not counted.

    Examples:
        >>> import anytime
        >>> import torch
        >>> net = anytime.create_model("resann-1-8")
        >>> profile = anytime.profile(net, torch.zeros(1, 3, 32, 32), repeats=3)
        >>> len(profile.stages), profile.deepest(deadline=60.0)
        (3, 2)
    """
    repeats, warmup = check_integer("repeats", repeats), check_integer("warmup", warmup, least=0)
    if not isinstance(net, Network):
        raise AnytimeError(
            f"profile expects an AnytimeNetwork, not a {type(net).__name__}: anytime.convert(model, example) makes one"
        )
    if isinstance(example, DataLoader):
        first = next(batches_of(net, example), None)
        if first is None:
            raise AnytimeError("there are no batches to take an example from")
        example = first.inputs
    example = as_input(net, example)
    with eval_mode(net), explained(net, example):
        runs = measure(net, example, repeats, warmup)
        rested = measure(net, example, max(repeats // 2, 1), pause=PAUSE)
    times = joined(runs)
    after_pause = [stage for stage, _ in joined(rested)]
    found = Profile([stage for stage, _ in times], [head for _, head in times], kind_of(example), after_pause)
    known = remember(net, found)
    known.measured(runs)
    known.rested.measured(rested)
    return found
