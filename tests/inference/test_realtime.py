"""Real-time scheduling: asked for, explained where it is refused, and taken back."""

import contextlib
import gc
import os
import subprocess
import sys
import threading

import pytest
import torch

import anytime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="anytime.realtime works on Linux only")


def state():
    return os.sched_getaffinity(0), os.sched_getscheduler(0), torch.get_num_threads(), gc.isenabled()


def test_everything_is_as_before_afterwards():
    before, core = state(), min(os.sched_getaffinity(0))
    with contextlib.suppress(KeyError), anytime.realtime(cores=[core], priority=0):
        assert state() == ({core}, before[1], 1, False)
        raise KeyError
    assert state() == before


def test_the_thread_has_real_time_priority_or_is_told_how_to_get_it(recwarn):
    with anytime.realtime() as granted:
        policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        child = int(subprocess.check_output([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]))
    assert policy == (os.SCHED_FIFO if granted else os.SCHED_OTHER)
    assert child == os.SCHED_OTHER, "processes started meanwhile do not get it"
    assert granted == (not any("ulimit -r" in str(warning.message) for warning in recwarn))


def test_other_threads_are_as_they_were():
    seen = []
    with anytime.realtime(cores=[min(os.sched_getaffinity(0))]):
        asking = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
        asking.start()
        asking.join()
    assert seen == [os.SCHED_OTHER]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cores": [10**6]}, "may use"),
        ({"cores": []}, "may use"),
        ({"priority": 100}, "<= 99"),
        ({"threads": 0}, ">= 1"),
    ],
)
def test_senseless_options(options, message):
    before = state()
    with pytest.raises(anytime.AnytimeError, match=message), anytime.realtime(**options):
        pass
    assert state() == before
