"""Each command does what its help says; what users get wrong is one line."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
import typer
from waiting import until

import anytime
from anytime import cli
from anytime.cli.app import use_threads
from anytime.serving.embedded import samples

COMMANDS = [command.name or command.callback.__name__ for command in cli.app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run, command):
    code, out, _ = run(f"{command} --help")
    assert code == 0
    assert f"anytime {command}" in out.split("Example")[1]
    assert "<bool>" not in out, "a flag takes no value"
    assert bool(re.search("│ +--trust", out)) == (command not in ("convert", "demo", "models", "train-ensemble"))


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("fly", "(see: anytime --help)"),
        ("train --epochs three", "(see: anytime train --help)"),
        ("profile", "(see: anytime profile --help)"),
        ("calibrate runs/a", "(see: anytime calibrate --help)"),
    ],
)
def test_hints_name_the_help_of_the_command(run, line, hint):
    code, _, err = run(line)
    assert code == 2
    assert err.count("\n") == 1
    assert hint in err


def test_without_a_command_the_help_is_shown(run):
    code, out, err = run("")
    assert (code, err) == (0, "")
    assert "anytime demo" in out


def test_demo(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.demo, "PREDICTIONS", 2)
    code, out, err = run("demo --epochs 1 --output d")
    assert code == 0, err
    ways = [
        "1. All images stop at the same exit",
        "2. Easy images leave early",
        "3. All 500 test images at once, before a deadline",
    ]
    places = [out.index(way) for way in ways]
    assert places == sorted(places), "the three ways that its help promises, in this order"
    assert out.endswith("next: anytime serve d\n")
    assert (tmp_path / "d/demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_demo_that_is_stopped_says_how_to_go_on(tmp_path, environment):
    demo = processes.Child(["-m", "anytime", "demo", "--output", "d", "--epochs", "9999"], environment, tmp_path)
    until((tmp_path / "d/log.jsonl").exists)
    demo.send_signal(signal.SIGINT)
    assert demo.wait() == 130
    assert demo.stderr.endswith(
        "stopped; d keeps the training so far; go on with: anytime demo --output d --epochs 9999\n"
    )


@pytest.mark.parametrize(
    ("line", "following"),
    [
        ("evaluate a", "calibrate a --budget 0.5"),
        ("calibrate a --budget 0.5", "serve a"),
        ("combine a --rule product", "evaluate a-product --budgets"),
        ("export a", "serve a/onnx"),
        ("select-exits a --exits 2", "evaluate a-2-exits --budgets"),
        ("convert timm:resnet18 --exits 2 --data digits --output r18", "train --model r18 --data digits"),
    ],
)
def test_a_command_ends_with_the_one_that_comes_next(run, trained, line, following):  # noqa: ARG001
    if line.startswith("export"):
        pytest.importorskip("onnxscript")
    if "timm" in line:
        pytest.importorskip("timm")
    code, out, err = run(line)
    assert code == 0, err
    assert out.endswith(f"next: anytime {following}\n")
    code, out, err = run(f"{following.split()[0]} --help")  # there is such a command
    assert code == 0, err


def test_a_prediction_ends_with_one_under_a_deadline_and_that_with_the_server(run):
    picture = samples()[0]
    _, out, _ = run(f"predict {picture}")
    following = re.search(r"next: anytime (predict .* --deadline \d+(\.\d+)?(e-\d+)?ms)\n$", out)
    assert following, out
    assert run(f"predict {picture} --deadline 10s")[1].endswith("next: anytime serve\n")


def test_ctrl_c_says_that_nothing_was_written(run, monkeypatch):
    monkeypatch.setattr(anytime, "predict", _stop)
    code, out, err = run(f"predict {samples()[0]}")
    assert (code, out) == (130, "")
    assert err.endswith("stopped; nothing was written\n")


def _stop(*_, **__):
    raise KeyboardInterrupt


COMPUTE = {
    "train", "train-ensemble", "evaluate", "calibrate", "combine", "convert", "predict", "profile", "export", "demo",
    "select-exits", "plan",
}  # fmt: skip


def test_every_command_that_computes_takes_a_number_of_threads():
    commands = typer.main.get_command(cli.app).commands
    assert {name for name, each in commands.items() if "threads" in {p.name for p in each.params}} == COMPUTE


@pytest.mark.usefixtures("trained")
def test_tiny_images_are_computed_with_one_thread_unless_told_otherwise(run):
    torch.set_num_threads(2)
    for folder, options, used in (("r", "", 1), ("s", "--threads 2", 2)):
        code, _, err = run(f"train --model resann-1-4 --subset 60 --epochs 1 --output {folder} {options}")
        assert code == 0, err
        assert json.loads(Path(folder, "run.json").read_text())["versions"]["threads"] == used
    assert run("train --output s --resume")[0] == 0
    assert torch.get_num_threads() == 2, "as it was begun"
    assert run("evaluate a --json")[0] == 0
    assert torch.get_num_threads() == 1
    assert "--threads=0 must be an integer >= 1" in run("evaluate a --threads 0")[2]
    use_threads(2, (3, 16, 16))
    use_threads(None, (3, 16, 17))
    assert torch.get_num_threads() == 2
    use_threads(None, (3, 16, 16))
    assert torch.get_num_threads() == 1


@pytest.mark.slow
def test_demo_prints_json(run):
    code, out, err = run("demo --epochs 1 --output d --json")
    assert code == 0, err
    assert {"errors", "budgets", "deadlines"} <= json.loads(out).keys()


def test_calibrate_prints_json(run, trained):
    code, out, err = run("calibrate a --budget 0.8 --json")
    assert code == 0, err
    record = json.loads(out)
    assert record["budget"] == anytime.Policy.load(trained).budget
    assert 0 < record["spent"] <= record["whole_cost"]
    assert record["images"] == 500


@pytest.mark.usefixtures("trained")
def test_evaluate_in_milliseconds_and_select_exits(run):
    code, out, _ = run("evaluate a --cost ms")
    assert code == 0
    assert "% of ms" in out
    seconds = json.loads(run("evaluate a --cost ms --json")[1])["seconds"]
    assert len(seconds) == len(json.loads(run("evaluate a --json")[1])["errors"])
    assert "--cost watts must be macs or ms" in run("evaluate a --cost watts")[2]
    code, out, _ = run("select-exits a --exits 2 --output few")
    assert code == 0
    assert "next: anytime evaluate few" in out
    assert len(json.loads(run("evaluate few --json")[1])["errors"]) <= 2
    assert "holds a model" in run("select-exits a --output few")[2]


def test_evaluate_on_other_images(run, trained):
    before = json.loads(run("evaluate a --json")[1])
    code, out, err = run("evaluate a --data digits --json")
    assert code == 0, err
    assert json.loads(out) == before
    code, out, err = run("evaluate a --data digits")
    assert code == 0, err
    assert (trained / "curve-digits.png").exists()
    code, _, err = run("evaluate a --data nowhere/at/all")
    assert (code, err.count("\n")) == (2, 1)


def test_a_data_set_that_cannot_be_fetched_is_one_line(trained):
    """In a process of its own: the Hub's library reads the setting when it is imported."""
    pytest.importorskip("datasets")
    command = ["-m", "anytime", "evaluate", trained, "--data", "owner/name"]
    done = processes.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("anytime: ")
    assert "owner/name" in done.stderr.splitlines()[-1]
    assert "check the name and the network, or give a local folder" in done.stderr.splitlines()[-1]


