"""Fewer interruptions on Linux: one thread on chosen cores, real-time priority, no garbage collection."""

import gc
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from anytime.errors import AnytimeError, check_integer

HOW = (
    "allow it with `ulimit -r 99` (or `rtprio` in /etc/security/limits.conf), with LimitRTPRIO=99 in a systemd unit, "
    "or with `--cap-add SYS_NICE --ulimit rtprio=99` for a container"
)


@contextmanager
def realtime(cores: Iterable[int] | None = None, priority: int = 10, threads: int = 1) -> Iterator[bool]:
    """A context in which this thread is interrupted as little as the system allows; for loops under deadlines.

    It pins the thread to cores, lets torch use ``threads`` threads, asks the operating system for real-time scheduling
    (``SCHED_FIFO``: other processes wait until this thread sleeps) and pauses garbage collection. Everything is as
    before afterwards. Where real-time scheduling is not permitted, a warning says how to permit it, and the rest holds.

    A real-time thread that never sleeps starves what else runs on its cores: Linux takes 5 % of each second away from
    all such threads (``kernel.sched_rt_runtime_us``), in one pause of up to 50 ms. A loop that waits for its next frame
    does not come near.

    Args:
        cores: to run on, counted from 0; default: those that the thread may use now.
        priority: of the real-time scheduling, 1 to 99; 0 does not ask for it.
        threads: of torch; more than one only helps on cores that nothing else uses.

    Yields:
        Whether the thread has real-time priority.

    Examples:
        >>> import anytime, torch
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> with anytime.realtime(priority=0):
        ...     anytime.predict(net, torch.zeros(1, 3, 32, 32), deadline=60.0).exit
        2
    """
    if sys.platform != "linux":
        raise AnytimeError(f"anytime.realtime works on Linux only, not on {sys.platform}")
    check_integer("threads", threads)
    check_integer("priority", priority, least=0, most=99)
    before = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0), torch.get_num_threads()
    wanted = before[0] if cores is None else set(cores)
    if not wanted or not wanted <= before[0]:
        raise AnytimeError(f"cores={sorted(wanted)}: this thread may use {sorted(before[0])}")
    collecting = gc.isenabled()
    try:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, wanted)
        gc.collect()
        gc.freeze()
        gc.disable()
        yield _ask(priority)
    finally:
        os.sched_setscheduler(0, before[1], before[2])
        os.sched_setaffinity(0, before[0])
        torch.set_num_threads(before[3])
        gc.unfreeze()
        if collecting:
            gc.enable()


def _ask(priority: int) -> bool:
    """Ask for real-time scheduling; children do not inherit it."""
    if not priority:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except PermissionError:
        warnings.warn(f"real-time scheduling is not permitted: {HOW}", stacklevel=4)
        return False
    return True
