"""A runner by itself: it is stepped by hand."""

import gc

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import anytime
from anytime.inference.batch_times import BatchTimes, Line, sample_form
from anytime.inference.policy import Policy
from anytime.serving.flight import EngineTask
from anytime.serving.runner import FORMS, Runner, Settings, TaskBatch


def runner_of(net, largest=4, policy=None):
    heads = [None if exit is None else Line(1e-5, 1e-5) for exit in net.stage_exits]
    times = BatchTimes([Line(1e-4, 1e-4)] * len(heads), heads)
    news = []
    accuracy = [(exit + 1) / net.exits for exit in range(net.exits)]
    return Runner(net, Settings(times, accuracy, largest, policy), news.extend), news


def test_clients_that_choose_shapes_do_not_fill_the_memory():
    net = anytime.create_model("resann-1-4").eval()
    runner, news = runner_of(net)
    xs = [torch.randn(1, 3, 8, 8 + i) for i in range(FORMS + 20)]
    for i, x in enumerate(xs):
        runner.add(i, x, deadline=float("inf"))
        if i % 2:  # two at a time are in flight
            while not runner.idle:
                runner.step()
        assert len(runner.known) <= FORMS
    done = {event.id: event for event in news if event.kind == "done"}
    with torch.inference_mode():
        for i, x in enumerate(xs):
            torch.testing.assert_close(done[i].logits, net(x)[done[i].exit], atol=1e-5, rtol=1e-4)


def test_a_policy_that_fails_on_an_input_fails_that_request_alone(monkeypatch):
    def leaves(_, __, scores):
        if scores.isnan().any():
            raise ValueError("no scores")
        return scores > 1

    monkeypatch.setattr(Policy, "leaves", leaves)
    policy = Policy("confidence", [0.5, 0.5], [1.0] * 3, [1.0] * 3, [1.0] * 3, 1.0)
    runner, news = runner_of(anytime.create_model("resann-1-4").eval(), policy=policy)
    for i, number in enumerate([0.0, torch.nan, 1.0]):
        runner.add(i, torch.full((1, 3, 8, 8), number), deadline=float("inf"))
    while not runner.idle:
        runner.step()
    assert {event.id: event.kind for event in news if event.kind != "first"} == {0: "done", 1: "failed", 2: "done"}


def test_a_head_that_fails_before_a_stage_without_an_exit_ends_its_request():
    members = [
        anytime.AnytimeNetwork([nn.Linear(4, 4) for _ in range(3)], [nn.Linear(4, 3) for _ in range(3)])
        for _ in range(2)
    ]
    net = anytime.EANN(members).eval()
    net.offered = [(0, 0), (1, 2)]
    runner, news = runner_of(net)
    join = net.join
    net.join = lambda states: join(states) if len(states) == 1 else 1 / 0  # each runs alone
    net.exit_after = lambda *_: 1 / 0
    for i in range(2):
        runner.add(i, torch.randn(1, 4), deadline=float("inf"))
    while not runner.idle:
        runner.step()
    assert sorted(event.id for event in news if event.kind == "failed") == [0, 1]


def test_a_shape_that_is_asked_for_all_the_time_stays_known():
    runner, _ = runner_of(anytime.create_model("resann-1-4").eval())
    usual, known = torch.randn(1, 3, 8, 8), None
    for i in range(2 * FORMS):
        runner.add(2 * i, usual, deadline=float("inf"))
        runner.add(2 * i + 1, torch.randn(1, 3, 8, 9 + i), deadline=float("inf"))
        known = known or runner.known[sample_form(usual)]
        assert runner.known[sample_form(usual)] is known
        while not runner.idle:
            runner.step()


def test_what_is_answered_leaves_nothing_to_the_garbage_collector():
    runner, _ = runner_of(anytime.create_model("resann-1-4").eval())
    gc.collect()
    gc.disable()
    try:
        for i in range(20):
            runner.add(i, torch.randn(1, 3, 8, 8), deadline=float("inf"))
            runner.step()
        while not runner.idle:
            runner.step()
        assert not [found for found in gc.get_objects() if type(found) is TaskBatch]
    finally:
        gc.enable()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.data())
def test_the_part_of_a_batch_is_what_take_gives(sizes, data):
    net = anytime.create_model("resann-1-4").eval()
    tasks = [EngineTask(i, 1.0, size=size) for i, size in enumerate(sizes)]
    state = torch.arange(sum(sizes)).float()
    chosen = data.draw(st.lists(st.sampled_from(tasks), min_size=1, unique_by=id))
    rows = torch.cat([part for task, part in zip(tasks, state.split(sizes), strict=True) if task in chosen])
    assert TaskBatch(state, tasks).part(net, chosen).tolist() == rows.tolist()
    assert [task.id for task in chosen] == sorted(task.id for task in chosen)  # in the order of the rows


def test_that_first_exits_begin_is_told_before_their_stage_runs():
    net = anytime.create_model("resann-1-4").eval()
    runner, told = runner_of(net)
    run_stage, seen = net.run_stage, []
    net.run_stage = lambda stage, state: seen.append([event.kind for event in told]) or run_stage(stage, state)
    for i in range(3):
        runner.add(i, torch.randn(1, 3, 8, 8), deadline=float("inf"))
    runner.step()
    assert seen == [["first"] * 3]


def test_the_first_exit_of_one_that_is_alone_is_told_with_its_answer():
    net = anytime.create_model("resann-1-4").eval()
    runner, told = runner_of(net)
    runner.tell = lambda news: told.append([event.kind for event in news])
    runner.add(0, torch.randn(1, 3, 8, 8), deadline=float("inf"))
    while not runner.idle:
        runner.step()
    assert told == [["first", "done"]]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.booleans(), min_size=4, max_size=8).filter(lambda unsure: 0 < sum(unsure) < len(unsure)))
def test_under_load_those_that_an_exit_is_unsure_of_go_deeper(unsure):
    """There is time for half of the stages behind the first exits: who gains more by them gets them."""
    exits = 6
    net = anytime.AnytimeNetwork([nn.Identity() for _ in range(exits)], [nn.Identity() for _ in range(exits)]).eval()
    never = Policy("confidence", [2.0] * (exits - 1), [1.0] * exits, [1.0] * exits, [1.0] * exits, 1.0)
    times = BatchTimes([Line(0.0, 1.0)] * exits, [Line(0.0, 0.0)] * exits)
    accuracy, now, exit_of = [0.5, 0.7, 0.8, 0.86, 0.9, 0.93], [0.0], {}

    def tell(events):
        exit_of.update({event.id: event.exit for event in events if event.kind == "done"})

    runner = Runner(net, Settings(times, accuracy, 8, never), tell, clock=lambda: now[0])
    run_stage = net.run_stage

    def timed(stage, state):
        now[0] += len(state)
        return run_stage(stage, state)

    net.run_stage = timed
    for _ in range(200):
        runner.scheduler.slow.note(1.0, 1.0)
    for i, more in enumerate(unsure):
        logits = [0.1, 0.0, 0.0, 0.0] if more else [4.0, 0.0, 0.0, 0.0]  # 27 and 95 % sure
        runner.add(i, torch.tensor([logits]), deadline=len(unsure) * (1 + (exits - 1) / 2))
    with torch.inference_mode():
        while not runner.idle:
            runner.step()
    deep = [exit_of[i] for i, more in enumerate(unsure) if more]
    shallow = [exit_of[i] for i, more in enumerate(unsure) if not more]
    assert min(deep) >= max(shallow)
    assert sum(deep) / len(deep) > sum(shallow) / len(shallow)
