"""A team and the processes around it: forked children, scripts, and a machine on which no more can be started."""

import multiprocessing
import multiprocessing.spawn
import os
import shutil
import subprocess
import sys
import warnings

import pytest
from test_eann import X, small
from test_team import LONG, until

import anytime
from anytime import EANN, Team


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
