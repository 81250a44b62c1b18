"""A model's graph, captured by ``torch.export`` and cut into stages that use the model's own parameters."""

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from itertools import count
from math import inf
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from anytime.conversion.stages import Inputs, StageCode, StageFunction, Trunk, describe_size
from anytime.rows import Rows

CLASS_TOKENS = {"cls_token", "class_token", "class_embedding"}
"""What public libraries call the parameter of the class token."""


class NotCaptured(Exception):
    """The model's graph cannot be captured or cut; the message says why."""


class Captured:
    """A model's graph in eval mode, for any batch size.

    Args:
        trunk: the model.
        example: an input of at least two samples.
        any_size: also for images of other sizes than the example's, where torch.export finds that the graph allows it.

    Raises:
        NotCaptured: with the reason.
    """

    def __init__(self, trunk: Trunk, example: Any, any_size: bool = False) -> None:
        self.trunk = trunk
        tensors = [leaf for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
        batch = len(tensors[0])
        program = _export(trunk, example, any_size)
        self.nodes = [node for node in program.graph.nodes if _computes(node)]
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self._read_signature(program)
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        self.users = [n for n in placeholders if n not in self.attributes and isinstance(n.meta.get("val"), Tensor)]
        self.symbols = _batch_symbols(self.users, batch)
        self.ranges = program.range_constraints
        for node in self.users:
            if self._is_batch(size := node.meta["val"].shape[0]) and self._bounds(size) != (0, inf):
                raise NotCaptured(f"its graph is valid only for {describe_size(self._bounds(size))} samples")
        self._describe_inputs(example)
        (output,) = (node for node in program.graph.nodes if node.op == "output")
        self.output: Node = tree_leaves(output.args)[0]
        self._find_calls()
        self.features: set[Node] = set()
        """Outputs of matrix products, convolutions and similar operations."""
        for node in self.nodes:
            heavy = any(word in str(node.target) for word in ("linear", "conv", "matmul", "mm", "attention", "einsum"))
            made = heavy or any(earlier in self.features for earlier in node.all_input_nodes)
            if made and isinstance(node.meta.get("val"), Tensor):
                self.features.add(node)

    def _read_signature(self, program: Any) -> None:
        """Parameter, buffer or constant of each placeholder; the trunk registers those that the model lacks."""
        self.attributes: dict[Node, str] = {}
        named = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        for spec in program.graph_signature.input_specs:
            node = named[spec.arg.name]
            if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
                self.attributes[node] = spec.target
            elif spec.kind == InputKind.CONSTANT_TENSOR:
                name = self._unused("constant")
                self.trunk.register_buffer(name, program.constants[spec.target], persistent=False)
                self.attributes[node] = name
            elif spec.kind != InputKind.USER_INPUT:
                raise NotCaptured(f"its graph takes {spec.kind.name.lower().replace('_', ' ')}")
        for node in program.graph.nodes:
            if node.op == "get_attr":
                name = self._unused("part")
                self.trunk.add_module(name, getattr(program.graph_module, node.target))
                self.attributes[node] = name

    def _unused(self, kind: str) -> str:
        """A name that is not used in the trunk yet."""
        return next(name for number in count() if not hasattr(self.trunk, name := f"{kind}_{number}"))

    def _describe_inputs(self, example: Any) -> None:
        leaves, spec = tree_flatten(example)
        shapes = iter(tuple(map(self._bounds, node.meta["val"].shape)) for node in self.users)
        described = [next(shapes) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.inputs = Inputs(spec, described, list(example) if isinstance(example, dict) else None)

    def _bounds(self, size: Any) -> tuple[int, float]:
        """The sizes for which the graph is valid. torch.export does not consider sizes 0 and 1; these are allowed."""
        if not _symbolic(size):
            return int(size), int(size)
        bounds = self.ranges.get(size.node.expr)
        if bounds is None:
            return 0, inf
        least, most = bounds.lower, bounds.upper
        return (int(least) if least > 2 else 0), (int(most) if most.is_finite and most < 2**31 else inf)

    def _find_calls(self) -> None:
        """The last node of each call of each module."""
        self.calls: dict[tuple[str, int], tuple[int, int]] = {}
        for i, node in enumerate(self.nodes):
            for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
                if path.startswith("model."):
                    call = int(key.rpartition("@")[2]) if "@" in key else 0
                    first, _ = self.calls.get((path[6:], call), (i, i))
                    self.calls[path[6:], call] = (first, i)

    def result(self, path: str, call: int, shape: tuple[int, ...]) -> Node | None:
        """The output of a module's call: its last tensor of this shape that is used later."""
        if (path, call) not in self.calls:
            return None
        first, last = self.calls[path, call]
        for node in reversed(self.nodes[first : last + 1]):
            value = node.meta.get("val")
            if isinstance(value, Tensor) and _may_be(value.shape, shape) and self.last_use(node) > last:
                return node
        return None

    def end(self, node: Node) -> int:
        """The position after which to cut so that all results of the operation that computes this value are there."""
        source = node.args[0] if node.target is getitem else None
        results = source.users if isinstance(source, Node) else [node]
        return max(self.position[result] for result in results)

    def last_use(self, node: Node) -> int:
        """The position of the last node that uses this one; the output comes last."""
        return max((self.position.get(user, len(self.nodes)) for user in node.users), default=-1)

    def live(self, position: int) -> int:
        """Number of feature tensors that cross a cut after this position, without masks."""
        return sum(node in self.features and self.last_use(node) > position for node in self.nodes[: position + 1])

    def has_class_token(self, node: Node) -> bool:
        """Whether the model has a class token that was added to the other tokens before this node."""
        tokens = [a for a, name in self.attributes.items() if name.rpartition(".")[2] in CLASS_TOKENS]
        uses = [self.position[user] for token in tokens for user in token.users if user in self.position]
        return any(use < self.position[node] for use in uses)

    def rows(self, node: Node) -> Rows | None:
        """The batch dimension of a value."""
        value = node.meta.get("val")
        for dim, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if self._depends(size):
                return Rows(dim, 1 if self._is_batch(size) else None)
        return None

    def _depends(self, size: Any) -> bool:
        return _symbolic(size) and bool(size.node.expr.free_symbols & self.symbols)

    def _is_batch(self, size: Any) -> bool:
        return _symbolic(size) and size.node.expr in self.symbols

    def cut(self, ends: Sequence[Node], extra: Sequence[int]) -> list[tuple[StageCode, int, list[int]]]:
        """Cut the graph into stages, each of which ends when one of these values is computed.

        Args:
            ends: the values at the exits, in order; the last is ``output``.
            extra: indices of inputs that heads need at every exit.

        Returns:
            Each stage's part, the index of its exit's value in its state, and the indices of the extra inputs.
        """
        stops = [*(self.end(value) for value in ends[:-1]), len(self.nodes) - 1]
        bodies = [self.nodes[a + 1 : b + 1] for a, b in zip([-1, *stops], stops, strict=False)]
        leaving: list[list[Node]] = []
        later: list[Node] = []
        for body, end in zip(reversed(bodies), reversed(ends), strict=True):
            out = list(dict.fromkeys([end, *(self.users[i] for i in extra), *later]))
            leaving.insert(0, out)
            later = self._needs(body, out)
        parts = []
        for body, end, coming, out in zip(bodies, ends, [self.users, *leaving], leaving, strict=False):
            run, reads = self._function(coming, body, out)
            part = StageCode(run, tuple(map(self.rows, out)), reads, self.inputs)
            parts.append((part, out.index(end), [out.index(self.users[i]) for i in extra]))
        return parts

    def tail(self, features: Node, extra: Sequence[int]) -> tuple[StageFunction, list[str]]:
        """A function from these features, and the inputs with these indices, to the output, and what it reads."""
        return self._function([features, *(self.users[i] for i in extra)], [], [self.output])

    def _needs(self, body: list[Node], out: list[Node]) -> list[Node]:
        """The inputs of a stage: values from earlier stages that it uses or passes on."""
        own, needed = set(body), dict[Node, None]()

        def need(node: Node) -> None:
            if node in own or node in self.attributes or node in needed or self._is_batch(node.meta.get("val")):
                return
            if self._depends(node.meta.get("val")):  # sizes that depend on the batch are computed again
                for earlier in node.all_input_nodes:
                    if not isinstance(earlier.meta.get("val"), Tensor):
                        need(earlier)
            else:
                needed[node] = None

        for node in body:
            for earlier in node.all_input_nodes:
                need(earlier)
        for node in out:
            need(node)
        return list(needed)

    def _function(self, coming: list[Node], body: list[Node], out: list[Node]) -> tuple[StageFunction, list[str]]:
        """A function from a stage's incoming to its outgoing values, and the attributes of the trunk that it reads."""
        graph = Graph()
        made = {node: graph.placeholder(f"v{i}") for i, node in enumerate(coming)}
        device = graph.call_function(getattr, (made[coming[0]], "device"))
        made[device] = device
        reads: list[str] = []

        def bring(node: Node) -> Node:
            if node not in made:
                if node in self.attributes:
                    reads.append(self.attributes[node])
                    made[node] = graph.get_attr(self.attributes[node])
                elif self._is_batch(node.meta.get("val")):
                    made[node] = self._count(graph, coming, made)
                else:
                    made[node] = copied(node)
            return made[node]

        def copied(node: Node) -> Node:
            # The device is the input's: the network may have been moved since it was captured.
            args, kwargs = tree_map(
                lambda a: device if isinstance(a, torch.device) else a, (node.args, dict(node.kwargs))
            )
            args, kwargs = torch.fx.map_arg(args, bring), torch.fx.map_arg(kwargs, bring)
            return graph.create_node(node.op, node.target, args, kwargs)  # type: ignore[arg-type]

        for node in body:
            if node not in made:
                made[node] = copied(node)
        graph.output(tuple(bring(node) for node in out))
        graph.eliminate_dead_code(lambda node: node.is_impure() or _in_place(node))
        written = graph.python_code("self")
        exec(compile(written.src, "<stage>", "exec"), written.globals)
        return written.globals["forward"], reads

    def _count(self, graph: Graph, coming: list[Node], made: dict[Node, Node]) -> Node:
        """The current number of samples, from an incoming tensor: some samples may have left at earlier exits."""
        for node in coming:
            rows = self.rows(node)
            if rows is not None and rows.each == 1:
                return graph.call_function(torch.ops.aten.sym_size.int, (made[node], rows.dim))
        raise NotCaptured("no value that crosses a cut has one row for each sample")


def _export(trunk: Trunk, example: Any, any_size: bool) -> Any:
    auto = torch.export.Dim.AUTO

    def free(leaf: Any) -> dict[int, Any] | None:
        """The number of samples and of tokens is free; free image sizes take up to five times as long to capture."""
        if not isinstance(leaf, Tensor):
            return None
        return dict.fromkeys(range(leaf.ndim if any_size or not leaf.is_floating_point() else 1), auto)

    shapes = tree_map(free, example)
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(trunk, (example,), dynamic_shapes={"x": shapes}, strict=False)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise NotCaptured(
            f"torch.export cannot follow it ({type(error).__name__}: {lines[0] if lines else ''})"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch.export, which prints the graph and logs advice where it fails; the exception has the reason."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


_ASSERTS = {torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._assert_scalar.default}


def _computes(node: Node) -> bool:
    return node.op == "call_function" and node.target not in _ASSERTS and "assert" not in str(node.target)


def _in_place(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _symbolic(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def _may_be(size: Any, shape: tuple[int, ...]) -> bool:
    """Whether a size in the graph, with symbols in it, can be this shape."""
    return len(size) == len(shape) and all(_symbolic(a) or int(a) == b for a, b in zip(size, shape, strict=True))


def _batch_symbols(users: list[Node], batch: int) -> set[Any]:
    """The symbols that stand for the number of samples in the graph."""
    symbols = set()
    for node in users:
        shape = node.meta["val"].shape
        if len(shape) and _symbolic(shape[0]):
            symbols |= shape[0].node.expr.free_symbols
        elif len(shape) and int(shape[0]) == batch:
            raise NotCaptured(
                f"its graph is valid only for batches of {batch} (x.shape[0] in its code can vary, len(x) cannot)"
            )
    return symbols
