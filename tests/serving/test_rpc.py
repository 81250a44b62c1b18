"""The Open Inference Protocol over gRPC: with grpcio alone, and as Triton's own client speaks it."""

import queue
import shutil
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from encoded_images import encoded
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

import anytime
import anytime.serving
from anytime.errors import AnytimeError
from anytime.serving.protocol import DATATYPES, InferenceRequest, to_bytes
from anytime.serving.rpc_messages import FIELDS, POOL, SERVICE, infer_response, message, parse_message, read_message

grpc = pytest.importorskip("grpc", reason='needs: pip install "anytime-nets[grpc]"')

TOKEN = "a-token-of-sixteen-or-more"
FOLDER = Path(anytime.serving.__file__).parent
INVALID, LATE, FULL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


def numbers(kind):
    """Arrays of one of the protocol's types, with the shapes that they may have."""
    dtype = DATATYPES[kind]
    one = st.binary(max_size=5) if kind == "BYTES" else st.integers(0, 1)
    shapes = st.lists(st.integers(0, 3), min_size=1, max_size=3)
    return shapes.flatmap(
        lambda shape: st.lists(one, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
            lambda flat: np.array(flat, dtype).reshape(shape)
        )
    )


def request_of(array, kind, raw, **more):
    asked = message("ModelInferRequest")(model_name="digits", **more)
    tensor = asked.inputs.add(name="input", datatype=kind, shape=array.shape)
    if raw:
        asked.raw_input_contents.append(to_bytes(array))
    else:
        getattr(tensor.contents, FIELDS[kind]).extend(array.ravel().tolist())
    return asked


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from([kind for kind in DATATYPES if kind != "FP16"]), st.booleans())
def test_what_is_sent_is_what_is_read(data, kind, raw):
    array = data.draw(numbers(kind))
    read = parse_message(request_of(array, kind, raw)).arrays["input"]
    assert read.dtype == array.dtype
    assert read.shape == array.shape
    assert read.tolist() == array.tolist()
    reply = infer_response("digits", InferenceRequest([], "a", {}, []), {"x": array}, raw)
    again = message("ModelInferRequest")()
    again.inputs.add(name="x", datatype=kind, shape=array.shape).contents.CopyFrom(reply.outputs[0].contents)
    again.raw_input_contents.extend(reply.raw_output_contents)
    assert parse_message(again).arrays["x"].tolist() == array.tolist()


def test_the_descriptor_is_that_of_the_proto_file(tmp_path):
    if shutil.which("protoc") is None:
        pytest.skip("needs protoc (Debian: protobuf-compiler)")
    out = tmp_path / "made"
    subprocess.run(
        ["protoc", f"-I{FOLDER}", f"--descriptor_set_out={out}", FOLDER / "open_inference.proto"], check=True
    )
    read = descriptor_pb2.FileDescriptorSet.FromString
    assert read(out.read_bytes()) == read((FOLDER / "open_inference.binpb").read_bytes())


def test_the_descriptor_agrees_with_tritons():
    theirs = pytest.importorskip("tritonclient.grpc.service_pb2", reason="needs: pip install 'tritonclient[grpc]'")
    service = theirs.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    checked = set()

    def compare(ours, other):
        if ours.full_name in checked:
            return
        checked.add(ours.full_name)
        for field in ours.fields:
            same = other.fields_by_number[field.number]
            assert (field.name, field.type) == (same.name, same.type), ours.full_name
            assert field.is_repeated == same.is_repeated, field.full_name
            if field.message_type is not None:
                compare(field.message_type, same.message_type)

    for method in POOL.FindServiceByName(SERVICE).methods:
        same = service.methods_by_name[method.name]
        compare(method.input_type, same.input_type)
        compare(method.output_type, same.output_type)
    assert len(checked) > 14


INPUT, OUTPUT, PARAMETER, RAW = 0x2A, 0x32, 0x22, 0x3A
"""The first bytes of those fields of a request."""


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.sampled_from(["ModelInferRequest", "ModelReadyRequest", "ServerLiveRequest"]))
def test_any_bytes_are_a_message_or_refused(content, kind):
    with suppress(AnytimeError):
        read_message(message(kind), content)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([INPUT, OUTPUT, PARAMETER, RAW]), st.integers(1, 300))
