"""``anytime calibrate``: its units and scores, on the command line as in Python."""

import re
import shutil
import sys

import pytest

import anytime
from anytime import cli
from anytime.inference.policy import SCORES


@pytest.fixture(scope="module")
def folder(finished, tmp_path_factory):
    """A copy of the finished training run."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("run") / "a")


def calibrate(folder, capsys, options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["anytime", "calibrate", str(folder), *options.split()])
        with pytest.raises(SystemExit) as end:
            cli.main()
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def in_python(folder, budget, unit, score="confidence"):
    net, data = anytime.load(folder), anytime.load_data("digits")
    return anytime.calibrate(net, data.batches(data.validation), budget, unit, score)


@pytest.mark.parametrize("score", SCORES)
def test_every_score(folder, capsys, score):
    code, out, err = calibrate(folder, capsys, f"--budget 0.7 --score {score}")
    assert code == 0, err
    policy = anytime.Policy.load(folder)
    assert policy.score == score
    assert policy == in_python(folder, 0.7, "fraction", score)
    assert "70.0% of the whole network" in out


def test_macs_are_the_fraction_of_the_whole(folder, capsys):
    assert calibrate(folder, capsys, "--budget 0.7 --unit fraction")[0] == 0
    by_fraction = anytime.Policy.load(folder)
    assert calibrate(folder, capsys, f"--budget {by_fraction.budget} --unit macs")[0] == 0
    assert anytime.Policy.load(folder) == by_fraction
    assert by_fraction.unit == "macs"
    assert by_fraction == in_python(folder, by_fraction.budget, "macs")


def test_seconds(folder, capsys):
    code, out, err = calibrate(folder, capsys, "--budget 1000 --unit seconds")
    assert code == 0, err
    policy = anytime.Policy.load(folder)
    assert (policy.unit, policy.budget) == ("seconds", 1000)
    assert policy.shares == [0, 0, 1], "there is time for all samples to go to the last exit"
    assert 0 < policy.costs[0] < policy.costs[-1]
    assert "1000 seconds" in out
    assert calibrate(folder, capsys, "--budget 1000 --unit seconds --batch-size 4")[0] == 0
    assert "batch_size=4 counts for seconds alone" in calibrate(folder, capsys, "--budget 0.5 --batch-size 4")[2]


def test_a_risk(folder, capsys):
    code, out, err = calibrate(folder, capsys, "--risk 0.1 --delta 0.05")
    assert code == 0, err
    net, data = anytime.load(folder), anytime.load_data("digits")
    assert anytime.Policy.load(folder) == anytime.calibrate(net, data.batches(data.validation), risk=0.1, delta=0.05)
    assert "at most 10 points of accuracy lost, with probability 95 %\n" in out


def test_a_risk_that_cannot_be_kept_is_told_in_one_line(folder, capsys):
    code, out, err = calibrate(folder, capsys, "--risk 0.01 --delta 0.001")
    assert code == 0, err
    assert "at most 1 point of accuracy lost, with probability 99.9 %; no sample leaves early\n" in out
    assert err.splitlines()[-1] == (
        "anytime: warning: 200 held-out samples are too few for a risk of 0.01 and a delta of 0.001: no sample will "
        "leave early; give more held-out samples, or a larger risk or delta"
    )
    assert ".py" not in err
    code, out, _ = calibrate(folder, capsys, "--risk 0.25")
    assert "at most 25 points of accuracy lost, on average" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--budget 0.5 --unit hours", "unit.*one of macs, seconds, fraction"),
        ("--budget 0.5 --score hope", "score.*one of confidence, entropy, margin, patience"),
        ("--budget 1 --unit macs", "the first exit takes"),
        ("--budget 2", "the last 1"),
        ("--budget nan", "nan"),
        ("", "either --budget, or --risk"),
        ("--budget 0.5 --risk 0.1", "either --budget, or --risk"),
        ("--risk 2", "risk=2.0 must be a number > 0 and < 1"),
    ],
)
def test_what_is_refused(folder, capsys, options, message):
    code, _, err = calibrate(folder, capsys, options)
    assert code == 2
    assert re.search(message, err)
    assert "Traceback" not in err
