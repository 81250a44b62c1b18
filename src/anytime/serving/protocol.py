"""The Open Inference Protocol, version 2, as KServe and Triton speak it: requests and responses, JSON and binary.

A request is a JSON object; its tensors are in it as lists, or follow it as bytes (little-endian, row after row), in
which case a header says where the JSON ends. Responses likewise. Nothing here knows HTTP or networks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any

import numpy as np

from anytime.errors import AnytimeError, require, shown

msgspec: Any = require("msgspec", "serve")

LENGTH_HEADER = "Inference-Header-Content-Length"
"""The header that says how many bytes of the body are JSON."""

LARGEST_JSON = 4 * 2**20
"""Bytes of JSON that are parsed: its lists take up to 25 times as much memory. Binary tensors may be larger."""

MOST_PARTS = 64
"""Inputs of a request, and outputs."""

LARGEST_PARAMETERS = 2**12
"""Bytes of the parameters of a request, an input or an output."""

LARGEST_TENSOR = 2**40
"""Product of a shape's sizes other than 0: NumPy has a limit of its own, for empty arrays too."""

EMPTY = msgspec.Raw(b"{}")
MOST_DIMENSIONS = 8

Size = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_TENSOR)]

DATATYPES: dict[str, Any] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype("O"),
}

_NAMES = {dtype: name for name, dtype in DATATYPES.items()}


class InputTensor(msgspec.Struct):
    """An input as it stands in the JSON part of a request; its data are parsed once type and count are known."""

    name: str
    shape: Annotated[list[Size], msgspec.Meta(max_length=MOST_DIMENSIONS)]
    datatype: str
    parameters: msgspec.Raw = EMPTY  # pyright: ignore[reportInvalidTypeForm]: msgspec types Raw as a variable
    data: msgspec.Raw = msgspec.Raw(b"null")  # pyright: ignore[reportInvalidTypeForm]


class OutputWanted(msgspec.Struct):
    """A requested output."""

    name: str
    parameters: msgspec.Raw = EMPTY  # pyright: ignore[reportInvalidTypeForm]


class Message(msgspec.Struct):
    """The JSON part of a request, its parts not decoded yet: those of a few megabytes may be a million objects."""

    inputs: list[msgspec.Raw]  # pyright: ignore[reportInvalidTypeForm]
    id: str | None = None
    parameters: msgspec.Raw = EMPTY  # pyright: ignore[reportInvalidTypeForm]
    outputs: list[msgspec.Raw] | None = None  # pyright: ignore[reportInvalidTypeForm]


@dataclass
class InferenceRequest:
    """An inference request; ``arrays`` holds its inputs by name once it is parsed."""

    inputs: list[InputTensor]
    id: str | None
    parameters: dict[str, Any]
    outputs: list[OutputWanted]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def wants(self, known: Mapping[str, Any]) -> dict[str, bool]:
        """The outputs to return, and whether each of them is sent as bytes."""
        binary = self.parameters.get("binary_data_output", False) is True
        if not self.outputs:
            return dict.fromkeys(known, binary)
        for wanted in self.outputs:
            if wanted.name not in known:
                raise AnytimeError(f"there is no output {wanted.name[:40]!r}; outputs are {', '.join(known)}")
        return {
            wanted.name: parameters_of(wanted.parameters).get("binary_data", binary) is True for wanted in self.outputs
        }


_message, _input, _output, _parameters = (
    msgspec.json.Decoder(kind) for kind in (Message, InputTensor, OutputWanted, dict[str, Any])
)


def parse_json(decoder: Any, text: bytes) -> Any:
    """Decode JSON of bounded size into the decoder's type."""
    if len(text) > LARGEST_JSON:
        raise AnytimeError(f"the JSON has {len(text):,} bytes; at most {LARGEST_JSON:,} are parsed: send binary data")
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AnytimeError(f"unexpected JSON: {error}") from error


