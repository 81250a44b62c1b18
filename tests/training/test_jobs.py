import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import processes
import pytest

import anytime
from anytime.training.jobs import TrainingJob, run_jobs, run_process

COUNT = "import sys; print(sys.argv[1], file=sys.stderr); open(sys.argv[2], 'a').write(sys.argv[1])"


def test_all_run_and_say_their_names(tmp_path, capsys):
    jobs = [TrainingJob(f"job {i}", ["-c", COUNT, str(i), str(tmp_path / f"{i}")]) for i in range(4)]
    run_jobs(jobs, at_once=2)
    assert [(tmp_path / f"{i}").read_text() for i in range(4)] == ["0", "1", "2", "3"]
    assert "[3/4 job 2] 2" in capsys.readouterr().err


def test_the_others_end_when_one_fails(tmp_path):
    bad = TrainingJob("bad", ["-c", "import sys; sys.exit('no such thing')"])
    good = TrainingJob("good", ["-c", COUNT, "x", str(tmp_path / "x")])
    with pytest.raises(anytime.AnytimeError, match="1 of 2 failed: bad: no such thing"):
        run_jobs([bad, good], at_once=1)
    assert (tmp_path / "x").exists()


def test_cores_are_shared(capsys):
    show = "import os, sys; print(os.environ.get('OMP_NUM_THREADS'), file=sys.stderr)"
    run_jobs([TrainingJob("a", ["-c", show]), TrainingJob("b", ["-c", show])], at_once=2)
    expected = max(1, len(os.sched_getaffinity(0)) // 2)
    assert f"a] {expected}" in capsys.readouterr().err


def test_a_job_is_told_to_stop():
    stopped = threading.Event()
    wait = "import signal, sys; print('here', file=sys.stderr, flush=True); signal.pause()"
    code, last = run_process(["-c", wait], lambda _: stopped.set(), stopped)
    assert code == -signal.SIGTERM
    assert last == "here"


@pytest.fixture
def hostile_folder(tmp_path, monkeypatch):
    """A current folder whose modules must not be imported."""
    for name in ("torch", "anytime", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name}')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_modules_in_the_current_folder_are_not_imported(hostile_folder):
    run_jobs([TrainingJob("job", ["-m", "anytime", "--help"])])
    assert not (hostile_folder / "imported").exists()


PARENT = """
import sys
from anytime.training.jobs import TrainingJob, run_jobs
child = '''
import os, signal, sys, time
from anytime.training import jobs
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    jobs.GRACE = 0.1
jobs.stop_with_parent()
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
'''
run_jobs([TrainingJob("child", ["-c", child, *sys.argv[1:]])])
"""


@pytest.mark.parametrize("hears", ["signals", "deaf"])
def test_jobs_end_with_a_killed_parent(tmp_path, hears):
    path = tmp_path / "pid"
    parent = processes.Child(["-c", PARENT, path, hears])
    while not path.exists() or not path.read_text():
        time.sleep(0.05)
    child = int(path.read_text())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
            state = Path(f"/proc/{child}/stat").read_text().rpartition(") ")[2][:1]
        except (ProcessLookupError, FileNotFoundError):
            return
        if state == "Z":  # ended; nobody waits for it any more
            return
        time.sleep(0.05)
    pytest.fail("the child outlived its parent")


ON_RAY = """
import ray
from anytime.training.jobs import TrainingJob, run_jobs
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
run_jobs([TrainingJob("job", ["-m", "anytime", "--help"])], cluster=True)
"""


@pytest.mark.slow
def test_nor_on_a_ray_cluster(hostile_folder):
    """In a process of its own: Ray puts the folder where it is started on its workers' path."""
    pytest.importorskip("ray", reason="clusters need Ray: pip install 'anytime-nets[cluster]'")
    subprocess.run([sys.executable, "-P", "-c", ON_RAY], cwd=hostile_folder, check=True)
    assert not (hostile_folder / "imported").exists()
