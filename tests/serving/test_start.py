"""``anytime.serve``: a server from Python, for networks in memory and in folders."""

import signal
import sys

import pytest
import torch

import anytime

CONVERTED = """
import sys, torch, anytime
from torch import nn
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Conv2d(c, 8, 3), nn.ReLU()) for c in (3, 8, 8)]
model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
net = anytime.convert(model, torch.zeros(1, 3, 16, 16), exits=3)
"""


@pytest.fixture
def serve_python(serving_started, tmp_path):
    """Run a program that serves."""

    def start(code, *words):
        return serving_started([sys.executable, "-c", code, *map(str, words)], tmp_path / "server.log")

    return start


def answers(running, x, name):
    body = {"inputs": [{"name": "input", "shape": list(x.shape), "datatype": "FP32", "data": x.flatten().tolist()}]}
    with running.client() as client:
        metadata = client.get(f"/v2/models/{name}").json()
        body["inputs"][0]["name"] = metadata["inputs"][0]["name"]
        reply = client.post(f"/v2/models/{name}/infer", json={**body, "parameters": {"deadline": "30s"}})
        assert reply.status_code == 200, reply.text
        outputs = {output["name"]: output for output in reply.json()["outputs"]}
    return torch.tensor(outputs["logits"]["data"]).view(len(x), -1)


def test_a_converted_network_in_memory_is_served(serve_python):
    scope = {}
    exec(CONVERTED, scope)
    x = torch.randn(1, 3, 16, 16)
    expected = scope["net"].eval()(x)[-1]
    code = CONVERTED + "anytime.serve(net, port=0, name='mine', example=torch.zeros(1, 3, 16, 16))"
    with serve_python(code) as running:
        assert torch.allclose(answers(running, x, "mine"), expected, atol=1e-4)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0


def test_an_exported_folder_is_served_by_python_and_by_the_command(serve_python, serve, run_folder, tmp_path):
    net = anytime.load(run_folder)
    anytime.export.onnx(net, torch.zeros(2, 1, 8, 8), tmp_path / "exported")
    x = torch.randn(1, 1, 8, 8)
    expected = net(x)[-1]
    code = "import sys, anytime; anytime.serve(sys.argv[1], port=0)"
    for running in (serve_python(code, tmp_path / "exported"), serve(tmp_path / "exported")):
        with running as server:
            assert torch.allclose(answers(server, x, "exported"), expected, atol=1e-4)


def test_what_cannot_be_served_is_refused_before_anything_listens():
    with pytest.raises(anytime.AnytimeError, match="port"):
        anytime.serve(anytime.create_model("resann-1-4"), port=70_000)
    with pytest.raises(anytime.AnytimeError, match="token"):
        anytime.serve(anytime.create_model("resann-1-4"), port=0, host="0.0.0.0")
