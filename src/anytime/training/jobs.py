"""Trainings side by side: several processes on this machine, or tasks on a Ray cluster."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from anytime.distributed import cores
from anytime.errors import AnytimeError, require

WATCH = "ANYTIME_STOP_WITH_PARENT"


@dataclass(frozen=True)
class Job:
    """A Python process.

    Args:
        name: what people see.
        arguments: after ``python``, e.g. ``["-m", "anytime", "train", …]``. It must be one that goes on where it was
            when it is started again.
    """

    name: str
    arguments: Sequence[str]


def run_jobs(jobs: Sequence[Job], at_once: int = 1, cluster: bool = False) -> None:
    """Run all of them, so many at once; raises with what they said if some failed, after the others have ended.

    Each has its share of this machine's processor cores, and where there are GPUs one of them. Their output goes to
    standard error, a line at a time, with their names. They end when this process does, however that ends.

    Args:
        jobs: what to run, in this order.
        at_once: how many at the same time.
        cluster: run them as tasks of a Ray cluster, each with a GPU if the cluster has some; folders that they write
            to must be shared among its machines.
    """
    if isinstance(at_once, bool) or at_once < 1:
        raise AnytimeError(f"{at_once} jobs at once: it is a whole number from 1")
    if not jobs:
        return
    run, at_once = (_on_ray(), len(jobs)) if cluster else (_locally(at_once), min(at_once, len(jobs)))
    failed: dict[str, str] = {}
    stopped = threading.Event()

    def one(number: int, job: Job) -> None:
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
        except BaseException:  # Ctrl-C: they hear of it, save where they are and end
            stopped.set()
            raise
    if failed:
        raise AnytimeError(f"{len(failed)} of {len(jobs)} failed: " + "; ".join(f"{k}: {v}" for k, v in failed.items()))


Runner = Callable[[Sequence[str], Callable[[str], object], threading.Event], tuple[int, str]]


def _locally(at_once: int) -> Runner:
    """Gives each job its cores, and one GPU after the other where there are some."""
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
    """Run one, tell every line of its output; its exit code and its last line."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,  # what it watches: it closes when this process ends
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
    gpus = 1 if ray.cluster_resources().get("GPU") else 0

    def task(arguments: Sequence[str], folder: str) -> tuple[int, str, list[str]]:
        os.chdir(folder)
        lines: list[str] = []
        code, last = run_process(arguments, lines.append, threading.Event(), {} if gpus else {"OMP_NUM_THREADS": "1"})
        return code, last, lines

    remote: Any = ray.remote(num_cpus=1, num_gpus=gpus)(task)

    def run(arguments: Sequence[str], say: Callable[[str], object], stopped: threading.Event) -> tuple[int, str]:
        reference = remote.remote(list(arguments), os.getcwd())
        while True:
            if stopped.is_set():
                ray.cancel(reference, force=True)
                return 130, "stopped"
            done, _ = ray.wait([reference], timeout=0.5)
            if done:
                try:
                    code, last, lines = ray.get(reference)
                except ray.exceptions.RayError as error:  # its worker or its host is gone
                    return 1, str(error).strip().splitlines()[0]
                for line in lines:
                    say(line)
                return code, last

    return run


def stop_with_parent() -> None:
    """In a job: end as Ctrl-C ends it once the process that started it is gone."""
    if os.environ.pop(WATCH, None) is None:
        return

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin: a thread that waits in it would upset the interpreter's end
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
