"""Capacity planning: laws of the simulation, and how many engines it says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytime.inference.batch_times import BatchTimes, Line
from anytime.serving.planning import enough, forecast, forecasts
from anytime.serving.simulation import Arrival, poisson, simulate
from anytime.serving.ways import make_tables

STAGES, SECONDS = 5, 0.004


def tables(each=0.5):
    """Five stages of 4 ms; a batch of b takes 1 + each · (b − 1) times as long."""
    stage, head = (Line(seconds * (1 - each), seconds * each) for seconds in (SECONDS, 1e-4))
    return make_tables(BatchTimes([stage] * STAGES, [head] * STAGES), [0.5, 0.6, 0.7, 0.8, 0.9], largest=32)


@settings(max_examples=40, deadline=None)
@given(st.floats(20, 1500), st.floats(0.01, 0.2), st.integers(1, 4), st.integers(0, 99))
def test_every_request_is_refused_or_answered_once_after_it_came(rate, deadline, engines, seed):
    trace = poisson(rate, deadline, 150, seed)
    answers = simulate(tables(), trace, engines)
    assert len(answers) == len(trace)
    for request, answer in zip(trace, answers, strict=True):
        if answer is not None:
            assert answer[1] >= request.moment + SECONDS * 0.999  # a stage at least
            assert 0 <= answer[0] < STAGES


@pytest.mark.parametrize("load", [0.5, 1, 2, 4])
@pytest.mark.parametrize("deadline", [0.05, 0.2])
def test_what_is_admitted_is_in_time_and_shallower_under_load(load, deadline):
    """1: what an engine can do at full depth, with batches of 32."""
    known = tables()
    full = 32 / (STAGES * known.times.stages[0].at(32))
    found = forecast(known, load * full, deadline, 1, measured=True, requests=400)
    assert found.late == 0
    alone = forecast(known, 0.1 * full, deadline, 1, measured=True, requests=400)
    assert found.accuracy <= alone.accuracy


def test_an_engine_that_is_free_goes_to_the_last_exit():
    trace = [Arrival(moment, moment + 0.1) for moment in (0.0, 1.0, 2.0)]
    for exit, moment in simulate(tables(), trace):
        assert exit == STAGES - 1
        assert moment % 1.0 == pytest.approx(STAGES * SECONDS + 1e-4, rel=0.01)


def test_more_requests_than_the_queue_holds_are_refused():
    answers = simulate(tables(), [Arrival(0.0, 10.0)] * 20, queue=8)
    assert sum(answer is not None for answer in answers) == 8


def test_two_engines_answer_at_one_moment_what_one_cannot():
    trace = [Arrival(0.0, 0.025)] * 2
    serial = tables(each=1.0)  # a batch of two takes twice as long
    assert [answer and answer[0] for answer in simulate(serial, trace, engines=2)] == [STAGES - 1] * 2
    assert min(answer[0] for answer in simulate(serial, trace, engines=1)) < STAGES - 1


@pytest.mark.parametrize("rate", [100, 800, 2500])
def test_the_least_number_of_engines_is_enough_and_one_less_is_not(rate):
    known = tables()
    found = forecasts(known, rate, 0.05, measured=True, requests=600)
    chosen = enough(found, 0.01)
    assert chosen.failed <= 0.01
    if chosen.engines > 1:
        assert forecast(known, rate, 0.05, chosen.engines - 1, True, requests=600).failed > 0.01
    for each in found:
        assert sum(each.exits) == pytest.approx(1.0)
        assert 0.5 <= each.accuracy <= 0.9 + 1e-4
    assert found[-1].accuracy >= chosen.accuracy


def test_no_engine_keeps_a_deadline_that_is_shorter_than_the_first_stage():
    found = forecasts(tables(), 10, 0.001, measured=True, requests=50)
    assert [(each.refused, each.accuracy) for each in found] == [(1.0, None)]
    assert enough(found, 0.01) is None
