"""Predictions under limits."""

import contextlib
import threading
import time

import laws
import pytest
import torch
from backends import BACKENDS, ZERO, adding, on
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anytime

STAGE = 0.01
"""Seconds that a sleepy stage sleeps."""
RETURNING = 0.0001
"""Seconds before a deadline that are kept for returning the prediction, at first."""


@contextlib.contextmanager
def quiet_machine():
    """Time passes by sleeping only, so that the tests do not depend on the speed of the machine."""
    now = 0.0

    def sleep(seconds):
        nonlocal now
        now += seconds

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: now)
        patch.setattr(time, "sleep", sleep)
        yield


def sleepy(backend="eager", stages=6):
    """Every stage sleeps for its ``seconds``, and counts how often it was begun."""
    net = adding(backend, stages, before=lambda stage: time.sleep(stage.seconds))
    for stage in net.stages:
        stage.seconds = STAGE
    return net


def resann():
    torch.manual_seed(0)
    return anytime.create_model("resann-2-8").eval()


X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
NET = resann()
NETS = {backend: on(backend, resann, X) for backend in BACKENDS}
every_backend = pytest.mark.parametrize("backend", BACKENDS)
COST = anytime.costs(NET, X)


@every_backend
@given(exits=st.integers(1, 6))
def test_exits_runs_one_head_and_no_deeper_stage(backend, exits):
    net, ran = on(backend, resann, X), []
    for i, (stage, head) in enumerate(zip(net.stages, net.heads, strict=True)):
        stage.register_forward_hook(lambda *_, i=i: ran.append(("stage", i)))
        head.register_forward_hook(lambda *_, i=i: ran.append(("head", i)))
    with torch.no_grad():
        whole = net(X)
    ran.clear()
    prediction = anytime.predict(net, X, exits=exits)
    assert torch.equal(prediction.logits, whole[exits - 1])
    assert prediction.exit == exits - 1
    assert prediction.complete == (exits == 6)
    assert prediction.stopped_by == (None if exits == 6 else "exits")
    assert ran == [("stage", i) for i in range(exits)] + [("head", exits - 1)]


@every_backend
@given(fraction=st.floats(0, 1.2))
def test_macs_reach_the_deepest_exit_that_they_pay_for(backend, fraction):
    net, cost = NETS[backend], COST
    budget = fraction * cost.alone[-1]
    if budget < cost.alone[0]:
        with pytest.raises(anytime.UnfinishedError) as error:
            anytime.predict(net, X, macs=budget)
        assert error.value.needed == cost.alone[0]
        return
    prediction = anytime.predict(net, X, macs=budget)
    assert prediction.macs == cost.alone[prediction.exit] <= budget
    assert prediction.complete or cost.alone[prediction.exit + 1] > budget


@every_backend
@given(exits=st.integers(1, 6), affordable=st.integers(1, 6))
def test_the_first_limit_to_bind_wins(backend, exits, affordable):
    prediction = anytime.predict(NETS[backend], X, exits=exits, macs=COST.alone[affordable - 1], deadline=1e6)
    assert prediction.exit + 1 == min(exits, affordable)
    bound = None if prediction.complete else "macs" if affordable < exits else "exits"
    assert prediction.stopped_by == bound


@every_backend
@given(deadline=st.floats(0, 1.5 * 6 * STAGE))
def test_a_deadline_is_used_to_the_full(backend, deadline):
    net = sleepy(backend)
    with quiet_machine():
        profile = anytime.profile(net, ZERO, repeats=2, warmup=0)
        before = [stage.begun for stage in net.stages]
        deepest = profile.deepest(deadline + 1e-9)
        if deepest is None:
            with pytest.raises(anytime.UnfinishedError) as error:
                anytime.predict(net, ZERO, deadline=deadline)
            assert error.value.needed == pytest.approx(STAGE)
            assert net.stages[0].begun == before[0], "a stage was begun that could not end in time"
            return
        prediction = anytime.predict(net, ZERO, deadline=deadline + 1e-9)
    assert (profile.deepest(deadline - RETURNING) or 0) <= prediction.exit <= deepest
    assert prediction.seconds <= deadline + 1e-9
    assert not prediction.late
    assert prediction.logits.item() == prediction.exit + 1
    assert sum(stage.begun for stage in net.stages) == sum(before) + prediction.exit + 1


