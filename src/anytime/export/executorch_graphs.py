"""Graphs as ExecuTorch programs, for phones and small devices; what XNNPACK can compute is given to it."""

import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anytime.errors import AnytimeError, require
from anytime.export.description import Description, GraphFile, Runner, Runners, rows_each, rows_of
from anytime.export.graphs import Graph, Staged, Value
from anytime.network import eval_mode
from anytime.rows import Rows

LARGEST_BATCH = 32
"""Memory is planned ahead: so many samples are asked for. What was planned, which may be less, is in the program."""


def programs(plan: Staged) -> dict[str, bytes]:
    """Each graph by name as a program with one method, ``forward``."""
    exir = require("executorch.exir", "executorch")
    xnnpack = require("executorch.backends.xnnpack.partition.xnnpack_partitioner", "executorch")
    made = {}
    for name, graph in plan.graphs.items():
        batch = torch.export.Dim("batch", min=1, max=LARGEST_BATCH)
        sizes = tuple(_free(plan, value, batch) for value in graph.inputs)
        try:
            with eval_mode(plan.net), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                example = tuple(tensor.clone().contiguous() for tensor in graph.example)
                captured = torch.export.export(_One(plan.net, graph), example, dynamic_shapes={"tensors": sizes})
                edge = exir.to_edge_transform_and_lower(captured, partitioner=[xnnpack.XnnpackPartitioner()])
                made[name] = edge.to_executorch().buffer
        except Exception as error:  # whatever the exporters raise
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise AnytimeError(
                f"ExecuTorch cannot express {name} ({type(error).__name__}: {lines[0] if lines else ''})"
            ) from error
    return made


class _One(nn.Module):
    """A graph as a module."""

    def __init__(self, net: nn.Module, graph: Graph) -> None:
        super().__init__()
        self.net, self.graph = net, graph

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(out.contiguous() for out in self.graph(*tensors))


def _free(plan: Staged, name: str, batch: Any) -> dict[int, Any]:
    """The dimension of a value that holds the samples."""
    shape = plan.values[name].shape
    if "any" in shape:
        raise AnytimeError("ExecuTorch plans memory ahead: sizes other than the batch cannot be free, leave out other=")
    return {dim: batch * each if each > 1 else batch for dim, size in enumerate(shape) if (each := rows_each(size))}


def executorch_runners(
    description: Description, contents: Mapping[str, bytes], threads: int, where: str, provider: str | None = None
) -> Runners:
    """A function from arrays to arrays for each graph; ExecuTorch has one pool of threads for all.

    Args:
        description: of the folder.
        contents: of its files.
        threads: not used.
        where: the folder, for messages.
        provider: ExecuTorch has none; what computes was chosen when the programs were written.
    """
    del threads
    if provider is not None:
        raise AnytimeError(f"provider={provider!r} is of ONNX Runtime, and {where} was exported for ExecuTorch")
    runtime = require("executorch.runtime", "executorch").Runtime.get()
    runners = {}
    for graph in (*description.stages, *description.heads):
        try:
            program = runtime.load_program(contents[graph.file])
            method = program.load_method("forward")
        except Exception as error:  # ExecuTorch raises classes of its own
            reason = str(error).strip().partition("\n")[0]
            raise AnytimeError(f"{where}: {graph.file} is not a program that can be run ({reason})") from error
        if method is None or method.metadata.num_inputs() != len(graph.inputs):
            raise AnytimeError(f"{where}: {graph.file} is the graph of another stage or network")
        runners[graph.file] = _runner(method, graph, description.values, (program, contents[graph.file]))
    return Runners(runners)


def _runner(method: Any, graph: GraphFile, described: Mapping[str, Value], kept: Any) -> Runner:
    """Runs a program; more samples than its memory is planned for in parts."""
    lock = threading.Lock()
    takes, returns = ([rows_of(described[name]) for name in names] for names in (graph.inputs, graph.outputs))
    planned = [method.metadata.input_tensor_meta(i).sizes() for i in range(len(takes))]
    held = (sizes[rows.dim] // (rows.each or 1) for sizes, rows in zip(planned, takes, strict=True) if rows)
    most = min(held, default=1)

    def part(arrays: list[np.ndarray], start: int) -> list[np.ndarray]:
        given = [_cut(array, rows, start, most) for array, rows in zip(arrays, takes, strict=True)]
        try:
            return [result.clone().numpy() for result in method.execute(given)]
        except RuntimeError as error:
            shapes = [array.shape for array in arrays]
            raise AnytimeError(f"ExecuTorch cannot run {graph.file} on inputs of {shapes} ({error})") from error

    def runner(values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        arrays = [values[name] for name in graph.inputs]
        counts = [array.shape[rows.dim] // (rows.each or 1) for array, rows in zip(arrays, takes, strict=True) if rows]
        with lock:  # a method has one memory for its values
            parts = [part(arrays, start) for start in range(0, max(counts, default=1), most)]
        if len(parts) == 1:
            return parts[0]
        whole = zip(zip(*parts, strict=True), returns, strict=True)
        return [np.concatenate(pieces, rows.dim) if rows else pieces[0] for pieces, rows in whole]

    runner.kept = kept  # type: ignore[attr-defined]  # what the method refers to
    return runner


def _cut(array: np.ndarray, rows: Rows | None, start: int, count: int) -> Tensor:
    """Some samples; all of an array that does not hold samples."""
    if rows:
        each = rows.each or 1
        array = array[(slice(None),) * rows.dim + (slice(start * each, (start + count) * each),)]
    return torch.from_numpy(np.ascontiguousarray(array))
