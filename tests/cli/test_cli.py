import json
import subprocess
import sys

import pytest
import shared_data as images
import torch
from forge import forge_config

import anytime
from anytime.cli.tables import millions, total_macs
from anytime.files import read_tensors, write_tensors

TRAIN = "train --model resann-1-4 --subset 60 --epochs 1"


def test_version(run):
    assert run("--version") == (0, f"anytime {anytime.__version__}\n", "")


def test_train_then_evaluate(run, tmp_path):
    code, out, err = run(f"{TRAIN} --output a")
    assert code == 0, err
    assert "test error" in out
    assert "weight" in out
    assert "epoch 1/1" in err
    for name in ("run.json", "log.jsonl", "checkpoint.safetensors", "config.json", "evaluation.json", "curve.png"):
        assert (tmp_path / "a" / name).stat().st_size > 0
    assert (tmp_path / "a/curve.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = run("evaluate a --json")
    record = json.loads(out)
    assert code == 0
    assert record["errors"] == json.loads((tmp_path / "a/evaluation.json").read_text())["errors"]
    code, out, _ = run("evaluate a")
    assert "of the cost: exit 3 (100.0% used)" in out
    first = record["macs"][0] / record["macs"][-1]
    assert f"at  25% of the cost: no exit yet (the first is at {first:.1%})" in out


@pytest.mark.usefixtures("trained")
def test_a_picture_that_cannot_be_written_is_a_warning(run, tmp_path, caplog):
    (tmp_path / "a/curve.png").mkdir()  # whoever runs the tests, a file cannot be written there
    for command in ("train --output a --resume", "evaluate a"):
        caplog.clear()
        code, out, err = run(command)
        assert code == 0, err
        assert "test error" in out
        assert ["no plot" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.usefixtures("trained")
def test_increase_over_opt(run, tmp_path):
    run(f"{TRAIN} --output opt --scheme opt-2")
    alone = json.loads((tmp_path / "opt/evaluation.json").read_text())["errors"]
    assert alone[0] is None
    (tmp_path / "table.json").write_text('{"2": 0.5}')
    code, out, err = run("evaluate a --opt opt --opt table.json --json")
    assert code == 0, err
    record = json.loads(out)
    assert record["increase_over_opt"] == {
        "1": pytest.approx(record["errors"][1] / alone[1] - 1),
        "2": pytest.approx(record["errors"][2] / 0.5 - 1),
    }


def test_resume_takes_the_rest_from_the_run(run):
    run(f"{TRAIN} --output a --seed 5 --scheme adaloss:gamma=0.2")
    code, _, err = run("train --output a --resume")
    assert code == 0, err
    code, _, err = run("train --output a --resume --model resann-1-8")
    assert code == 2
    assert "was started with model" in err


def test_resume_remembers_how(run, tmp_path):
    run(f"{TRAIN} --output whole --accumulate 2")
    run(f"{TRAIN} --output part --accumulate 2")
    assert json.loads((tmp_path / "part/run.json").read_text())["asked"]["accumulate"] == 2
    code, _, err = run("train --output part --resume --accumulate 3")
    assert code == 2
    assert "was started with accumulate 2, not 3" in err
    code, _, err = run("train --output part --resume --seed 0")
    assert code == 0, err


def test_boosted_exits_are_trained_as_they_answer(run, tmp_path):
    code, out, err = run(f"{TRAIN} --scheme annealed --boosting")
    assert code == 0, err
    assert "resann-1-4 + boosting AnnealedAdaLoss" in err
    assert "resann-1-4 + boosting, annealed, on digits" in out
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-annealed-boosting-seed0")
    assert type(anytime.load(folder)).__name__ == "CombinedNetwork"
    code, _, err = run(f"train --output {folder} --resume")
    assert code == 0, err
    assert "was started" not in err


def test_evaluation_normalizes_as_training_did(run, tmp_path):
    images.write_hub_folder(tmp_path / "svhn", n=60)
    images.write_parquet(tmp_path / "svhn/extra.parquet", images.some_pixels(200, seed=9) // 4, [0, 1] * 100)
    code, _, err = run("train --model resann-1-4 --data svhn --extra --epochs 1 --output a")
    assert code == 0, err
    trained = json.loads((tmp_path / "a/evaluation.json").read_text())
    assert json.loads(run("evaluate a --json")[1])["losses"] == trained["losses"]


def test_a_run_does_not_change_its_images(run, tmp_path):
    for name, seed in (("one", 1), ("two", 2)):
        images.write_parquet(tmp_path / name / "d/train.parquet", images.some_pixels(60, seed), [0, 1, 2] * 20)
        images.write_parquet(tmp_path / name / "d/test.parquet", images.some_pixels(9), [0, 1, 2] * 3)
    run("train --model resann-1-4 --data one/d --epochs 1 --output a")
    code, _, err = run("train --output a --resume --data two/d")
    assert code == 2
    assert "was started with data" in err


@pytest.mark.usefixtures("trained")
def test_profile(run):
    code, out, _ = run("profile resann-1-4 --size 8 --channels 1 --repeats 3")
    assert code == 0
    assert "ms, all heads" in out
    assert "ms, this head only" in out
    code, out, _ = run("profile resann-1-4 --repeats 3 --json --backends onnx")
    assert len(json.loads(out)["seconds"]) == len(json.loads(out)["onnx_seconds"]) == 3
    code, out, _ = run("profile a --repeats 3 --backends none")
    assert "onnx" not in out
    assert "1×8×8" in out


def test_models(run):
    code, out, _ = run("models resann-9-*")
    assert code == 0
    assert all(name in out for name in anytime.list_models("resann-9-*"))


@pytest.mark.parametrize("name", ["resann-7-16", "denseann-100-12", "msdnet-cifar", "resann26"])
def test_listed_costs_are_those_of_the_network(run, name):
    with torch.device("meta"):
        net = anytime.create_model(name)
    cost = anytime.costs(net, torch.empty(1, 3, net.image_size, net.image_size, device="meta"))
    _, out, _ = run(f"models {name}")
    assert millions(cost.macs[-1]) in out
    assert millions(cost.params[-1]) in out
    assert total_macs(net, net.image_size) == cost.macs[-1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train --model resnt-9-16", "did you mean resann-"),
        ("train --data cifar11", "unknown data"),
        ("train --scheme adalos", "expected one of: const"),
        ("train --scheme adaloss:gamma=7", "gamma=7 must be a number >= 0 and <= 1"),
        ("train --epochs -3", "epochs=-3 must be an integer >= 1"),
        ("train --epochs three", "--epochs"),
        ("train --learning-rate -1", "lr=-1.0 must be a number >= 0"),
        ("train --lr -1", "lr=-1.0 must be a number >= 0"),
        ("train --batch-size 0", "batch_size=0 must be an integer >= 1"),
        ("train --subset 100000", "1 to 1097"),
        ("train --device tpu9", "--device cpu always can"),
        ("train --resume", "--output FOLDER"),
        ("train --output typo --resume", "there is no run in typo to resume"),
        ("train --model runs/typo", "there is no folder runs/typo"),
        ("profile runs/typo", "there is no folder runs/typo"),
        ("convert resnet18 --data digits --output x", "e.g. timm:resnet18"),
        ("export typo --to tflite", "expected onnx or executorch"),
        ("export typo --to executorch --int8", "--int8 is for --to onnx only"),
        ("predict a b.png c.png", "got 3 paths"),
        ("predict thesis", "as in anytime predict thesis photo.jpg"),
        ("predict done thesis", "thesis is a folder: give an image file"),
        ("predict done thesis/thesis.tex", "is not an image file of a known format (JPEG, PNG,"),
        ("predict file file", "file is not a saved model: it is a file"),
        ("evaluate file", "file is not a run folder: it is a file"),
        ("evaluate done --data no/such/folder", "expected one with parquet files"),
        ("train --output typo --resume --model resann-1-4", "there is no run in typo to resume"),
        ("train --output lost --resume", "checkpoint.safetensors is missing"),
        ("train --seed -1", "seed=-1 must be an integer >= 0"),
        ("train --seed 99999999999999999999999", "and <= 9223372036854775807"),
        ("train --device meta", "--device cpu always can"),
        ("train --scheme adaloss:gamma=nan", "key=number"),
        ("train --scheme opt:exit=1", "opt-3 is the third exit"),
        ("train --checkpoint-seconds -1", "checkpoint_seconds=-1.0 must be a number >= 0"),
        ("train --precision int8", "float32, bfloat16 or float16"),
        ("train --recipe mine", "unknown recipe"),
        ("train --extra", "no extra images"),
        ("train --model msdnet38 --output new", "at least 32"),
        ("train --output mixed --resume", "the checkpoint is damaged or of another run"),
        ("evaluate damaged", "has no preprocessing"),
        ("evaluate done --opt done", "train it with --scheme opt-I"),
        ("profile resann-1-4 --backends tea", "expected onnx, openvino, executorch, auto or none"),
        ("profile resann-1-4 --threads 0", "--threads=0 must be an integer >= 1"),
        ("profile resann-1-4 --size 100000000", "out of memory"),
        ("train --output thesis", "is not empty and holds no run"),
        ("train --output file", "is a file"),
        ("train --output done", "add --resume"),
        ("train --outptu x", "--outptu"),
        ("evaluate nowhere", "no such folder"),
        ("evaluate thesis", "not a run folder"),
        ("evaluate unfinished", "anytime train --output unfinished --resume"),
        ("evaluate truncated", "truncated"),
        ("evaluate other-model", "must be from the same save"),
        ("evaluate done --opt thesis/thesis.tex", "is not an OPT table"),
        ("profile resann-9-16 --repeats 0", "--repeats=0 must be an integer >= 1"),
        ("profile resann", "unknown model"),
        ("models vgg*", "no model's name matches"),
        ("fly", "fly"),
    ],
)
def test_bad_input_is_one_clear_line(run, tmp_path, finished, line, says):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.tex").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("done", "unfinished", "truncated", "other-model", "mixed", "damaged", "lost"):
        (tmp_path / name).mkdir()
        for path in finished.iterdir():
            if path.is_file():
                (tmp_path / name / path.name).write_bytes(path.read_bytes())
    (tmp_path / "unfinished/config.json").unlink()
    (tmp_path / "lost/checkpoint.safetensors").unlink()
    weights = tmp_path / "truncated/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    anytime.save(anytime.create_model("resann-2-4"), tmp_path / "other")
    (tmp_path / "other/model.safetensors").replace(tmp_path / "other-model/model.safetensors")
    forge_config(tmp_path / "damaged", preprocessing=None)
    tensors, about = read_tensors(tmp_path / "mixed/checkpoint.safetensors")
    write_tensors(
        tmp_path / "mixed/checkpoint.safetensors", {k: v for k, v in tensors.items() if "sums" not in k}, about
    )
    before = snapshot(tmp_path)
    code, _, err = run(line)
    assert code == 2
    assert err.count("\n") == 1
    assert says in err
    assert snapshot(tmp_path) == before


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_without_the_extra_it_says_what_to_install(tmp_path):
    (tmp_path / "typer.py").write_text("raise ImportError('No module named typer')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import anytime.cli"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.strip().endswith('run: pip install "anytime-nets[cli]", or in a clone: pip install ".[cli]"')
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("trained")
def test_easy_samples_leave_early(run, tmp_path):
    code, out, err = run("evaluate a --budgets")
    assert code == 0, err
    assert "Easy samples leave early" in out
    assert (tmp_path / "a/budgets.png").read_bytes().startswith(b"\x89PNG")
    budgets = [point["budget"] for point in json.loads((tmp_path / "a/budgets.json").read_text())["geometric"]]
    assert budgets == sorted(budgets)
    assert any(budget == pytest.approx(0.75 * budgets[-1]) for budget in budgets)
    code, out, _ = run("evaluate a --budgets --json")
    shares = json.loads(out)["budgets"]["common"][-1]["shares"]
    assert shares == [0, 0, 1]
    code, out, err = run("calibrate a --budget 0.8")
    assert code == 0, err
    policy = anytime.Policy.load("a")
    assert policy.budget == 0.8 * policy.costs[-1]
    code, _, err = run("calibrate a --budget 0.1")
    assert code == 2
    assert "the first exit takes" in err
    run(f"{TRAIN} --output opt --scheme opt-2")
    code, _, err = run("evaluate opt --budgets")
    assert code == 2
    assert "exits are all trained" in err


@pytest.mark.usefixtures("trained")
def test_profile_is_saved_for_predictions(run, tmp_path):
    code, out, err = run("profile a --save --repeats 3 --batch 2")
    assert code == 0, err
    assert "profile.json" in out
    (saved,) = json.loads((tmp_path / "a/profile.json").read_text())["profiles"]
    assert saved["inputs"] == [["float32", [2, 1, 8, 8]]]
    assert len(saved["stages"]) == 3
    code, _, err = run("profile resann-1-4 --save")
    assert code == 2
    assert "is not a folder" in err


ENSEMBLE = "train-ensemble --members resann-2-4,resann-1-4 --data digits --subset 60 --epochs 1"


def test_train_an_ensemble(run, tmp_path):
    code, out, err = run(f"{ENSEMBLE} --jobs 2 --output e")
    assert code == 0, err
    assert "are offered" in out
    assert "resann-1-4, exit 1" in out
    assert "[1/2 resann-2-4]" in err
    eann = anytime.load(tmp_path / "e")
    record = json.loads((tmp_path / "e/evaluation.json").read_text())
    assert record["offered"] == [list(exit) for exit in eann.offered]
    assert eann.order[0] == 1  # the cheaper network
    whole, killed = (tmp_path / "e" / name / "model.safetensors" for name in ("resann-1-4", "resann-2-4"))
    trained, weights = whole.stat().st_mtime_ns, killed.read_bytes()
    (killed.parent / "config.json").unlink()  # as if it had been killed between two files
    code, out, err = run("train-ensemble --output e --resume")
    assert code == 0, err
    assert whole.stat().st_mtime_ns == trained
    assert killed.read_bytes() == weights
    assert anytime.load(tmp_path / "e").offered == eann.offered
    code, out, err = run("evaluate e --json")
    assert code == 0, err
    assert json.loads(out)["errors"] == record["errors"]
    assert run("calibrate e --budget 0.9")[0] == 0
    for line, said in (
        ("--output e", "add --resume"),
        ("--output e --resume --epochs 7", "was started with --epochs 1"),
    ):
        code, _, err = run(f"train-ensemble {line}")
        assert code == 2
        assert said in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train-ensemble --members resann-1-4,nothing", "unknown model"),
        ("train-ensemble --smallest resann-1-4", "both --smallest and --largest"),
        ("train-ensemble --smallest resann-4-4 --largest resann-1-4", "smaller first"),
        (f"{ENSEMBLE} --jobs 0", "--jobs=0 must be an integer >= 1"),
    ],
)
def test_ensembles_say_what_is_wrong(run, line, said):
    code, _, err = run(line)
    assert code == 2
    assert said in err


def test_a_run_of_fit_needs_no_command(run, tmp_path):
    """A run that ``anytime.fit`` wrote says itself what it was trained on."""
    data = anytime.load_data("digits").subset(60)
    net = anytime.create_model("resann-1-4", num_classes=10, in_channels=1)
    anytime.fit(net, data, "opt-2", epochs=1, output=tmp_path / "a", show=False)
    code, out, err = run("evaluate a --device cpu")
    assert code == 0, err
    assert "resann-1-4, opt-2, on digits" in out
    assert out.count("–") == 2, "exits that were not trained are not evaluated"
    pets = anytime.Data(data.train, data.validation, data.test, data.classes, name="pets")
    net = anytime.create_model("resann-1-4", num_classes=10, in_channels=1)
    anytime.fit(net, pets, epochs=1, output=tmp_path / "b", show=False)
    for command in ("evaluate b", "calibrate b --budget 0.5"):
        code, _, err = run(f"{command} --device cpu")
        assert (code, err.count("\n")) == (2, 1)
        assert "unknown data 'pets'" in err
        assert "name the images with --data" in err
    code, out, err = run("calibrate b --budget 0.5 --data digits --device cpu")
    assert code == 0, err
    assert " k MACs per sample (50.0% of the whole network)" in out
