"""Predictions that run in the background and can be asked at any moment."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import torch

from anytime.errors import AnytimeError
from anytime.inference.clock import Clock
from anytime.inference.prediction import Prediction, PredictionLimits, Stop, UnfinishedError, answers
from anytime.inputs import as_input, device_of


class BackgroundPrediction:
    """A prediction that runs in the background; ``start`` returns it. As a context manager it stops at the end.

    Args:
        net: the network.
        x: its input.
        limits: when to end.
        clock: started when the prediction was asked for.
        tell: called in the background with every prediction, and with None at the end.
    """

    def __init__(
        self,
        net: Any,
        x: Any,
        limits: PredictionLimits,
        clock: Clock,
        tell: Callable[[Prediction | None], object] | None = None,
    ) -> None:
        self._halt, self._first = threading.Event(), threading.Event()
        self._latest: Prediction | None = None
        self._error: BaseException | None = None
        limits = replace(limits, stop=_AnyOf(self._halt, limits.stop))
        kind = device_of(x).type  # a thread does not inherit it
        autocast = torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind))
        self._thread = threading.Thread(target=self._work, args=(net, x, limits, clock, tell, autocast), name="anytime")
        self._thread.start()

    def _work(
        self,
        net: Any,
        x: Any,
        limits: PredictionLimits,
        clock: Clock,
        tell: Callable[[Prediction | None], object] | None,
        autocast: torch.autocast,
    ) -> None:
        try:
            with torch.inference_mode(), autocast:
                for self._latest in answers(net, x, limits, clock, every=True):
                    self._first.set()
                    if tell:
                        tell(self._latest)
        except BaseException as error:
            self._error = error
        finally:
            self._first.set()
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
            return replace(best, stopped_by="stop")  # the stop came after this prediction
        return best

    def result(self, timeout: float | None = None, *, wait_for_first: bool = False) -> Prediction:
        """Wait at most ``timeout`` seconds and return the best prediction. Raises ``UnfinishedError`` if none.

        Args:
            timeout: seconds from now; None waits for the end.
            wait_for_first: if there is no prediction yet after that, wait for the first exit's instead of raising.
        """
        if timeout is not None and timeout != timeout:
            raise AnytimeError(f"timeout={timeout} must be a number")
        self._wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        if wait_for_first:
            self._wait_for_first()
        best = self.latest()
        if best is None:
            raise self._error or UnfinishedError("timeout", timeout or 0.0)
        return best

    def _wait(self, timeout: float | None) -> None:
        self._thread.join(timeout)

    def _wait_for_first(self) -> None:
        self._first.wait()

    def stop(self) -> None:
        """Stop, and wait until the stage that is running has ended."""
        self._halt.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _AnyOf:
    """Set if one of the events is, or if the interpreter is shutting down."""

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
    confidence: float = 0.99,
) -> BackgroundPrediction:
    """Start a prediction in a thread and return at once; every exit is evaluated on the way.

    Args:
        net: as for ``predict``; any number of predictions may share it.
        x: the input, as for ``predict``; do not change it while the prediction runs.
        deadline: seconds from the call; limits are as for ``predict``.
        macs: multiply-accumulates for the whole input.
        exits: number of exits to go through.
        stop: an event; once it is set, no further stage is started.
        confidence: the share of predictions that are to be there before their deadlines.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> with anytime.start(net, torch.zeros(1, 3, 32, 32)) as background:
        ...     early = background.latest()     # the best prediction so far; None before the first
        ...     background.result().exit
        2
    """
    clock, limits = Clock(), PredictionLimits(deadline, macs, exits, stop, confidence)
    return BackgroundPrediction(net, as_input(net, x), limits, clock)


def astart(
    net: Any,
    x: Any,
    *,
    deadline: float | None = None,
    macs: float | None = None,
    exits: int | None = None,
    stop: Stop | None = None,
    confidence: float = 0.99,
) -> AsyncGenerator[Prediction, None]:
    """The predictions of ``start`` as an asynchronous iterator; leaving the loop stops the network.

    Leaving the loop is enough if the iterator is created in the ``async for`` statement, as below. Otherwise stop it
    with ``await iterator.aclose()`` or ``contextlib.aclosing``.

    Examples:
        >>> import anytime, asyncio
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> async def exits():
        ...     return [prediction.exit async for prediction in anytime.astart(net, torch.zeros(1, 3, 32, 32))]
        >>> asyncio.run(exits())
        [0, 1, 2]
    """
    clock, limits = Clock(), PredictionLimits(deadline, macs, exits, stop, confidence)
    return _astart(net, as_input(net, x), limits, clock)


async def _astart(net: Any, x: Any, limits: PredictionLimits, clock: Clock) -> AsyncGenerator[Prediction, None]:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Prediction | None] = asyncio.Queue()

    def tell(prediction: Prediction | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(queue.put_nowait, prediction)

    background = BackgroundPrediction(net, x, limits, clock, tell)
    try:
        while (prediction := await queue.get()) is not None:
            yield prediction
        if background._error is not None:
            raise background._error
    finally:
        background._halt.set()
