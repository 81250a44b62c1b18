"""The stages of a captured model, and the state that is passed between them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import register_pytree_node, tree_flatten, tree_leaves, tree_map

from anytime.errors import AnytimeError
from anytime.rows import OwnRows, Rows

StageFunction = Callable[..., tuple[Any, ...]]
"""The code of a stage: from the trunk and the incoming values to the outgoing values."""


class Trunk(nn.Module):
    """The user's model as a function from one input to one tensor of logits.

    Args:
        model: called with a tensor as its argument, a dict as keyword arguments, a tuple or list as arguments.
        logits: returns the logits, given the model's output.
    """

    def __init__(self, model: nn.Module, logits: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.logits = model, logits
        self.frozen = self.tuned = False
        """Tuned: all parameters are trained, and batch norm keeps its statistics."""
        self.trained: tuple[str, ...] = ()
        """The modules of the model that are trained though the rest is frozen."""

    def forward(self, x: Any) -> Tensor:
        """The model's own logits."""
        return self.logits(self.output(x))

    def output(self, x: Any) -> Any:
        """What the model itself returns."""
        if isinstance(x, Mapping):
            return self.model(**x)
        return self.model(*x) if isinstance(x, tuple | list) else self.model(x)

    def train(self, mode: bool = True) -> "Trunk":
        """A frozen trunk stays in eval mode, but for the modules that are trained; batch norm does in a tuned one."""
        super().train(mode and not self.frozen)
        for name in self.trained:
            self.model.get_submodule(name).train(mode)
        if self.tuned:
            for module in self.model.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


@dataclass(frozen=True)
class Carried(OwnRows):
    """The state between two stages: the values that cross the cut."""

    values: tuple[Any, ...]
    layout: tuple[Rows | None, ...]
    form: int = 0
    """Which of the captured graphs it is a state of: there is another one for other image sizes."""
    size: tuple[int, ...] = ()
    """Height and width of the image that went in, which heads with an output per pixel follow."""

    def entries(self) -> list[tuple[Any, Rows | None]]:
        """Each value with its rows."""
        return list(zip(self.values, self.layout, strict=True))

    def with_values(self, values: list[Any]) -> "Carried":
        """The same with other values."""
        return replace(self, values=tuple(values))


register_pytree_node(
    Carried,
    lambda carried: (list(carried.values), (carried.layout, carried.form, carried.size)),
    lambda values, about: Carried((*values,), *about),
)


class StageCode(NamedTuple):
    """What a stage does in one of the captured graphs."""

    run: StageFunction
    layout: tuple[Rows | None, ...]
    reads: list[str]
    """The attributes of the trunk that it uses."""
    inputs: "Inputs"
    """Of the whole graph."""


class GraphStage(nn.Module):
    """A part of the captured graph. It has no parameters of its own: it uses those of the trunk.

    Args:
        trunk: the model.
        parts: for each captured graph, what it does there; there may come more.
        form: of the first stage: which graph an input is for.
    """

    def __init__(self, trunk: Trunk, parts: list[StageCode], form: Callable[[Any], int] | None = None) -> None:
        super().__init__()
        self._trunk = (trunk,)  # in a tuple, so that it is not a submodule a second time
        self.parts, self.form = parts, form

    def forward(self, state: Any) -> Carried:
        """The state after this stage."""
        if isinstance(state, Carried):
            form, values, size = state.form, state.values, state.size
        else:
            form = self.form(state) if self.form else 0
            values, size = self.parts[form].inputs.flatten(state), image_size(state)
        part = self.parts[form]
        return Carried(part.run(self._trunk[0], *values), part.layout, form, size)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:  # noqa: ARG002
        """The model's parameters that this stage uses."""
        named = dict(self._trunk[0].named_parameters(remove_duplicate=False))
        return iter({id(named[name]): named[name] for name in self.parts[0].reads if name in named}.values())


def image_size(x: Any) -> tuple[int, ...]:
    """Height and width of the image in an input, or its length if it has one dimension; empty if there is none."""
    images = (leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor) and leaf.is_floating_point())
    return next((tuple(leaf.shape[2:]) for leaf in images if leaf.ndim > 2), ())


@dataclass(frozen=True)
class Inputs:
    """The inputs of the captured graph: the structure of the example, and the sizes that are allowed."""

    spec: Any
    leaves: list[Any]
    """For each leaf of the example: the smallest and largest size of each dimension of a tensor, or the value."""
    keys: list[str] | None

    def __deepcopy__(self, _memo: Any) -> "Inputs":
        return self  # immutable

    def flatten(self, x: Any) -> list[Tensor]:
        """The tensors of an input, which must have the example's structure and shapes."""
        leaves = self.leaves_of(x)
        for leaf, expected in zip(leaves, self.leaves, strict=True):
            if not _fits(leaf, expected):
                raise AnytimeError(f"got {_form(leaf)} where the model was captured with {_shape(expected)}")
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def leaves_of(self, x: Any) -> list[Any]:
        """The tensors and other values of an input, in the order of the example's."""
        if self.keys is not None and isinstance(x, Mapping) and sorted(x) == sorted(self.keys):
            x = {key: x[key] for key in self.keys}
        leaves, spec = tree_flatten(x)
        alike = zip(leaves, self.leaves, strict=False)
        if spec != self.spec or any(isinstance(leaf, Tensor) != isinstance(wanted, tuple) for leaf, wanted in alike):
            raise AnytimeError(f"got an input of the form {_form(x)}; the example was of the form {self._example()}")
        return leaves

    def fit(self, leaves: Sequence[Any]) -> bool:
        """Whether the graph is valid for an input of these leaves."""
        return all(map(_fits, leaves, self.leaves))

    def _example(self) -> str:
        return str(dict.fromkeys(self.keys, "…")) if self.keys is not None else f"{len(self.leaves)} tensors"


def _fits(leaf: Any, expected: Any) -> bool:
    if not isinstance(leaf, Tensor):
        return leaf == expected
    sizes = zip(expected, leaf.shape, strict=False)
    return leaf.ndim == len(expected) and all(least <= n <= most for (least, most), n in sizes)


def _form(x: Any) -> str:
    return str(tree_map(lambda leaf: tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf, x))


def _shape(expected: Any) -> str:
    if not isinstance(expected, tuple):
        return repr(expected)
    return "a tensor of shape (" + ", ".join(map(describe_size, expected)) + ")"


def describe_size(bounds: tuple[int, float]) -> str:
    """The sizes between two bounds, in words."""
    least, most = bounds
    return str(least) if least == most else "any" if most == inf else f"{least} to {most}"
