"""ONNX models that are run by ONNX Runtime."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from anytime.errors import AnytimeError, require
from anytime.export.description import SHARED, Description, GraphFile, Runner, Runners
from anytime.export.joining import can_join, joined

CPU, OPENVINO = "CPUExecutionProvider", "OpenVINOExecutionProvider"


def onnx_runners(
    description: Description, contents: Mapping[str, bytes], threads: int, where: str, provider: str | None = None
) -> Runners:
    """A function from arrays to arrays for each graph, and for graphs that are joined.

    Args:
        description: of the folder.
        contents: of its files.
        threads: number of threads.
        where: the folder, for messages.
        provider: of ONNX Runtime; None for its own on the CPU.
    """
    onnx, runtime = require("onnx", "onnx"), require("onnxruntime", "onnx")
    shared, runners = contents.get(SHARED, b""), {}
    providers = _providers(runtime, provider, threads)

    def session(model: Any) -> Any:
        options = _options(runtime, threads)
        _give_shared(onnx, runtime, options, model, shared)
        return runtime.InferenceSession(model.SerializeToString(), options, providers=providers)

    def join(graphs: Sequence[GraphFile], as_one: GraphFile) -> Runner | None:
        models = {graph.file: onnx.load_model_from_string(contents[graph.file]) for graph in graphs}
        return _runner(session(joined(onnx, models, as_one)), as_one) if can_join(models.values()) else None

    for graph in (*description.stages, *description.heads):
        try:
            made = session(onnx.load_model_from_string(contents[graph.file]))
        except AnytimeError as error:
            raise AnytimeError(f"{where}: {graph.file}: {error}") from error
        except Exception as error:  # protobuf and onnxruntime raise classes of their own
            reason = str(error).strip().partition("\n")[0]
            raise AnytimeError(f"{where}: {graph.file} is not an ONNX model that can be run ({reason})") from error
        _check_signature(made, graph, description, where)
        runners[graph.file] = _runner(made, graph)
    return Runners(runners, join)


def _providers(runtime: Any, provider: str | None, threads: int) -> list[Any]:
    """The provider that is asked for; what it does not have is run by ONNX Runtime's own."""
    if provider in (None, CPU):
        return [CPU]
    there = runtime.get_available_providers()
    if provider not in there:
        raise AnytimeError(
            f"provider={provider!r} is not part of the installed ONNX Runtime, which has {', '.join(there)}: others "
            "come with packages of their own, e.g. onnxruntime-gpu or onnxruntime-openvino instead of onnxruntime"
        )
    own = {"num_of_threads": str(threads)} if provider == OPENVINO else {}
    return [(provider, own), CPU]


def _options(runtime: Any, threads: int) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # what is wrong is raised
    # Every graph has its own threads: those of one must not stay busy when the next begins.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # All graphs take their memory from one place: what one has just freed is still in the processor's cache.
    _share_memory(runtime)
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.enable_mem_pattern = False
    return options


@cache
def _share_memory(runtime: Any) -> None:
    """Make an allocator for all sessions of this process that want one."""
    kind = runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = runtime.OrtMemoryInfo("Cpu", kind, 0, runtime.OrtMemType.DEFAULT)
    with suppress(Exception):  # someone else in this process has made one
        runtime.create_and_register_allocator(memory, None)


def _runner(session: Any, graph: GraphFile) -> Runner:
    # The session's own object: ``session.run`` checks the names every time, which takes as long as a small graph.
    inputs, outputs, run = graph.inputs, graph.outputs, session._sess.run

    def runner(values: Mapping[str, Any]) -> list[Any]:
        if len(values) != len(inputs):
            values = {name: values[name] for name in inputs}
        return run(outputs, values, None)

    return runner


def _give_shared(onnx: Any, runtime: Any, options: Any, model: Any, shared: bytes) -> None:
    """Pass on the weights that are in ``shared.bin``; tensors in any other file are refused.

    ONNX Runtime gets them from memory and opens no file. It would look for one in the working directory.
    """
    names, weights, model_weights = [], [], list(model.graph.initializer)
    for tensor in _external_tensors(onnx, model):
        entry = {item.key: item.value for item in tensor.external_data}
        if entry.get("location") != SHARED or not any(tensor is weight for weight in model_weights):
            raise AnytimeError(
                f"its tensor {tensor.name!r} is said to be in the file {entry.get('location')!r}; only initializers of "
                f"the main graph may be in a file, in {SHARED} of the same folder"
            )
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        start, length = int(entry.get("offset", -1)), int(entry.get("length", -1))
        size = int(np.prod(tensor.dims, dtype=np.int64)) * kind.itemsize
        if start < 0 or length != size or start + length > len(shared):
            raise AnytimeError(f"its weights {tensor.name!r} are not within {SHARED}")
        array = np.frombuffer(shared, kind, length // kind.itemsize, start).reshape(tensor.dims)
        names.append(tensor.name)
        weights.append(runtime.OrtValue.ortvalue_from_numpy(array))
    if names:
        options.add_external_initializers(names, weights)


def _external_tensors(onnx: Any, message: Any) -> Iterator[Any]:
    """All tensors with external data in a model, wherever its format has room for one: every message is visited."""
    if isinstance(message, onnx.TensorProto) and (message.data_location or message.external_data):
        yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:  # or a list of messages
                yield from _external_tensors(onnx, inner)


def _check_signature(session: Any, graph: GraphFile, description: Description, where: str) -> None:
    """The model takes and returns what the description says: otherwise it is another stage's."""
    for said, found in ((graph.inputs, session.get_inputs()), (graph.outputs, session.get_outputs())):
        if sorted(said) != sorted(value.name for value in found):
            raise AnytimeError(
                f"{where}: {graph.file} is the graph of another stage or network: it has {[v.name for v in found]}, "
                f"and anytime.json says {said}"
            )
        for value in found:
            expected = description.values[value.name]
            fixed = [(a, b) for a, b in zip(expected.shape, value.shape, strict=False) if isinstance(a, int)]
            kind = {"float": "float32", "double": "float64"}.get(inner := value.type[7:-1], inner)
            if kind != expected.type or len(value.shape) != len(expected.shape) or any(a != b for a, b in fixed):
                raise AnytimeError(
                    f"{where}: {graph.file} has {value.name} as {value.type} {value.shape}; anytime.json says "
                    f"{expected.type} {list(expected.shape)}"
                )
