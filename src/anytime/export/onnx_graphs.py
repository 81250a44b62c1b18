"""Graphs as ONNX models."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from anytime.errors import AnytimeError, require
from anytime.export.graphs import Graph, Staged
from anytime.network import eval_mode

OPSET = 18


def traced(plan: Staged) -> dict[str, Any]:
    """Each graph by name as ``onnx.ModelProto``, from a trace of the network's own code.

    It takes milliseconds. What the code makes of the number of samples other than by calls of torch is fixed to that of
    the example, so the result must be compared with the network.
    """
    onnx, models = require("onnx", "onnx"), {}
    for name, graph in plan.graphs.items():
        buffer = io.BytesIO()
        with _exporting(plan.net):
            torch.onnx.export(
                _Lanes(plan.net, [graph]),
                ([list(graph.example)],),
                buffer,  # type: ignore[arg-type]
                dynamo=False,
                input_names=graph.inputs,
                output_names=graph.outputs,
                dynamic_axes={value: _free(plan, value) for value in (*graph.inputs, *graph.outputs)},
                opset_version=OPSET,
            )
        models[name] = _described(onnx.load_model_from_string(buffer.getvalue()), name, plan)
    return models


def captured(plan: Staged) -> dict[str, Any]:
    """The same by torch.export: slower, but it follows all that the code does with sizes.

    Much of the time does not depend on the size of a graph, so all are captured at once, side by side, and taken apart.
    """
    ir, named = require("onnx_ir", "onnx"), plan.graphs
    require("onnxscript", "onnx")
    # Cloned, since the exporter takes inputs that are the same tensor for one input.
    inputs = [[tensor.clone() for tensor in graph.example] for graph in named.values()]
    # Not Dim.AUTO: where code counts its samples in Python, that fixes their number without saying so.
    free = [[dict.fromkeys(_free(plan, name), torch.export.Dim.DYNAMIC) for name in g.inputs] for g in named.values()]
    with _exporting(plan.net):
        program = torch.onnx.export(
            _Lanes(plan.net, list(named.values())),
            (inputs,),
            dynamo=True,
            input_names=[f"{lane}/{name}" for lane, graph in named.items() for name in graph.inputs],
            output_names=[f"{lane}/{name}" for lane, graph in named.items() for name in graph.outputs],
            dynamic_shapes={"inputs": free},
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        return {lane: _described(_part(ir, program.model, lane, graph), lane, plan) for lane, graph in named.items()}


class _Lanes(nn.Module):
    """Graphs side by side, none of which uses what another returns."""

    def __init__(self, net: nn.Module, graphs: list[Graph]) -> None:
        super().__init__()
        self.net, self.graphs = net, graphs
        self.training = False

    def forward(self, inputs: list[list[Tensor]]) -> list[Tensor]:
        return [out for graph, given in zip(self.graphs, inputs, strict=True) for out in graph(*given)]


def _free(plan: Staged, name: str) -> list[int]:
    """The dimensions of a value that have no fixed size."""
    return [dim for dim, size in enumerate(plan.values[name].shape) if isinstance(size, str)]


def _part(ir: Any, whole: Any, lane: str, graph: Graph) -> Any:
    """One graph, taken out of all."""
    given, results = ([f"{lane}/{name}" for name in names] for names in (graph.inputs, graph.outputs))
    part = ir.convenience.extract(whole.graph, inputs=given, outputs=results)
    for value in (*part.inputs, *part.outputs):
        value.name = value.name.removeprefix(f"{lane}/")
    return ir.to_proto(ir.Model(part, ir_version=whole.ir_version))


def _described(model: Any, name: str, plan: Staged) -> Any:
    """The model without inputs that it does not use, its inputs and outputs described as in the plan."""
    graph = model.graph
    used = {value for node in graph.node for value in node.input} | {value.name for value in graph.output}
    for value in [value for value in graph.input if value.name not in used]:
        graph.input.remove(value)
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, plan.values[value.name].shape, strict=True):
            dim.Clear()
            if isinstance(size, int):
                dim.dim_value = size
            elif size != "any":
                dim.dim_param = size.replace("*", " x ")
    graph.name, model.producer_name, model.producer_version, model.doc_string = name, "anytime", "", ""
    del model.metadata_props[:]
    for node in graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    return model


@contextmanager
def _exporting(net: nn.Module) -> Iterator[None]:
    """Eval mode, no gradients, no messages; what the exporter raises as an ``AnytimeError``."""
    before, log = logging.root.manager.disable, getattr(torch._C, "_jit_onnx_log", None)
    logging.disable(logging.CRITICAL)
    torch._C._jit_onnx_log = lambda *_: None  # where a trace fails it prints the graph, whatever is asked for
    try:
        with eval_mode(net), torch.no_grad(), warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # whatever the exporter raises
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise AnytimeError(
            f"ONNX cannot express this network ({type(error).__name__}: {lines[0] if lines else ''})"
        ) from error
    finally:
        logging.disable(before)
        torch._C._jit_onnx_log = log  # type: ignore[assignment]
