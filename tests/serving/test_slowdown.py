"""What is learned of a machine's speed, and of how early answers must be ready."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime.serving.slowdown import FRESH, Ahead, SlowDown


@given(st.lists(st.floats(0.25, 10.0), max_size=400))
def test_the_mean_is_that_of_the_latest_without_the_slowest(ratios):
    slow, ratios = SlowDown(window=64), ratios[: len(ratios) // FRESH * FRESH]  # it is computed anew every so often
    for ratio in ratios:
        slow.note(1.0, ratio)
    latest = sorted([*([1.0] * 15 + [1.5]), *ratios][-64:])
    most = max(1, int(0.95 * len(latest)))
    assert slow.mean == pytest.approx(statistics.fmean(latest[:most]))
    assert slow.mean <= slow.high * (1 + 1e-9)
    assert slow.high <= slow.safe * (1 + 1e-9)


@given(st.floats(1e-6, 0.19), st.integers(1, 300))
def test_times_that_were_far_too_long_are_corrected_by_one_stage(ratio, stages):
    slow = SlowDown()
    for _ in range(stages):
        slow.note(1.0, 1.0)
    slow.note(1.0, ratio)
    assert slow.mean == slow.high == pytest.approx(ratio)


@given(st.lists(st.booleans(), max_size=300))
def test_a_late_answer_adds_time_and_one_in_time_takes_some_within_bounds(lates):
    ahead = Ahead()
    for late in lates:
        before = ahead.seconds
        ahead.note(late)
        assert Ahead.least <= ahead.seconds <= Ahead.most
        assert ahead.seconds >= before if late else ahead.seconds <= before


@pytest.mark.parametrize("usual", [0.0002, 0.0005, 0.001])
def test_few_are_late_once_it_has_learned(usual):
    draw, ahead, late = random.Random(0), Ahead(), 0
    for i in range(60_000):
        missed = draw.expovariate(1 / usual) > ahead.seconds  # by which answers are delayed
        ahead.note(missed)
        late += missed and i >= 30_000
    assert late / 30_000 < 0.02 if usual == 0.001 else late / 30_000 < 0.006
