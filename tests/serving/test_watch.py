"""Engine processes that hang, are stopped or killed: every request is answered or fails, and in time."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn
from waiting import until

import anytime
from anytime.inference.batch_times import BatchTimes, Line
from anytime.inference.prediction import UnfinishedError
from anytime.serving.crew import PING_AFTER
from anytime.serving.engine import EngineDiedError, OverloadedError

LONG = 600.0
X = torch.zeros(1, 4)


def network(stages=3, width=4):
    torch.manual_seed(0)
    return anytime.AnytimeNetwork(
        [nn.Linear(width, width) for _ in range(stages)], [nn.Linear(width, 3) for _ in range(stages)]
    ).eval()


def instant(stages=3):
    return BatchTimes([Line(1e-6, 1e-6)] * stages, [Line(1e-6, 1e-6)] * stages)


def engine_of(net, **options):
    # A process counts as hung after an hour: a busy machine may stop it for seconds.
    options = {
        "spare": False,
        "max_batch": 4,
        "silence": 3600.0,
        "profile": instant(net.exits),
        "example": X,
        **options,
    }
    return anytime.Engine(net, **options)


def process_of(engine):
    return engine._crew.workers[0].process.pid


def settled(future, within=LONG):
    """How a future ended."""
    try:
        return future.result(within)
    except (EngineDiedError, UnfinishedError) as error:
        return error


@pytest.fixture(scope="module")
def engine():
    """One process, which tests may stop as long as they let it go on."""
    with engine_of(network(), queue=300, queue_seconds=60.0) as engine:
        yield engine


def test_messages_to_a_process_that_stands_still_are_kept_until_it_goes_on(engine):
    """More than the socket takes: those of many clients that hang up, with requests of patient ones among them."""
    os.kill(process_of(engine), signal.SIGSTOP)
    try:
        patient = []
        for i in range(3000):
            future = engine.submit(X, deadline=LONG)
            if i % 100 == 0:
                patient.append(future)
            else:
                assert future.cancel()
        assert engine._crew.workers[0].unsent > 0, "the socket took everything"
    finally:
        os.kill(process_of(engine), signal.SIGCONT)
    assert all(future.result(LONG).complete for future in patient)
    assert engine.status()["in_flight"] == 0
    assert engine.submit(X, deadline=LONG).result(LONG).complete


def test_a_process_that_takes_no_messages_gets_no_requests_until_it_does(engine):
    os.kill(process_of(engine), signal.SIGSTOP)
    try:
        hurried = (engine.submit(X, deadline=LONG).cancel() for _ in range(100_000))
        with pytest.raises(OverloadedError, match="takes no messages"):
            all(hurried)
    finally:
        os.kill(process_of(engine), signal.SIGCONT)
    until(lambda: engine._crew.workers[0].unsent == 0)
    assert engine.submit(X, deadline=LONG).result(LONG).complete


def test_a_request_fails_soon_after_its_deadline_whatever_its_process_does(engine):
    failed = engine.stats()["failed"]
    os.kill(process_of(engine), signal.SIGSTOP)
    try:
        futures = [engine.submit(X, deadline=2.0) for _ in range(5)]
        for future in futures:
            with pytest.raises(UnfinishedError, match="deadline"):
                future.result(LONG)
        until(lambda: engine.stats()["failed"] == failed + 5)
        assert engine.status()["in_flight"] == engine.status()["bytes"] == engine.status()["waiting"] == 0
        patient = engine.submit(X, deadline=LONG)  # those that failed keep nobody out
    finally:
        os.kill(process_of(engine), signal.SIGCONT)
    assert patient.result(LONG).complete


def test_requests_fail_after_their_deadline_also_in_a_thread():
    stuck = threading.Event()

    class Stuck(nn.Module):
        def forward(self, x):
            stuck.wait()
            return x

    net = anytime.AnytimeNetwork([Stuck()], [nn.Linear(4, 3)]).eval()
    with engine_of(net, processes=0) as engine:
        with pytest.raises(UnfinishedError):
            engine.submit(X, deadline=0.5).result(LONG)
        stuck.set()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("spare", [pytest.param(True, marks=pytest.mark.slow), False])
def test_every_admitted_request_survives_its_process(number, spare):
    """The spare runs them again; without one they wait for a new process."""
    net = network()
    silence = 10.0 if number == signal.SIGSTOP else 3600.0
    with engine_of(net, spare=spare, silence=silence, queue=300, queue_seconds=60.0) as engine:
        until(lambda: not spare or engine._crew._spare is not None)
        assert engine.ready
        os.kill(process_of(engine), signal.SIGSTOP)  # nothing is answered before the request is there
        xs = [torch.randn(1, 4) for _ in range(100)]
        futures = [engine.submit(x, deadline=LONG) for x in xs]
        overdue = engine.submit(X, deadline=0.5)
        if number == signal.SIGKILL:
            os.kill(process_of(engine), number)
        if not spare:
            until(lambda: not engine.ready)
        for x, future in zip(xs, futures, strict=True):
            answer = future.result(LONG)
            with torch.inference_mode():
                torch.testing.assert_close(answer.logits, net(x)[answer.exit], atol=1e-5, rtol=1e-5)
        assert isinstance(settled(overdue), anytime.serving.engine.Answer | EngineDiedError | UnfinishedError)
        assert engine.ready
        assert engine.stats()["restarts"] >= 1  # more, if a busy machine stopped the new process as long


def test_the_spare_takes_over_every_request():
    """No other process is waited for: the requests run on the one that stood by."""
    with engine_of(network(), spare=True, queue=300, queue_seconds=60.0) as engine:
        until(lambda: engine._crew._spare is not None)
        (first,), spare = engine._crew.workers, engine._crew._spare
        os.kill(first.process.pid, signal.SIGSTOP)  # nothing is answered before the requests are there
        futures = [engine.submit(X, deadline=LONG) for _ in range(20)]
        os.kill(first.process.pid, signal.SIGKILL)
        until(lambda: first not in engine._crew.workers and engine.ready)
        assert engine._crew.workers == [spare]
        assert all(future.result(LONG).complete for future in futures)
        assert engine.stats()["restarts"] == 1


class Slow(nn.Module):
    """A stage that takes as long as a file is there."""

    def __init__(self, path):
        super().__init__()
        self.path = str(path)

    def forward(self, x):
        while os.path.exists(self.path):
            time.sleep(0.01)
        return x + 1


def test_each_exit_is_shown_once_although_a_process_dies_in_between(tmp_path):
    barrier = tmp_path / "barrier"
    net = anytime.AnytimeNetwork(
        [nn.Linear(4, 4), nn.Linear(4, 4), Slow(barrier), nn.Linear(4, 4)], [nn.Linear(4, 3) for _ in range(4)]
    ).eval()
    shown = []
    with engine_of(net) as engine:
        barrier.touch()
        future = engine.submit(X, deadline=LONG, on_exit=shown.append)
        until(lambda: [answer.exit for answer in shown] == [0, 1])
        os.kill(process_of(engine), signal.SIGKILL)
        barrier.unlink()
        assert future.result(LONG).exit == 3
    assert [answer.exit for answer in shown] == [0, 1, 2, 3]


class Deadly(nn.Module):
    """Ends its process on NaN."""

    def forward(self, x):
        if x.isnan().any():
            os._exit(7)
        return x


def test_a_request_that_ends_every_process_is_given_up():
    net = anytime.AnytimeNetwork([nn.Linear(4, 4), Deadly()], [nn.Linear(4, 3) for _ in range(2)]).eval()
    with engine_of(net) as engine:
        with pytest.raises(EngineDiedError, match="exit code 7"):
            engine.submit(X * torch.nan, deadline=LONG).result(LONG)
        until(lambda: engine.ready)
        assert engine.submit(X, deadline=LONG).result(LONG).complete
        assert engine.stats()["restarts"] == 3
        assert engine.stats()["failed"] == 1


@pytest.mark.slow
def test_a_stage_that_never_ends_is_noticed_and_its_process_replaced(tmp_path):
    barrier = tmp_path / "barrier"
    net = anytime.AnytimeNetwork([nn.Linear(4, 4), Slow(barrier)], [nn.Linear(4, 3) for _ in range(2)]).eval()
    with engine_of(net, silence=10.0) as engine:
        barrier.touch()
        future = engine.submit(X, deadline=LONG)
        until(lambda: engine.stats()["restarts"] >= 1)
        barrier.unlink()
        assert future.result(LONG).complete


def test_a_process_without_work_gives_signs_of_life(engine):
    (worker,) = engine._crew.workers
    for _ in range(2):
        until(lambda: worker.silent >= PING_AFTER)
        until(lambda: worker.silent < PING_AFTER / 2)
    assert engine.stats()["restarts"] == 0


def test_closing_in_a_forked_process_leaves_the_engine_alone(engine):
    """Also with a request in flight, which a child would wait for forever or fail."""
    os.kill(process_of(engine), signal.SIGSTOP)
    try:
        waiting = engine.submit(X, deadline=LONG)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                signal.alarm(60)  # ends a child that waits
                engine.close()
                with pytest.raises(anytime.AnytimeError, match="belongs to the parent"):
                    engine.submit(X)
                code = int(waiting.done())
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
    finally:
        os.kill(process_of(engine), signal.SIGCONT)
    assert waiting.result(LONG).complete
    assert engine.submit(X, deadline=LONG).result(LONG).complete
    assert engine.stats()["restarts"] == 0


def test_processes_that_are_closed_end_side_by_side(monkeypatch):
    """One that hangs keeps no other one waiting."""
    monkeypatch.setattr("anytime.serving.crew.CLOSING", LONG)
    engine = engine_of(network(), processes=2)
    first, second = (worker.process for worker in engine._crew.workers)
    os.kill(first.pid, signal.SIGSTOP)
    closing = threading.Thread(target=engine.close)
    closing.start()
    try:
        until(lambda: second.poll() is not None)
        assert first.poll() is None
    finally:
        os.kill(first.pid, signal.SIGCONT)
    closing.join()
    assert first.poll() == 0


@pytest.mark.parametrize("processes", [0, 1])
def test_a_program_ends_with_its_own_code_although_it_leaves_an_engine_open(processes):
    code = f"""
import sys, torch, anytime
if __name__ == "__main__":
    net = anytime.create_model("resann-3-16").eval()
    engine = anytime.Engine(net, processes={processes}, max_batch=8, queue_seconds=1e6)
    for _ in range(200):
        engine.submit(torch.zeros(1, 3, 32, 32), on_exit=lambda answer: None)
    sys.exit(3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
