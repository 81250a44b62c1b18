"""An EANN on several workers, first in, first out."""

import atexit
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.distributed import cores
from anytime.ensemble.eann import EANN
from anytime.ensemble.pool import TeamPrediction, WorkerFactory, WorkerPool, check_process
from anytime.ensemble.workers import LocalFactory, RayFactory
from anytime.errors import AnytimeError, check_integer
from anytime.inference.prediction import Prediction, PredictionLimits, UnfinishedError
from anytime.inputs import as_input
from anytime.network import Step


class Team:
    """Runs the networks of an EANN on M workers, first in, first out, so that its base b acts as bᴹ (Sec. 4).

    A worker that is free takes the next network. Each answer is available as soon as its exit is reached, and the best
    one so far at any moment. A worker that dies costs the rest of the network that it was running: the others go on, a
    warning says so, and another worker replaces it. If no worker can be started any more, predictions raise an
    ``AnytimeError`` with the reason, until it can be done again.

    Args:
        eann: the ensemble, in eval mode. Workers get copies of it as it is now; later changes do not reach them.
        workers: number of workers.
        threads: number of threads of each worker; by default this machine's CPU cores divided among them.
        cluster: run the workers as Ray actors, each with ``threads`` CPUs, on the cluster that ``ray.init`` has joined
            or on this machine (``pip install "anytime-nets[cluster]"``).

    Processes are started afresh (multiprocessing's *spawn*), so a script must make its team below
    ``if __name__ == "__main__":``. A team cannot be used in a forked child.

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
        workers = check_integer("workers", workers)
        threads = max(1, cores() // workers) if threads is None else check_integer("threads", threads)
        if not isinstance(eann, EANN):
            raise AnytimeError(f"expected an EANN, got a {type(eann).__name__}: anytime.EANN([net1, net2]) makes one")
        if eann.training:
            raise AnytimeError("the ensemble is in training mode: its answers would depend on the batch; call .eval()")
        self.eann = eann
        self._order, self._exits, self._process = eann.order, eann.exits, os.getpid()
        self._factory: WorkerFactory = RayFactory(eann, threads, workers) if cluster else LocalFactory(eann, threads)
        self._pool = WorkerPool(self._factory, workers)
        atexit.register(self.close)

    def start(self, x: Any) -> TeamPrediction:
        """Begin a prediction and return at once, as ``anytime.start`` does; the result also has ``lost``."""
        check_process(self._process)
        x = as_input(self.eann, x)
        x = tree_map(lambda leaf: leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf, x)
        prediction = TeamPrediction(self._order, self._exits, self._factory.pack(x))
        self._pool.submit(prediction, self._order)
        return prediction

    def predict(self, x: Any, deadline: float | None = None) -> Prediction:
        """The best prediction within ``deadline`` seconds, or of all networks. Raises ``UnfinishedError`` if none."""
        PredictionLimits(deadline=deadline)  # raises if it is none
        if deadline is not None and deadline <= 0:
            raise UnfinishedError("deadline", 0.0)
        begun = time.perf_counter()
        with self.start(x) as run:
            try:
                best = run.result(None if deadline is None else max(0.0, deadline - (time.perf_counter() - begun)))
            except UnfinishedError:
                if self._pool.problem:
                    raise AnytimeError(f"the team has no workers: {self._pool.problem}") from None
                raise UnfinishedError("deadline", time.perf_counter() - begun) from None
            return best if run.done or best.complete else replace(best, stopped_by="deadline")

    def steps(self, x: Any) -> Iterator[Step]:
        """Yield the predictions as they come, each better than the one before."""
        with self.start(x) as run:
            for prediction in run.follow():
                yield Step(prediction.exit, prediction.logits)

    def close(self) -> None:
        """Stop what is running, within one stage, and end the workers. Does nothing in a forked child."""
        atexit.unregister(self.close)
        if os.getpid() == self._process:
            self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
