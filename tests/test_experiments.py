"""The experiments' runner and report, on digits; the committed report against the committed records."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import processes
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime import EANN
from experiments import EXPERIMENTS, comparison, load, table_weights
from experiments.__main__ import main, missing
from experiments.controls import RandomConst, ScaledConst, create_scheme
from experiments.eann import ENSEMBLES, OPT, ensemble_curve, sequence_curve
from experiments.eann import _curves as curves_of
from experiments.estimate import estimate
from experiments.intervals import Interval, compare
from experiments.presets import PRESETS, make
from experiments.records import COMMITTED, Records, error_at
from experiments.report import as_markdown, as_page, write_report
from experiments.runner import Run, find_data
from experiments.weights_by_dataset import concentration

ROOT = Path(__file__).parent.parent
RECIPE = {"epochs": 3, "batch_size": 32, "pad": 1, "flip": False}


def digits(scheme="adaloss", model="resann-1-4", **changes):
    return Run(model, "digits", scheme, 0, 300, {**RECIPE, **changes})


def runner(run, folder):
    places = ["", str(folder / "runs"), str(folder / "records"), "False", "float32"]
    return [str(ROOT / "experiments/runner.py"), json.dumps(run.as_json()), *places]


def test_a_run_leaves_a_record_and_is_not_trained_again(tmp_path):
    run = digits()
    for name in ("torch", "anytime", "experiments"):  # no code of the current folder is run
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    command = [sys.executable, "-P", *runner(run, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epoch 3/3" in done.stderr
    again = processes.run(runner(run, tmp_path), check=True)
    assert "epoch" not in again.stderr
    record = Records.read(tmp_path / "records")[run.name]
    assert record["run"] == run.as_json()
    assert record["seconds"] > 0
    assert record["versions"]["precision"] == "float32"
    assert record["versions"]["torch"] == torch.__version__
    assert len(record["test"]["errors"]) == len(record["macs"]) == len(record["train"]["losses"]) == 3
    net = anytime.load(tmp_path / "runs" / run.name)
    data = run.load_data(None)
    assert record["test"]["errors"] == anytime.evaluate(net, data).errors
    assert record["validation"]["errors"] == anytime.evaluate(net, data, data.validation).errors
    together = anytime.combine(net, "ensemble", data.batches(data.validation))
    assert record["ensemble"]["errors"] == anytime.evaluate(together, data).errors
    stacked = anytime.combine(net, "stacking", data.batches(data.train))
    assert record["stacking"]["errors"] == anytime.evaluate(stacked, data).errors


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "scheme", ["adaloss", pytest.param("random-const", marks=SLOW), pytest.param("scaled-const", marks=SLOW)]
)
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path, scheme):
    run = digits(scheme, epochs=6)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = processes.Child(runner(run, tmp_path / "k"), env=one_thread)
    log = tmp_path / "k/runs" / run.name / "log.jsonl"
    while not log.exists() and killed.poll() is None:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    for folder in (tmp_path / "k", tmp_path / "whole"):
        processes.run(runner(run, folder), env=one_thread, check=True)
    again, whole = (Records.read(tmp_path / folder / "records")[run.name] for folder in ("k", "whole"))
    for measured in ("train", "validation", "test", "ensemble", "stacking", "weights"):
        assert again[measured] == whole[measured]


def test_an_ensembles_curve_is_that_of_the_ensemble(tmp_path):
    runs = [digits(model=f"resann-{n}-4") for n in (2, 1)]
    records = [run.train(None, tmp_path, tmp_path / "records") for run in runs]
    data = runs[0].load_data(None)
    eann = EANN([anytime.load(tmp_path / run.name) for run in runs], torch.zeros(1, 1, 8, 8))
    eann.fit_order(data.batches(data.validation))
    curve = ensemble_curve(records)
    assert curve["offered"] == eann.offered
    assert curve["errors"] == anytime.evaluate(eann, data).errors


@pytest.mark.parametrize("preset", [pytest.param("paper", marks=pytest.mark.slow), "laptop", "minutes"])
def test_every_experiment_names_its_runs(preset):
    kinds = {}
    for name in EXPERIMENTS:
        runs = load(name).runs(preset)
        names = [run.name for run in runs]
        assert runs or preset == "minutes"
        assert len(set(names)) == len(names)
        kinds |= {(run.model, run.scheme, json.dumps(run.recipe)): run for run in runs}
    for model in {model for model, *_ in kinds}:
        with torch.device("meta"):
            net = anytime.create_model(model)
        for run in (run for run in kinds.values() if run.model == model):
            anytime.Recipe(**run.recipe)
            create_scheme(run.scheme.partition("+")[0], net)


def test_a_taste_is_a_part_of_the_laptops_runs():
    taste, laptop = ({run.name: run for run in table_weights.runs(preset)} for preset in ("minutes", "laptop"))
    assert taste.items() <= laptop.items()
    assert {run.scheme.split("-")[0] for run in taste.values()} == {"const", "linear", "adaloss", "opt"}


@cache
def costs_of(model):
    with torch.device("meta"):
        return anytime.costs(anytime.create_model(model), torch.empty(1, 3, 32, 32, device="meta"))


def made_up(run, error=lambda _: 0.5):
    """A record as a run would leave it, with errors that are made up."""
    cost = costs_of(run.model)
    only = int(run.scheme.removeprefix("opt-")) - 1 if run.scheme.startswith("opt-") else None
    errors = [error(exit) if only in (None, exit) else None for exit in range(len(cost.macs))]
    measured = {"images": 100, "errors": errors, "losses": errors}
    return {
        "name": run.name,
        "run": run.as_json(),
        "data": {"name": "made up", "classes": 10, "shape": [3, 32, 32]},
        "versions": {"torch": "2", "threads": 1},
        "device": "cpu",
        "seconds": 60.0,
        "trained_on": 1000,
        "macs": cost.macs,
        "head_macs": cost.heads,
        "weights": [1.0] * len(errors),
        "epochs": {"losses": [errors] * 3, "weights": [[1.0 + i * e for i in range(len(errors))] for e in range(3)]},
        **dict.fromkeys(("train", "validation", "test", "ensemble", "stacking"), measured),
    }


@pytest.mark.parametrize("seed", range(3))
def test_a_report_of_any_part_of_the_records(tmp_path, seed):
    draw = random.Random(seed)
    part = seed / 2  # from none to all
    runs = {run.name: run for name in EXPERIMENTS for run in load(name).runs("laptop") if draw.random() < part}
    records = Records({name: made_up(run, lambda _: draw.uniform(0.01, 0.9)) for name, run in runs.items()})
    (tmp_path / "reproduction").mkdir()
    (tmp_path / "reproduction/eann-old.png").touch()
    (tmp_path / "reproduction/mine.png").touch()
    write_report("laptop", records, tmp_path)
    text, page = (tmp_path / "REPRODUCTION.md").read_text(), (tmp_path / "reproduction.html").read_text()
    nothing = text.count("Not enough runs have ended")
    assert nothing == {0: len(EXPERIMENTS), 1: 0}.get(part, nothing)
    assert not (tmp_path / "reproduction/eann-old.png").exists()
    assert (tmp_path / "reproduction/mine.png").exists()
    for picture in re.findall(r"\]\((.*?\.png)\)", text):
        assert (tmp_path / picture).stat().st_size > 5000
    assert page.startswith("<!doctype html>")
    assert page.count("<img") == text.count("![")
    assert page.count("<table") == len(re.findall(r"^\|---", text, re.MULTILINE))


def test_the_report_says_what_the_records_say():
    """``python -m experiments report`` has been run since the last record."""
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


def test_networks_are_pooled_by_seed():
    """Two networks of one seed are no two seeds: their mean is one value."""
    const = {("a", 0): [0.3] * 4, ("b", 0): [0.5] * 4, ("a", 1): [0.32] * 4, ("b", 1): [0.5] * 4, ("a", 2): [0.9] * 4}
    adaloss = {key: [0.2] * 4 for key in const}
    found = {"CONST": const, "AdaLoss": adaloss}
    rows = comparison.paired(found, "CONST", "AdaLoss")
    assert rows == {0: pytest.approx([0.2] * 4), 1: pytest.approx([0.21] * 4)}  # seed 2 has one network only
    assert comparison.differences(found, "AdaLoss")["CONST"][-1].n == 2


def test_opt_is_the_network_that_is_best_on_validation_images():
    """Not the one that is best on the test images, which nobody may look at to choose."""

    def plain(n, validation, test):
        run = make("laptop", f"resann-{n}-8-patch2", "svhn", f"opt-{3 * n}", 0)
        return made_up(run) | {
            split: {"errors": [None] * (3 * n - 1) + [error], "losses": [], "images": 1}
            for split, error in (("validation", validation), ("test", test))
        }

    ensemble = ENSEMBLES["laptop"][0]
    records = {
        each["name"]: each
        for each in (plain(1, 0.3, 0.1), plain(2, 0.2, 0.2), plain(3, 0.25, 0.05), plain(4, 0.1, 0.15))
    }
    curve = curves_of("laptop", Records(records), ensemble, 0)[OPT]
    assert curve["errors"] == [0.1, 0.2, 0.2, 0.15]


def test_the_increase_is_over_opt_of_the_same_seed():
    errors = {
        "CONST": {("net", 0): [0.13] * 4, ("net", 1): [0.26] * 4, ("net", 2): [0.3] * 4},
        "OPT": {("net", 0): [0.1] * 4, ("net", 1): [0.2] * 4},
    }
    assert comparison.increases(errors) == {"CONST": [pytest.approx([0.3] * 4)] * 2}


def test_schemes_are_compared_seed_by_seed():
    runs = [make("laptop", "resann-5-8-patch2", "svhn", scheme, s) for scheme in ("const", "adaloss") for s in range(4)]
    # Seeds differ by 10 points, schemes by about one: only a paired comparison can tell.
    noise = (0.0, 0.001, -0.001, 0.002)
    records = Records(
        {
            run.name: made_up(
                run, lambda _, run=run: 0.1 * run.seed + 0.1 + (0.01 + noise[run.seed]) * (run.scheme == "const")
            )
            for run in runs
        }
    )
    section = table_weights.show("laptop", records)
    (claim,) = [claim for claim in section.claims if claim.says == "AdaLoss makes fewer errors than CONST at the end"]
    assert claim.status == "shown"
    assert claim.sentence() in section.as_markdown()
    assert "1.05 [" in claim.ours


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=40), st.floats(-1, 1))
def test_an_interval_moves_with_its_values(values, shift):
    one, other = Interval.of(values), Interval.of([value + shift for value in values])
    assert one.low <= one.mean <= one.high
    assert (other.low, other.high) == pytest.approx((one.low + shift, one.high + shift), abs=1e-9)


def test_an_interval_holds_the_truth_95_times_of_100():
    draw = random.Random(0)
    drawn = [Interval.of([draw.gauss(1, 2) for _ in range(5)]) for _ in range(4000)]
    assert sum(each.low <= 1 <= each.high for each in drawn) / 4000 == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([0.01, 0.011, 0.012], "1.10 points below that of B (95 % interval 0.85 to 1.35, n = 3): better"),
        ([-0.01, -0.011, -0.012], "1.10 points above that of B (95 % interval 0.85 to 1.35, n = 3): worse"),
        ([0.01, -0.01, 0.02], "inconclusive"),
        ([0.01], "1.00 points below that of B (one seed: no interval)"),
    ],
)
def test_the_verdict_goes_by_the_interval(values, says):
    assert compare("A", "B", Interval.of(values)).endswith(says)


def test_records_name_no_machine():
    for path in COMMITTED.glob("*.json"):
        assert json.loads(path.read_text())["name"] == path.stem
        assert "/work" not in path.read_text()


def test_a_control_has_the_gradient_of_the_first_layer_that_adaloss_has():
    torch.manual_seed(0)
    net, balance = anytime.create_model("resann-2-8"), anytime.AdaLoss(6)
    control = ScaledConst(net, every=1, momentum=0.0)
    sizes = {}
    for name, scheme in {"adaloss": balance, "control": control}.items():
        losses = torch.stack(
            [logits.logsumexp(1).mean() * (6 - i) for i, logits in enumerate(net(torch.ones(4, 3, 32, 32)))]
        )
        net.zero_grad()
        scheme(losses).backward()
        sizes[name] = next(net.parameters()).grad.norm().item()
    assert sizes["control"] == pytest.approx(sizes["adaloss"], rel=1e-3)
    assert control.weights.unique().numel() == 1
    assert not list(control.parameters())


def test_the_authors_const_adds_half_of_the_weight_to_one_exit():
    control, seen = RandomConst(4), []
    for _ in range(50):
        control(torch.rand(4))
        assert sorted(control.weights.tolist()) == [1, 1, 1, 3]
        seen.append(int(control.weights.argmax()))
    assert set(seen) == {0, 1, 2, 3}


def test_a_plain_sequence_runs_all_and_answers_with_the_best_so_far():
    def plain(cost, validation, test):
        heads = [1, 1]
        split = {"validation": {"errors": [None, validation]}, "test": {"errors": [None, test]}}
        return {"macs": [cost // 2, cost], "head_macs": heads, **split}

    curve = sequence_curve([plain(11, 0.5, 0.4), plain(21, 0.6, 0.3), plain(31, 0.2, 0.25)])
    assert curve == {"macs": [10, 30, 60], "errors": [0.4, 0.4, 0.25]}


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=30))
def test_concentration_is_a_mean_place(weights):
    place = concentration(weights)
    assert 0 < place <= 1 + 1e-9
    assert concentration([*[0.0] * len(weights), *weights]) >= place - 1e-9


def test_the_error_at_a_budget_is_the_last_within_it():
    assert [error_at([1, 2, 4], [0.5, 0.4, 0.3], budget) for budget in (0.5, 1, 3, 9)] == [None, 0.5, 0.4, 0.3]


def test_time_is_estimated(capsys):
    assert estimate([digits(), digits("scaled-const")], None, 2) > 0
    assert "2 runs, 2 at a time" in capsys.readouterr().out


def test_data_sets_are_found_by_their_names(tmp_path):
    for name in ("cifar100-20k", "cifar10-30k", "svhn"):
        (tmp_path / name).mkdir()
    assert [find_data(tmp_path, name).name for name in ("cifar10", "svhn")] == ["cifar10-30k", "svhn"]
    with pytest.raises(anytime.AnytimeError, match="imagenet"):
        find_data(tmp_path, "imagenet")


def command(monkeypatch, capsys, line):
    monkeypatch.setattr(sys, "argv", ["experiments", *line.split()])
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_teaches(monkeypatch, capsys, tmp_path):
    code, out, _ = command(monkeypatch, capsys, "run --help")
    assert code == 0
    assert all(word in out for word in (*EXPERIMENTS, *PRESETS, "--dry-run", "--data", "examples:"))
    code, out, _ = command(monkeypatch, capsys, f"run --list --records {tmp_path}")
    assert code == 0
    assert len(out.splitlines()) == len(EXPERIMENTS)
    assert f"table_weights          0 of {len(table_weights.runs('laptop'))} runs done" in out
    code, _, _ = command(monkeypatch, capsys, f"run nothing --records {tmp_path}")
    assert "there are: table_weights" in code
    code, _, _ = command(monkeypatch, capsys, f"run eann --data {tmp_path} --records {tmp_path}")
    assert "has no folder svhn" in code
    code, _, err = command(monkeypatch, capsys, "report --preset desktop")
    assert code == 2
    assert "minutes" in err


def test_what_has_a_record_is_not_trained_and_the_result_is_shown(monkeypatch, capsys, tmp_path):
    runs = table_weights.runs("minutes")
    for run in runs:
        (tmp_path / f"{run.name}.json").write_text(json.dumps(made_up(run)))
    assert not missing(EXPERIMENTS, "minutes", Records.read(tmp_path))
    code, out, _ = command(
        monkeypatch, capsys, f"run --preset minutes --records {tmp_path} --output {tmp_path / 'runs'}"
    )
    assert code == 0
    assert "CONST − AdaLoss" in out
    assert "one seed has no interval" in out
    assert not (tmp_path / "runs").exists()
    (tmp_path / f"{runs[0].name}.json").unlink()
    assert missing(["table_weights"], "minutes", Records.read(tmp_path)) == [runs[0]]
