"""Workers that are actors of a Ray cluster. All data travel by Ray's own calls, with its authentication."""

import pickle
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from anytime.ensemble.eann import EANN
from anytime.ensemble.workers import HaltedRuns, MemberError, WorkerDied, dumped, run_member, to_arrays, to_tensors
from anytime.errors import AnytimeError, require
from anytime.memory import keep_freed_memory

START_SECONDS = 300.0
"""How long an actor may take to start, which includes waiting for free CPUs and importing torch on a busy machine."""


class RayFactory:
    """Starts Ray actors with ``threads`` CPUs each; raises if the cluster is too small for all ``workers``."""

    hint = ""

    def __init__(self, eann: EANN, threads: int, workers: int) -> None:
        self.ray, self.threads = require("ray", "cluster"), threads
        if not self.ray.is_initialized():
            self.ray.init(include_dashboard=False, log_to_driver=False)
        cpus = [int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"]]
        room = sum(each // threads for each in cpus)
        if room < workers:
            raise AnytimeError(
                f"workers={workers} with threads={threads} need {workers * threads} CPUs, {threads} on one machine for "
                f"each worker; the Ray cluster has {sum(cpus)} on {len(cpus)} machines, room for {room} such workers: "
                "ask for fewer workers or threads"
            )
        # Ray's own pickle also includes classes that are defined in the main program.
        self.eann = self.ray.put(dumped(self.ray.cloudpickle.dumps, eann, "this ensemble"))
        groups = {"halt": 1, "lifetime": 1}
        self.actor: Any = self.ray.remote(num_cpus=threads, concurrency_groups=groups)(_Actor)

    def start(self) -> "RayWorker":
        """Start one more."""
        try:
            return RayWorker(self)
        except Exception as error:  # Ray has been shut down, or its control process is gone
            raise WorkerDied(_reason(error)) from error

    def pack(self, x: Any) -> Any:
        """Put the input into Ray's object store, once for all networks."""
        return dumped(self.ray.put, to_arrays(x), "this input")


class RayWorker:
    """The handle of an actor."""

    def __init__(self, factory: RayFactory) -> None:
        self.ray = factory.ray
        self.actor = factory.actor.remote(factory.eann, factory.threads)
        self.lifetime = self.actor.live.options(concurrency_group="lifetime").remote().future()

    def wait_until_ready(self) -> None:
        """Wait until the actor has a place and has read the ensemble."""
        try:
            self.ray.get(self.actor.ready.remote(), timeout=START_SECONDS)
        except self.ray.exceptions.GetTimeoutError:
            free, has = (
                resources.get("CPU", 0) for resources in (self.ray.available_resources(), self.ray.cluster_resources())
            )
            raise WorkerDied(
                f"a Ray actor did not start within {START_SECONDS:g} s: {free:g} of the cluster's {has:g} CPUs are free"
            ) from None
        except self.ray.exceptions.RayError as error:
            raise WorkerDied(_reason(error)) from error

    def alive(self) -> bool:
        """Whether the actor is running, as far as Ray knows."""
        return not self.lifetime.done()

    def answers(self, run: int, member: int, x: Any) -> Iterator[tuple[int, Tensor]]:
        """Yield the exits' answers as they arrive."""
        try:
            for answer in self.actor.answers.options(num_returns="streaming").remote(run, member, x):
                yield to_tensors(self.ray.get(answer))
        except self.ray.exceptions.RayTaskError as error:
            raise MemberError(f"{type(error.cause).__name__}: {error.cause}") from error
        except self.ray.exceptions.RayError as error:
            raise WorkerDied(_reason(error)) from error

    def halt(self, run: int) -> None:
        """Tell it to stop working for that run."""
        with suppress(Exception):  # the actor, or Ray, is gone
            self.actor.halt.options(concurrency_group="halt").remote(run)

    def close(self) -> None:
        """End the actor's process."""
        with suppress(Exception):  # Ray may have been shut down before
            self.ray.kill(self.actor)


class _Actor:
    """Runs networks in a process of the cluster; ``halt`` runs beside ``answers``, in a thread of its own."""

    def __init__(self, eann: bytes, threads: int) -> None:
        keep_freed_memory()
        self.eann, self.threads, self.halted = pickle.loads(eann), threads, HaltedRuns()

    def ready(self) -> None:
        """Return once ``__init__`` has."""

    def live(self) -> None:
        """Never return: Ray ends this call when the actor ends, however that happens."""
        threading.Event().wait()

    def answers(self, run: int, member: int, x: Any) -> Iterator[Any]:
        torch.set_num_threads(self.threads)  # a setting of the thread, and Ray chooses which one runs this
        for answer in run_member(self.eann, member, to_tensors(x), lambda: run in self.halted):
            yield to_arrays(answer)

    def halt(self, run: int) -> None:
        self.halted.append(run)


def _reason(error: Exception) -> str:
    """The line of Ray's long message that says what has happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if "creation task" in lines[0] else 0]  # the error that was raised there stands last
