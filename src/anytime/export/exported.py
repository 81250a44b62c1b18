"""ExportedNetwork: graphs in a folder as an anytime network."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anytime.cost import Costs
from anytime.errors import AnytimeError
from anytime.export.description import Description, GraphFile, Runner, Runners, read_description, read_files, rows_of
from anytime.export.executorch_graphs import executorch_runners
from anytime.export.graphs import Value
from anytime.export.joining import Segments
from anytime.export.onnx_runtime import onnx_runners
from anytime.inference.latency import read_profiles, remember
from anytime.network import AnytimeNetwork, Step
from anytime.rows import OwnRows, Rows

BACKENDS = {"onnx": onnx_runners, "executorch": executorch_runners}


def load_exported(
    folder: str | Path, threads: int | None = None, provider: str | None = None
) -> "ExportedNetwork":  # fmt: skip
    """Read a network that ``anytime.export`` or ``anytime export`` wrote; its graphs run without PyTorch.

    A folder whose files were altered, mixed up or do not belong together is refused.

    Args:
        folder: the folder with ``anytime.json``.
        threads: number of CPU threads. Default: as many as torch uses (``torch.get_num_threads()``).
        provider: what computes in ONNX Runtime, e.g. ``CUDAExecutionProvider``, ``OpenVINOExecutionProvider`` or
            ``CoreMLExecutionProvider``, as ``onnxruntime.get_available_providers()`` lists them. Default: the CPU.

    Examples:
        >>> import anytime, tempfile
        >>> net, x = anytime.create_model("resann-1-8").eval(), torch.zeros(2, 3, 32, 32)
        >>> exported = load_exported(anytime.export.onnx(net, x, tempfile.mkdtemp()))
        >>> [step.logits.shape for step in exported.steps(x.numpy())]
        [torch.Size([2, 10]), torch.Size([2, 10]), torch.Size([2, 10])]
        >>> anytime.predict(exported, x, exits=2).exit
        1
    """
    folder = Path(folder)
    description = read_description(folder)
    net = make(description, read_files(folder, description), threads, str(folder), provider)
    for profile in read_profiles(folder):
        if len(profile.stages) == net.exits:
            remember(net, profile)
    net.run_all_once()
    return net


def make(
    description: Description,
    contents: Mapping[str, bytes],
    threads: int | None = None,
    where: str = "the export",
    provider: str | None = None,
) -> "ExportedNetwork":
    """A network from the contents of its files."""
    if description.backend not in BACKENDS:
        raise AnytimeError(f"{where} was exported for {description.backend!r}; expected one of {', '.join(BACKENDS)}")
    runners = BACKENDS[description.backend](description, contents, threads or torch.get_num_threads(), where, provider)
    return ExportedNetwork(description, runners)


class ExportedState(OwnRows):
    """The values between two stages, by name.

    Args:
        values: the arrays.
        rows: for every named value the rows of the samples; None without.
    """

    __slots__ = ("rows", "values")

    def __init__(self, values: dict[str, np.ndarray], rows: dict[str, Rows | None]) -> None:
        self.values, self.rows = values, rows

    def entries(self) -> list[tuple[np.ndarray, Rows | None]]:
        """Each array with its rows."""
        return [(array, self.rows[name]) for name, array in self.values.items()]

    def with_values(self, values: list[np.ndarray]) -> "ExportedState":
        """The same with other arrays."""
        return ExportedState(dict(zip(self.values, values, strict=True)), self.rows)


class ExportedNetwork(AnytimeNetwork):
    """An anytime network whose stages and heads are exported graphs; ``load_exported`` makes it.

    Inputs are tensors or arrays; logits are tensors on the CPU.

    Attributes:
        description: what ``anytime.json`` says.
        policy: the early-exit policy that was exported with it; None if there was none.
        joins_stages: whether ``steps``, and ``predict`` without a deadline or an event, run the stages up to the next
            exit that is wanted, and its head, as one graph. It is made when it is needed for the first time. Set it to
            False to run every stage by itself, e.g. to hook it.
    """

    exported = True

    def __init__(self, description: Description, runners: Runners) -> None:
        rows = {name: rows_of(value) for name, value in description.values.items()}
        first, stages = _Input(description, rows), list[nn.Module]()
        for stage, state in zip(description.stages, description.states, strict=True):
            stages.append(_ExportedStage(stage, state, runners.each[stage.file], None if stages else first))
        super().__init__(stages, [_Head(runners.each[head.file]) for head in description.heads])
        self.description, self.policy = description, description.policy
        self.preprocessing = description.preprocessing
        self.joins_stages = runners.join is not None
        self._first, self._segments = first, Segments(description, runners)
        self.eval()

    def _steps(self, x: Any, wanted: frozenset[int]) -> Iterator[Step]:
        segments = self._segments.through(wanted) if self.joins_stages else None
        if segments is None:
            yield from super()._steps(x, wanted)
            return
        values = self._first(x).values
        for exit, run, returns, kept in segments:
            made = run(values)
            after = dict(zip(returns, made, strict=False))
            for name in kept:
                after[name] = values[name]
            values = after
            yield Step(exit, torch.from_numpy(made[-1]))

    @torch.inference_mode()
    def run_all_once(self) -> None:
        """Run every graph on zeros: its first run allocates, and takes several times as long as the others."""
        for exit in self.walk(self._first.zeros(self.description.counted)):
            if exit is not None:
                exit()

    def stated_costs(self, example: Any) -> Costs:
        """What ``anytime.costs`` returns: counted when the network was exported."""
        first, known = self._first, self.description.costs
        leaves = first.leaves(example)
        for leaf, counted in zip(leaves.values(), self.description.counted, strict=True):
            if list(leaf.shape[1:]) != counted[1:]:
                raise AnytimeError(
                    f"the costs are known for inputs of the shape {counted}, not {list(leaf.shape)}: export the "
                    "network with an example of that size"
                )
        batch = first.samples(leaves)
        return Costs([batch * macs for macs in known.macs], known.params, [batch * macs for macs in known.heads])

    def input_shape(self) -> tuple[int, ...]:
        """As the example that it was exported with."""
        return super().input_shape() if self.description.structure is not None else (*self.description.counted[0][1:],)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ExportedNetwork":
        """Itself: it has no weights, and the sessions of a runtime cannot be copied."""
        return self

    def layout(self) -> dict[str, Any]:
        """Raises: what was exported is in a folder already."""
        raise AnytimeError("an exported network is not saved again: copy its folder")


class _ExportedStage(nn.Module):
    """A graph between two exits."""

    def __init__(self, graph: GraphFile, state: list[str], run: Runner, first: "_Input | None") -> None:
        super().__init__()
        self.first, self._run, self._returns = first, run, graph.outputs
        self._kept = [name for name in state if name not in graph.outputs]
        self._dropped = [name for name in graph.outputs if name not in state]

    def forward(self, state: Any) -> ExportedState:
        """The state after it."""
        if self.first is not None:
            state = self.first(state)
        made = dict(zip(self._returns, self._run(state.values), strict=False))
        for name in self._kept:
            made[name] = state.values[name]
        for name in self._dropped:
            del made[name]
        return ExportedState(made, state.rows)


class _Head(nn.Module):
    """The graph of an exit."""

    def __init__(self, run: Runner) -> None:
        super().__init__()
        self._run = run

    def forward(self, state: ExportedState) -> Tensor:
        """Logits."""
        return torch.from_numpy(self._run(state.values)[0])


class _Input:
    """The input of the first stage: checked, and its tensors as arrays by name."""

    def __init__(self, description: Description, rows: dict[str, Rows | None]) -> None:
        self.rows, self.structure = rows, description.structure
        self.expected = {name: description.values[name] for name in description.input}

    def __call__(self, x: Any) -> ExportedState:
        arrays = {name: _array(leaf, self.expected[name]) for name, leaf in self.leaves(x).items()}
        return ExportedState(arrays, self.rows)

    def leaves(self, x: Any) -> dict[str, Any]:
        """The tensors or arrays of an input, by name; raises if it has another form or size."""
        if self.structure is None:
            found: Any = (x,)
        elif isinstance(self.structure, list):
            if not isinstance(x, Mapping) or set(x) != set(self.structure):
                raise AnytimeError(f"got {_form(x)}; the network was exported for a dict of {self.structure}")
            found = [x[key] for key in self.structure]
        else:
            if not isinstance(x, tuple | list) or len(x) != self.structure:
                raise AnytimeError(f"got {_form(x)}; the network was exported for a list of {self.structure} tensors")
            found = x
        named = dict(zip(self.expected, found, strict=True))
        for name, leaf in named.items():
            if not _fits(leaf, self.expected[name].shape):
                raise AnytimeError(
                    f"got {_form(leaf)}; the network was exported for {_sizes(self.expected[name].shape)}"
                )
        if len(named) > 1:
            self.samples(named)
        return named

    def zeros(self, shapes: Sequence[Sequence[int]]) -> Any:
        """An input of such shapes."""
        leaves = [np.zeros(shape, each.type) for shape, each in zip(shapes, self.expected.values(), strict=True)]
        if self.structure is None:
            return leaves[0]
        return dict(zip(self.structure, leaves, strict=True)) if isinstance(self.structure, list) else leaves

    def samples(self, leaves: dict[str, Any]) -> int:
        """The number of samples, which all tensors of the input have."""
        found = {leaf.shape[rows.dim] // (rows.each or 1) for name, leaf in leaves.items() if (rows := self.rows[name])}
        if len(found) != 1:
            raise AnytimeError(f"the tensors of the input have different numbers of samples: {sorted(found)}")
        return found.pop()


_ARRAYS = (Tensor, np.ndarray)


def _fits(leaf: Any, shape: Sequence[int | str]) -> bool:
    if not isinstance(leaf, _ARRAYS) or leaf.ndim != len(shape):
        return False
    for expected, found in zip(shape, leaf.shape, strict=True):
        if expected != found and not isinstance(expected, str):
            return False
    return True


def _array(leaf: Any, expected: Value) -> np.ndarray:
    if isinstance(leaf, Tensor):
        leaf = leaf.float() if leaf.dtype == torch.bfloat16 else leaf  # NumPy has no such type
    array = leaf.numpy(force=True) if isinstance(leaf, Tensor) else leaf
    # Floats of another precision and integers of another width are converted; bytes are no floats.
    if array.dtype.name != expected.type and array.dtype.kind != np.dtype(expected.type).kind:
        raise AnytimeError(
            f"the input is {array.dtype}, the network was exported for {expected.type}: normalize pixels as in "
            "training first: net.preprocess(pixels)"
        )
    return np.ascontiguousarray(array, expected.type)


def _sizes(shape: Sequence[int | str]) -> str:
    return " × ".join(map(str, shape))


def _form(x: Any) -> str:
    if isinstance(x, _ARRAYS):
        return f"an input of shape {tuple(x.shape)}"
    return f"a {type(x).__name__}" + (f" of {len(x)}" if isinstance(x, tuple | list | dict) else "")
