"""Predictions that run in the background and can be asked at any moment."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import torch

from anytime.errors import AnytimeError
from anytime.inference.limits import Limits, Prediction, Stop, UnfinishedError, answers


class BackgroundPrediction:
    """A prediction that goes on in the background: ``start`` makes it. As a context manager it ends with the block."""

    def __init__(self, net: Any, x: Any, limits: Limits, tell: Callable[[Prediction | None], object] | None) -> None:
        self._halt = threading.Event()
        self._latest: Prediction | None = None
        self._error: BaseException | None = None
        limits = replace(limits, stop=_Any(self._halt, limits.stop))
        self._thread = threading.Thread(target=self._work, args=(net, x, limits, tell), name="anytime")
        self._thread.start()

    def _work(self, net: Any, x: Any, limits: Limits, tell: Callable[[Prediction | None], object] | None) -> None:
        try:
            with torch.inference_mode():
                for self._latest in answers(net, x, limits, every=True):
                    if tell:
                        tell(self._latest)
        except BaseException as error:
            self._error = error
        finally:
            if tell:
                tell(None)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def latest(self) -> Prediction | None:
        """The best prediction so far, without waiting; None before the first. Raises what the network raised."""
        if self._error is not None and not isinstance(self._error, UnfinishedError):
            raise self._error
        best = self._latest
        if best is not None and not best.complete and best.stopped_by is None and self.done:
            return replace(best, stopped_by="stop")  # it was stopped after this one
        return best

    def result(self, timeout: float | None = None) -> Prediction:
        """Wait at most ``timeout`` seconds and return the best prediction. Raises ``UnfinishedError`` if none."""
        if timeout is not None and timeout != timeout:
            raise AnytimeError(f"timeout={timeout}: it must be a number")
        self._wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        best = self.latest()
        if best is None:
            raise self._error or UnfinishedError("timeout", timeout or 0.0)
        return best

    def _wait(self, timeout: float | None) -> None:
        self._thread.join(timeout)

    def stop(self) -> None:
        """End it; returns once the stage that was running has ended and the worker is free."""
        self._halt.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Any:
    """Set when any of the events is, or when the interpreter ends."""

    def __init__(self, halt: threading.Event, stop: Stop | None) -> None:
        self.halt, self.stop = halt, stop

    def is_set(self) -> bool:
        if self.halt.is_set() or not threading.main_thread().is_alive():
            return True
        return self.stop is not None and self.stop.is_set()


def start(
    net: Any,
    x: Any,
    *,
    deadline: float | None = None,
    macs: float | None = None,
    exits: int | None = None,
    stop: Stop | None = None,
) -> BackgroundPrediction:
    """Begin a prediction and return at once; it runs on in a thread, evaluating every exit.

    Args:
        net: as for ``predict``; any number of runs may share it.
        x: the input; do not change it while the run goes on.
        deadline: seconds from now; limits are as for ``predict``.
        macs: multiply-accumulates for the whole input.
        exits: how many exits to go through.
        stop: ends the run once it is set.

    Example:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> with anytime.start(net, torch.zeros(1, 3, 32, 32)) as run:
        ...     early = run.latest()            # None, or the best so far
        ...     run.result().exit
        2
    """
    return BackgroundPrediction(net, x, Limits(deadline, macs, exits, stop), None)


def astart(
    net: Any,
    x: Any,
    *,
    deadline: float | None = None,
    macs: float | None = None,
    exits: int | None = None,
    stop: Stop | None = None,
) -> AsyncGenerator[Prediction, None]:
    """The predictions of ``start`` one by one, for ``async for``; leaving the loop stops the network.

    That is so if the iterator is made in the loop's head, as below. One that has a name of its own lives on: stop it
    with ``await iterator.aclose()`` or ``contextlib.aclosing``.

    Example:
        >>> import anytime, asyncio
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> async def exits():
        ...     return [prediction.exit async for prediction in anytime.astart(net, torch.zeros(1, 3, 32, 32))]
        >>> asyncio.run(exits())
        [0, 1, 2]
    """
    limits, begun = Limits(deadline, macs, exits, stop), time.perf_counter()
    return _astart(net, x, limits, begun)


async def _astart(net: Any, x: Any, limits: Limits, begun: float) -> AsyncGenerator[Prediction, None]:
    if limits.deadline is not None:
        limits = replace(limits, deadline=limits.deadline - (time.perf_counter() - begun))
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Prediction | None] = asyncio.Queue()

    def tell(prediction: Prediction | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(queue.put_nowait, prediction)

    run = BackgroundPrediction(net, x, limits, tell)
    try:
        while (prediction := await queue.get()) is not None:
            yield prediction
        if run._error is not None:
            raise run._error
    finally:
        run._halt.set()
