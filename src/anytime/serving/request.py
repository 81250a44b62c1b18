"""A request and its answer."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Answer:
    """The prediction of one request."""

    logits: Tensor
    """One row per sample."""
    exit: int
    """The exit that made it; 0 is the shallowest."""
    complete: bool
    """Whether it is the last exit's."""
    seconds: float
    """From ``submit`` to the answer."""
    stopped_by: str | None
    """``deadline``, ``policy`` (an exit was sure), or None for a complete answer and for one on the way."""
    score: float | None = None
    """The policy's score at the first exit; None without a policy and for answers on the way."""


@dataclass(slots=True, eq=False)
class Request:
    """A request that was admitted."""

    id: int
    x: Any
    """The input; once it is in shared memory, its description there."""
    size: int
    bytes: int
    begun: float
    deadline: float
    on_exit: Callable[[Answer], object] | None
    future: "Future[Answer] | asyncio.Future[Answer]"
    slot: int | None = None
    worker: Any = None
    waits: bool = True
    """Whether it has no exit yet."""
    deaths: int = 0
    shown: int = -1


def settle(future: "Future[Answer] | asyncio.Future[Answer]", outcome: Answer | Exception) -> bool:
    """Set a future's result or exception; False if it was cancelled or set before."""
    if isinstance(future, Future):
        try:
            if not future.set_running_or_notify_cancel():
                return False
        except (InvalidStateError, RuntimeError):
            return False
    elif not _in(loop := future.get_loop()):
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, future, outcome)
        return True
    elif future.done():
        return False
    if isinstance(outcome, Answer):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
    return True


def _in(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # of a thread without one
        return False
