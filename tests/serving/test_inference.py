"""The Open Inference Protocol over HTTP, as Triton's own client speaks it."""

import io
import json

import numpy as np
import pytest
import torch
from encoded_images import encoded
from PIL import Image

import anytime
from anytime.serving.limits import Limits

INPUT = {"name": "input", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.0] * 64}


@pytest.fixture(scope="module")
def triton(server):
    http = pytest.importorskip("tritonclient.http", reason="needs: pip install 'tritonclient[http]'")
    client = http.InferenceServerClient(
        server.address.removeprefix("http://"), connection_timeout=600, network_timeout=600
    )
    yield http, client
    client.close()


def test_triton_lists_and_describes(triton):
    _, client = triton
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert not client.is_model_ready("nobody")
    assert client.get_server_metadata()["name"] == "anytime"
    assert [model["name"] for model in client.get_model_repository_index()] == ["digits"]
    about = client.get_model_metadata("digits")
    assert about["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert [output["name"] for output in about["outputs"]][:3] == ["logits", "probabilities", "class"]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("rows", [1, 5])
def test_triton_infers(triton, run_folder, binary, rows):
    http, client = triton
    x = np.random.default_rng(0).normal(size=(rows, 1, 8, 8)).astype(np.float32)
    given = http.InferInput("input", list(x.shape), "FP32")
    given.set_data_from_numpy(x, binary_data=binary)
    names = ["logits", "probabilities", "class", "exit", "complete", "seconds", "macs"]
    wanted = [http.InferRequestedOutput(name, binary_data=binary) for name in names]
    answer = client.infer("digits", [given], outputs=wanted, request_id="a", timeout=30_000_000)
    net = anytime.load(run_folder)
    with torch.inference_mode():
        logits = net(torch.from_numpy(x))[-1]
    assert np.allclose(answer.as_numpy("logits"), logits, atol=1e-4)
    assert np.allclose(answer.as_numpy("probabilities"), logits.softmax(-1), atol=1e-4)
    said = [text.decode() if isinstance(text, bytes) else text for text in answer.as_numpy("class").tolist()]
    assert said == [net.preprocessing.classes[i] for i in logits.argmax(-1)]
    assert answer.as_numpy("exit").tolist() == [2] * rows
    assert answer.as_numpy("complete").tolist() == [True] * rows
    assert (answer.as_numpy("seconds") > 0).all()
    assert (answer.as_numpy("macs") > 0).all()
    assert answer.get_response()["id"] == "a"


def test_pixels_and_encoded_images_are_preprocessed(triton, run_folder):
    http, client = triton
    net = anytime.load(run_folder)
    pixels = np.random.default_rng(0).integers(256, size=(2, 1, 8, 8), dtype=np.uint8)
    images = np.array([encoded(seed=1), encoded("JPEG", 40, seed=2)], object)
    for array, kind, x in (
        (pixels, "UINT8", net.preprocess(pixels)),
        (images, "BYTES", net.preprocess([Image.open(io.BytesIO(each)) for each in images])),
    ):
        given = http.InferInput("input", list(array.shape), kind)
        given.set_data_from_numpy(array)
        with torch.inference_mode():
            expected = net(x)[-1]
        answer = client.infer("digits", [given], timeout=30_000_000)
        assert np.allclose(answer.as_numpy("logits"), expected, atol=1e-4), kind


def test_triton_loads_a_model_again(triton):
    _, client = triton
    client.load_model("digits")
    assert client.is_model_ready("digits")


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"inputs": []}, 400, "expected one, called 'input'"),
        ({"inputs": [INPUT | {"name": "x"}]}, 400, "expected one, called 'input'"),
        ({"inputs": [INPUT | {"name": "x" * 3_000_000}]}, 400, f"['{'x' * 40}']; expected one, called 'input'"),
        ({"inputs": [INPUT | {"shape": [0, 1, 8, 8], "data": []}]}, 400, "1 to 64 samples"),
        ({"inputs": [INPUT | {"shape": [1, 0, 2**40, 2**40], "data": []}]}, 400, "expected [N, 1, 8, 8]"),
        ({"inputs": [INPUT | {"data": "deep"}]}, 400, "must be 64 elements"),
        ({"inputs": [INPUT | {"datatype": "BYTES", "shape": [10**6], "data": [""] * 10**6}]}, 400, "1 to 64 samples"),
        ({"inputs": [INPUT | {"shape": [64]}]}, 400, "expected [N, 1, 8, 8]"),
        ({"inputs": [INPUT | {"shape": [65, 1], "data": [0] * 65}]}, 400, "1 to 64 samples"),
        ({"inputs": [INPUT | {"shape": [1, 1, 4, 4], "data": [0] * 16}]}, 400, "expected [N, 1, 8, 8]"),
        ({"inputs": [INPUT | {"datatype": "UINT8", "shape": [1, 1, 4, 4], "data": [0] * 16}]}, 400, "[N, 1, 8, 8]"),
        ({"inputs": [INPUT | {"datatype": "BYTES", "shape": [1], "data": ["no image"]}]}, 400, "PNG, JPEG or WebP"),
        ({"inputs": [INPUT], "outputs": [{"name": "soul"}]}, 400, "there is no output 'soul'"),
        ({"inputs": [INPUT], "parameters": {"timeout": -5}}, 400, "timeout"),
        ({"inputs": [INPUT], "parameters": {"timeout": 1e12}}, 400, "at most 60 s"),
    ],
)
def test_what_cannot_be_answered_is_explained(client, change, status, reason):
    body = json.dumps(change).replace('"deep"', 900 * "[" + 900 * "]")
    reply = client.post("/v2/models/digits/infer", content=body)
    assert reply.status_code == status
    assert reason in reply.json()["error"]


def test_a_model_has_one_version(client):
    assert client.get("/v2/models/digits/versions/1").json() == client.get("/v2/models/digits").json()
    assert client.get("/v2/models/digits/versions/2").status_code == 404
    assert client.post("/v2/models/nobody/infer", json={"inputs": [INPUT]}).status_code == 404
    assert client.post("/v2/repository/models/nobody/load").status_code == 404


def test_the_document_describes_every_route():
    from anytime.serving.app import OPENAPI, create_app
    from anytime.serving.service import Service

    routes = create_app(Service({}, Limits())).app.routes
    ours = {(route.path, method.lower()) for route in routes for method in route.methods - {"HEAD"}}
    document = json.loads(OPENAPI.read_text())
    described = {(path, method) for path, methods in document["paths"].items() for method in methods}
    assert described == {(path, method) for path, method in ours if path not in ("/", "/page/{name}")}
