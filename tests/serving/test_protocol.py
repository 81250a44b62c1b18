"""The Open Inference Protocol: what goes in comes out; whatever else comes is refused with a reason."""

import json
import tracemalloc
from contextlib import suppress

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.errors import AnytimeError
from anytime.serving.protocol import DATATYPES, LENGTH_HEADER, format_response, parse_request

NUMBERS = sorted(DATATYPES.keys() - {"BYTES"})


def binary_body(name, datatype, array, content, **more):
    entry = {"name": name, "datatype": datatype, "shape": list(array.shape)}
    entry["parameters"] = {"binary_data_size": len(content)}
    head = json.dumps({"inputs": [entry], **more}).encode()
    return head + content, str(len(head))


@st.composite
def tensors(draw):
    datatype = draw(st.sampled_from(NUMBERS))
    shape = arrays.array_shapes(min_dims=1, max_dims=4, max_side=4)
    elements = {"allow_nan": False, "allow_infinity": False} if datatype.startswith("FP") else None
    return datatype, draw(arrays.arrays(DATATYPES[datatype], shape, elements=elements and st.just(0.5) | st.just(-2)))


@given(tensors())
def test_json_and_binary_tensors_are_read_alike(tensor):
    datatype, array = tensor
    body, length = binary_body("x", datatype, array, array.tobytes())
    flat = {"name": "x", "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}
    nested = {**flat, "data": array.tolist()}
    for request in (
        parse_request(body, length),
        parse_request(json.dumps({"inputs": [flat]}).encode()),
        parse_request(json.dumps({"inputs": [nested]}).encode()),
    ):
        assert request.arrays["x"].dtype == array.dtype
        assert np.array_equal(request.arrays["x"], array)


@given(tensors(), st.booleans())
def test_responses_hold_the_outputs(tensor, binary):
    _, array = tensor
    names = np.array([b"cat", "Füchse".encode()], object)
    request = parse_request(
        json.dumps({"inputs": [], "id": "7", "parameters": {"binary_data_output": binary}}).encode()
    )
    body, headers = format_response("m", request, {"x": array, "class": names})
    end = int(headers.get(LENGTH_HEADER, len(body)))
    answer = json.loads(body[:end])
    assert (answer["id"], answer["model_name"]) == ("7", "m")
    # A response's tensors are described as a request's are.
    again = parse_request(json.dumps({"inputs": answer["outputs"]}).encode() + body[end:], None) if not binary else None
    if binary:
        head = json.dumps({"inputs": answer["outputs"]}).encode()
        again = parse_request(head + body[end:], str(len(head)))
    assert np.array_equal(again.arrays["x"], array)
    assert again.arrays["class"].tolist() == names.tolist()


def test_outputs_are_chosen_one_by_one():
    wanted = [{"name": "b", "parameters": {"binary_data": True}}, {"name": "a"}]
    request = parse_request(json.dumps({"inputs": [], "outputs": wanted}).encode())
    one = np.ones(1, np.float32)
    body, headers = format_response("m", request, {"a": one, "b": 2 * one, "c": one})
    answer = json.loads(body[: int(headers[LENGTH_HEADER])])
    assert [entry["name"] for entry in answer["outputs"]] == ["b", "a"]
    assert body.endswith(np.float32(2).tobytes())
    with pytest.raises(AnytimeError, match="there is no output 'z'; outputs are a"):
        format_response("m", parse_request(b'{"inputs": [], "outputs": [{"name": "z"}]}'), {"a": one})


X = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"datatype": "FP12"}, "must be one of"),
        ({"shape": [3]}, "must be 3 elements"),
        ({"shape": [-2]}, "Expected `int` >= 0"),
        ({"shape": [1] * 9}, "of length <= 8"),
        ({"data": ["1", "2"]}, "must be 2 elements"),
        ({"data": [[1], [2, 3]]}, "must be 2 elements.*got 3"),
        ({"shape": [2, 2], "data": [[1], [2, 3, 4]]}, "inhomogeneous"),
        ({"shape": [2, 2], "data": [[1], [2], [3], [4]]}, r"got the shape \[4, 1\]"),
        ({"shape": [0, 2**31, 2**31], "data": []}, "stands for more than"),
        ({"shape": [0, 10**30], "data": []}, "Expected `int` <="),
        ({"data": [1, 10**400]}, "out of range"),
        ({"datatype": "UINT64", "data": [1, 2**64]}, "must be 2 elements"),
        ({"datatype": "UINT64", "data": [1, -1]}, "Expected `int` >= 0"),
        ({"data": None}, "must be 2 elements"),
        ({"datatype": "UINT8", "data": [1, 256]}, "Expected `int` <= 255"),
        ({"datatype": "UINT8", "data": [1, 2.5]}, "must be 2 elements"),
        ({"datatype": "BOOL"}, "must be 2 elements"),
        ({"datatype": "BYTES"}, "Expected `str`, got `int`"),
        ({"parameters": {"binary_data_size": 8}}, "0 bytes are left"),
        ({"parameters": {"binary_data_size": True}}, "binary_data_size=True"),
        ({"name": 1}, "Expected `str`"),
    ],
)
def test_tensors_that_are_not_what_they_say(change, reason):
    with pytest.raises(AnytimeError, match=reason):
        parse_request(json.dumps({"inputs": [X | change]}).encode())