@every_backend
@given(
    deadline=st.floats(0, 9 * STAGE),
    seconds=st.lists(st.floats(0, 5 * STAGE), min_size=6, max_size=6),
    profiled=st.booleans(),
)
def test_no_stage_is_begun_after_the_deadline(backend, deadline, seconds, profiled):
    """However much slower the stages are than known; so only the stage that runs at the deadline is awaited."""
    net, begun = sleepy(backend), []
    with quiet_machine():
        if profiled:
            anytime.profile(net, ZERO, repeats=2, warmup=0)
        for stage, now in zip(net.stages, seconds, strict=True):
            stage.seconds = now
            stage.register_forward_pre_hook(lambda *_: begun.append(time.perf_counter()), prepend=True)
        called = time.perf_counter()
        try:
            prediction = anytime.predict(net, ZERO, deadline=deadline)
            assert prediction.logits.item() == prediction.exit + 1
            assert prediction.exit + 1 == len(begun)
            late = prediction.seconds - deadline
        except anytime.UnfinishedError as error:
            assert error.stopped_by == "deadline"  # noqa: PT017
            late = error.seconds - deadline
        if begun:
            assert begun[-1] - called <= deadline
            assert late <= seconds[len(begun) - 1] + 1e-12


@every_backend
def test_without_a_profile_it_learns_one(backend):
    net = sleepy(backend)
    with quiet_machine():
        first = anytime.predict(net, ZERO, deadline=3.5 * STAGE)
        assert (first.exit, first.stopped_by) == (2, "deadline")
        assert anytime.predict(net, ZERO).macs == 0
        assert anytime.predict(net, ZERO, deadline=3.8 * STAGE).exit == 2
        with pytest.raises(anytime.UnfinishedError, match=r"the first takes about 0\.01"):
            anytime.predict(net, ZERO, deadline=0.5 * STAGE)


@every_backend
def test_a_slow_moment_does_no_lasting_harm(backend):
    net = sleepy(backend)
    with quiet_machine():
        for stage in net.stages:
            stage.seconds = 5 * STAGE
        anytime.predict(net, ZERO)
        for stage in net.stages:
            stage.seconds = STAGE
        for _ in range(4):  # one more exit each time, as the stages turn out to be fast again
            prediction = anytime.predict(net, ZERO, deadline=12 * STAGE)
    assert prediction.complete


@every_backend
def test_the_first_exit_too_late_is_not_an_answer(backend):
    net = sleepy(backend)
    with quiet_machine(), pytest.raises(anytime.UnfinishedError, match="too late") as error:
        anytime.predict(net, ZERO, deadline=0.2 * STAGE)
    assert error.value.stopped_by == "deadline"
    assert error.value.seconds == error.value.needed == pytest.approx(STAGE)
    assert torch.equal(error.value.prediction.logits, ZERO + 1)
    with pytest.raises(TimeoutError):
        anytime.predict(net, ZERO, deadline=0)


def test_anything_with_steps_will_do():
    class Counts:
        def steps(self, x):
            for exit in range(3):
                yield anytime.Step(exit, x * exit)

    assert torch.equal(anytime.predict(Counts(), ZERO).logits, 2 * ZERO)
    assert anytime.predict(Counts(), ZERO).complete
    assert anytime.predict(Counts(), ZERO, exits=2).exit == 1
    assert anytime.predict(Counts(), ZERO, exits=2).macs is None
    with pytest.raises(anytime.AnytimeError, match="cost of a Counts is not known"):
        anytime.predict(Counts(), ZERO, macs=1)


@every_backend
def test_stop_ends_it_within_a_stage(backend):
    stop = threading.Event()
    net = sleepy(backend)
    net.stages[4].register_forward_pre_hook(lambda *_: stop.set())
    with quiet_machine():
        prediction = anytime.predict(net, ZERO, stop=stop)
    assert prediction.stopped_by == "stop"
    assert prediction.exit == 4
    assert torch.equal(prediction.logits, ZERO + 5)
    assert net.stages[5].begun == 0
    with pytest.raises(anytime.UnfinishedError, match="stop"):
        anytime.predict(net, ZERO, stop=stop)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"exits": 0}, "must be an integer >= 1"),
        ({"exits": 7}, "has 6"),
        ({"deadline": float("nan")}, "deadline=nan"),
        ({"deadline": "20ms"}, "must be a number of seconds, e.g. 0.02"),
        ({"macs": float("nan")}, "macs=nan"),
    ],
)
def test_limits_that_make_no_sense(limits, message):
    with pytest.raises(anytime.AnytimeError, match=message):
        anytime.predict(resann(), X, **limits)