def parse_request(
    body: bytes,
    header_length: str | None = None,
    check: Callable[[list[InputTensor]], object] = lambda inputs: None,  # noqa: ARG005
) -> InferenceRequest:
    """The request in a body, with its tensors as arrays.

    Args:
        body: JSON, with binary data behind it if there are any.
        header_length: the value of ``Inference-Header-Content-Length``, if the request has one.
        check: called with the inputs as they are described, before any of their data are read; raises to refuse them.
    """
    end = len(body)
    if header_length is not None:
        digits = header_length.isascii() and header_length.isdigit() and len(header_length) <= 12
        if not digits or int(header_length) > end:
            raise AnytimeError(f"{LENGTH_HEADER}: {header_length[:40]} must be a number of bytes, at most {end}")
        end = int(header_length)
    message = parse_json(_message, body[:end])
    inputs, outputs = _parts("inputs", _input, message.inputs), _parts("outputs", _output, message.outputs or [])
    request = InferenceRequest(inputs, message.id, parameters_of(message.parameters), outputs)
    check(inputs)
    for tensor in request.inputs:
        if tensor.name in request.arrays:
            raise AnytimeError(f"there are two inputs called {tensor.name[:40]!r}")
        size = parameters_of(tensor.parameters).get("binary_data_size")
        if size is None:
            request.arrays[tensor.name] = from_list(tensor)
            continue
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(body) - end:
            left = len(body) - end
            raise AnytimeError(f"{_about(tensor)}: binary_data_size={shown(size)}, and {left} bytes are left")
        request.arrays[tensor.name] = from_bytes(tensor, body[end : end + size])
        end += size
    if end != len(body):
        raise AnytimeError(f"{len(body) - end} bytes follow the last tensor")
    return request


def _parts(name: str, decoder: Any, parts: list[Any]) -> list[Any]:
    """Inputs or outputs, decoded."""
    if len(parts) > MOST_PARTS:
        raise AnytimeError(f"the JSON has {len(parts):,} {name}; at most {MOST_PARTS} are allowed")
    return [parse_json(decoder, part) for part in parts]


def parameters_of(text: Any) -> dict[str, Any]:
    """Parameters of a request, an input or an output."""
    if len(text) > LARGEST_PARAMETERS:
        raise AnytimeError(f"parameters of {len(text):,} bytes; at most {LARGEST_PARAMETERS:,} are allowed")
    return parse_json(_parameters, text)


def _about(tensor: InputTensor) -> str:
    return f"input {tensor.name[:40]!r} of type {tensor.datatype[:10]} and shape {tensor.shape[:10]}"


def _described(tensor: InputTensor) -> tuple[Any, int]:
    """The dtype and number of a tensor's elements."""
    dtype = DATATYPES.get(tensor.datatype)
    if dtype is None:
        raise AnytimeError(f"{_about(tensor)}: the type must be one of {', '.join(DATATYPES)}")
    if len(tensor.shape) > MOST_DIMENSIONS or min(tensor.shape, default=0) < 0:
        raise AnytimeError(f"{_about(tensor)}: a shape has at most {MOST_DIMENSIONS} sizes, each at least 0")
    if math.prod(filter(None, tensor.shape)) > LARGEST_TENSOR:
        raise AnytimeError(f"{_about(tensor)}: the shape stands for more than {LARGEST_TENSOR:,} elements")
    return dtype, math.prod(tensor.shape)


def from_list(tensor: InputTensor) -> np.ndarray:
    """JSON data, flat or nested as the shape says, as an array; types and counts are checked before it is made."""
    dtype, count = _described(tensor)
    text, texts = bytes(tensor.data), tensor.datatype == "BYTES"
    expected = f"{_about(tensor)}: data must be {count} elements of its type, flat or nested as its shape"
    if not texts and (given := text.count(b",") + 1) != max(count, 1):  # neither numbers nor booleans hold commas
        raise AnytimeError(f"{expected}; got {given}")
    nested = not texts and len(tensor.shape) > 1 and text[1:].lstrip().startswith(b"[")
    try:
        values = _list_decoder(tensor.datatype, len(tensor.shape) if nested else 1).decode(text)
        if texts:
            values = [each.encode() for each in values]
        with np.errstate(over="ignore"):  # becomes infinite, which networks' inputs are checked for
            array = np.array(values, dtype)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:  # also rows of different lengths
        raise AnytimeError(f"{expected}: {error}") from error
    if array.shape not in ((count,), tuple(tensor.shape)):
        raise AnytimeError(f"{expected}; got the shape {list(array.shape)}")
    return array.reshape(tensor.shape)


