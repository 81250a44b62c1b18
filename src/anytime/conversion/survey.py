"""Where a model can exit: its module calls, their outputs and costs, and the choice of the places for the exits."""

import difflib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from anytime.conversion.outputs import OwnForm, describe, find_logits, first_tensor, is_packed
from anytime.conversion.pausing import CallHook, Place
from anytime.conversion.stages import Trunk
from anytime.cost import counting
from anytime.errors import AnytimeError
from anytime.meta import on_meta, shapes

LAST = 16
"""Of so many calls that end last the outputs are looked at, and kept in memory until the model's own end."""
NEGLIGIBLE = 0.05
"""If less than this share of the cost follows a named module, the model's own classifier is that exit."""


@dataclass(frozen=True)
class Found:
    """A module call in the model's forward pass."""

    place: Place
    fraction: float
    """Share of the model's MACs that are spent when the call ends."""
    shape: tuple[int, ...] | None
    """Of the first tensor in its output; None if there is none, or not one of floating-point features."""
    order: int
    live: int = 0
    """How many tensors would cross a cut here; fewer is better."""
    node: Any = None
    """In the captured graph."""
    batch_dim: int = 0
    """The dimension of the output that holds the samples."""


class Survey:
    """One run of the model: which modules are called, in which order, with which outputs and costs."""

    def __init__(self, trunk: Trunk, example: Any) -> None:
        calls: list[tuple[Place, int, tuple[int, ...] | None]] = []
        self.batch = next(len(leaf) for leaf in tree_leaves(example) if isinstance(leaf, Tensor))
        self.packed: list[str] = []
        """Modules that return packed sequences."""

        def note(place: Place, output: Any) -> None:
            features = first_tensor(output)
            usable = features is not None and features.is_floating_point() and features.ndim > 1
            calls.append((place, counter.get_total_flops(), tuple(features.shape) if usable else None))  # type: ignore[union-attr]
            if is_packed(output):
                self.packed.append(place[0])

        self.ends: list[str] = []
        """Modules that are called once, with one tensor of samples, and return the logits: innermost first."""
        self.logits = self._run(trunk, example)
        try:  # shapes alone: on a processor torch does not count all fused kernels
            twin, shaped = on_meta(trunk), shapes(example)
            with counting() as counter, CallHook(twin.model, None, note):
                twin(shaped)
        except Exception:
            calls.clear()
            self.packed.clear()
            with counting() as counter, CallHook(trunk.model, None, note):
                trunk(example)
        self.macs = counter.get_total_flops()
        self.found = [Found(place, macs / max(self.macs, 1), shape, i) for i, (place, macs, shape) in enumerate(calls)]

    def _run(self, trunk: Trunk, example: Any) -> Tensor:
        """The model's own output."""
        ended: deque[tuple[str, Any, int]] = deque(maxlen=LAST)
        calls: Counter[str] = Counter()

        def note(name: str, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            one = len(given) == 1 and not named and isinstance(given[0], Tensor) and len(given[0]) == self.batch
            ended.append((name, output if one else None, changes(output)))
            calls[name] += 1

        hooks = [
            module.register_forward_hook(
                lambda _module, given, named, output, name=name: note(name, given, named, output), with_kwargs=True
            )
            for name, module in trunk.model.named_modules()
            if name
        ]
        try:
            output = trunk.output(example)
            logits = trunk.logits(output)
        except AnytimeError:
            raise
        except Exception as error:
            stars = "**" if isinstance(example, dict) else "*" if isinstance(example, tuple | list) else ""
            call = f"model({stars}example)" if trunk.logits is find_logits else f"logits(model({stars}example))"
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise AnytimeError(f"{call} fails for this {type(trunk.model).__name__}: {reason}") from error
        finally:
            for hook in hooks:
                hook.remove()
        if not isinstance(logits, Tensor) or logits.ndim < 2 or len(logits) != self.batch:
            raise AnytimeError(
                f"the logits are {describe(logits)} for an example of {self.batch} samples; expected a tensor of "
                "samples × classes, or with more dimensions after the samples"
            )
        same = [name for name, output, then in ended if output is logits and then == changes(logits)]
        self.ends = [name for name in same if calls[name] == 1]
        self.form = OwnForm.of(output) if trunk.logits is find_logits else OwnForm(Tensor, None)
        return logits

    def times_called(self, name: str) -> int:
        """How many times a module was called."""
        return sum(found.place[0] == name for found in self.found)

    def names(self, places: Sequence[Place]) -> list[str]:
        """What the exits at these places are called, and the last one, which is the model's own."""
        once = [self.times_called(name) == 1 for name, _ in places]
        named = [n if one else f"{n}, call {call + 1}" for (n, call), one in zip(places, once, strict=True)]
        return [*named, "the model's own"]

    def called(self, after: int, until: int) -> list[str]:
        """The modules whose calls ended between two calls."""
        return list(dict.fromkeys(found.place[0] for found in self.found if after < found.order <= until))


def changes(output: Any) -> int:
    """How often a tensor has been changed in place; 0 where torch does not count it."""
    return output._version if isinstance(output, Tensor) and not output.is_inference() else 0


def choose(model: nn.Module, survey: Survey, usable: list[Found], exits: Any) -> list[Found]:
    """The module calls after which the exits go, without the model's own output."""
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
            f"exits={exits!r}: must be an integer >= 1, a share of the cost (a float > 0 and <= 1) or a list of "
            "modules' names"
        )
    if targets and not survey.macs:
        raise AnytimeError(
            f"exits={exits!r}: no multiply-accumulates are counted in {type(model).__name__}, so exits cannot be "
            f"spread over its cost; name modules instead, e.g. exits={_names(usable, 2)}"
        )
    chosen: list[Found] = []
    for target in targets:
        after = chosen[-1] if chosen else None
        left = [f for f in usable if after is None or (f.order > after.order and f.fraction > after.fraction)]
        left = [f for f in left if 0 < f.fraction < 1 - min(NEGLIGIBLE, width / 2)]
        if not left:
            most = f"this model has places for at most {len(chosen) + 1}, its own output included"
            advice = "; ask for fewer, or name modules" if chosen else ""
            raise AnytimeError(f"exits={exits!r}: {most}{_why(model, survey)}{advice}")
        near = [f for f in left if abs(f.fraction - target) <= width] or left
        least = min(f.live for f in near)
        # Of equally good places, prefer a block to a part of it.
        depth = {f: _depth(f.place[0]) for f in near}
        best = min(
            (f for f in near if f.live == least), key=lambda f: abs(f.fraction - target) + 0.2 * width * depth[f]
        )
        chosen.append(best)
    return chosen


