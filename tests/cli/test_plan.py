"""`anytime plan`."""

import json

import pytest

from anytime.inference.batch_times import read_batch_times

LOAD = "--rate 50 --deadline 500ms --requests 100"


def test_a_plan_measures_once_and_says_how_many_engines(run, trained):
    assert not read_batch_times(trained)
    code, out, err = run(f"plan {trained} {LOAD} --json")
    assert code == 0, err
    plan = json.loads(out)
    assert plan["engines"] == 1
    first = plan["outcomes"][0]
    assert (first["engines"], first["cores"], len(first["exits"])) == (1, 2, 3)
    times = read_batch_times(trained)
    assert times
    code, out, _ = run(f"plan {trained} {LOAD}")
    assert code == 0
    assert f"anytime serve {trained} --engines 1" in out
    assert "accuracy" in out
    assert read_batch_times(trained) == times


def test_what_no_number_of_engines_can_do_is_said(run, trained):
    code, out, _ = run(f"plan {trained} --rate 10 --deadline 1us --requests 10")
    assert code == 0
    assert "a longer deadline" in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--rate 0 --deadline 50ms", "--rate"),
        ("--rate 10 --deadline 50", "a duration with its unit"),
        ("--rate 10 --deadline 50ms --engines 33", "--engines"),
        ("--rate 10 --deadline 50ms --tolerate 2", "--tolerate"),
    ],
)
def test_a_load_that_is_none_is_one_line(run, trained, words, reason):
    code, out, err = run(f"plan {trained} {words}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err