@every_backend
def test_training_mode_is_refused(backend):
    with pytest.raises(anytime.AnytimeError, match=r"net\.eval\(\)"):
        anytime.predict(on(backend, resann, X).train(), X)


def test_a_narrowed_walk_is_the_walk_of_the_rest():
    for name in ("resann-2-8", "denseann-40-4", "msdnet-cifar"):
        net = anytime.create_model(name).eval()
        laws.narrowing_law(net, torch.randn(5, 3, 32, 32))


def test_counting_is_not_taken_for_a_slow_stage():
    class Slow(nn.Module):  # without hooks, which counting removes
        def forward(self, x):
            time.sleep(STAGE)
            return x + 1

    net = anytime.AnytimeNetwork([Slow() for _ in range(6)], [nn.Identity() for _ in range(6)]).eval()
    with quiet_machine():
        before = time.perf_counter()
        anytime.predict(net, ZERO, macs=1e12)
        assert time.perf_counter() - before == pytest.approx(12 * STAGE), "counting took no time: nothing was tried"
        assert anytime.predict(net, ZERO, deadline=6.5 * STAGE).complete


@every_backend
def test_what_was_slow_is_tried_again(backend):
    net, answered = sleepy(backend, 2), 0
    with quiet_machine():
        net.stages[0].seconds = 20 * STAGE
        for _ in range(2):
            anytime.predict(net, ZERO)
        net.stages[0].seconds = 0
        for _ in range(12):
            try:
                anytime.predict(net, ZERO, deadline=10 * STAGE)
                answered += 1
            except anytime.UnfinishedError as error:
                assert error.needed >= 20 * STAGE  # noqa: PT017
    assert answered == 3, "tried the tenth time, always answered from then on"


@every_backend
def test_first_runs_are_not_taken_for_typical(backend):
    """Of stages and heads, whose first run may load, allocate and compile; no second prediction suffers from it."""
    net = sleepy(backend, 6)
    for module in (*net.stages, *net.heads):
        module.register_forward_pre_hook(FirstRun())
    with quiet_machine():
        anytime.predict(net, ZERO)
        for exit in range(6):
            with contextlib.suppress(anytime.UnfinishedError):
                anytime.predict(net, ZERO, deadline=(exit + 1.5) * STAGE)
            prediction = anytime.predict(net, ZERO, deadline=(exit + 1.5) * STAGE)
            assert (prediction.exit, prediction.late) == (exit, False)


class FirstRun:
    """A hook that takes long once."""

    pending = True

    def __call__(self, *_):
        if self.pending:
            self.pending = False
            time.sleep(10 * STAGE)


@pytest.mark.parametrize("limits", [{"exits": 2.5}, {"exits": True}, {"deadline": "3"}, {"macs": "3"}, {"stop": True}])
def test_limits_of_other_types(limits):
    with pytest.raises(anytime.AnytimeError, match="must be"):
        anytime.predict(NET, X, **limits)
    with pytest.raises(anytime.AnytimeError, match="must be"):
        anytime.astart(NET, X, **limits)


def test_what_is_no_network():
    for thing in (nn.Linear(2, 2), 5):
        for ask in (anytime.predict, anytime.start, anytime.astart):
            with pytest.raises(anytime.AnytimeError, match=r"no steps\(x\)"):
                ask(thing, X)
    with pytest.raises(anytime.AnytimeError, match="expects an AnytimeNetwork, not a Linear"):
        anytime.profile(nn.Linear(2, 2), X)

    class Nothing:
        def steps(self, _):
            yield from ()

    with pytest.raises(anytime.AnytimeError, match="has no exits"):
        anytime.predict(Nothing(), X)


def test_objects_with_steps_say_which_exit_answers():
    class Skips:
        exits = 6

        def steps(self, x):
            yield anytime.Step(2, x)
            yield anytime.Step(5, x + 1)

    x = torch.zeros(1)
    assert anytime.predict(Skips(), x).exit == 5
    assert anytime.predict(Skips(), x, exits=1).exit == 2
    with anytime.start(Skips(), x) as running:
        assert running.result().exit == 5
