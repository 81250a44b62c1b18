"""What is exported: one graph for each stage and one for each head, and the named values that go between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from anytime.cost import Costs, count_params, known_costs
from anytime.ensemble.eann import EANN
from anytime.errors import AnytimeError
from anytime.network import Network, clone_tensors, eval_mode

Unit = tuple[nn.Module, nn.Module | None]


@dataclass(frozen=True)
class Value:
    """A tensor that a graph takes or returns."""

    type: str
    """Its type, e.g. ``float32``."""
    shape: tuple[int | str, ...]
    """Sizes. ``batch`` is the number of samples, ``4*batch`` four rows for each; ``any`` may be any size."""


@dataclass
class Graph:
    """A stage or a head as a function of tensors.

    Attributes:
        modules: what runs, one after another.
        structure: of the state that the first of them takes: its leaves that are no tensors, None for those that are.
        inputs: the names of the tensors in it.
        example: those tensors.
        result: what the last module returned for them.
        outputs: the names of the tensors that are returned.
        wanted: where they are among the leaves of the result.
    """

    modules: list[nn.Module]
    structure: tuple[list[tuple[Any] | None], Any]
    inputs: list[str]
    example: list[Tensor]
    result: Any = None
    outputs: list[str] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """What the last module returns."""
        leaves, spec = self.structure
        given = iter(tensors)
        state = tree_unflatten([next(given) if leaf is None else leaf[0] for leaf in leaves], spec)
        for module in self.modules:
            state = module(state)
        return _each_once(state)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors that ``outputs`` names."""
        # A module may work in place, and what it is given may be needed again.
        leaves = tree_flatten(self.run([tensor.clone() for tensor in tensors]))[0]
        return tuple(leaves[i] for i in self.wanted)


@dataclass
class Staged:
    """A network as graphs; ``staged`` makes it.

    Attributes:
        net: the network.
        keys: of the input where it is a dict; None where it is a tensor; its length where it is a tuple or list.
        input: the names of the tensors of the input.
        stages: the graph up to each exit, from the exit before.
        heads: the graph of each exit.
        exits: which exits of the network these are.
        values: all tensors that go between the graphs, by name.
        costs: of the exits, for one sample.
    """

    net: Network
    keys: list[str] | int | None
    input: list[str]
    exits: list[int]
    costs: Costs
    stages: list[Graph] = field(default_factory=list)
    heads: list[Graph] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)

    @property
    def graphs(self) -> dict[str, Graph]:
        """All graphs by name, in the order in which they run."""
        named: dict[str, Graph] = {}
        for i, (stage, head) in enumerate(zip(self.stages, self.heads, strict=True), start=1):
            named |= {f"stage-{i:02d}": stage, f"head-{i:02d}": head}
        return named


LOGITS = "logits"


def staged(net: Network, example: Any, exits: Iterable[int] | None = None, other: Any = None) -> Staged:
    """Follow an example through the network and note which tensors go from stage to stage.

    Args:
        net: the network.
        example: an input.
        exits: the exits to keep, counted from 0; stages without one are joined with the next.
        other: an input of other sizes; sizes that differ may be any.
    """
    if not isinstance(net, Network):
        raise AnytimeError(f"a {type(net).__name__} is not an anytime network: see anytime.convert")
    if net.paused_because:
        raise AnytimeError(f"this network has no graph, so there is nothing to export: {net.paused_because}")
    wanted = net.exit_indices(exits)
    if not wanted:
        raise AnytimeError("exits is empty: name at least one exit, e.g. exits=[3, 8, 26]")
    with eval_mode(net), torch.no_grad():
        found = [_followed(net, wanted, x) for x in (samples(example, 2), samples(example, 3))]
        sizes = [_followed(net, wanted, samples(other, 2))] if other is not None else []
        costs = _costs(net, wanted, samples(example, 1))
    for (stage, _), (same, _) in zip(found[0], sizes[0] if sizes else (), strict=False):
        if stage.structure[1] != same.structure[1]:
            raise AnytimeError(
                "this converted network has another graph for the sizes of `other`: leave `other` out, and export the "
                "network once for each size that is needed"
            )
    two, three = (_sizes(each) for each in found)
    free = _sizes(sizes[0]) if sizes else two
    names, keys = _names(example)
    result = Staged(net, keys, names, sorted(wanted), costs)
    result.stages = [stage for stage, _ in found[0]]
    result.heads = [head for _, head in found[0]]
    for name, (kind, shape) in two.items():
        if name not in three or name not in free:
            raise AnytimeError("its stages pass other values on for another number of samples: it cannot be exported")
        result.values[name] = Value(kind, _shape(name, shape, three[name][1], free[name][1]))
    return result


def _followed(net: Network, wanted: frozenset[int], x: Any) -> list[tuple[Graph, Graph]]:
    """Each stage and head, as it is for this input."""
    names, _ = _names(x)
    graphs: list[tuple[Graph, Graph]] = []
    for chain in _chains(net, wanted):
        state: Any = clone_tensors(x)
        known = dict(zip(map(id, _tensors(state)), names, strict=True))
        modules: list[nn.Module] = []
        for stage, head in chain:
            modules.append(stage)
            if head is None:
                continue
            number = len(graphs) + 1
            run = _graph(modules, state, known)
            versions = {id(tensor): tensor._version for tensor in run.example}
            state = run.result = run.run(run.example)
            known = _name_results(run, known, versions, f"state_{number:02d}")
            answer = _graph([head], state, known)
            answer.result, answer.outputs, answer.wanted = head(state), [LOGITS], [0]
            if not isinstance(answer.result, Tensor):
                raise AnytimeError(f"head {number} returns a {type(answer.result).__name__}; expected a tensor")
            graphs.append((run, answer))
            modules = []
    return graphs


