"""The workers of an engine: started, replaced when they die, and a spare that is ready."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from anytime.errors import AnytimeError
from anytime.inference.measuring import kind_of
from anytime.network import tensors_of
from anytime.serving.arena import Arena
from anytime.serving.model import Model
from anytime.serving.runner import Event, Settings
from anytime.serving.slowdown import Pace
from anytime.serving.worker import Job, News, ProcessWorker, ThreadWorker, pack


class EngineDiedError(AnytimeError):
    """The process or thread that worked on the request ended, and it could not be run again."""


class Crew:
    """Threads or processes that run the stages.

    Args:
        model: what they run.
        processes: their number; 0 for a thread.
        threads: torch's, in each process.
        spare: whether one more process stands by.
        slots: number of inputs in shared memory.
        largest: the largest batch.
        heard: called with events.
        died: called with a worker that has died, and the reason, after its replacement took its place.
        loop: where the news of processes are read; None for a thread of each.
    """

    def __init__(
        self,
        model: Model,
        processes: int,
        threads: int,
        spare: bool,
        slots: int,
        largest: int,
        heard: Callable[[list[Event]], object],
        died: Callable[[Any, str], object],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._heard, self._died, self._loop = heard, died, loop
        self._lock, self._closed = threading.Lock(), False
        self.workers: list[Any] = []
        self.pace: dict[Any, Pace] = {}
        self.replaces = processes > 0
        """Whether a worker that has died is replaced."""
        self._spare: ProcessWorker | None = None
        self._wants_spare = spare and processes > 0
        self._arena: Arena | None = None
        kind = kind_of(model.example)._replace(**({"threads": threads} if processes else {}))
        times: Any = next((t for t in model.known_times if t.kind in (kind, None)), None)
        settings = Settings(times, model.accuracy, largest, model.policy)
        if processes == 0:
            job = Job(model.net, settings, model.example, threads, None)
            worker: Any = ThreadWorker(job, self._news, self._ended)
            self.settings = worker.settings
        else:
            slot_bytes = sum(-(-t.nbytes // 64) * 64 for t in tensors_of(model.example))
            self._arena = Arena(slots, slot_bytes)
            self._job = Job(model.source or model.net, settings, model.example, threads, (slots, slot_bytes))
            worker = ProcessWorker(pack(self._job), self._arena, self._news, self._ended)
            self.settings = worker.wait_until_ready()
            self._job = self._job._replace(settings=self.settings)
        if model.source is not None and model.source.may_be_written and times is None:
            with suppress(OSError, AnytimeError):  # a folder that cannot be written is measured again next time
                self.settings.times.save(model.source.times_folder)
        self._join(worker)
        more = [self._start() for _ in range(max(processes, 1) - 1)]
        for worker in more:
            worker.wait_until_ready()
            self._join(worker)
        self._hire_spare()

    def store(self, x: Any) -> tuple[int, bytes] | None:
        """Put an input into shared memory, if there is any."""
        return None if self._arena is None else self._arena.put(x)

    def release(self, slot: int) -> None:
        """Free its place."""
        assert self._arena is not None
        self._arena.free(slot)

    def _start(self) -> ProcessWorker:
        assert self._arena is not None
        return ProcessWorker(pack(self._job), self._arena, self._news, self._ended)

    def _join(self, worker: Any) -> None:
        self.pace[worker] = Pace()
        self.workers = [*self.workers, worker]
        worker.begin(self._loop)

    def _news(self, worker: Any, news: News) -> None:
        events, mean, high, batch = news
        self.pace[worker] = Pace(mean, high, batch, time.perf_counter())
        self._heard(events)

    def _ended(self, worker: Any, reason: str) -> None:
        """A worker has died: the spare takes its place, and another one is started."""
        with self._lock:
            self.workers = [other for other in self.workers if other is not worker]
            spare, self._spare = self._spare, None
            if self._closed:
                return
        if spare is not None and spare.process.poll() is None:
            self._join(spare)
        elif self._arena is not None:
            threading.Thread(target=self._replace, name="anytime engine start", daemon=True).start()
        self._died(worker, reason)
        self.pace.pop(worker, None)
        if spare is not None:
            self._hire_spare()

    def _replace(self) -> None:
        worker = self._start_again()
        if worker is not None:
            self._join(worker)
            self._hire_spare()

    def _hire_spare(self) -> None:
        if self._wants_spare:
            threading.Thread(target=self._train_spare, name="anytime engine spare", daemon=True).start()

    def _train_spare(self) -> None:
        worker = self._start_again()
        if worker is None:
            return
        with self._lock:
            if self._spare is None and not self._closed:
                self._spare, worker = worker, None
        if worker is not None:
            worker.close()

    def _start_again(self) -> ProcessWorker | None:
        """A new process that is ready; tries until it succeeds or the engine is closed."""
        while not self._closed:
            worker = None
            with suppress(AnytimeError, OSError):
                worker = self._start()
                worker.wait_until_ready()
                return worker
            time.sleep(1.0)
        return None

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._closed = True
            every = [*self.workers, *([self._spare] if self._spare else [])]
            self.workers, self._spare = [], None
        for worker in every:
            worker.close()
        if self._arena is not None:
            os.close(self._arena.file)
            self._arena.file = -1
