"""Exported networks in 8-bit integers, calibrated with images."""

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from anytime.batches import batches_of
from anytime.errors import AnytimeError, check_number, require
from anytime.evaluation import collect
from anytime.export.description import Description, checksum, read_description, read_files
from anytime.export.exported import make
from anytime.export.write import check_target, files_of, write
from anytime.inference.policy import Policy

OPERATIONS = ["Conv", "Gemm", "MatMul"]
"""What is computed in integers; everything else, and the heads, stays in floats."""


class Quantized(NamedTuple):
    """An export in integers, and the errors of each exit on the same samples."""

    folder: Path
    before: list[float]
    after: list[float]


def int8(
    folder: str | Path,
    output: str | Path,
    calibration: Iterable[Any],
    validation: Iterable[Any],
    tolerate: float = 1.0,
) -> Quantized:
    """Write an exported ONNX network with the weights and activations of its stages as 8-bit integers.

    What goes from stage to stage, and the heads, stay in floats. Of a policy the thresholds are kept, and the ``risk``
    that it was calibrated for is not: it holds for the network in floats. Calibrate the exported network for its own.

    Args:
        folder: what ``anytime.export.onnx`` wrote.
        output: where to write; may be the same folder.
        calibration: batches of inputs, as for ``calibrate``; a few hundred samples that the network was trained on.
        validation: batches of inputs and labels to measure the errors with; others than for calibration.
        tolerate: percentage points that the last exit may lose; if it loses more, nothing is written.
    """
    check_number("tolerate", tolerate, most=100)
    folder, output = Path(folder), check_target(output)
    description = read_description(folder)
    if description.backend != "onnx" or description.about.get("precision"):
        raise AnytimeError(f"{folder} is not an export in floats: make one with anytime export RUN --to onnx")
    contents = read_files(folder, description)
    net = make(description, contents, where=str(folder))
    batches = [batch.inputs for batch in batches_of(net, calibration)]
    if not batches:
        raise AnytimeError("there are no batches to calibrate with")
    labeled = list(validation)
    before = collect(net, labeled).wrong.double().mean(1).tolist()
    smaller = _quantized(description, contents, net, batches)
    about = {**description.about, "precision": "int8"}
    files = {name: checksum(content) for name, content in smaller.items()}
    described = replace(description, about=about, files=files, policy=policy_in_int8(description.policy))
    after = collect(make(described, smaller), labeled).wrong.double().mean(1).tolist()
    lost = 100 * (after[-1] - before[-1])
    if lost > tolerate:
        raise AnytimeError(
            f"in 8-bit integers the last exit's error rises from {before[-1]:.2%} to {after[-1]:.2%}, {lost:.2f} "
            f"points and more than {tolerate:g}: nothing was written. Calibrate with more images or tolerate more"
        )
    return Quantized(write(output, described, smaller), before, after)


def policy_in_int8(policy: Policy | None) -> Policy | None:
    """The policy of a network in integers, given that in floats: without its promise, which is for other logits."""
    return policy and replace(policy, risk=None, delta=None, held_out=None)


def _quantized(
    description: Description, contents: Mapping[str, bytes], net: Any, batches: list[Any]
) -> dict[str, bytes]:  # fmt: skip
    """The contents of all files, stages in integers."""
    onnx, quantization = require("onnx", "onnx"), require("onnxruntime.quantization", "onnx")
    graphs = [*description.stages, *description.heads]
    models = {graph.file: onnx.load_model_from_string(contents[graph.file]) for graph in graphs}
    for model in models.values():
        _embed(onnx, model, contents)
    states: list[Any] = batches
    for i, stage in enumerate(description.stages):
        taken = [_values(net, i, state, stage.inputs) for state in states]
        with tempfile.TemporaryDirectory() as place, torch.inference_mode(), _no_advice():
            source, target = Path(place) / "float.onnx", Path(place) / "int8.onnx"
            onnx.save_model(models[stage.file], source)
            quantization.quantize_static(
                source,
                target,
                _reader(quantization, taken),
                op_types_to_quantize=OPERATIONS,
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
            models[stage.file] = onnx.load_model(target)
            states = [net.run_stage(i, state) for state in states]
    return files_of(onnx, models)


@contextmanager
def _no_advice() -> Iterator[None]:
    """Without ONNX Runtime's advice for every stage, which it logs as a warning, to optimize the graph first."""
    unwanted = logging.NullHandler()  # with a handler there, logging does not set up one that prints
    logging.getLogger().addHandler(unwanted)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(unwanted)


def _values(net: Any, stage: int, state: Any, names: list[str]) -> dict[str, np.ndarray]:
    values = net.stages[0].first(state).values if stage == 0 else state.values
    return {name: values[name] for name in names}


def _reader(quantization: Any, given: list[dict[str, np.ndarray]]) -> Any:
    """What ``quantize_static`` asks for its next sample until there are none."""

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(given)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    return Reader()


def _embed(onnx: Any, model: Any, contents: Mapping[str, bytes]) -> None:
    """Put weights that several graphs share into each: in integers they may differ, by the scales of each graph."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            entry = {item.key: item.value for item in tensor.external_data}
            start, length = int(entry["offset"]), int(entry["length"])
            tensor.raw_data = contents[entry["location"]][start : start + length]
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
