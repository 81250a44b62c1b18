"""A request and its answer."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
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


@dataclass(slots=True, eq=False)
class Request:
    """A request that was admitted."""

    id: int
    x: Any
    """The input; once it has a slot, what describes it there."""
    size: int
    bytes: int
    begun: float
    deadline: float
    on_exit: Callable[[Answer], object] | None
    future: "Future[Answer]"
    slot: int | None = None
    worker: Any = None
    waits: bool = True
    """Whether it has no exit yet."""
    deaths: int = 0
    shown: int = -1


def in_loop(future: "Future[Answer]") -> "asyncio.Future[Answer]":
    """A future of the running event loop for the same answer; cancelling it cancels the request.

    ``asyncio.wrap_future`` does the same, with a detour for an answer that the loop itself has read.
    """
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    waiting: asyncio.Future[Answer] = loop.create_future()

    def settled(_: object) -> None:
        if waiting.done():
            return
        if future.cancelled():
            waiting.cancel()
        elif (error := future.exception()) is not None:
            waiting.set_exception(error)
        else:
            waiting.set_result(future.result())

    def heard(_: object) -> None:
        if threading.get_ident() == thread:
            settled(future)
        else:
            loop.call_soon_threadsafe(settled, future)

    waiting.add_done_callback(lambda _: future.cancel() if waiting.cancelled() else None)
    future.add_done_callback(heard)
    return waiting


def settle(future: "Future[Answer]", outcome: Answer | Exception) -> bool:
    """Set a future's result or exception; False if it was cancelled or set before."""
    try:
        if not future.set_running_or_notify_cancel():
            return False
    except (InvalidStateError, RuntimeError):
        return False
    if isinstance(outcome, Answer):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)
    return True
