"""An EANN on several workers, first in, first out."""

import atexit
import itertools
import queue
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self
from weakref import WeakSet

from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.distributed import cores
from anytime.ensemble.eann import EANN
from anytime.ensemble.workers import Died, Processes, RayActors, Refused, Worker, Workshop
from anytime.errors import AnytimeError
from anytime.inference.background import BackgroundPrediction
from anytime.inference.limits import Prediction, UnfinishedError, check_limits
from anytime.network import Step


class Team:
    """Runs the networks of an EANN on M workers, first in, first out, so that its base b acts as b to the M (Sec. 4).

    A worker that is free takes the next network. Each answer is there as soon as its exit is reached, and the best one
    so far can be had at any moment. A worker that dies costs the rest of the network that it was running: the others go
    on, a warning says so, and another worker takes its place.

    Args:
        eann: the ensemble, in eval mode. Workers get copies of it as it is now; later changes do not reach them.
        workers: how many.
        threads: of each worker; by default this machine's processor cores divided among them.
        cluster: run the workers as Ray actors, each with ``threads`` processor cores (``pip install
            "anytime-nets[cluster]"``): on the cluster that ``ray.init`` has joined, or on this machine.

    Processes are started afresh (multiprocessing's *spawn*), so a script makes its team below
    ``if __name__ == "__main__":``.

    Examples:
        >>> import anytime, torch
        >>> eann = anytime.EANN([anytime.create_model(f"resann-{n}-8") for n in (1, 2)]).eval()
        >>> with anytime.Team(eann, workers=2) as team:
        ...     run = team.start(torch.zeros(1, 3, 32, 32))
        ...     best = run.result()
        >>> best.exit == eann.exits - 1, best.complete, run.lost
        (True, True, {})
    """

    def __init__(self, eann: EANN, workers: int = 2, threads: int | None = None, cluster: bool = False) -> None:
        for name, value in {"workers": workers, "threads": 1 if threads is None else threads}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise AnytimeError(f"{name}={value!r}: it is a whole number from 1")
        if not isinstance(eann, EANN):
            raise AnytimeError(f"a {type(eann).__name__} is no ensemble: anytime.EANN([…]) makes one of networks")
        if eann.training:
            raise AnytimeError("the ensemble is in training mode: its answers would depend on the batch; call .eval()")
        threads = threads or max(1, cores() // workers)
        self.eann = eann
        self._order, self._exits = eann.order, eann.exits
        self._tasks: queue.Queue[tuple[_Run, int] | None] = queue.Queue()
        self._runs: WeakSet[_Run] = WeakSet()
        self._opening, self._closed = threading.Lock(), False
        self._workshop: Workshop = (RayActors if cluster else Processes)(eann, threads)
        hired = [self._workshop.hire() for _ in range(workers)]
        try:
            for worker in hired:
                worker.ready()
        except Died as death:
            for worker in hired:
                worker.close()
            raise AnytimeError(
                f"a worker died as it started ({death}); if this is a script, make the team below "
                'if __name__ == "__main__": since each worker reads the script again'
            ) from None
        self._threads = [threading.Thread(target=self._lead, args=(w,), name="anytime", daemon=True) for w in hired]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def start(self, x: Any) -> "_Run":
        """Begin a prediction and return at once; as ``anytime.start`` gives, with ``lost`` beside."""
        x = tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, x)
        run = _Run(self._order, self._exits, self._workshop.pack(x))
        with self._opening:
            if self._closed:
                raise AnytimeError("the team is closed: make another")
            self._runs.add(run)
            for member in self._order:
                self._tasks.put((run, member))
        return run

    def predict(self, x: Any, deadline: float | None = None) -> Prediction:
        """The best prediction within ``deadline`` seconds, or of all networks. Raises ``UnfinishedError`` if none."""
        check_limits(deadline=deadline)
        if deadline is not None and deadline <= 0:
            raise UnfinishedError("deadline", 0.0)
        begun = time.perf_counter()
        with self.start(x) as run:
            try:
                best = run.result(None if deadline is None else max(0.0, deadline - (time.perf_counter() - begun)))
            except UnfinishedError:
                raise UnfinishedError("deadline", time.perf_counter() - begun) from None
            return best if run.done or best.complete else replace(best, stopped_by="deadline")

    def steps(self, x: Any) -> Iterator[Step]:
        """The predictions as they come, each better than the one before."""
        with self.start(x) as run:
            for prediction in run.follow():
                yield Step(prediction.exit, prediction.logits)

    def close(self) -> None:
        """Stop what still runs, within one stage, and send the workers home."""
        with self._opening:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        for run in list(self._runs):
            run.stop()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lead(self, worker: Worker) -> None:
        """Give one worker a network after the other, and another worker its place if it dies."""
        while (task := self._tasks.get()) is not None:
            run, member = task
            if not worker.alive():  # it died with nothing to do
                worker = self._replace(worker)
            try:
                if not run.begin(member, worker):
                    continue
                for exit, logits in worker.answers(run.number, member, run.x):
                    run.answer(exit, logits)
                run.end(member)
            except Refused as error:  # the network, not the worker
                run.lose(member, str(error))
            except Exception as error:
                run.lose(member, f"its worker died ({error})")
                worker = self._replace(worker)
        worker.close()

    def _replace(self, worker: Worker) -> Worker:
        worker.close()
        while True:
            fresh = self._workshop.hire()
            try:
                fresh.ready()
                return fresh
            except Died:
                fresh.close()
                if self._closed:
                    return fresh
                time.sleep(1)  # and again: there may be memory then


