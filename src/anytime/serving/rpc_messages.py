"""The messages of the Open Inference Protocol over gRPC: requests to arrays, arrays to responses.

`open_inference.proto` describes them; `open_inference.binpb` is what protoc makes of it. They live in a pool of their
own, since a process may hold another client's or server's messages of the same names.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anytime.errors import AnytimeError, require
from anytime.serving.protocol import (
    DATATYPES,
    LARGEST_JSON,
    MOST_PARTS,
    InferenceRequest,
    InputTensor,
    OutputWanted,
    datatype_of,
    from_bytes,
    from_elements,
    to_bytes,
)

_descriptor: Any = require("google.protobuf.descriptor_pb2", "grpc")
_pools: Any = require("google.protobuf.descriptor_pool", "grpc")
_factory: Any = require("google.protobuf.message_factory", "grpc")

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

LARGEST_CONTENTS = LARGEST_JSON
"""Bytes of elements that are not raw: they take several times as much memory, as JSON does."""

LARGEST_DESCRIPTION = 2**14
"""Bytes of everything in a message that is no data: names, shapes, parameters."""

INPUTS, RAW, CONTENTS = 5, 7, 5
"""Numbers of fields: of a ``ModelInferRequest`` the first two, of an input in it the last."""

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


_InferRequest = message("ModelInferRequest")
_InferResponse, _StreamResponse = message("ModelInferResponse"), message("ModelStreamInferResponse")
_DecodeError = require("google.protobuf.message", "grpc").DecodeError


def read_message(kind: Any, content: bytes) -> Any:
    """A message of a client, its size and the number of its parts looked at before it is decoded: an empty part takes
    two bytes there and a hundred in memory.

    Args:
        kind: the class of the message.
        content: its bytes.
    """
    described = contents = 0
    for number, begin, end in _fields(content, 0, len(content)):
        if kind is not _InferRequest or number not in (INPUTS, RAW):
            described += end - begin
        elif number == INPUTS:
            parts = [(each, last - first) for each, first, last in _fields(content, begin, end)]
            contents += sum(size for each, size in parts if each == CONTENTS)
            described += sum(size for each, size in parts if each != CONTENTS)
    if described > LARGEST_DESCRIPTION:
        raise AnytimeError(f"names, shapes and parameters of {described:,} bytes; at most {LARGEST_DESCRIPTION:,}")
    if contents > LARGEST_CONTENTS:
        raise AnytimeError(
            f"contents of {contents:,} bytes; at most {LARGEST_CONTENTS:,} are read: send raw_input_contents"
        )
    try:
        return kind.FromString(content)
    except _DecodeError as error:
        raise AnytimeError(f"the bytes are not a {kind.DESCRIPTOR.name}: {error}") from error


def _fields(content: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of an encoded message: the number, beginning and end of each; too many are refused.

    Examples:
        >>> list(_fields(bytes([10, 2, 65, 66, 16, 7]), 0, 6))
        [(1, 2, 4), (2, 5, 6)]
    """
    count = 0
    while place < end:
        count += 1
        if count > 4 * MOST_PARTS:
            raise AnytimeError(f"a message has at most {4 * MOST_PARTS} parts")
        key, begin = _varint(content, place)
        size, form = _SIZES.get(key & 7, -1), key & 7
        if form == 0:
            _, place = _varint(content, begin)
        elif form == 2:
            size, begin = _varint(content, begin)
            place = begin + size
        else:
            place = begin + size
        if size < 0 or place > end:
            raise AnytimeError("the bytes are not a message of the protocol")
        yield key >> 3, begin, place


_SIZES = {0: 0, 1: 8, 2: 0, 5: 4}
"""Bytes of a field by its wire type; those of the types 0 and 2 say it themselves."""


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """A number of 7 bits per byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[place] if place < len(content) else 0x80
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise AnytimeError("the bytes are not a message of the protocol")


def parse_message(given: Any, check: Callable[[list[InputTensor]], object] = lambda inputs: None) -> InferenceRequest:  # noqa: ARG005
    """The request in a ``ModelInferRequest``, with its tensors as arrays.

    Args:
        given: the message.
        check: called with the inputs as they are described, before any of their data are read; raises to refuse them.
    """
    for name, parts in (("inputs", given.inputs), ("outputs", given.outputs)):
        if len(parts) > MOST_PARTS:
            raise AnytimeError(f"the message has {len(parts)} {name}; at most {MOST_PARTS} are allowed")
    inputs = [InputTensor(each.name, list(each.shape), each.datatype) for each in given.inputs]
    outputs = [OutputWanted(each.name) for each in given.outputs]
    request = InferenceRequest(inputs, given.id or None, parameters_of(given), outputs)
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


def parameters_of(given: Any) -> dict[str, Any]:
    """The parameters of a message."""
    found = {name: (value, value.WhichOneof("parameter_choice")) for name, value in given.parameters.items()}
    return {name: getattr(value, choice) for name, (value, choice) in found.items() if choice is not None}


def _from_contents(tensor: InputTensor, contents: Any) -> np.ndarray:
    field = FIELDS.get(tensor.datatype)
    if tensor.datatype in DATATYPES and field is None:
        raise AnytimeError(f"elements of type {tensor.datatype} are sent in raw_input_contents")
    if others := [found.name for found, _ in contents.ListFields() if found.name != field]:
        raise AnytimeError(f"elements of type {tensor.datatype[:10]} are expected in {field}; got {others[0]}")
    return from_elements(tensor, getattr(contents, field) if field else ())


def infer_response(model: str, request: InferenceRequest, outputs: Mapping[str, np.ndarray], raw: bool) -> Any:
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


def stream_response(response: Any, final: bool) -> bytes:
    """A ``ModelStreamInferResponse``; Triton's clients look for the parameter that says which one is the last."""
    response.parameters["triton_final_response"].bool_param = final
    return _StreamResponse(infer_response=response).SerializeToString()


def stream_error(reason: str, id: str) -> bytes:
    """A ``ModelStreamInferResponse`` that says why one of a stream's requests failed."""
    return _StreamResponse(error_message=reason, infer_response=_InferResponse(id=id)).SerializeToString()
