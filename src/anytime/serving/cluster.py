"""Many machines: a Ray Serve deployment whose replicas are engines."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from anytime.errors import AnytimeError, require
from anytime.serving.engine import Engine, OverloadedError

STATS_PERIOD = 0.25
"""Seconds between two reports of a replica to the router."""


class Replica:
    """An engine as a replica: ``handle.remote(x, deadline)`` gives a dict with ``logits``, ``exit``, ``complete``,
    ``seconds`` and ``stopped_by``, or ``refused`` and ``retry_after``.
    """

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self.engine = Engine(folder, **options)

    async def __call__(self, x: np.ndarray, deadline: float) -> dict[str, Any]:
        """Answer one request."""
        try:
            answer = await self.engine.asubmit(np.array(x), deadline)  # a copy: Ray's own memory is read-only
        except OverloadedError as error:
            return {"refused": str(error), "retry_after": error.retry_after}
        return {
            "logits": answer.logits.numpy(),
            "exit": answer.exit,
            "complete": answer.complete,
            "seconds": answer.seconds,
            "stopped_by": answer.stopped_by,
        }

    def record_routing_stats(self) -> dict[str, float]:
        """The replica's load, for the router."""
        status = self.engine.status()
        one = status["slow_down"] * self.engine.times.stages[0].at(1)
        return {"first_exit_seconds": status["first_exit_seconds"], "seconds_each": one}

    def __del__(self) -> None:
        engine = getattr(self, "engine", None)
        if engine is not None:
            engine.close(drain=True)


def deployment(folder: str | Path, replicas: int = 1, **options: Any) -> Any:
    """A Ray Serve application of engines: ``serve.run(deployment(folder, replicas=2))`` gives its handle.

    There is no ``@serve.batch``: requests share batches in the engine, stage by stage. A request goes to the replica
    with the least predicted time to its first exit. ``ask`` calls it and tries again if a replica dies.

    Needs the extra ``cluster``.

    Args:
        folder: of a saved model, at the same path on every machine.
        replicas: number of replicas.
        options: of ``Engine``. Default: one process without a spare, since Ray replaces replicas itself.
    """
    from anytime.serving.router import ByFirstExit  # needs ray

    serve = require("ray.serve", "cluster")
    config = require("ray.serve.config", "cluster")
    options = {"spare": False, **options}
    routing = config.RequestRouterConfig(
        request_router_class=ByFirstExit,
        request_routing_stats_period_s=STATS_PERIOD,
        request_routing_stats_timeout_s=1.0,
    )
    made = serve.deployment(
        num_replicas=replicas,
        max_ongoing_requests=10_000,  # the engine has its own admission
        request_router_config=routing,
        health_check_period_s=1.0,
        ray_actor_options={"num_cpus": options.get("processes", 1)},
    )(Replica)
    return made.bind(str(Path(folder).absolute()), options)


def ask(handle: Any, x: np.ndarray, deadline: float) -> dict[str, Any]:
    """Call a deployment; if the replica dies on the way, again with what is left of the time.

    Raises:
        OverloadedError: if it was refused.
        AnytimeError: if a replica died and there was no time left.
    """
    exceptions = require("ray.exceptions", "cluster")
    end, reason = time.perf_counter() + deadline, "there was no time at all"
    while (left := end - time.perf_counter()) > 0:
        try:
            answer = handle.remote(x, left).result(timeout_s=left + 1.0)
        except (exceptions.RayActorError, TimeoutError) as error:
            reason = f"{type(error).__name__}"
            continue
        if "refused" in answer:
            raise OverloadedError(answer["refused"], answer["retry_after"])
        return answer
    raise AnytimeError(f"no replica answered in time: {reason}")
