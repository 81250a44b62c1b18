import itertools
import multiprocessing
import multiprocessing.spawn
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from test_eann import X, ensemble, small
from torch import nn
from waiting import LONG, until

import anytime
from anytime import EANN, Team

"""Seconds after which a test has failed: far more than anything takes, on a busy machine too."""


def assert_same(ours, theirs):
    """Answers from another process: its tensors may be aligned otherwise in memory, which can change the last bit."""
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)


class Gate(nn.Module):
    """In a worker: writes the worker's process id to a file, and waits until the gate is opened."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.made_in = str(folder), os.getpid()

    def forward(self, x):
        if os.getpid() != self.made_in:
            new = Path(self.folder, f"{os.getpid()}.new")
            new.write_text(str(os.getpid()))
            new.rename(Path(self.folder, "pid"))
            while not Path(self.folder, "open").exists():
                time.sleep(0.01)
        return x


class Mark(nn.Module):
    """Says in a file that it was run."""

    def __init__(self, path):
        super().__init__()
        self.path, self.made_in = str(path), os.getpid()

    def forward(self, x):
        if os.getpid() != self.made_in:
            Path(self.path).touch()
        return x


def gated(folder, exits=2):
    """A network that waits in its second stage."""
    net = small((7,) * exits, exits, 5)
    net.stages[1] = nn.Sequential(net.stages[1], Gate(folder))
    return net


def reached(run, exit):
    """Wait until a run has an exit's answer."""
    return until(lambda: (best := run.latest()) is not None and best.exit >= exit)


def at_the_gate(folder):
    """The process that waits there, once there is one."""
    until((folder / "pid").exists)
    return int((folder / "pid").read_text())


def pids():
    return {worker.pid for worker in multiprocessing.active_children()}


def test_a_team_answers_as_its_ensemble(team):
    whole = team.eann(X)
    steps = list(team.steps(X))
    assert [step.exit for step in steps] == sorted({step.exit for step in steps})
    assert steps[-1].exit == team.eann.exits - 1
    for step in steps:
        assert_same(step.logits, whole[step.exit])
    prediction = team.predict(X)
    assert prediction.complete
    assert prediction.stopped_by is None
    assert_same(prediction.logits, whole[-1])


def test_many_runs_at_once(team):
    inputs = [torch.randn(3, 5) for _ in range(20)]
    runs = [team.start(x) for x in inputs]
    for run, x in zip(runs, inputs, strict=True):
        assert_same(run.result().logits, team.eann(x)[-1])
        assert run.lost == {}


def test_a_thousand_threads(team):
    inputs = torch.randn(1000, 3, 5)
    answers: list[torch.Tensor | None] = [None] * len(inputs)

    def ask(i):
        answers[i] = team.predict(inputs[i]).logits

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, answer in zip(inputs, answers, strict=True):
        assert_same(answer, team.eann(x)[-1])


def test_a_network_that_fails_costs_its_answers(team):
    with warnings.catch_warnings(record=True), pytest.raises(anytime.AnytimeError, match="shapes"):
        team.predict(torch.zeros(2, 99))
    assert team.predict(X).complete


def within(team, deadline):
    """Exit and reason of a prediction's end."""
    try:
        prediction = team.predict(X, deadline=deadline)
    except anytime.UnfinishedError as error:
        return None, error.stopped_by
    return prediction.exit, prediction.stopped_by


@pytest.mark.usefixtures("quick_start")
def test_a_deadline_and_a_stop_free_the_workers(tmp_path):
    eann = EANN([small((4,), 1), gated(tmp_path)], torch.zeros(1, 5)).eval()
    with Team(eann, workers=2, threads=1) as team:
        deadlines = (0.1 * 2**i for i in itertools.count())  # until two exits can be reached within it
        until(lambda: within(team, next(deadlines)) == (1, "deadline"))  # a worker is still at the gate
        run = team.start(X)
        run.stop()
        (tmp_path / "open").touch()
        assert team.predict(X).complete
        with pytest.raises(anytime.UnfinishedError):
            team.predict(X, deadline=0.0)
    with pytest.raises(anytime.AnytimeError, match="closed"):
        team.start(X)