def _names(places: list[Found], most: int) -> list[str]:
    return [found.place[0] for found in places if _depth(found.place[0]) <= 2][:most]


def _why(model: nn.Module, survey: Survey) -> str:
    """Known reasons for a lack of places."""
    if survey.packed:
        return f" ({survey.packed[0]} returns a packed sequence, after which there is no place for an exit)"
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase) and module.num_layers > 1:
            layers, kind = module.num_layers, type(module).__name__
            return (
                f" ({name or kind} computes its {layers} layers in one operation; to exit between them, use {layers} "
                f"nn.{kind} modules of one layer each)"
            )
    return ""


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
                f"{name} {called}, so `after {name}` is not one place; pass exits as a number, or name another module"
            )
        found = next((f for f in usable if f.place[0] == name), None)
        ends = next(f.fraction for f in survey.found if f.place[0] == name) >= 1 - NEGLIGIBLE
        if found is None and ends and chosen and name == names[-1]:
            return chosen  # the model's own output
        if found is None and name in survey.packed:
            raise AnytimeError(
                f"{name} returns a packed sequence, which has no row for each sample; name a module before it, or one "
                "after pad_packed_sequence"
            )
        if found is None:
            raise AnytimeError(
                f"{name} does not return a tensor that has one row for each sample and is used later; name another "
                "module"
            )
        if chosen and found.order <= chosen[-1].order:
            raise AnytimeError(f"exits are not in order: {name} does not end after {chosen[-1].place[0]}")
        chosen.append(found)
    if not chosen:
        raise AnytimeError("exits=[]: expected the name of at least one module")
    own = chosen[-1].fraction >= 1 - NEGLIGIBLE
    return chosen[:-1] if own else chosen
