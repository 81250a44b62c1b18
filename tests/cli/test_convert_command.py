"""Converted models on the command line: built by a constructor, trained, evaluated, calibrated, profiled."""

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

MODELS = """
from torch import nn
def blocks(num_classes, in_channels):
    layers = [nn.Conv2d(in_channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))
"""


@pytest.fixture
def anytime_command(tmp_path, environment):
    (tmp_path / "my_models.py").write_text(MODELS)
    paths = [str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = ":".join(paths)

    def run(words):
        command = [sys.executable, "-m", "anytime", *words.split()]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_a_model_of_ones_own_from_the_first_command_to_the_last(anytime_command, tmp_path):
    done = anytime_command("convert my_models:blocks --exits 1 --data digits --output mine")
    assert done.returncode == 0, done.stderr
    assert "exit 1" in done.stdout
    (tmp_path / "mine" / "my_models.py").write_text("raise SystemExit('imported from the folder of the model')")
    refused = anytime_command("evaluate mine")
    assert refused.returncode == 2
    assert "my_models:blocks, which may be any code" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    done = anytime_command("train --model mine --data digits --subset 64 --epochs 1 --output trained --trust")
    assert done.returncode == 0, done.stderr
    for words in ("evaluate trained --json --trust", "--trust profile trained --repeats 1 --json"):
        done = anytime_command(words)
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["macs"]) == 1


@pytest.fixture
def libraries(tmp_path):
    """The libraries can be imported by commands that run in ``tmp_path``, whatever torchvision is installed."""
    start = "import sys; sys.path.insert(0, {tests!r}); import public; public.repair_torchvision()"
    (tmp_path / "sitecustomize.py").write_text(start.format(tests=str(Path(__file__).parents[1])))


@pytest.mark.slow
@pytest.mark.usefixtures("libraries")
def test_pretrained_weights_come_from_the_cache_of_the_library(anytime_command, environment, tmp_path):
    """As timm's client lays its cache out; there is no network."""
    timm = pytest.importorskip("timm")
    cache = tmp_path / "cache"
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    words = "convert timm:resnet18 --pretrained --exits 3 --data digits --output r18"
    refused = anytime_command(words)
    assert refused.returncode == 2
    assert "weights of timm:resnet18 could not be loaded" in refused.stderr.splitlines()[-1]
    public = timm.create_model("resnet18").state_dict()
    repository = cache / "models--timm--resnet18.a1_in1k"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    save_file(public, snapshot / "model.safetensors")
    done = anytime_command(words)
    assert done.returncode == 0, done.stderr
    saved = load_file(tmp_path / "r18" / "model.safetensors")
    weights = [tensor for name, tensor in saved.items() if name.endswith("layer3.0.conv1.weight")]
    assert weights
    assert all(torch.equal(tensor, public["layer3.0.conv1.weight"]) for tensor in weights)


@pytest.mark.promise
@pytest.mark.usefixtures("libraries")
def test_every_command_on_a_model_of_a_library(anytime_command, tmp_path):
    draw = torch.Generator().manual_seed(0)
    for split, number in (("train", 40), ("test", 4)):
        for name, i in product(("dark", "light"), range(number)):
            pixels = torch.randint(128, (32, 32, 3), dtype=torch.uint8, generator=draw) + 127 * (name == "light")
            path = tmp_path / "photos" / split / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.numpy()).save(path)
    for words in (
        "convert timm:resnet18 --exits 4 --data digits --output r18",
        "train --model r18 --data digits --subset 200 --epochs 1 --output trained",
        "train --output trained --resume",
        "evaluate trained --budgets",
        "calibrate trained --budget 0.7",
        "profile trained --repeats 2 --save",
        "train --model torchvision:squeezenet1_1 --exits 2 --data photos --epochs 1 --output s",
    ):
        done = anytime_command(words)
        assert done.returncode == 0, (words, done.stderr)
