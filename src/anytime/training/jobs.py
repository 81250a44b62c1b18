"""Several trainings at the same time: as processes of this machine, or as tasks of a Ray cluster."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from anytime.distributed import cores
from anytime.errors import AnytimeError, check_integer, require

WATCH = "ANYTIME_STOP_WITH_PARENT"
GRACE = 60.0
"""Seconds that a job has for its last checkpoint when the process that started it is gone."""


@dataclass(frozen=True)
class TrainingJob:
    """A Python process.

    Args:
        name: shown before each line of its output.
        arguments: what follows ``python -P``, e.g. ``["-m", "anytime", "train", …]``; ``-P`` keeps modules in the
            current folder from being imported. Started again, the process must continue where it was.
    """

    name: str
    arguments: Sequence[str]


def run_jobs(jobs: Sequence[TrainingJob], at_once: int = 1, cluster: bool = False) -> None:
    """Run all jobs; raises with the last line of those that failed, after the others have ended.

    Each has its share of this machine's CPU cores, and one GPU where there are some. Their output goes to standard
    error line by line, with their names. They end when this process ends, even if it is killed.

    Args:
        jobs: what to run, in this order.
        at_once: number of jobs that run at the same time.
        cluster: run them as tasks of a Ray cluster, each with a GPU if the cluster has some; folders that they write
            to must be shared among its machines.
    """
    at_once = check_integer("at_once", at_once)
    if not jobs:
        return
    run, at_once = (_on_ray(), len(jobs)) if cluster else (_locally(at_once), min(at_once, len(jobs)))
    failed: dict[str, str] = {}
    stopped = threading.Event()

    def one(number: int, job: TrainingJob) -> None:
        if stopped.is_set():
            return
        label = f"[{number}/{len(jobs)} {job.name}]" if len(jobs) > 1 else f"[{job.name}]"
        code, last = run(job.arguments, lambda line: print(f"{label} {line}", file=sys.stderr, flush=True), stopped)
        if code and not stopped.is_set():
            failed[job.name] = last or f"exit code {code}"

    with ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(one, number, job) for number, job in enumerate(jobs, 1)]
        try:
            for future in waiting:
                future.result()
        except BaseException:  # Ctrl-C: they receive SIGTERM, write a checkpoint and end
            stopped.set()
            raise
    if failed:
        raise AnytimeError(f"{len(failed)} of {len(jobs)} failed: " + "; ".join(f"{k}: {v}" for k, v in failed.items()))


Runner = Callable[[Sequence[str], Callable[[str], object], threading.Event], tuple[int, str]]


def _locally(at_once: int) -> Runner:
    """Run jobs on this machine, each with its share of the cores, and with one of the GPUs where there are several."""
    gpus = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(number) for number in range(gpus)]
    slots: queue.Queue[int] = queue.Queue()
    for slot in range(at_once):
        slots.put(slot)

    def run(arguments: Sequence[str], say: Callable[[str], object], stopped: threading.Event) -> tuple[int, str]:
        slot = slots.get()
        extra = {"CUDA_VISIBLE_DEVICES": names[slot % gpus]} if gpus > 1 and at_once > 1 else {}
        if at_once > 1:
            extra["OMP_NUM_THREADS"] = str(max(1, cores() // at_once))
        try:
            return run_process(arguments, say, stopped, extra)
        finally:
            slots.put(slot)

    return run


def run_process(
    arguments: Sequence[str],
    say: Callable[[str], object],
    stopped: threading.Event,
    environment: dict[str, str] | None = None,
) -> tuple[int, str]:
    """Run one job and pass on each line of its output; returns its exit code and its last line."""
    process = subprocess.Popen(
        [sys.executable, "-P", *arguments],
        stdin=subprocess.PIPE,  # closed when this process ends, which the job watches
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, WATCH: "1", **(environment or {})},
    )
    ended = threading.Event()

    def pass_on() -> None:
        while not ended.wait(0.2):
            if stopped.is_set():
                process.terminate()
                return

    watcher = threading.Thread(target=pass_on, daemon=True)
    watcher.start()
    last: deque[str] = deque(maxlen=1)
    assert process.stderr is not None
    for line in process.stderr:
        if line.strip():
            last.append(line.strip())
            say(line.rstrip())
    code = process.wait()
    ended.set()
    watcher.join()
    assert process.stdin is not None
    process.stdin.close()
    return code, last[0] if last else ""


def _on_ray() -> Runner:
    ray = require("ray", "cluster")
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    # By value: Ray puts the current folder first on the path of its workers, so that importing this module there would
    # import torch.py from that folder.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    remote: Any = ray.remote(num_cpus=1, num_gpus=gpus)(_task)

    def run(arguments: Sequence[str], say: Callable[[str], object], stopped: threading.Event) -> tuple[int, str]:
        threads = {} if gpus else {"OMP_NUM_THREADS": "1"}
        reference = remote.remote(list(arguments), os.getcwd(), threads)
        while not ray.wait([reference], timeout=0.5)[0]:
            if stopped.is_set():
                ray.cancel(reference, force=True)
                return 130, "stopped"
        try:
            code, last, lines = ray.get(reference)
        except ray.exceptions.RayError as error:  # its worker or its machine is gone
            return 1, str(error).strip().splitlines()[0]
        for line in lines:
            say(line)
        return code, last

    return run


def _task(arguments: list[str], folder: str, environment: dict[str, str]) -> tuple[int, str, list[str]]:
    os.chdir(folder)
    lines: list[str] = []
    code, last = run_process(arguments, lines.append, threading.Event(), environment)
    return code, last, lines


def stop_with_parent() -> None:
    """In a job: receive SIGTERM once the process that started it is gone, and end ``GRACE`` seconds later.

    A run that waits for something that is gone too, such as the processes that compile for it, never comes to the
    checkpoint that follows SIGTERM; it resumes from its last one.
    """
    if os.environ.pop(WATCH, None) is None:
        return

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin: a thread that waits in it can crash the interpreter at its end
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