def test_messages_of_many_parts_are_refused_before_they_are_decoded(field, count):
    content = bytes([field, 0]) * count
    if count <= 256:
        read_message(message("ModelInferRequest"), content)
    else:
        with pytest.raises(AnytimeError, match="at most 256 parts"):
            read_message(message("ModelInferRequest"), content)


def test_large_messages_hold_raw_data_and_nothing_else():
    kind = message("ModelInferRequest")
    raw = kind(raw_input_contents=[bytes(10 * 2**20)])
    assert read_message(kind, raw.SerializeToString()) == raw
    numbers = kind()
    numbers.inputs.add(name="input").contents.uint64_contents.extend([1] * 5 * 2**20)
    with pytest.raises(AnytimeError, match="send raw_input_contents"):
        read_message(kind, numbers.SerializeToString())
    for described in (kind(id="i" * 2**15), kind()):
        described.inputs.add(name="n" * 2**15)
        with pytest.raises(AnytimeError, match="names, shapes and parameters"):
            read_message(kind, described.SerializeToString())
    with pytest.raises(AnytimeError, match="at most 64"):
        parse_message(kind(outputs=[{}] * 65))


@pytest.fixture(scope="module")
def running(serve, run_folder, tmp_path_factory):
    """A server with a token, HTTP and gRPC."""
    secret = tmp_path_factory.mktemp("token") / "secret"
    secret.write_text(TOKEN)
    with serve(run_folder, "--grpc-port", "0", "--token-file", secret) as running:
        yield running


class Client:
    """The methods of the protocol over a channel."""

    def __init__(self, address, token=TOKEN):
        self.channel = grpc.insecure_channel(address)
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def __call__(self, name, asked=None, timeout=30.0):
        asked = asked or message(f"{name}Request")()
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=lambda asked: asked.SerializeToString(),
            response_deserializer=message(f"{name}Response").FromString,
        )
        return method(asked, timeout=timeout, metadata=self.metadata)

    def error(self, *args, **options):
        with pytest.raises(grpc.RpcError) as caught:
            self(*args, **options)
        return caught.value


@pytest.fixture(scope="module")
def client(running):
    client = Client(running.grpc)
    yield client
    client.channel.close()


def floats(rows=1, shape=(1, 8, 8), seed=0):
    return np.random.default_rng(seed).normal(size=(rows, *shape)).astype(np.float32)


def test_a_server_describes_itself_and_its_models(client):
    assert client("ServerLive").live
    assert client("ServerReady").ready
    assert client("ServerMetadata").name == "anytime"
    about = message("ModelReadyRequest")
    assert client("ModelReady", about(name="digits", version="1")).ready
    assert client.error("ModelReady", about(name="nobody")).code() is grpc.StatusCode.NOT_FOUND
    assert client.error("ModelReady", about(name="digits", version="2")).code() is grpc.StatusCode.NOT_FOUND
    said = client("ModelMetadata", message("ModelMetadataRequest")(name="digits"))
    assert [(each.name, each.datatype, list(each.shape)) for each in said.inputs] == [("input", "FP32", [-1, 1, 8, 8])]