def _each_once(state: Any) -> Any:
    """The state with a copy of a tensor wherever it is there again: every value has a name of its own."""
    leaves, spec = tree_flatten(state)
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and any(leaf is other for other in leaves[:i]):
            leaves[i] = leaf.clone()
    return tree_unflatten(leaves, spec)


def _graph(modules: list[nn.Module], state: Any, known: dict[int, str]) -> Graph:
    leaves, spec = tree_flatten(state)
    structure = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves], spec
    tensors = _tensors(state)
    return Graph(modules, structure, [known[id(tensor)] for tensor in tensors], tensors)


def _name_results(graph: Graph, known: dict[int, str], versions: dict[int, int], prefix: str) -> dict[int, str]:
    """Name the tensors of a new state, by id: those that passed through unchanged keep the names that they had."""
    leaves = tree_flatten(graph.result)[0]
    tensors = [(i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    kept = {id(t) for _, t in tensors if id(t) in known and t._version == versions[id(t)]}
    if kept == {id(t) for _, t in tensors}:  # a graph returns at least one tensor
        kept = set()
    named = {each: known[each] for each in kept}
    for i, tensor in tensors:
        if id(tensor) not in named:
            named[id(tensor)] = f"{prefix}_{len(graph.outputs)}"
            graph.outputs.append(named[id(tensor)])
            graph.wanted.append(i)
    return named


def _chains(net: Network, wanted: frozenset[int]) -> list[list[Unit]]:
    """The stages that run, each with its head or None; each chain begins with the input of the network."""
    if not isinstance(net, EANN):
        units = net.units[: max(wanted) + 1]
        return [[(stage, head if i in wanted else None) for i, (stage, head) in enumerate(units)]]
    chains: dict[int, list[Unit]] = {}
    exits: dict[int, set[int]] = {}
    for member, exit in (net.offered[i] for i in sorted(wanted)):
        exits.setdefault(member, set()).add(exit)
    for member, chosen in exits.items():
        units: list[Unit] = net.members[member].units[: max(chosen) + 1]  # type: ignore[index, union-attr, assignment]
        chains[member] = [(stage, head if i in chosen else None) for i, (stage, head) in enumerate(units)]
    return list(chains.values())


def _costs(net: Network, wanted: frozenset[int], example: Any) -> Costs:
    whole, order = known_costs(net, example), sorted(wanted)
    heads = [whole.heads[i] for i in order]
    macs = [whole.alone[exit] + sum(heads[:i]) for i, exit in enumerate(order)]
    units = [unit for chain in _chains(net, wanted) for unit in chain]
    return Costs(macs, count_params(units), heads)


def _sizes(graphs: list[tuple[Graph, Graph]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of every named value."""
    sizes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for stage, head in graphs:
        for graph in (stage, head):
            for name, tensor in zip(graph.inputs, graph.example, strict=True):
                sizes[name] = (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        answer = (str(head.result.dtype).removeprefix("torch."), tuple(head.result.shape))
        sizes[LOGITS] = _either(sizes.get(LOGITS, answer), answer)
    return sizes


def _either(first: tuple[str, tuple[int, ...]], second: tuple[str, tuple[int, ...]]) -> tuple[str, tuple[int, ...]]:
    """Type and shape of what two heads return; sizes that differ are −1."""
    if first[0] != second[0] or len(first[1]) != len(second[1]):
        raise AnytimeError(
            f"one head returns {first[0]} of {len(first[1])} dimensions, another {second[0]} of {len(second[1])}: "
            "export them one by one, e.g. with exits=[0]"
        )
    return first[0], tuple(a if a == b else -1 for a, b in zip(first[1], second[1], strict=True))


def _shape(name: str, two: tuple[int, ...], three: tuple[int, ...], other: tuple[int, ...]) -> tuple[int | str, ...]:
    """The sizes of a value, from those for two and for three samples and those for another input of two."""
    shape: list[int | str] = []
    for a, b, c in zip(two, three, other, strict=True):
        if a != b:
            each = a // 2
            if a != c or (2 * each, 3 * each) != (a, b) or any(isinstance(s, str) and "batch" in s for s in shape):
                raise AnytimeError(
                    f"{name} has the shapes {two} and {three} for two and three samples: a size must be a multiple of "
                    "the number of samples"
                )
            shape.append("batch" if each == 1 else f"{each}*batch")
        else:
            shape.append("any" if a != c or a < 0 else a)
    return tuple(shape)


def _names(x: Any) -> tuple[list[str], list[str] | int | None]:
    """Names for the tensors of an input, and how it holds them."""
    if isinstance(x, Tensor):
        return ["input"], None
    if isinstance(x, dict) and x and all(isinstance(v, Tensor) and isinstance(k, str) for k, v in x.items()):
        return [f"input.{key}" for key in x], list(x)
    if isinstance(x, tuple | list) and x and all(isinstance(v, Tensor) for v in x):
        return [f"input.{i}" for i in range(len(x))], len(x)
    raise AnytimeError(
        f"the example is a {type(x).__name__}; expected a tensor, or a dict, tuple or list of tensors and nothing else"
    )


def _tensors(state: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(state)[0] if isinstance(leaf, Tensor)]


def samples(x: Any, count: int) -> Any:
    """The first samples of an input, again and again until there are so many."""

    def cut(tensor: Tensor) -> Tensor:
        if not len(tensor):
            raise AnytimeError("the example has no samples: give at least one")
        return tensor[torch.arange(count, device=tensor.device) % len(tensor)]

    _names(x)
    if isinstance(x, Tensor):
        return cut(x)
    if isinstance(x, dict):
        return {key: cut(value) for key, value in x.items()}
    return type(x)([cut(value) for value in x])
