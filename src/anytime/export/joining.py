"""Stages up to an exit that is wanted, and its head, as one graph: boundaries between stages cost time."""

import threading
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from anytime.export.description import Description, GraphFile, Runner, Runners
from anytime.export.graphs import LOGITS

MOST = 8
"""So many sets of wanted exits get graphs of their own, which take memory; any others run stage by stage."""


class Segment(NamedTuple):
    """The stages from one wanted exit to the next, and its head, as one graph."""

    exit: int
    run: Runner
    """Returns the values that ``returns`` names, and the logits after them."""
    returns: list[str]
    """The values that it makes and that are needed after it."""
    kept: list[str]
    """The values from before it that are needed after it."""


class Segments:
    """Segments by the exits that are wanted; made when they are needed for the first time."""

    def __init__(self, description: Description, runners: Runners) -> None:
        self._description, self._runners = description, runners
        self._ways: dict[frozenset[int], list[Segment] | None] = {}
        self._made: dict[tuple[int, int, bool], Segment | None] = {}
        self._lock = threading.Lock()

    def through(self, exits: frozenset[int]) -> list[Segment] | None:
        """The segments that end at these exits, shallow to deep; None if their stages are to run one by one."""
        if exits not in self._ways:
            with self._lock:
                if len(self._ways) >= MOST and exits not in self._ways:
                    return None
                self._ways[exits] = self._way(sorted(exits))
        return self._ways[exits]

    def _way(self, exits: list[int]) -> list[Segment] | None:
        starts, segments = [0, *(exit + 1 for exit in exits)], []
        for start, exit in zip(starts, exits, strict=False):
            key = (start, exit, exit == exits[-1])
            if key not in self._made:
                self._made[key] = self._make(*key)
            segments.append(self._made[key])
        return None if None in segments else segments

    def _make(self, start: int, exit: int, last: bool) -> Segment | None:
        described, join = self._description, self._runners.join
        stages = described.stages[start : exit + 1]
        graphs = [*stages, described.heads[exit]]
        made = {name for stage in stages for name in stage.outputs}
        takes = dict.fromkeys(name for graph in graphs for name in graph.inputs if name not in made)
        state = [] if last else described.states[exit]
        returns, kept = ([name for name in state if (name in made) is inside] for inside in (True, False))
        run = join and join(graphs, GraphFile("joined", list(takes), [*returns, LOGITS]))
        return run and Segment(exit, run, returns, kept)


def joined(onnx: Any, models: Mapping[str, Any], as_one: GraphFile) -> Any:
    """Models as one. Values that go between them have the same name in both; all other names are made different.

    Args:
        onnx: the package.
        models: by file, in the order in which they run; they are changed. ``can_join`` must be true of them.
        as_one: what the joined model takes and returns.
    """
    whole, values, opsets = onnx.GraphProto(name=as_one.file), {}, {}
    for file, model in models.items():
        graph = model.graph
        between = {value.name: value for value in (*graph.input, *graph.output)}
        _rename(graph, set(between), file)
        whole.node.extend(graph.node)
        whole.initializer.extend(graph.initializer)
        values |= between
        opsets |= {each.domain: each for each in model.opset_import}
    whole.input.extend(values[name] for name in as_one.inputs)
    whole.output.extend(values[name] for name in as_one.outputs)
    newest = max(model.ir_version for model in models.values())
    return onnx.helper.make_model(whole, opset_imports=list(opsets.values()), ir_version=newest)


def can_join(models: Iterable[Any]) -> bool:
    """Whether models use the same versions of operations, and nothing that belongs to a whole model."""
    versions: dict[str, set[int]] = {}
    for model in models:
        if model.functions or model.graph.sparse_initializer:
            return False
        for each in model.opset_import:
            versions.setdefault(each.domain, set()).add(each.version)
    return all(len(found) == 1 for found in versions.values())


def _rename(graph: Any, between: set[str], prefix: str) -> None:
    """Give the names in a graph and in the graphs inside its nodes a prefix, except those of values between models."""

    def renamed(name: str) -> str:
        return name if not name or name in between else f"{prefix}/{name}"

    for tensor in graph.initializer:
        tensor.name = renamed(tensor.name)
    for node in graph.node:
        node.name = renamed(node.name)
        node.input[:], node.output[:] = map(renamed, node.input), map(renamed, node.output)
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                for value in (*inner.input, *inner.output):
                    value.name = renamed(value.name)
                _rename(inner, between, prefix)
