"""The workers of an engine: started, replaced when they die, and a spare that is ready."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from anytime.errors import AnytimeError
from anytime.inference.policy import Policy
from anytime.measuring import kind_of
from anytime.network import tensors_of
from anytime.serving.arena import Arena
from anytime.serving.model import Model
from anytime.serving.runner import Event, Settings
from anytime.serving.slowdown import Pace
from anytime.serving.worker import CLOSING, PING, Job, News, ProcessWorker, ThreadWorker, pack

LOG = logging.getLogger("anytime.serving")
TICK = 0.25
"""Seconds between two looks at the workers."""
PING_AFTER = 1.0
"""Seconds of silence after which a worker is asked for a sign of life, again and again."""


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
        heard: called with a worker and its events.
        died: called with a worker that has died, and the reason, after the spare took its place.
        joined: called when another worker took its place later.
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
        heard: Callable[[Any, list[Event]], object],
        died: Callable[[Any, str], object],
        joined: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._heard, self._died, self._joined, self._loop = heard, died, joined, loop
        self._lock, self._closed = threading.Lock(), False
        self._closing = threading.Event()
        self._starting: set[ProcessWorker] = set()
        self._threads: set[threading.Thread] = set()
        self._owner = os.getpid()
        self.workers: list[Any] = []
        self.pace: dict[Any, Pace] = {}
        self.replaces = processes > 0
        """Whether a worker that has died is replaced."""
        self._policy: Policy | None = None
        """That all workers use instead of the model's, if there is one."""
        self._spare: ProcessWorker | None = None
        self._wants_spare = spare and processes > 0
        self._arena: Arena | None = None
        kind = kind_of(model.example)._replace(**({"threads": threads} if processes else {}))
        times: Any = next((t for t in model.known_times if t.kind in (kind, None)), None)
        settings = Settings(times, model.accuracy, largest, model.policy)
        if processes == 0:
            job = Job(model.net, settings, model.example, threads, None, model.may_measure)
            worker: Any = ThreadWorker(job, self._news, self._ended)
            self.settings = worker.settings
        else:
            slot_bytes = sum(-(-t.nbytes // 64) * 64 for t in tensors_of(model.example))
            self._arena = Arena(slots, slot_bytes)
            memory = (slots, slot_bytes)
            self._job = Job(model.source or model.net, settings, model.example, threads, memory, model.may_measure)
            worker = ProcessWorker(pack(self._job), self._arena, self._news, self._ended)
            self.settings = worker.wait_until_ready()
            self._job = self._job._replace(settings=self.settings, checks=False)
        if model.source is not None and model.source.may_be_written and self.settings.times != times:
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

    def use(self, policy: Policy) -> None:
        """Let samples leave by this policy, in all workers and those that take their places."""
        with self._lock:
            self._policy = policy
            for worker in self.workers:
                worker.send(policy)

    def release(self, slot: int) -> None:
        """Free its place."""
        assert self._arena is not None
        self._arena.free(slot)

    def _start(self) -> ProcessWorker:
        assert self._arena is not None
        return ProcessWorker(pack(self._job), self._arena, self._news, self._ended)

    def _join(self, worker: Any) -> None:
        with self._lock:
            closed = self._closed
            if not closed:
                self.pace[worker] = Pace()
                if self._policy is not None:
                    worker.send(self._policy)
                self.workers = [*self.workers, worker]
        if closed:
            worker.close()
        else:
            worker.begin(self._loop)

    def _news(self, worker: Any, news: News) -> None:
        events, mean, high, batch = news
        if worker in self.pace:
            self.pace[worker] = Pace(mean, high, batch, time.perf_counter())
        self._heard(worker, events)

    def check(self, seconds: float, limit: Callable[[Any], float]) -> None:
        """Replace workers that show no sign of life. Call it regularly.

        Only time in which this process ran is counted, and news that it has not read is a sign of life.

        Args:
            seconds: since the latest call.
            limit: the seconds that a worker may be silent.
        """
        for worker in self.workers if self.replaces else ():
            before, signs = worker.silent, worker.signs
            worker.silent = 0.0 if worker.unread or signs > worker.seen else before + min(seconds, 2 * TICK)
            worker.seen = signs
            if before > limit(worker) < worker.silent:  # twice, since its news may just be being read
                worker.abandon()
                self._ended(worker, f"{worker.name} showed no sign of life for {worker.silent:.1f} s and was killed")
            elif before // PING_AFTER < worker.silent // PING_AFTER:
                worker.send(PING)

    def _ended(self, worker: Any, reason: str) -> None:
        """A worker has died: the spare takes its place, and another one is started."""
        with self._lock:
            if self._closed or worker not in self.workers:
                return
            self.workers = [other for other in self.workers if other is not worker]
            spare, self._spare = self._spare, None
        joins = spare is not None and spare.process.poll() is None
        if joins:
            self._join(spare)
        self._died(worker, reason)
        self.pace.pop(worker, None)
        if joins:
            self._hire_spare()
        elif self.replaces:
            self._in_thread(self._replace, "anytime engine start")

    def _in_thread(self, work: Callable[[], object], name: str) -> None:
        """Run something that ends soon after the crew is closed."""

        def run() -> None:
            work()
            with self._lock:
                self._threads.discard(thread)

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            if not self._closed:
                self._threads.add(thread)
                thread.start()

    def _replace(self) -> None:
        worker = self._start_again()
        if worker is not None:
            self._join(worker)
            self._joined()
            self._hire_spare()

    def _hire_spare(self) -> None:
        if self._wants_spare:
            self._in_thread(self._train_spare, "anytime engine spare")

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
        while not self._closing.is_set():
            worker = None
            try:
                with self._lock:
                    if self._closed:
                        break
                    worker = self._start()
                    self._starting.add(worker)
                worker.wait_until_ready()
                return worker
            except (AnytimeError, OSError) as error:
                if not self._closed:
                    LOG.warning("%s: trying again", error)
            finally:
                with self._lock:
                    self._starting -= {worker}
            self._closing.wait(1.0)
        return None

    def close(self) -> None:
        """End all of them. In a forked process: leave them alone."""
        if os.getpid() != self._owner:
            for worker in [*self.workers, *([self._spare] if self._spare else [])]:
                worker.leave()
            if self._arena is not None:
                self._arena.close()
            return
        with self._lock:
            self._closed = True
            self._closing.set()
            for starting in self._starting:
                starting.abandon()
            threads = [*self._threads]
            every = [*self.workers, *([self._spare] if self._spare else [])]
            self.workers, self._spare = [], None
        end = time.monotonic() + CLOSING  # of all: one that hangs keeps the others waiting no longer
        for worker in every:
            worker.dismiss()
        for worker in every:
            worker.close(max(end - time.monotonic(), 0.0))
        for thread in threads:
            thread.join(CLOSING)
        if self._arena is not None:
            self._arena.close()
