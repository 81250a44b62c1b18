"""The decision at a stage boundary, on a clock that the tests set."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_optimum import Arrival, optimum, random_tables, random_trace, simulate

from anytime.inference.batch_times import BatchTimes, Line
from anytime.serving.admission import worst_lateness
from anytime.serving.flight import Task
from anytime.serving.scheduler import Scheduler
from anytime.serving.tables import make_tables


def tables(accuracy, seconds=1.0, largest=1, fixed=0.0, head=0.0):
    exits = len(accuracy)
    return make_tables(BatchTimes([Line(fixed, seconds)] * exits, [Line(0.0, head)] * exits), accuracy, largest)


def scheduler_of(known, *tasks):
    scheduler = Scheduler(lambda _: known, known.largest)
    for _ in range(200):
        scheduler.slow.note(1.0, 1.0)  # the machine is as fast as when it was measured
    for task in tasks:
        scheduler.add(task)
    return scheduler


def test_a_flat_stretch_before_a_steep_one_is_one_way():
    # The second exit gains nothing, the third much: a rule that looks one exit ahead would never get there.
    known = tables([0.5, 0.5, 0.9])
    assert known.slopes[0][1] == pytest.approx(0.2, abs=1e-4)
    assert simulate(known, [Arrival(0.0, 3.5), Arrival(0.0, 6.5)]) == [2, 2]


def test_an_answer_is_given_before_it_would_be_late():
    known = tables([0.5, 0.6, 0.7])
    task = Task(0, 1.9, stage=1, exit=0)
    assert scheduler_of(known, task).decide(0.0).run == [task]
    assert scheduler_of(known, task).decide(1.0).answer == [task]


def test_answers_that_are_due_together_do_not_wait_for_each_other():
    known = tables([0.5, 0.6, 0.7], head=0.2)
    exits = simulate(known, [Arrival(0.0, 10.0)] * 8)
    assert None not in exits


def test_requests_at_one_stage_share_a_batch_up_to_the_largest():
    known = tables([0.5, 0.9], largest=4, fixed=10.0, seconds=0.1)
    tasks = [Task(i, 1000.0 + i) for i in range(6)]
    assert scheduler_of(known, *tasks).decide(0.0).run == tasks[:4]
    large = [Task(i, 1000.0 + i, size=3) for i in range(2)] + [Task(2, 1003.0)]
    assert scheduler_of(known, *large).decide(0.0).run == [large[0], large[2]]


def test_few_that_wait_let_many_go_first_as_long_as_they_can():
    known = tables([0.5, 0.7, 0.9], largest=8, fixed=1.0, seconds=0.1)
    many = [Task(i, 100.0, stage=1, exit=0) for i in range(6)]
    assert scheduler_of(known, *many, Task(6, 90.0)).decide(0.0).run == many
    soon = Task(6, 2.0)
    assert scheduler_of(known, *many, soon).decide(0.0).run == [soon]


def test_those_that_rest_at_one_exit_are_answered_together_if_they_are_due_soon():
    # The second exit gains next to nothing: nobody goes on while first exits wait.
    known = tables([0.5, 0.5001], largest=8, fixed=1.0, seconds=0.1)
    resting = [Task(i, deadline, stage=1, exit=0) for i, deadline in enumerate([2.2, 4.0, 5.0, 40.0])]
    decision = scheduler_of(known, *resting, *(Task(10 + i, 60.0) for i in range(40))).decide(0.0)
    assert decision.answer == resting[:3]
    assert not set(map(id, decision.answer)) & set(map(id, decision.run))


def test_a_way_that_would_not_end_in_time_for_the_batch_is_begun_without_the_earliest():
    # Together the four need 2 · 4 s to the last exit, which is where the gain is.
    known = tables([0.5, 0.5, 0.9], largest=4)
    tasks = [Task(0, 5.0, stage=1, exit=0), *(Task(i, 100.0, stage=1, exit=0) for i in (1, 2, 3))]
    assert scheduler_of(known, *tasks).decide(0.0).run == tasks[1:]


def test_first_exits_leave_room_for_a_stage_that_may_run_when_the_next_one_comes():
    known = tables([0.5, 0.7, 0.9], largest=8, fixed=1.0, seconds=0.1)
    many = [Task(i, 100.0, stage=1, exit=0) for i in range(6)]
    # It takes 1.1 s, a stage of the others 1.6 s, and the stage of the usual batch, of one, 1.1 s.
    assert scheduler_of(known, *many, Task(6, 3.9)).decide(0.0).run == many
    soon = Task(6, 3.7)
    assert scheduler_of(known, *many, soon).decide(0.0).run == [soon]


def test_tasks_of_other_forms_share_no_batch():
    known = tables([0.5, 0.9], largest=4)
    tasks = [Task(i, 1000.0, form=i % 2) for i in range(4)]
    assert {task.form for task in scheduler_of(known, *tasks).decide(0.0).run} in ({0}, {1})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_no_choice_makes_a_first_exit_late(seed, count):
    draw = random.Random(seed)
    known = random_tables(draw)
    scheduler = scheduler_of(known)
    for i in range(count):
        stage = max(0, draw.randint(-5, known.stages - 1))
        scheduler.add(Task(i, draw.uniform(0.001, 0.1), stage=stage, exit=stage - 1))
    waiting = [task for task in scheduler.tasks if task.exit < 0]
    entries = [(task.deadline, 1) for task in waiting]
    run = scheduler.decide(0.0).run
    if not run or run[0].exit < 0 or not waiting or worst_lateness(known, scheduler.slow, entries, 0.0) > 0:
        return
    seconds = scheduler.slow.high * known.seconds(run[0].stage, len(run))
    assert worst_lateness(known, scheduler.slow, entries, seconds) <= 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["once", "same", "mixed"]), st.sampled_from([0.5, 2, 5]))
def test_what_is_admitted_is_answered_in_time(seed, kind, load):
    draw = random.Random(seed)
    known = random_tables(draw)
    full = sum(line.at(1) for line in known.times.stages)
    trace = random_trace(draw, kind, load, full, requests=30)
    refused = []
    exits = simulate(known, trace, refused=refused)
    assert [i for i, exit in enumerate(exits) if exit is None] == sorted(refused)


def nearest_to_optimum(traces):
    draw, ours, best = random.Random(1), 0.0, 0.0
    for i in range(traces):
        known = random_tables(draw)
        full = sum(line.at(1) for line in known.times.stages)
        trace = random_trace(draw, ("once", "same")[i % 2], draw.choice([0.5, 1, 2, 3, 5]), full, requests=40)
        ours += sum(known.accuracy[exit] for exit in simulate(known, trace) if exit is not None)
        best += optimum(known, trace, units=200)
    return ours / best


def test_nearly_the_optimum():
    assert nearest_to_optimum(12) > 0.95


@pytest.mark.slow
def test_nearly_the_optimum_on_200_traces():
    assert nearest_to_optimum(200) > 0.95


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30))
def test_rows_of_several_tasks_need_and_reserve_what_their_tasks_do(seed, count):
    draw = random.Random(seed)
    known = random_tables(draw)
    flight = scheduler_of(known).flight
    for i in range(count):
        stage = max(0, draw.randint(-5, known.stages - 1))
        flight.add(Task(i, draw.uniform(0.001, 0.1), stage=stage, exit=stage - 1))
    single, grouped = flight._one_by_one(0), flight._grouped(0)  # a row each: the same plan
    assert (grouped.step, grouped.deadlines, grouped.waiting) == (1, single.deadlines, single.waiting)
    for price in (0, 7, 15):
        assert grouped.needs(price) == pytest.approx(single.needs(price))
    assert grouped.reserved[:-1] == pytest.approx(single.reserved[1:])  # those of the row count too