def nested(depth):
    return depth * b"[" + b"0" + depth * b"]"


LONG_TEXT = b'["' + 2000 * b"x" + b'"' + 2000 * b',""' + b"]"


@pytest.mark.parametrize(
    ("datatype", "data"),
    [
        ("FP32", LONG_TEXT),
        ("FP32", b"[" + 2000 * b"[]," + b"[]]"),
        ("FP32", b"[[" + 2000 * b"0," + b"0]" + 2000 * b",[0]" + b"]"),
        ("UINT64", nested(900)),
        ("UINT64", LONG_TEXT),
        ("BYTES", nested(900)),
    ],
)
def test_nothing_is_made_of_elements_that_are_not_declared(datatype, data):
    """A body takes memory in proportion to its size, whatever it holds."""
    body = b'{"inputs":[{"name":"x","datatype":"%s","shape":[2001],"data":%s}]}' % (datatype.encode(), data)
    with pytest.raises(AnytimeError):  # caches are filled
        parse_request(body)
    tracemalloc.start()
    try:
        with pytest.raises(AnytimeError, match="must be 2001 elements"):
            parse_request(body)
        assert tracemalloc.get_traced_memory()[1] < 50 * len(body) + 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"inputs":[%s]}' % b",".join(10_000 * [json.dumps(X).encode()]), "10,000 inputs; at most 64"),
        (b'{"inputs":[],"outputs":[%s]}' % b",".join(10_000 * [b'{"name":"x"}']), "10,000 outputs; at most 64"),
        (json.dumps({"inputs": [], "parameters": {str(i): [] for i in range(10_000)}}).encode(), "parameters of"),
        (
            json.dumps({"inputs": [X | {"parameters": {str(i): [] for i in range(10_000)}}]}).encode(),
            "parameters of .* bytes; at most 4,096",
        ),
    ],
)
def test_few_parts_are_decoded_whatever_a_body_holds(body, reason):
    """Decoding holds Python's lock: a part that is not asked for is skipped, not made into objects."""
    with pytest.raises(AnytimeError, match=reason):
        parse_request(body)


def test_inputs_can_be_refused_before_their_data_are_read():
    body = json.dumps({"inputs": [X | {"data": ["no", "numbers"]}]}).encode()
    with pytest.raises(ZeroDivisionError):
        parse_request(body, None, lambda _: 1 / 0)


@pytest.mark.parametrize(
    ("body", "length", "reason"),
    [
        (b"", None, "unexpected JSON"),
        (b"[]", None, "unexpected JSON"),
        (b'{"inputs": [' + 10_000 * b"[", None, "unexpected JSON"),
        (b'{"inputs": []} ', "14", "1 bytes follow"),
        (b'{"inputs": []}', "15", "must be a number of bytes"),
        (b'{"inputs": []}', "-1", "must be a number of bytes"),
        (b'{"inputs": []}', "9" * 40, "must be a number of bytes"),
        (b'{"inputs": []}', "0" * 5000, "must be a number of bytes"),
        (json.dumps({"inputs": [X, X]}).encode(), None, "two inputs called 'x'"),
        (b" " * (4 * 2**20 + 1), None, "send binary data"),
        (b'{"inputs": []}\xff', None, "unexpected JSON"),
    ],
)
def test_bodies_that_are_no_requests(body, length, reason):
    with pytest.raises(AnytimeError, match=reason):
        parse_request(body, length)


@given(st.lists(st.binary(max_size=9), max_size=5))
def test_bytes_are_split_by_their_lengths(texts):
    content = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    array = np.zeros(len(texts))
    assert parse_request(*binary_body("x", "BYTES", array, content)).arrays["x"].tolist() == texts
    with pytest.raises(AnytimeError, match="follow its last"):
        parse_request(*binary_body("x", "BYTES", array, content + b"1"))
    for end in range(len(content)):
        with pytest.raises(AnytimeError, match="its bytes end"):
            parse_request(*binary_body("x", "BYTES", array, content[:end]))


@given(st.binary(max_size=200), st.none() | st.text(max_size=5))
def test_garbage_is_refused_or_parsed_and_nothing_else(body, length):
    with suppress(AnytimeError):
        parse_request(body, length)
