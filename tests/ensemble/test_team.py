import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from test_eann import X, ensemble, small
from torch import nn

import anytime
from anytime import EANN, Team


class Slow(nn.Module):
    """Takes a while, and says in a file who does it."""

    def __init__(self, seconds, path):
        super().__init__()
        self.seconds, self.path = seconds, str(path)

    def forward(self, x):
        Path(self.path).write_text(str(os.getpid()))
        time.sleep(self.seconds)
        return x


def slow(path, seconds=1.0, exits=2, seed=5):
    """A network whose second stage is slow."""
    net = small((7,) * exits, exits, seed)
    net.stages[1] = nn.Sequential(net.stages[1], Slow(seconds, path))
    return net


def who(path):
    """The process in the slow stage, once there is one."""
    while not path.exists() or not path.read_text():
        time.sleep(0.01)
    return int(path.read_text())


@pytest.fixture(scope="module")
def team():
    with Team(ensemble(), workers=2, threads=1) as team:
        yield team


def test_a_team_answers_as_its_ensemble(team):
    whole = team.eann(X)
    steps = list(team.steps(X))
    assert [step.exit for step in steps] == sorted({step.exit for step in steps})
    assert steps[-1].exit == team.eann.exits - 1
    for step in steps:
        torch.testing.assert_close(step.logits, whole[step.exit])
    prediction = team.predict(X)
    assert prediction.complete
    assert prediction.stopped_by is None
    torch.testing.assert_close(prediction.logits, whole[-1])


def test_many_runs_at_once(team):
    inputs = [torch.randn(3, 5) for _ in range(20)]
    runs = [team.start(x) for x in inputs]
    for run, x in zip(runs, inputs, strict=True):
        torch.testing.assert_close(run.result().logits, team.eann(x)[-1])
        assert run.lost == {}


def test_a_network_that_fails_costs_its_answers(team):
    with warnings.catch_warnings(record=True), pytest.raises(anytime.AnytimeError, match="shapes"):
        team.predict(torch.zeros(2, 99))
    assert team.predict(X).complete


def test_a_deadline_and_a_stop_free_the_workers(tmp_path):
    eann = EANN([small((4,), 1), slow(tmp_path / "pid", 4.0)], torch.zeros(1, 5)).eval()
    with Team(eann, workers=2, threads=1) as team:
        begun = time.perf_counter()
        prediction = team.predict(X, deadline=1.0)
        assert time.perf_counter() - begun < 3.5
        assert prediction.stopped_by == "deadline"
        assert prediction.exit == 1
        run = team.start(X)
        run.stop()
        begun = time.perf_counter()
        assert team.predict(X).complete
        assert time.perf_counter() - begun < 12
        with pytest.raises(anytime.UnfinishedError):
            team.predict(X, deadline=0.0)
    with pytest.raises(anytime.AnytimeError, match="closed"):
        team.start(X)


def test_closing_stops_what_runs(tmp_path):
    team = Team(EANN([small((4,), 1), slow(tmp_path / "pid", 0.2, 20)], torch.zeros(1, 5)).eval(), threads=1)
    run, queued = team.start(X), [team.start(X) for _ in range(3)]
    who(tmp_path / "pid")
    while run.latest() is None:
        time.sleep(0.01)
    begun = time.perf_counter()
    team.close()
    assert time.perf_counter() - begun < 3
    assert run.latest().stopped_by == "stop"
    for other in queued:
        with contextlib.suppress(anytime.UnfinishedError):
            assert other.result(1).stopped_by == "stop"
    team.close()


def test_what_happens_to_the_ensemble_later_does_not_reach_the_team():
    eann = ensemble()
    whole = eann(X)
    with Team(eann, workers=1, threads=1) as team:
        eann.offered = [(1, 0)]
        prediction = team.predict(X)
        assert (prediction.exit, prediction.complete) == (10, True)
        torch.testing.assert_close(prediction.logits, whole[-1])


def test_idle_workers_that_die_cost_nothing(team):
    for worker in multiprocessing.active_children():
        worker.kill()
        worker.join()
    run = team.start(X)
    assert run.result(60).complete
    assert run.lost == {}


def test_workers_leave_ctrl_c_to_the_program(team):
    team.predict(X)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGINT)
    time.sleep(0.1)
    assert all(worker.is_alive() for worker in multiprocessing.active_children())
    assert team.predict(X).complete


@pytest.mark.parametrize("x", [{"x": X, "f": lambda: 1}, lambda: X])
def test_what_cannot_be_sent_is_refused_at_once(team, x):
    workers = {worker.pid for worker in multiprocessing.active_children()}
    with pytest.raises(anytime.AnytimeError, match="cannot be sent"):
        team.predict(x)
    assert team.predict(X).complete
    assert workers == {worker.pid for worker in multiprocessing.active_children()}


def test_views_and_other_types_are_sent(team):
    x = torch.randn(5, 7).T[:, :5]
    torch.testing.assert_close(team.predict(x).logits, team.eann(x)[-1])
    torch.testing.assert_close(team.predict(torch._neg_view(x)).logits, team.eann(-x)[-1])


@pytest.mark.parametrize("deadline", ["1", True, float("nan")])
def test_a_deadline_is_a_number(team, deadline):
    with pytest.raises(anytime.AnytimeError, match="deadline="):
        team.predict(X, deadline=deadline)


SCRIPT = """
import torch, anytime
eann = anytime.EANN([anytime.create_model(f"resann-{n}-8") for n in (1, 2)]).eval()
with anytime.Team(eann, workers=2) as team:
    print(team.predict(torch.randn(1, 3, 32, 32)).exit)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert 'below if __name__ == "__main__"' in done.stderr


def dies(team, path):
    """Kill the worker of the slow network, which is the last of three: the others answer."""
    whole = team.eann(X)
    path.unlink()  # that was this process
    run = team.start(X)
    os.kill(who(path), signal.SIGKILL)
    with pytest.warns(UserWarning, match="the others go on"):
        best = run.result(30)
    assert run.done
    assert list(run.lost) == [2]
    assert best.stopped_by == "lost"
    assert not best.complete
    assert best.exit == 3  # two of the first, one of the second, the first of the slow one
    torch.testing.assert_close(best.logits, whole[3])
    again = team.start(X)  # another worker has taken the place
    assert again.result(60).complete
    assert again.lost == {}


def three(path):
    nets = [small((4, 4), 2), small((5,), 1), slow(path, 2.0)]
    return EANN(nets, torch.zeros(1, 5)).eval()


def test_a_killed_process_costs_its_own_answer(tmp_path):
    path = tmp_path / "pid"
    with Team(three(path), workers=2, threads=1) as team:
        dies(team, path)


@pytest.mark.usefixtures("ray_cluster")
def test_on_a_ray_cluster(tmp_path):
    path = tmp_path / "pid"
    with Team(three(path), workers=2, threads=1, cluster=True) as team:
        prediction = team.predict(X)
        assert prediction.complete
        torch.testing.assert_close(prediction.logits, team.eann(X)[-1])
        dies(team, path)


@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_that_is_too_small():
    with pytest.raises(anytime.AnytimeError, match="fewer threads"):
        Team(ensemble(), workers=1, threads=9999, cluster=True)
