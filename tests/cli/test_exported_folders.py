"""The commands take the folder of an exported network as they take that of the model."""

import json

import pytest
from typer.testing import CliRunner

import anytime
from anytime.cli import app


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A small model with its preprocessing, and an export of it in a folder of its own."""
    folder = tmp_path_factory.mktemp("models")
    data = anytime.load_data("digits")
    net = anytime.create_model("resann-1-4", in_channels=1)
    anytime.fit(net, data.subset(200), epochs=1, output=folder / "run", show=False)
    x = next(data.batches(data.test, batch_size=2))[0]
    anytime.export.onnx(net.eval(), x, folder / "exported")
    return folder


def command(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def test_evaluate_finds_the_same_errors(folders):
    run, exported = (command("evaluate", folders / name, "--data", "digits", "--json") for name in ("run", "exported"))
    assert exported["errors"] == pytest.approx(run["errors"], abs=0.003)
    assert exported["macs"] == run["macs"]


def test_calibrate_saves_a_policy_beside_it(folders):
    found = command("calibrate", folders / "exported", "--budget", "0.7", "--data", "digits", "--json")
    assert found["spent"] < found["whole_cost"]
    assert anytime.Policy.load(folders / "exported").costs[-1] == found["whole_cost"]


def test_profile_measures_it(folders):
    found = command("profile", folders / "exported", "--repeats", "2", "--json")
    assert len(found["seconds"]) == 3
    assert all(later >= earlier for earlier, later in zip(found["macs"], found["macs"][1:], strict=False))


def test_predict_answers(folders, tmp_path):
    from PIL import Image

    Image.new("L", (8, 8), 128).save(tmp_path / "digit.png")
    run, exported = (
        command("predict", folders / name, tmp_path / "digit.png", "--json") for name in ("run", "exported")
    )
    assert run["classes"][0]["class"] == exported["classes"][0]["class"]


def test_pytorch_does_not_run_it(folders, tmp_path):
    result = CliRunner().invoke(app, ["predict", str(folders / "exported"), str(tmp_path), "--backend", "eager"])
    assert result.exit_code != 0
    with pytest.raises(anytime.AnytimeError, match="holds an exported network"):
        anytime.Engine(folders / "exported", backend="eager")
