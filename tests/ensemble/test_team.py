import itertools
import multiprocessing
import multiprocessing.spawn
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import processes
import pytest
import torch
from test_eann import X, ensemble, small
from torch import nn

import anytime
from anytime import EANN, Team

LONG = 300
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


def until(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + LONG
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value


def reached(run, exit):
    """Wait until a run has an exit's answer."""
    return until(lambda: (best := run.latest()) is not None and best.exit >= exit)


def at_the_gate(folder):
    """The process that waits there, once there is one."""
    until((folder / "pid").exists)
    return int((folder / "pid").read_text())


@pytest.fixture(scope="module")
def team():
    with Team(ensemble(), workers=2, threads=1) as team:
        yield team


@pytest.fixture
def quick_start(monkeypatch):
    """Workers that start at once, for tests of what happens to them afterwards."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: processes.FORKED)


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
    with pytest.raises(anytime.AnytimeError, match="cannot be sent"):
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


def in_a_child(team, run, errors):
    for ask in (lambda: team.predict(X), run.result, lambda: list(run.follow())):
        try:
            ask()
        except anytime.AnytimeError as error:
            errors.send(str(error))
    run.stop()
    team.close()
    errors.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told_that_the_team_is_not_its_own(team):
    run = team.start(X)
    run.result()
    read, write = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=in_a_child, args=(team, run, write))
    child.start()
    write.close()
    said = []
    while read.poll(LONG):
        try:
            said.append(read.recv())
        except EOFError:
            break
    child.join(LONG)
    assert child.exitcode == 0
    assert len(said) == 3
    assert all(f"belongs to process {os.getpid()}" in message and "forked child" in message for message in said)
    assert team.predict(X).complete


def test_workers_that_cannot_start_are_reported_and_tried_again(monkeypatch):
    with Team(EANN([small((4,), 1)]).eval(), workers=1, threads=1) as team:
        assert team.predict(X).complete
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            # Before the kill, since the team replaces a dead worker at once.
            patch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(shutil.which("false")))  # ends at once
            for worker in multiprocessing.active_children():
                worker.kill()
                worker.join()
            reason = r"3 attempts to start a worker have failed: .*(exit code 1|Broken pipe)"
            with pytest.raises(anytime.AnytimeError, match=reason):
                team.predict(X)
            until(lambda: any("no worker is left" in str(warning.message) for warning in said))
            with pytest.raises(anytime.AnytimeError, match=reason):
                team.predict(X, deadline=0.1)
        until(lambda: recovered(team))


def recovered(team):
    try:
        return team.predict(X).complete
    except anytime.AnytimeError:  # of an attempt that had begun before
        return False


NO_FILES = """
import multiprocessing, resource
import anytime
from test_eann import X, ensemble

if __name__ == "__main__":
    with anytime.Team(ensemble(), workers=2, threads=1) as team:
        assert team.predict(X).complete
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()
        for _ in range(2):
            try:
                team.predict(X)
            except anytime.AnytimeError as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        print(team.predict(X).complete, len(multiprocessing.active_children()) > 0)
"""


def test_a_team_without_file_descriptors_says_so_and_recovers(tmp_path):
    (tmp_path / "script.py").write_text(NO_FILES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert "3 attempts to start a worker have failed: [Errno 24] Too many open files" in first
    assert second == first
    assert last == "True True"


FORK = """
import os, sys
import anytime
from test_team import X, ensemble, pids

if __name__ == "__main__":
    with anytime.Team(ensemble(), workers=1, threads=1) as team:
        assert team.predict(X).complete
        workers = pids()
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            print(team.predict(X).complete, pids() == workers)
        else:
            sys.exit()
"""


def test_a_forked_child_that_ends_leaves_the_workers_alone(tmp_path):
    (tmp_path / "script.py").write_text(FORK)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LONG)
    assert (done.stdout, done.stderr, done.returncode) == ("True True\n", "", 0)


SCRIPT = """
import torch, anytime
eann = anytime.EANN([anytime.create_model(f"resann-{n}-8") for n in (1, 2)]).eval()
with anytime.Team(eann, workers=2) as team:
    print(team.predict(torch.randn(1, 3, 32, 32)).exit)
"""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 1
    assert 'below if __name__ == "__main__"' in done.stderr


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