@pytest.mark.parametrize("raw", [True, False])
def test_answers_are_those_of_the_network(client, run_folder, raw):
    x = floats(rows=3)
    reply = client("ModelInfer", request_of(x, "FP32", raw, id="a"))
    assert (reply.id, reply.model_name) == ("a", "digits")
    (place,) = [i for i, output in enumerate(reply.outputs) if output.name == "logits"]
    if raw:
        logits = np.frombuffer(reply.raw_output_contents[place], "<f4")
    else:
        logits = np.array(reply.outputs[place].contents.fp32_contents, np.float32)
    with torch.inference_mode():
        expected = anytime.load(run_folder)(torch.from_numpy(x))[-1]
    assert np.allclose(logits.reshape(3, 10), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "array", "reason"),
    [
        ("FP32", floats(shape=(1, 4, 4)), "expected [N, 1, 8, 8]"),
        ("FP32", floats(rows=65), "1 to 64 samples"),
        ("FP32", floats() * np.inf, "infinite or NaN values"),
        ("BYTES", np.array([b"no image"], object), "PNG, JPEG or WebP"),
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_bad_input_is_an_invalid_argument(client, kind, array, reason, raw):
    error = client.error("ModelInfer", request_of(array, kind, raw))
    assert error.code() is INVALID
    assert reason in error.details()


def called(datatype):
    asked = request_of(floats(), "FP32", raw=False)
    asked.inputs[0].datatype = datatype
    return asked


def test_messages_that_contradict_themselves_are_refused():
    def reason(asked):
        with pytest.raises(AnytimeError) as caught:
            parse_message(asked)
        return str(caught.value)

    both = request_of(floats(), "FP32", raw=False)
    both.raw_input_contents.append(b"")
    assert "send one of them" in reason(both)
    two = request_of(floats(), "FP32", raw=True)
    two.raw_input_contents.append(b"")
    assert "2 elements for 1 inputs" in reason(two)
    two.inputs.add(name="input", datatype="FP32", shape=[0])
    assert "two inputs called" in reason(two)
    assert "expected in fp64_contents; got fp32_contents" in reason(called("FP64"))
    assert "raw_input_contents" in reason(called("FP16"))
    unknown = message("ModelInferRequest")()
    unknown.inputs.add(name="input", datatype="FP17", shape=[1])
    assert "the type must be one of" in reason(unknown)
    negative = request_of(floats(), "FP32", raw=True)
    negative.inputs[0].shape[:] = [-1, -64]
    assert "each at least 0" in reason(negative)
    large = request_of(np.array([300], np.uint16), "UINT16", raw=False)
    large.inputs[0].datatype = "UINT8"
    assert "300" in reason(large)


def test_the_deadline_of_the_call_is_the_deadline(client):
    asked = request_of(floats(), "FP32", True)
    assert client.error("ModelInfer", asked, timeout=1e-4).code() in (LATE, FULL)
    error = client.error("ModelInfer", asked, timeout=100.0)
    assert (error.code(), "at most 60 s" in error.details()) == (INVALID, True)
    assert client("ModelInfer", asked, timeout=None).outputs
    asked.parameters["timeout"].int64_param = -5
    assert client.error("ModelInfer", asked).code() is INVALID


def test_without_the_token_only_health_is_told(running):
    for token in (None, TOKEN + "x", "ÿ".encode().hex()):
        client = Client(running.grpc, token)
        assert client("ServerLive").live
        assert client("ServerReady").ready
        for name in ("ServerMetadata", "ModelMetadata", "ModelInfer"):
            assert client.error(name).code() is grpc.StatusCode.UNAUTHENTICATED
        client.channel.close()


def test_calls_are_in_the_log(client, running):
    def line(asked):
        """What the log says of a call."""

        def lines():
            return [line for line in running.requests() if line["path"].endswith("/ModelInfer")]

        before = len(lines())
        client("ModelInfer", asked)
        until(lambda: len(lines()) > before)
        return lines()[-1]

    asked = request_of(floats(), "FP32", True)
    found = line(asked)
    expected = {"model": "digits", "outcome": "answered", "client": "127.0.0.1", "status": 200}
    assert expected.items() <= found.items()
    assert 29 < found["deadline"] <= 30, "that of the call, which gRPC rounds up"
    asked.parameters["timeout"].int64_param = 20_000_000
    assert line(asked)["deadline"] == 20, "that of the message, which is earlier"
    with running.client(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        assert 'outcome="answered",route="ModelInfer"' in http.get("/metrics").text


def test_who_may_not_call_is_refused_before_the_message_is_received(running):
    channel = grpc.insecure_channel(running.grpc)
    never = threading.Event()

    def messages():
        never.wait(60)
        yield b""

    call = channel.stream_unary(f"/{SERVICE}/ModelInfer").future(messages(), timeout=60)
    assert call.exception(timeout=30).code() is grpc.StatusCode.UNAUTHENTICATED
    never.set()
    channel.close()


def test_compressed_and_large_messages_are_refused(running, client):
    asked = request_of(floats(), "FP32", True)
    asked.raw_input_contents[0] = bytes(2**22)  # a few kilobytes of gzip
    with grpc.insecure_channel(running.grpc, compression=grpc.Compression.Gzip) as channel:
        method = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            method(asked.SerializeToString(), timeout=30, metadata=client.metadata)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    asked.raw_input_contents[0] = bytes(2**24)
    assert client.error("ModelInfer", asked).code() is FULL
    assert client("ServerLive").live


def test_what_was_admitted_is_answered_when_the_server_ends(serve, run_folder):
    with serve(run_folder, "--grpc-port", "0") as running:
        client = Client(running.grpc, None)
        method = client.channel.unary_unary(f"/{SERVICE}/ModelInfer")
        asked = request_of(floats(rows=8), "FP32", True).SerializeToString()
        method(asked, timeout=30)
        calls = [method.future(asked, timeout=30) for _ in range(40)]
        running.signal(signal.SIGTERM)
        ends = [call.exception(timeout=60) for call in calls]
        assert running.wait() == 0
        client.channel.close()
    answered = [line for line in running.requests() if line["status"] == 200]
    assert len(answered) == 1 + sum(error is None for error in ends), "no answer is lost"
    # gRPC itself cancels calls that come as the port closes.
    gone = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert {error.code() for error in ends if error} <= {FULL, *gone}, ends


def test_a_refusal_says_when_to_try_again(serve, run_folder):
    """One request may be in flight: of many at once some are refused."""
    with serve(run_folder, "--grpc-port", "0", "--queue", "1") as running:
        client = Client(running.grpc, None)
        method = client.channel.unary_unary(f"/{SERVICE}/ModelInfer")
        asked = request_of(floats(rows=64), "FP32", True).SerializeToString()
        error = method.future(asked, timeout=30.0).exception()
        assert error.code() is FULL
        trailing = dict(error.trailing_metadata())
        assert int(trailing["retry-after"]) >= 1
        assert int(trailing["grpc-retry-pushback-ms"]) >= 1
        client.channel.close()
        running.signal(signal.SIGTERM)
        assert running.wait() == 0


def test_a_port_in_use_is_one_line(serve, run_folder, running):
    port = running.grpc.rpartition(":")[2]
    with pytest.raises(AssertionError, match="choose another --grpc-port"), serve(run_folder, "--grpc-port", port):
        pass


@pytest.fixture(scope="module")
def triton(running):
    theirs = pytest.importorskip("tritonclient.grpc", reason="needs: pip install 'tritonclient[grpc]'")
    client = theirs.InferenceServerClient(running.grpc)
    yield theirs, client, {"authorization": f"Bearer {TOKEN}"}
    client.close()


def test_tritons_client_infers(triton, run_folder):
    theirs, client, headers = triton
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits", headers=headers)
    assert client.get_server_metadata(headers=headers).name == "anytime"
    assert client.get_model_metadata("digits", headers=headers).inputs[0].name == "input"
    x = floats(rows=5)
    given = theirs.InferInput("input", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    names = ["logits", "probabilities", "class", "exit", "complete", "seconds", "late", "macs"]
    wanted = [theirs.InferRequestedOutput(name) for name in names]
    options = {"request_id": "a", "client_timeout": 30, "timeout": 20_000_000, "headers": headers}
    answer = client.infer("digits", [given], outputs=wanted, **options)
    net = anytime.load(run_folder)
    with torch.inference_mode():
        logits = net(torch.from_numpy(x))[-1]
    assert np.allclose(answer.as_numpy("logits"), logits, atol=1e-4)
    said = [text.decode() for text in answer.as_numpy("class").tolist()]
    assert said == [net.preprocessing.classes[i] for i in logits.argmax(-1)]
    assert answer.as_numpy("complete").tolist() == [True] * 5
    assert answer.get_response().id == "a"
    images = np.array([encoded(seed=1), encoded("JPEG", 40, seed=2)], object)
    given = theirs.InferInput("input", [2], "BYTES")
    given.set_data_from_numpy(images)
    assert client.infer("digits", [given], client_timeout=30, headers=headers).as_numpy("exit").shape == (2,)


def test_tritons_stream_shows_every_exit(triton):
    theirs, client, headers = triton
    came = queue.Queue()
    client.start_stream(lambda result, error: came.put((result, error)), stream_timeout=30, headers=headers)
    given = theirs.InferInput("input", [1, 1, 8, 8], "FP32")
    given.set_data_from_numpy(floats())
    client.async_stream_infer("digits", [given], request_id="a")
    exits, final = [], False
    while not final:
        result, error = came.get(timeout=60)
        assert error is None
        exits.append(int(result.as_numpy("exit")[0]))
        final = result.get_response().parameters["triton_final_response"].bool_param
    assert exits == sorted(exits)
    assert exits[-2:] == [2, 2]  # as it is reached, and as the answer
    client.async_stream_infer("nobody", [given], request_id="b")
    result, error = came.get(timeout=60)
    assert "there is no model 'nobody'" in str(error)
    client.async_stream_infer("digits", [given], request_id="c")
    result, error = came.get(timeout=60)
    assert error is None, "one request that failed does not end the stream"
    assert result.get_response().id == "c"
    client.stop_stream()