@pytest.mark.usefixtures("quick_start")
def test_closing_stops_what_runs(tmp_path):
    net = gated(tmp_path, 4)
    net.stages[2] = nn.Sequential(net.stages[2], Mark(tmp_path / "later"))
    team = Team(EANN([small((4,), 1), net], torch.zeros(1, 5)).eval(), workers=2, threads=1)
    first, second, *queued = [team.start(X) for _ in range(4)]
    reached(first, 1)
    reached(second, 1)  # both workers are at the gate
    closer = threading.Thread(target=team.close)
    closer.start()
    until(lambda: all(run.done for run in queued))
    assert closer.is_alive()  # it waits for the stages that run
    (tmp_path / "open").touch()
    closer.join(LONG)
    assert not closer.is_alive()
    for run in (first, second):
        assert run.result().exit == 1
        assert run.result().stopped_by == "stop"
    for run in queued:
        with pytest.raises(anytime.UnfinishedError) as error:
            run.result()
        assert error.value.stopped_by == "stop"
    assert not (tmp_path / "later").exists()
    team.close()


@pytest.mark.usefixtures("quick_start")
def test_what_happens_to_the_ensemble_later_does_not_reach_the_team():
    eann = ensemble()
    whole = eann(X)
    with Team(eann, workers=1, threads=1) as team:
        eann.offered = [(1, 0)]
        prediction = team.predict(X)
        assert (prediction.exit, prediction.complete) == (10, True)
        assert_same(prediction.logits, whole[-1])


def test_idle_workers_that_die_cost_nothing(team):
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    run = team.start(X)
    assert run.result(LONG).complete
    assert run.lost == {}


def test_workers_leave_ctrl_c_to_the_program(team):
    assert team.predict(X).complete
    workers = pids()
    for pid in workers:
        os.kill(pid, signal.SIGINT)
    runs = [team.start(X) for _ in range(10)]
    assert all(run.result(LONG).complete and run.lost == {} for run in runs)
    assert pids() == workers


@pytest.mark.parametrize("x", [{"x": X, "f": lambda: 1}, lambda: X])
def test_what_cannot_be_sent_is_refused_at_once(team, x):
    workers = pids()
    with pytest.raises(anytime.AnytimeError, match=r"cannot be sent|expected a tensor"):
        team.predict(x)
    assert team.predict(X).complete
    assert workers == pids()


def test_views_and_other_types_are_sent(team):
    x = torch.randn(5, 7).T[:, :5]
    torch.testing.assert_close(team.predict(x).logits, team.eann(x)[-1])
    torch.testing.assert_close(team.predict(torch._neg_view(x)).logits, team.eann(-x)[-1])


@pytest.mark.parametrize("deadline", ["1", True, float("nan")])
def test_a_deadline_is_a_number(team, deadline):
    with pytest.raises(anytime.AnytimeError, match="deadline"):
        team.predict(X, deadline=deadline)


def three(folder):
    nets = [small((4, 4), 2), small((5,), 1), gated(folder)]
    return EANN(nets, torch.zeros(1, 5)).eval()


def dies(team, folder):
    """Kill the worker of the gated network, which is the last of three: the others answer."""
    whole = team.eann(X)
    run = team.start(X)
    reached(run, 3)
    os.kill(at_the_gate(folder), signal.SIGKILL)
    with pytest.warns(UserWarning, match="the others go on"):
        best = run.result(LONG)
    assert run.done
    assert list(run.lost) == [2]
    assert best.stopped_by == "lost"
    assert not best.complete
    assert best.exit == 3  # two exits of the first, one of the second, the first of the gated one
    assert_same(best.logits, whole[3])
    (folder / "open").touch()
    again = team.start(X)  # another worker has replaced it
    assert again.result(LONG).complete
    assert again.lost == {}
    assert_same(again.result().logits, whole[-1])


@pytest.mark.usefixtures("quick_start")
def test_a_killed_process_costs_its_own_answer(tmp_path):
    with Team(three(tmp_path), workers=2, threads=1) as team:
        dies(team, tmp_path)


def test_arrays_are_inputs_too():
    eann = ensemble()
    with Team(eann, workers=1, threads=1) as team:
        assert_same(team.predict(X.double().numpy()).logits, eann(X)[-1])