@cache
def _list_decoder(datatype: str, depth: int) -> Any:
    """A decoder of lists in lists that hold nothing but elements of this type."""
    dtype = DATATYPES[datatype]
    kind: Any = {"b": bool, "f": float, "O": str}.get(dtype.kind, int)
    if kind is int:
        bounds = np.iinfo(dtype)
        # msgspec's bounds are of type INT64; NumPy refuses what UINT64 does not hold.
        most = None if datatype == "UINT64" else int(bounds.max)
        kind = Annotated[int, msgspec.Meta(ge=int(bounds.min), le=most)]
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def from_elements(tensor: InputTensor, elements: Sequence[Any]) -> np.ndarray:
    """Elements that are numbers, booleans or bytes already, flat, as an array; what the type cannot hold is refused."""
    dtype, count = _described(tensor)
    if len(elements) != count:
        raise AnytimeError(f"{_about(tensor)} takes {count} elements, got {len(elements)}")
    try:
        return np.array(list(elements), dtype).reshape(tensor.shape)  # a container of a message would wrap around
    except OverflowError as error:
        raise AnytimeError(f"{_about(tensor)}: {error}") from error


def from_bytes(tensor: InputTensor, content: bytes) -> np.ndarray:
    """Binary data as an array."""
    dtype, count = _described(tensor)
    if tensor.datatype == "BYTES":
        return np.array(_split_bytes(tensor, content, count), object).reshape(tensor.shape)
    if len(content) != count * dtype.itemsize:
        raise AnytimeError(f"{_about(tensor)} takes {count * dtype.itemsize} bytes, got {len(content)}")
    if tensor.datatype == "BOOL":
        return (np.frombuffer(content, np.uint8) != 0).reshape(tensor.shape)
    return np.frombuffer(content, dtype).reshape(tensor.shape)


def _split_bytes(tensor: InputTensor, content: bytes, count: int) -> list[bytes]:
    """Elements of type BYTES: each is preceded by its length, 4 bytes."""
    found, place = [], 0
    while len(found) < count:
        start = place + 4
        place = start + int.from_bytes(content[place:start], "little")
        if start > len(content) or place > len(content):
            raise AnytimeError(f"{_about(tensor)}: its bytes end within element {len(found) + 1}")
        found.append(content[start:place])
    if place != len(content):
        raise AnytimeError(f"{_about(tensor)}: {len(content) - place} bytes follow its last element")
    return found


def format_response(
    model: str, request: InferenceRequest, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, dict[str, str]]:  # fmt: skip
    """The body and headers that answer a request."""
    described, tail = [], []
    for name, binary in request.wants(outputs).items():
        array = np.ascontiguousarray(outputs[name])
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if binary:
            tail.append(to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            flat = array.ravel().tolist()
            entry["data"] = [text.decode() for text in flat] if array.dtype == object else flat
        described.append(entry)
    answer = {"model_name": model, "model_version": "1", "outputs": described}
    head = msgspec.json.encode(answer if request.id is None else {**answer, "id": request.id})
    if not tail:
        return head, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", LENGTH_HEADER: str(len(head))}
    return b"".join([head, *tail]), headers


def datatype_of(array: np.ndarray) -> str:
    """The protocol's name of an array's type."""
    return _NAMES[array.dtype]


def to_bytes(array: np.ndarray) -> bytes:
    """An array as binary data."""
    if array.dtype == object:
        return b"".join(len(text).to_bytes(4, "little") + text for text in array.ravel())
    return array.tobytes()
