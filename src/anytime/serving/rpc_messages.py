"""The messages of the Open Inference Protocol over gRPC: requests to arrays, arrays to responses.

`open_inference.proto` describes them; `open_inference.binpb` is what protoc makes of it. They live in a pool of their
own, since a process may hold another client's or server's messages of the same names.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anytime.errors import AnytimeError, require
from anytime.serving.protocol import DATATYPES, InputTensor, OutputWanted, Request, datatype_of, from_bytes, to_bytes
from anytime.serving.protocol import from_elements as elements_as_array

_descriptor: Any = require("google.protobuf.descriptor_pb2", "grpc")
_pools: Any = require("google.protobuf.descriptor_pool", "grpc")
_factory: Any = require("google.protobuf.message_factory", "grpc")

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

FIELDS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where the elements of each type are in a message's contents."""


def _pool() -> Any:
    pool = _pools.DescriptorPool()
    content = Path(__file__).with_name("open_inference.binpb").read_bytes()
    for file in _descriptor.FileDescriptorSet.FromString(content).file:
        pool.Add(file)
    return pool


POOL = _pool()


def message(name: str) -> Any:
    """The class of a message of the protocol."""
    return _factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


_InferResponse, _StreamResponse = message("ModelInferResponse"), message("ModelStreamInferResponse")


def parse_message(given: Any, check: Callable[[list[InputTensor]], object] = lambda inputs: None) -> Request:  # noqa: ARG005
    """The request in a ``ModelInferRequest``, with its tensors as arrays.

    Args:
        given: the message.
        check: called with the inputs as they are described, before any of their data are read; raises to refuse them.
    """
    inputs = [InputTensor(each.name, list(each.shape), each.datatype) for each in given.inputs]
    outputs = [OutputWanted(each.name) for each in given.outputs]
    request = Request(inputs, given.id or None, _parameters(given.parameters), outputs)
    check(inputs)
    raw = given.raw_input_contents
    if raw and len(raw) != len(inputs):
        raise AnytimeError(f"raw_input_contents has {len(raw)} elements for {len(inputs)} inputs: give one for each")
    for i, tensor in enumerate(inputs):
        if tensor.name in request.arrays:
            raise AnytimeError(f"there are two inputs called {tensor.name[:40]!r}")
        contents = given.inputs[i].contents
        if raw and contents.ListFields():
            raise AnytimeError(f"input {tensor.name[:40]!r} has contents beside raw_input_contents: send one of them")
        request.arrays[tensor.name] = from_bytes(tensor, raw[i]) if raw else _from_contents(tensor, contents)
    return request


def _parameters(given: Any) -> dict[str, Any]:
    found = {name[:40]: (value, value.WhichOneof("parameter_choice")) for name, value in given.items()}
    return {name: getattr(value, choice) for name, (value, choice) in found.items() if choice is not None}


def _from_contents(tensor: InputTensor, contents: Any) -> np.ndarray:
    field = FIELDS.get(tensor.datatype)
    if tensor.datatype in DATATYPES and field is None:
        raise AnytimeError(f"elements of type {tensor.datatype} are sent in raw_input_contents")
    if others := [found.name for found, _ in contents.ListFields() if found.name != field]:
        raise AnytimeError(f"elements of type {tensor.datatype[:10]} are expected in {field}; got {others[0]}")
    return elements_as_array(tensor, getattr(contents, field) if field else ())


def infer_response(model: str, request: Request, outputs: Mapping[str, np.ndarray], raw: bool) -> Any:
    """A ``ModelInferResponse``.

    Args:
        model: its name.
        request: what is answered.
        outputs: all there are.
        raw: put them into ``raw_output_contents``.
    """
    response = _InferResponse(model_name=model, model_version="1", id=request.id or "")
    for name in request.wants(outputs):
        array = np.ascontiguousarray(outputs[name])
        entry = response.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        if raw:
            response.raw_output_contents.append(to_bytes(array))
        else:
            getattr(entry.contents, FIELDS[entry.datatype]).extend(array.ravel().tolist())
    return response


def stream_response(response: Any, final: bool) -> Any:
    """A ``ModelStreamInferResponse``; Triton's clients look for the parameter that says which one is the last."""
    response.parameters["triton_final_response"].bool_param = final
    return _StreamResponse(infer_response=response)


def stream_error(reason: str, id: str) -> Any:
    """A ``ModelStreamInferResponse`` that says why one of a stream's requests failed."""
    return _StreamResponse(error_message=reason, infer_response=_InferResponse(id=id))
