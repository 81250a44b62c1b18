"""The experiments' runner and report, on digits; the committed report against the committed records."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime import EANN
from anytime.evaluation import FRACTIONS
from experiments import EXPERIMENTS, load, table_weights
from experiments.eann import ensemble_curve
from experiments.estimate import estimate
from experiments.records import HERE, Records, error_at, increases
from experiments.report import as_markdown, as_page, write_report
from experiments.runner import Run, find_data, make
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
        assert runs or (name, preset) == ("settings", "paper")
        assert len(set(names)) == len(names)
        for model in {run.model for run in runs}:
            with torch.device("meta"):
                net = anytime.create_model(model)
            for run in runs:
                if run.model == model:
                    anytime.Recipe(**run.recipe)
                    anytime.create_scheme(run.scheme, net.exits)


@cache
def costs_of(model):
    with torch.device("meta"):
        return anytime.costs(anytime.create_model(model), torch.empty(1, 3, 16, 16, device="meta"))


def made_up(run, error=lambda _: 0.5):
    """A record as a run would leave it, with errors that are made up."""
    cost = costs_of(run.model)
    only = getattr(anytime.create_scheme(run.scheme, len(cost.macs)), "only", None)
    errors = [error(exit) if only is None or exit in only else None for exit in range(len(cost.macs))]
    measured = {"images": 100, "errors": errors, "losses": errors}
    return {
        "name": run.name,
        "command": "anytime reproduce test",
        "run": run.as_json(),
        "data": {"name": "made up", "classes": 10, "shape": [3, 16, 16]},
        "versions": {"torch": "2", "threads": 1},
        "device": "cpu",
        "seconds": 60.0,
        "trained_on": 1000,
        "macs": cost.macs,
        "head_macs": cost.heads,
        "weights": [1.0] * len(errors),
        **dict.fromkeys(("train", "validation", "test"), measured),
    }


@pytest.mark.parametrize("seed", range(3))
def test_a_report_of_any_part_of_the_records(tmp_path, seed):
    draw = random.Random(seed)
    part = seed / 2  # from none to all
    runs = [run for name in EXPERIMENTS for run in load(name).runs("laptop") if draw.random() < part]
    records = Records({run.name: made_up(run, lambda _: draw.uniform(0.01, 0.9)) for run in runs})
    (tmp_path / "reproduction").mkdir()
    (tmp_path / "reproduction/old.png").touch()
    write_report("laptop", records, tmp_path)
    text, page = (tmp_path / "REPRODUCTION.md").read_text(), (tmp_path / "reproduction.html").read_text()
    assert ("Not run yet" in text) == (not runs)
    assert not (tmp_path / "reproduction/old.png").exists()
    for picture in re.findall(r"\]\((.*?\.png)\)", text):
        assert (tmp_path / picture).stat().st_size > 5000
    assert page.startswith("<!doctype html>")
    assert page.count("<img") == text.count("![")


def test_the_report_says_what_the_records_say():
    """``anytime report`` has been run since the last record."""
    sections = {name: load(name).show("laptop", Records.read()) for name in EXPERIMENTS}
    docs = ROOT / "docs"
    assert (docs / "REPRODUCTION.md").read_text() == as_markdown("laptop", sections)
    assert (docs / "reproduction.html").read_text() == as_page("laptop", sections, docs)
    named = {run.name for name in EXPERIMENTS for run in load(name).runs("laptop")}
    assert set(Records.read()) <= named, "a record that no experiment asks for"


def test_records_are_what_they_are_called(tmp_path):
    run = digits()
    record = {**made_up(run), "run": digits(batch_size=64).as_json()}
    with pytest.raises(anytime.AnytimeError, match="other settings"):
        Records({run.name: record}).of([run])
    (tmp_path / "x.json").write_text(json.dumps(record))
    with pytest.raises(anytime.AnytimeError, match="delete it"):
        Records.read(tmp_path)


def test_the_increase_is_over_opt_of_the_same_seed():
    preset, models = "laptop", table_weights.MODELS["laptop"]
    found = Records()
    for seed, best in enumerate((0.1, 0.2)):
        for scheme, error in {
            "const": 1.3 * best,
            "opt-3": best,
            "opt-7": best,
            "opt-11": best,
            "opt-15": best,
        }.items():
            run = make(preset, models[0], "svhn", scheme, seed)
            found[run.name] = made_up(run, lambda _, error=error: error)
    got = increases(preset, found, models, "svhn", "const", 3, FRACTIONS)
    assert got == [pytest.approx([0.3] * 4)] * 2
    del found[make(preset, models[0], "svhn", "opt-7", 1).name]
    assert len(increases(preset, found, models, "svhn", "const", 3, FRACTIONS)) == 1


@pytest.mark.parametrize(
    ("const", "says"),
    [
        ([0.5, 0.51, 0.52], "41.0 points below CONST (more than the spread of 1.0)"),
        ([0.1, 0.4, 0.0], "6.7 points below CONST (within the spread of 20.8)"),
        ([0.0, 0.01, 0.02], "9.0 points above CONST (more than the spread of 1.0)"),
        ([0.3], "20.0 points below CONST (one seed)"),
    ],
)
def test_the_verdict_goes_by_the_spread_of_the_lead(const, says):
    ours = [[0.1] * 4] * len(const)
    schemes = {"CONST": [[c] * 4 for c in const], "LINEAR": ours, "AdaLoss": ours}
    assert says in table_weights._verdict("svhn", schemes)


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