def test_a_damaged_log_leaves_the_weights_out(run, trained):
    (trained / "log.jsonl").write_bytes(b'{"weights": "\xff\xfe"}\n')
    code, out, err = run("evaluate a")
    assert code == 0, err
    assert "test error" in out
    assert "weight" not in out


@pytest.mark.parametrize(
    ("name", "line"),
    [("profile.json", "profile a --save --repeats 1"), ("budgets.json", "evaluate a --budgets")],
)
def test_errors_of_files_are_one_line(run, trained, name, line):
    (trained / name).mkdir()  # a file that cannot be written, not even by root
    code, _, err = run(line)
    assert code == 2
    assert err.count("\n") == 1
    assert name in err


def test_a_working_directory_that_is_gone_is_one_line(run, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = run("train --model resann-1-4 --subset 60 --epochs 1")
    assert code == 2
    assert err.count("\n") == 1


def test_our_own_errors_keep_their_traceback(run, monkeypatch):
    def broken(_pattern):
        raise ZeroDivisionError

    monkeypatch.setattr(anytime, "list_models", broken)
    with pytest.raises(ZeroDivisionError):
        run("models")


def test_a_closed_pipe_is_no_error():
    ends = subprocess.run(
        f"{sys.executable} -m anytime profile resann-1-4 --repeats 1 --json | true",
        shell=True,
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert ends.stderr == ""


def test_images_need_not_be_square(run, tmp_path):
    net = anytime.create_model("resann-1-4", in_channels=1)
    net.preprocessing = anytime.Preprocessing(1, (16, 32), [0.5], [0.5])
    anytime.save(net, tmp_path / "wide")
    for options, shape in (("", (16, 32)), (" --size 24", (24, 24))):
        code, out, err = run(f"profile wide --backends none --repeats 1 --json{options}")
        assert code == 0, err
        assert json.loads(out)["macs"] == anytime.costs(net, torch.zeros(1, 1, *shape)).macs


def test_a_model_is_not_overwritten_by_a_converted_one(run, trained):
    before = (trained / "model.safetensors").read_bytes()
    code, _, err = run("convert timm:resnet18 --data digits --output a")
    assert code == 2
    assert "a holds a model: name another folder" in err
    assert (trained / "model.safetensors").read_bytes() == before


def test_the_run_of_an_ensemble_names_its_own_command(run, tmp_path):
    (tmp_path / "e").mkdir()
    (tmp_path / "e/run.json").write_text(json.dumps({"ensemble": True, "asked": {}}))
    assert "anytime train-ensemble --output e --resume" in run("train --output e --resume")[2]
