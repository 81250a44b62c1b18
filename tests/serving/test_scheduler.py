"""The decision at a stage boundary, on a clock that the tests set."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_optimum import Arrival, optimum, random_tables, random_trace, simulate

from anytime.inference.batch_times import BatchTimes, Line
from anytime.serving import flight
from anytime.serving.flight import EngineTask
from anytime.serving.scheduler import Scheduler
from anytime.serving.ways import make_tables


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
    task = EngineTask(0, 1.9, stage=1, exit=0)
    assert scheduler_of(known, task).decide(0.0).run == [task]
    assert scheduler_of(known, task).decide(1.0).answer == [task]


def test_answers_that_are_due_together_do_not_wait_for_each_other():
    known = tables([0.5, 0.6, 0.7], head=0.2)
    exits = simulate(known, [Arrival(0.0, 10.0)] * 8)
    assert None not in exits


def test_requests_at_one_stage_share_a_batch_up_to_the_largest():
    known = tables([0.5, 0.9], largest=4, fixed=10.0, seconds=0.1)
    tasks = [EngineTask(i, 1000.0 + i) for i in range(6)]
    assert scheduler_of(known, *tasks).decide(0.0).run == tasks[:4]
    large = [EngineTask(i, 1000.0 + i, size=3) for i in range(2)] + [EngineTask(2, 1003.0)]
    assert scheduler_of(known, *large).decide(0.0).run == [large[0], large[2]]


def test_few_that_wait_let_many_go_first_as_long_as_they_can():
    known = tables([0.5, 0.7, 0.9], largest=8, fixed=1.0, seconds=0.1)
    many = [EngineTask(i, 100.0, stage=1, exit=0) for i in range(6)]
    assert scheduler_of(known, *many, EngineTask(6, 90.0)).decide(0.0).run == many
    soon = EngineTask(6, 2.0)
    assert scheduler_of(known, *many, soon).decide(0.0).run == [soon]


def test_those_that_rest_at_one_exit_are_answered_together_if_they_are_due_soon():
    # The second exit gains next to nothing: nobody goes on while first exits wait.
    known = tables([0.5, 0.5001], largest=8, fixed=1.0, seconds=0.1)
    resting = [EngineTask(i, deadline, stage=1, exit=0) for i, deadline in enumerate([2.2, 4.0, 5.0, 40.0])]
    decision = scheduler_of(known, *resting, *(EngineTask(10 + i, 60.0) for i in range(40))).decide(0.0)
    assert decision.answer == resting[:3]
    assert not set(map(id, decision.answer)) & set(map(id, decision.run))


def test_a_way_that_would_not_end_in_time_for_the_batch_is_begun_without_the_earliest():
    # Together the four need 2 · 4 s to the last exit, which is where the gain is.
    known = tables([0.5, 0.5, 0.9], largest=4)
    tasks = [EngineTask(0, 5.0, stage=1, exit=0), *(EngineTask(i, 100.0, stage=1, exit=0) for i in (1, 2, 3))]
    assert scheduler_of(known, *tasks).decide(0.0).run == tasks[1:]


def test_first_exits_leave_room_for_a_stage_that_may_run_when_the_next_one_comes():
    known = tables([0.5, 0.7, 0.9], largest=8, fixed=1.0, seconds=0.1)
    many = [EngineTask(i, 100.0, stage=1, exit=0) for i in range(6)]
    # It takes 1.1 s, a stage of the others 1.6 s, and the stage of the usual batch, of one, 1.1 s.
    assert scheduler_of(known, *many, EngineTask(6, 3.9)).decide(0.0).run == many
    soon = EngineTask(6, 3.7)
    assert scheduler_of(known, *many, soon).decide(0.0).run == [soon]


def test_tasks_of_other_forms_share_no_batch():
    known = tables([0.5, 0.9], largest=4)
    tasks = [EngineTask(i, 1000.0, form=i % 2) for i in range(4)]
    assert {task.form for task in scheduler_of(known, *tasks).decide(0.0).run} in ({0}, {1})


def in_time(known, deadlines, now):
    """Whether first exits can all be in time, however they are divided into batches; earliest deadlines first."""
    if not deadlines:
        return True
    for size in range(1, min(len(deadlines), known.largest) + 1):
        done = now + known.times.stages[0].at(size) + known.times.heads[0].at(size)
        if done <= deadlines[0] + 1e-9 and in_time(known, deadlines[size:], done):
            return True
    return False


def chosen_beside(draw):
    """What is run beside first exits that can all be in time: the tasks, and whether they still can."""
    known = tables([0.5, 0.7, 0.9], largest=8, fixed=draw.uniform(0, 1), seconds=draw.uniform(0.05, 0.3))
    deadlines: list[float] = []
    while not deadlines or not in_time(known, deadlines, 0.0):
        deadlines = sorted(draw.uniform(0, 8) for _ in range(draw.randint(1, 6)))
    tasks = [EngineTask(i, deadline) for i, deadline in enumerate(deadlines)]
    for i in range(draw.randint(1, 12)):
        stage = draw.randint(1, 2)
        tasks.append(EngineTask(100 + i, draw.uniform(1, 30), stage=stage, exit=stage - 1))
    run = scheduler_of(known, *tasks).decide(0.0).run
    left = [task.deadline for task in tasks if task.exit < 0 and task not in run]
    seconds = known.seconds(run[0].stage, len(run)) if run else 0.0  # none: some are answered first
    return run, in_time(known, left, seconds)


def test_no_deeper_stage_makes_a_first_exit_late():
    draw = random.Random(0)
    chosen = [chosen_beside(draw) for _ in range(400)]
    deeper = [still for run, still in chosen if run and run[0].exit >= 0]
    assert all(deeper)
    assert 40 < len(deeper) < 360, "neither kind of choice is rare"


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
    tasks = scheduler_of(known).flight
    for i in range(count):
        stage = max(0, draw.randint(-5, known.stages - 1))
        tasks.add(EngineTask(i, draw.uniform(0.001, 0.1), stage=stage, exit=stage - 1))
    single, grouped = tasks._one_by_one(0), tasks._grouped(0)  # a row each: the same plan
    assert (grouped.step, grouped.deadlines, grouped.waiting) == (1, single.deadlines, single.waiting)
    for price in (0, 7, 15):
        assert grouped.needs(price) == pytest.approx(single.needs(price))
    assert grouped.reserved[:-1] == pytest.approx(single.reserved[1:])  # those of the row count too


def rush(planned_singly, monkeypatch):
    """The sum of accuracies of a rush with some 200 requests in flight, of which so many are planned one by one."""
    monkeypatch.setattr(flight, "SINGLE", planned_singly)
    draw, sums = random.Random(0), 0.0
    for exits in (4, 9, 27):
        accuracy = [0.4 + 0.5 * (1 - 0.8 ** (e * 27 / exits)) for e in range(exits)]
        known = tables(accuracy, seconds=draw.uniform(0.5, 1.5) / exits, largest=16, fixed=0.2 / exits)
        trace, moment = [], 0.0
        for _ in range(500):
            moment += draw.expovariate(3)
            trace.append(Arrival(moment, moment + draw.choice([40, 80, 160])))
        sums += sum(known.accuracy[exit] for exit in simulate(known, trace, random.Random(0)) if exit is not None)
    return sums


def test_plans_of_groups_gain_as_much_as_plans_of_single_requests(monkeypatch):
    singly, grouped = rush(10**6, monkeypatch), rush(64, monkeypatch)
    assert grouped != singly, "some plans are made of groups"
    assert grouped > 0.99 * singly
