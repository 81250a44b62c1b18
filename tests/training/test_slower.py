"""A training whose steps become far slower says so, once."""

import time
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from short_runs import linear, train

from anytime.training.slower import SLOWER, WINDOW, SlowerSteps


def said(seconds, threads=2):
    """What is said of steps that take so many seconds each, after the very first one."""
    pace = SlowerSteps(threads)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in (100.0, *seconds):
            pace.step(each, 10)
    return [str(warning.message) for warning in caught]


@given(st.floats(1e-4, 1e2), st.lists(st.floats(1, 0.99 * SLOWER), min_size=2 * WINDOW, max_size=60))
def test_steps_that_vary_less_are_not_worth_a_line(first, factors):
    assert said([first] * WINDOW + [first * factor for factor in factors]) == []


@given(st.floats(1e-4, 1e2), st.floats(1.01 * SLOWER, 1000), st.integers(0, 50))
def test_slow_steps_are_told_once(first, factor, later):
    (line,) = said([first] * (WINDOW + later) + [first * factor] * 3 * WINDOW)
    assert "times as long as the first ones" in line
    assert "--threads 1" in line
    (line,) = said([first] * WINDOW + [first * factor] * WINDOW, threads=1)
    assert f"took {factor:.0f} times as long as the first ones" in line
    assert "--threads" not in line


@given(st.floats(1e-4, 1e2), st.lists(st.floats(1, 1000), max_size=(WINDOW - 1) // 2))
def test_single_slow_steps_do_not_count(first, slow):
    assert said([first] * WINDOW + [first * each for each in slow] + [first] * WINDOW) == []


def test_a_training_notices(data):
    net = linear()
    net.stages[0].register_forward_hook(lambda *_: time.sleep(0.3 if net.training and len(steps) > WINDOW else 0))
    steps = []
    with pytest.warns(UserWarning, match="times as long as the first ones"):
        train(net, data, epochs=6, batch_size=25, on_step=steps.append)
