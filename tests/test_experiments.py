"""The experiments' runner and report, on digits; the committed report against the committed records."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime import EANN
from experiments import EXPERIMENTS, load
from experiments.eann import ensemble_curve
from experiments.estimate import estimate
from experiments.records import HERE, Records, error_at
from experiments.report import as_markdown, write_report
from experiments.runner import Run, find_data
from experiments.weights_by_dataset import concentration

ROOT = Path(__file__).parent.parent
RECIPE = {"epochs": 3, "batch_size": 32, "pad": 1, "flip": False}


def digits(scheme="adaloss", model="resann-1-4", **changes):
    return Run(model, "digits", scheme, 0, 300, None, {**RECIPE, **changes})


def runner(run, folder):
    script = str(ROOT / "experiments/runner.py")
    places = ["", str(folder / "runs"), str(folder / "records"), "anytime reproduce test"]
    return [sys.executable, script, json.dumps(asdict(run)), *places]


def test_a_run_leaves_a_record_and_is_not_trained_again(tmp_path):
    run = digits()
    for _ in range(2):
        done = subprocess.run(runner(run, tmp_path), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert "epoch" not in done.stderr  # the second time
    record = Records.read(tmp_path / "records")[run.name]
    assert record["run"] == asdict(run)
    assert record["seconds"] > 0
    assert record["command"] == "anytime reproduce test"
    assert record["versions"]["torch"] == torch.__version__
    assert len(record["test"]["errors"]) == len(record["macs"]) == len(record["train"]["losses"]) == 3
    net = anytime.load(tmp_path / "runs" / run.name)
    data = run.load_data(None)
    assert record["test"]["errors"] == anytime.evaluate(net, data).errors
    assert record["validation"]["errors"] == anytime.evaluate(net, data, data.validation).errors


def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path):
    run = digits(epochs=12)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen(runner(run, tmp_path / "k"), stderr=subprocess.DEVNULL, env=one_thread)
    log = tmp_path / "k/runs" / run.name / "log.jsonl"
    while not log.exists() and killed.poll() is None:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    for folder in (tmp_path / "k", tmp_path / "whole"):
        subprocess.run(runner(run, folder), capture_output=True, env=one_thread, timeout=120, check=True)
    again, whole = (Records.read(tmp_path / folder / "records")[run.name] for folder in ("k", "whole"))
    for measured in ("train", "validation", "test", "weights"):
        assert again[measured] == whole[measured]


def test_an_ensembles_curve_is_that_of_the_ensemble(tmp_path):
    runs = [digits(model=f"resann-{n}-4") for n in (2, 1)]
    records = [run.train(None, tmp_path, tmp_path / "records", "") for run in runs]
    for record in records:  # the network for digits has one channel; costs are counted for colour
        record["run"]["size"] = 8
    data = runs[0].load_data(None)
    eann = EANN([anytime.load(tmp_path / run.name) for run in runs], torch.zeros(1, 1, 8, 8))
    eann.fit_order(data.batches(data.validation))
    curve = ensemble_curve(records)
    assert curve["offered"] == eann.offered
    assert curve["errors"] == anytime.evaluate(eann, data).errors


@pytest.mark.parametrize("preset", [pytest.param("paper", marks=pytest.mark.slow), "laptop"])
def test_every_experiment_names_its_runs(preset):
    for name in EXPERIMENTS:
        runs = load(name).runs(preset)
        names = [run.name for run in runs]
        assert runs
        assert len(set(names)) == len(names)
        for run in {run.model: run for run in runs}.values():
            anytime.Recipe(**run.recipe)
            with torch.device("meta"):
                net = anytime.create_model(run.model, **run.options)
            anytime.create_scheme(run.scheme, net.exits)


def test_a_report_without_any_record(tmp_path):
    write_report("laptop", Records(), tmp_path / "r.md", tmp_path / "r.html")
    assert "Not run yet" in (tmp_path / "r.md").read_text()
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_the_report_says_what_the_records_say():
    """``anytime report`` has been run since the last record."""
    records = Records.read()
    sections = {name: load(name).show("laptop", records) for name in EXPERIMENTS}
    assert (ROOT / "docs/REPRODUCTION.md").read_text() == as_markdown("laptop", sections)


def test_records_name_no_machine():
    for path in HERE.glob("*.json"):
        record = json.loads(path.read_text())
        assert record["name"] == path.stem
        assert record["command"].startswith("anytime reproduce ")
        assert "/" not in record["command"]


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=30))
def test_concentration_is_a_mean_place(weights):
    place = concentration(weights)
    assert 0 < place <= 1 + 1e-9
    assert concentration([*[0.0] * len(weights), *weights]) >= place - 1e-9


def test_the_error_at_a_budget_is_the_last_within_it():
    assert [error_at([1, 2, 4], [0.5, 0.4, 0.3], budget) for budget in (0.5, 1, 3, 9)] == [None, 0.5, 0.4, 0.3]


def test_time_is_estimated(capsys):
    assert estimate([digits(), digits("const")], None, 2) > 0
    assert "2 runs, 2 at a time" in capsys.readouterr().out


def test_data_sets_are_found_by_their_names(tmp_path):
    for name in ("cifar100-20k", "cifar10-30k", "svhn"):
        (tmp_path / name).mkdir()
    assert [find_data(tmp_path, name).name for name in ("cifar10", "svhn")] == ["cifar10-30k", "svhn"]
    with pytest.raises(anytime.AnytimeError, match="imagenet"):
        find_data(tmp_path, "imagenet")