class _Run(BackgroundPrediction):
    """A prediction on a team.

    Attributes:
        lost: by member, why its answers are missing, if they are.
    """

    _numbers = itertools.count()

    def __init__(self, order: list[int], exits: int, x: Any) -> None:
        self.lost: dict[int, str] = {}
        self.number, self.x = next(self._numbers), x
        self._exits, self._begun = exits, time.perf_counter()
        self._latest, self._error = None, None
        self._changed = threading.Condition()
        self._open, self._stopped = set(order), False
        self._workers: dict[int, Worker] = {}

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return not self._open

    def begin(self, member: int, worker: Worker) -> bool:
        """A worker takes a network; False if nobody wants its answers any more."""
        with self._changed:
            if not self._stopped:
                self._workers[member] = worker
                return True
        self.end(member)
        return False

    def answer(self, exit: int, logits: Tensor) -> None:
        """One has come; a later exit in the order is a better one, whoever comes first."""
        with self._changed:
            if self._latest is None or exit > self._latest.exit:
                complete = exit + 1 == self._exits
                seconds = time.perf_counter() - self._begun
                self._latest = Prediction(logits, exit, seconds, complete, None)
                if complete:  # there is none better to wait for
                    self._halt_all()
                self._changed.notify_all()

    def end(self, member: int) -> None:
        """A network has come to its end."""
        with self._changed:
            self._workers.pop(member, None)
            self._open.discard(member)
            if not self._open and self._latest is None and self.lost:
                reasons = [f"network {one}: {why}" for one, why in self.lost.items()]
                alike = len(set(self.lost.values())) == 1
                self._error = AnytimeError(
                    f"no network has answered: {next(iter(self.lost.values())) if alike else '; '.join(reasons)}"
                )
            self._changed.notify_all()

    def lose(self, member: int, why: str) -> None:
        """A network's answers will not come."""
        self.lost[member] = why
        try:
            if self._latest is not None or len(self._open) > 1:  # otherwise it is an error
                said = f"network {member} of the ensemble gives no more answers: {why}; the others go on"
                with suppress(UserWarning):  # where warnings are errors, they are not this thread's
                    warnings.warn(said)
        finally:
            self.end(member)

    def latest(self) -> Prediction | None:
        """The best prediction so far, without waiting; None before the first."""
        if self._error is not None:
            raise self._error
        best = self._latest
        if best is None or best.complete or not self.done:
            return best
        return replace(best, stopped_by="stop" if self._stopped else "lost")

    def result(self, timeout: float | None = None) -> Prediction:
        """Wait at most ``timeout`` seconds and return the best prediction. Raises ``UnfinishedError`` if none."""
        try:
            return super().result(timeout)
        except UnfinishedError as error:
            if self._stopped and self.done:
                raise UnfinishedError("stop", time.perf_counter() - self._begun) from None
            raise error

    def follow(self) -> Iterator[Prediction]:
        """The best predictions as they come."""
        shown = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda shown=shown: self._latest is not shown or self.done)
                if self._latest is shown:
                    break
                shown = self._latest
            if shown is not None:
                yield shown
        self.latest()  # raises what there is to raise

    def _wait(self, timeout: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.done or (self._latest and self._latest.complete), timeout)

    def stop(self) -> None:
        """End it; the workers go on to what comes next within one stage."""
        with self._changed:
            self._halt_all()

    def _halt_all(self) -> None:
        self._stopped = True
        for worker in self._workers.values():
            worker.halt(self.number)
