"""The network of a run folder on another backend; the command that exports it."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import anytime
from anytime.export.backend import load_backend
from anytime.export.write import distance


@pytest.fixture
def saved(tmp_path):
    net = anytime.create_model("resann-1-4", num_classes=3, in_channels=1)
    net.preprocessing = anytime.Preprocessing(1, (8, 8), [0.3], [0.2], ["a", "b", "c"])
    return anytime.save(net, tmp_path / "a")


X = torch.ones(2, 1, 8, 8)


def test_a_run_is_exported_once_and_again_when_it_has_changed(saved):
    with torch.no_grad():
        expected = load_backend(saved, "eager")(X)
    found = load_backend(saved, "onnx")
    assert distance(found(X)[-1], expected[-1]) < 1e-4
    written = (saved / "onnx/anytime.json").stat().st_mtime_ns
    load_backend(saved, "onnx")
    assert (saved / "onnx/anytime.json").stat().st_mtime_ns == written
    assert load_backend(saved / "onnx", "onnx").exits == 3
    policy = anytime.Policy("confidence", [0.9, None], [1.0, 1.1, 0.9], [1, 2, 3], [0.25, 0.5, 0.25], 2.5)
    policy.save(saved)
    assert load_backend(saved, "onnx").policy == policy
    net = anytime.load(saved)
    torch.nn.init.ones_(net.heads[2].fc.bias)
    anytime.save(net, saved)
    with torch.no_grad():
        assert distance(load_backend(saved, "onnx")(X)[-1], net(X)[-1]) < 1e-4
    net.preprocessing = anytime.Preprocessing(1, (8, 8), [0.5], [0.1], ["d", "e", "f"])
    anytime.save(net, saved)
    assert load_backend(saved, "onnx").preprocessing == net.preprocessing
    with pytest.raises(anytime.AnytimeError, match="one of auto, eager, onnx"):
        load_backend(saved, "abacus")


def test_a_model_that_is_saved_over_an_export_is_what_runs(saved, tmp_path):
    net, other = anytime.load(saved), anytime.create_model("resann-1-4", num_classes=3, in_channels=1).eval()
    folder = anytime.export.onnx(other, X, tmp_path / "b")
    anytime.save(net, folder)
    net.preprocessing = None
    with torch.no_grad():
        assert distance(load_backend(folder, "onnx")(X)[-1], net(X)[-1]) < 1e-4


def test_the_command(run, saved, tmp_path):
    code, out, err = run("export a --to onnx --output phone --exits 1,3")
    assert code == 0, err
    assert "2 stages and heads" in out
    net, found = anytime.load(saved), anytime.load_exported(tmp_path / "phone")
    with torch.no_grad():
        assert [distance(a, b) < 1e-4 for a, b in zip(found(X), net(X, [0, 2]), strict=True)] == [True, True]
    assert found.preprocessing == net.preprocessing
    policy = anytime.Policy("confidence", [0.9, None], [1.0, 1.1, 0.9], [1, 2, 3], [0.25, 0.5, 0.25], 2.5)
    policy.save(saved)
    assert run("export a --any-size")[0] == 0
    assert anytime.load_exported(saved / "onnx").policy == policy
    assert anytime.load_exported(saved / "onnx")(torch.ones(1, 1, 12, 20))[0].shape == (1, 3)
    for line, message in [
        ("export a --to tea", "--to tea: expected onnx or executorch"),
        ("export a --exits one", "expected numbers from 1"),
        ("export a --exits 9", "has 3"),
        ("export a --output a", "a holds a saved model: export to another folder"),
        ("export nowhere", "not a saved model"),
    ]:
        code, out, err = run(line)
        assert (code, err.count("\n")) == (2, 1)
        assert message in err


@pytest.mark.usefixtures("saved")
def test_predict_on_onnx_runtime(run, tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("L", (8, 8), 77).save(tmp_path / "gray.png")
    answers = []
    for backend in ("eager", "onnx"):
        code, out, err = run(f"predict a gray.png --backend {backend} --json")
        assert code == 0, err
        answers.append(json.loads(out))
    eager, onnx = ({c["class"]: c["probability"] for c in answer["classes"]} for answer in answers)
    assert eager == pytest.approx(onnx, abs=1e-5)
    assert (answers[1]["exit"], answers[1]["exits"]) == (2, 3)  # the last one: they count from 0
    assert run("predict a gray.png --backend abacus")[0] == 2


def test_int8(run, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "b")
    code, out, err = run("export b --to onnx --int8 --tolerate 100")
    assert code == 0, err
    assert "float32" in out
    found = anytime.load_exported(tmp_path / "b/onnx-int8")
    assert found.description.about["precision"] == "int8"
    floats = load_backend(tmp_path / "b", "onnx")
    x = torch.rand(3, 1, 8, 8)
    assert [distance(a, b) < 0.5 for a, b in zip(found(x), floats(x), strict=True)] == [True] * floats.exits
    assert distance(found(x)[-1], floats(x)[-1]) > 1e-4, "it is the same network: nothing was tried"
    with pytest.raises(anytime.AnytimeError, match="not an export in floats"):
        anytime.export.int8(tmp_path / "b/onnx-int8", tmp_path / "c", [], [])
    labeled = [(x, torch.tensor([0, 1, 2]))]
    with pytest.raises(anytime.AnytimeError, match="no batches to calibrate with"):
        anytime.export.int8(tmp_path / "b/onnx", tmp_path / "c", [], labeled)
    assert not (tmp_path / "c").exists()


def test_int8_shares_weights_and_keeps_no_promise(tmp_path):
    """Weights of several stages or heads are stored once; a risk holds for the logits in floats."""
    stage, head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)
    net = anytime.AnytimeNetwork([stage, torch.nn.ReLU(), stage], [head] * 3).eval()
    policy = anytime.Policy("confidence", [0.9, None], [1.0] * 3, [1, 2, 3], [0.25, 0.5, 0.25], 2.5, risk=0.1)
    x = torch.randn(64, 64)
    labeled = [(x, net(x)[-1].argmax(-1))]
    floats = anytime.export.onnx(net, x, tmp_path / "a", policy=policy)
    folder = anytime.export.int8(floats, tmp_path / "b", labeled, labeled, tolerate=100).folder
    found = anytime.load_exported(folder)
    # Processors without VNNI saturate sums of 8-bit products: there the distance is up to 0.2.
    assert distance(found(x)[-1], net(x)[-1]) < 0.25
    assert (folder / "shared.bin").stat().st_size == 4 * 64 * 8 + 64 * 64, "the head in floats, the stage in bytes"
    assert found.policy == replace(policy, risk=None)


def test_int8_in_the_place_of_floats_is_kept(saved):
    net = anytime.load(saved)
    anytime.Policy("confidence", [0.9, None], [1.0] * 3, [1, 2, 3], [0.25, 0.5, 0.25], 2.5, risk=0.1).save(saved)
    load_backend(saved, "onnx")
    labeled = [(X, net(X)[-1].argmax(-1))]
    anytime.export.int8(saved / "onnx", saved / "onnx", labeled, labeled, tolerate=100)
    assert load_backend(saved, "onnx").description.about["precision"] == "int8"


def test_int8_that_loses_too_much_is_not_written(tmp_path):
    torch.manual_seed(0)
    net = anytime.create_model("resann-1-8", in_channels=1).eval()
    images = torch.randn(64, 1, 8, 8) * torch.rand(64, 1, 1, 1) * 5
    anytime.export.onnx(net, images[:1], tmp_path / "floats")
    answers = net(images)[-1].argmax(-1)  # as labels: the floats have no error
    assert len(answers.unique()) > 1
    wide = [(1e4 * torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2]))]  # ranges so wide that nothing is left of images
    with pytest.raises(anytime.AnytimeError, match="nothing was written"):
        anytime.export.int8(tmp_path / "floats", tmp_path / "c", wide, [(images, answers)], tolerate=0)
    assert not (tmp_path / "c").exists()
