"""Who is admitted, and what a worker is told: laws of the machine's pace and of the time kept ahead."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from waiting import until

import anytime
from anytime.inference.batch_times import BatchTimes, Line
from anytime.serving.admission import worst_lateness
from anytime.serving.engine import OverloadedError
from anytime.serving.slowdown import Pace
from anytime.serving.ways import make_tables

LONG = 3600.0
X = torch.zeros(1, 4)


class Gate(nn.Module):
    """A stage that waits until it is opened, and refuses NaN."""

    def __init__(self):
        super().__init__()
        self.open, self.arrived = threading.Event(), threading.Event()

    def forward(self, x):
        self.arrived.set()
        self.open.wait()
        if x.isnan().any():
            raise ValueError("NaN in the input")
        return x + 1


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def engine_of(gate, seconds=100.0, **options):
    """The first exit takes so many seconds for each sample, says its profile."""
    net = anytime.AnytimeNetwork([gate, nn.Linear(4, 4)], [nn.Linear(4, 3), nn.Linear(4, 3)]).eval()
    profile = BatchTimes([Line(0.0, seconds)] * 2, [Line(0.0, 0.0)] * 2)
    options = {"queue_seconds": 1e6, **options}
    return anytime.Engine(net, processes=0, profile=profile, example=X, max_batch=4, **options)


def set_pace(engine, mean, high):
    """As if its worker had just said so, and will say nothing else."""
    (worker,) = engine._crew.workers
    engine._crew.pace[worker] = Pace(mean, high, 1.0, moment=float("inf"))


@pytest.mark.parametrize(
    ("options", "deadline", "said"),
    [({}, 250.0, "would be late"), ({"queue_seconds": 200.0}, LONG, "3e\\+02 s of work")],
)
def test_a_machine_that_is_three_times_slower_refuses_what_it_would_admit(gate, options, deadline, said):
    with engine_of(gate, **options) as engine:
        set_pace(engine, 3.0, 3.0)
        with pytest.raises(OverloadedError, match=said):
            engine.submit(X, deadline=deadline)
        set_pace(engine, 1.0, 1.0)
        engine.submit(X, deadline=deadline).cancel()
        gate.open.set()


def test_a_stage_that_runs_counts_for_those_that_come(gate):
    with engine_of(gate) as engine:
        engine.submit(X, deadline=LONG)
        assert gate.arrived.wait(LONG)
        set_pace(engine, 1.0, 1.0)
        # 100 s until the stage ends, then 100 s of its own.
        with pytest.raises(OverloadedError, match="would be late"):
            engine.submit(X, deadline=150.0)
        engine.submit(X, deadline=250.0).cancel()
        gate.open.set()


def test_a_worker_is_told_the_deadline_less_what_is_kept_ahead(gate):
    with engine_of(gate) as engine:
        engine._ahead.seconds = 60.0
        set_pace(engine, 1.0, 1.0)
        with pytest.raises(OverloadedError, match="would be late"):
            engine.submit(X, deadline=150.0)  # 90 s are left
        engine.submit(X, deadline=200.0)
        assert gate.arrived.wait(LONG)
        (request,) = engine._books.requests.values()
        (task,) = engine._crew.workers[0].runner.by_id.values()
        assert task.deadline == request.deadline - 60.0
        gate.open.set()


def test_answers_that_are_late_are_counted_as_such(gate, monkeypatch):
    monkeypatch.setattr("anytime.serving.watch.GRACE", LONG)
    with engine_of(gate, seconds=1e-6) as engine:
        future = engine.submit(X, deadline=1.0)
        (request,) = engine._books.requests.values()
        assert gate.arrived.wait(LONG)
        ahead, request.deadline = engine._ahead.seconds, 0.0  # it has passed
        gate.open.set()
        assert future.result(LONG).exit >= 0
        until(lambda: engine._ahead.seconds > ahead)
        stats = engine.stats()
        assert (stats["answered"], stats["late"], stats["in_time"], stats["ready_in_time"]) == (1, 1, 0, 0)
        engine.submit(X, deadline=LONG).result(LONG)
        until(lambda: engine.stats()["answered"] == 2)
        stats = engine.stats()
        assert (stats["late"], stats["in_time"], stats["ready_in_time"]) == (1, 1, 1)


def test_requests_that_fail_are_counted_as_such(gate):
    gate.open.set()
    with engine_of(gate) as engine:
        with pytest.raises(anytime.AnytimeError, match="NaN in the input"):
            engine.submit(X * torch.nan, deadline=LONG).result(LONG)
        until(lambda: engine.stats()["failed"] == 1)
        assert engine.stats()["answered"] == engine.status()["in_flight"] == 0


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(1, 4)), min_size=1, max_size=6).map(sorted),
    st.floats(0.1, 10),
    st.floats(0, 5),
    st.floats(0, 10),
)
def test_the_lateness_is_that_of_the_worst_first_exit_at_the_machines_pace(waiting, mean, spread, now):
    tables = make_tables(BatchTimes([Line(0.0, 1.0)], [Line(0.0, 0.0)]), [0.5], largest=4)
    samples, late = 0, []
    for deadline, size in waiting:
        samples += size
        late.append(now + mean * samples + spread * samples**0.5 - deadline)
    assert worst_lateness(tables, Pace(mean, mean + spread), waiting, now) == pytest.approx(max(late))
