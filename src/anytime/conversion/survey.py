"""Where a model can exit: its module calls, what they give and cost, and those nearest to what was asked for."""

import difflib
from dataclasses import dataclass
from math import ceil
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from anytime.conversion.pausing import Place, Watch, first_tensor
from anytime.conversion.stages import Trunk
from anytime.cost import counting, on_meta, shapes
from anytime.errors import AnytimeError

NEGLIGIBLE = 0.05
"""What is left after the last named exit may cost this share of the whole for the model's own classifier to be it."""


@dataclass(frozen=True)
class Found:
    """A module call in the model's forward pass."""

    place: Place
    fraction: float
    """Of the model's MACs, spent when it ended."""
    shape: tuple[int, ...] | None
    """Of its output, where that is or begins with a floating-point tensor."""
    order: int
    live: int = 0
    """How many tensors would cross a cut here; fewer is better."""
    node: Any = None


class Survey:
    """One run of the model: which modules are called, in which order, what they give and cost."""

    def __init__(self, trunk: Trunk, example: Any) -> None:
        calls: list[tuple[Place, int, tuple[int, ...] | None]] = []
        self.batch = next(len(leaf) for leaf in tree_leaves(example) if isinstance(leaf, Tensor))

        def note(place: Place, output: Any) -> None:
            features = first_tensor(output)
            usable = features is not None and features.is_floating_point() and features.ndim > 1
            calls.append((place, counter.get_total_flops(), tuple(features.shape) if usable else None))  # type: ignore[union-attr]

        self.logits = trunk(example)
        try:  # shapes alone: torch counts more there than of the fused kernels of a processor
            twin, shaped = on_meta(trunk), shapes(example)
            with counting() as counter, Watch(twin.model, None, note):
                twin(shaped)
        except Exception:
            calls.clear()
            with counting() as counter, Watch(trunk.model, None, note):
                trunk(example)
        if not isinstance(self.logits, Tensor) or self.logits.ndim < 2 or len(self.logits) != self.batch:
            raise AnytimeError(f"the model's logits are {what(self.logits)}; expected a tensor of samples × classes")
        total = max(counter.get_total_flops(), 1)
        self.found = [Found(place, macs / total, shape, i) for i, (place, macs, shape) in enumerate(calls)]

    def times_called(self, name: str) -> int:
        """How often a module was called."""
        return sum(found.place[0] == name for found in self.found)

    def called(self, after: int, until: int) -> list[str]:
        """The modules that ended between two calls."""
        return list(dict.fromkeys(found.place[0] for found in self.found if after < found.order <= until))


def choose(model: nn.Module, survey: Survey, usable: list[Found], exits: Any) -> list[Found]:
    """The module calls after which to exit, without the model's own end."""
    if isinstance(exits, str | list | tuple):
        return _named(model, survey, usable, [exits] if isinstance(exits, str) else list(exits))
    if isinstance(exits, int) and not isinstance(exits, bool) and exits >= 1:
        targets = [i / exits for i in range(1, exits)]
        width = 0.5 / exits
    elif isinstance(exits, float) and 0 < exits <= 1:
        targets = [exits * i for i in range(1, ceil(1 / exits - 1e-9))]
        width = exits / 2
    else:
        raise AnytimeError(
            f"exits={exits!r}: it is a whole number from 1, a share of the cost up to 1, or modules' names"
        )
    chosen: list[Found] = []
    for target in targets:
        after = chosen[-1] if chosen else None
        left = [f for f in usable if after is None or (f.order > after.order and f.fraction > after.fraction)]
        left = [f for f in left if 0 < f.fraction < 1 - min(NEGLIGIBLE, width / 2)]
        if not left:
            raise AnytimeError(
                f"exits={exits!r}: this model has places for {len(chosen) + 1} only; ask for fewer, or name the modules"
            )
        near = [f for f in left if abs(f.fraction - target) <= width] or left
        least = min(f.live for f in near)
        # Between places as good, the block rather than a part of it.
        depth = {f: _depth(f.place[0]) for f in near}
        best = min(
            (f for f in near if f.live == least), key=lambda f: abs(f.fraction - target) + 0.2 * width * depth[f]
        )
        chosen.append(best)
    return chosen


def _depth(name: str) -> float:
    """How deep inside the model a module is; numbers in lists of blocks hardly count."""
    return sum(not part.isdigit() for part in name.split(".")) + 0.05 * name.count(".")


def _named(model: nn.Module, survey: Survey, usable: list[Found], names: list[str]) -> list[Found]:
    modules = dict(model.named_modules())
    chosen: list[Found] = []
    for name in names:
        if name not in modules or not name:
            near = (
                difflib.get_close_matches(str(name), modules, n=3, cutoff=0.5) or list(dict(model.named_children()))[:5]
            )
            raise AnytimeError(f"the model has no module {name!r}; the nearest are: {', '.join(near)}")
        times = survey.times_called(name)
        if times != 1:
            called = "is not called in the forward pass" if not times else f"is called {times} times"
            raise AnytimeError(
                f"{name} {called}, so `after {name}` is no place for an exit; give exits as a number, or name another"
            )
        found = next((f for f in usable if f.place[0] == name), None)
        ends = next(f.fraction for f in survey.found if f.place[0] == name) >= 1 - NEGLIGIBLE
        if found is None and ends and chosen and name == names[-1]:
            return chosen  # the model's own end
        if found is None:
            raise AnytimeError(
                f"{name} gives no tensor with a row for each sample that the model goes on with: name another"
            )
        if chosen and found.order <= chosen[-1].order:
            raise AnytimeError(f"exits out of order: {name} ends before {chosen[-1].place[0]} does, or with it")
        chosen.append(found)
    if not chosen:
        raise AnytimeError("exits=[]: name at least one module")
    own = chosen[-1].fraction >= 1 - NEGLIGIBLE
    return chosen[:-1] if own else chosen


def what(output: Any) -> str:
    """A model's output in words, for messages."""
    if isinstance(output, Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    names = list(output) if isinstance(output, dict) else list(getattr(output, "__dict__", {}))
    return f"{type(output).__name__}({', '.join(map(str, names))})"
