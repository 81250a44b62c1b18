"""What all requests of a server share: its models, limits and counters, and whether it is shutting down."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from anytime.errors import AnytimeError
from anytime.inference.limits import UnfinishedError
from anytime.serving.deadlines import deadline_of
from anytime.serving.engine import Answer, EngineDiedError, OverloadedError
from anytime.serving.limits import Limits
from anytime.serving.metrics import Metrics
from anytime.serving.served import Loaded, Served


class ClientGoneError(Exception):
    """The client hung up before it was answered."""


LATE = "reading the input took longer than the deadline"


@dataclass(eq=False)
class Exchange:
    """One request for predictions, from its first byte to its answer."""

    deadline: float | None = None
    started: float = 0.0
    """When the whole request was here: deadlines count from then, since before the server can do nothing."""
    task: "asyncio.Task[Any] | None" = field(default_factory=asyncio.current_task)
    admitted: bool = False
    """Whether the engine has it."""
    model: str = ""
    exits: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def begin(self) -> None:
        """The request is complete: its time starts."""
        self.started = time.perf_counter()

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        assert self.deadline is not None
        left = self.deadline - (time.perf_counter() - self.started)
        if left <= 0:
            raise HTTPException(504, LATE)
        return left

    def answered(self, answers: list[Answer]) -> None:
        """The answers are here."""
        self.exits, self.seconds = [answer.exit for answer in answers], time.perf_counter() - self.started


class Service:
    """The state of a server.

    Args:
        models: by name; the first one answers requests that name none.
        limits: what clients may ask for.
        rush: whether clients may start a synthetic load.
        version: of the library.
    """

    def __init__(self, models: Mapping[str, Served], limits: Limits, rush: bool = False, version: str = "") -> None:
        self.models, self.limits, self.rush, self.version = models, limits, rush, version
        self.metrics = Metrics(models)
        self.metrics.active.set_function(lambda: len(self.exchanges))
        self.metrics.streams.set_function(lambda: len(self.streams))
        self.draining = False
        self.exchanges: set[Exchange] = set()
        self.body_bytes = 0
        self.streams: set[asyncio.Queue[Any]] = set()
        self.rushing = False

    def model(self, name: str | None) -> Served:
        """The model of this name, or the first one."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise HTTPException(404, f"there is no model {name[:40]!r}; models are {', '.join(self.models)}")
        return self.models[name]

    def deadline(self, request: Request, written: str | None, microseconds: Any = None) -> float:
        """The deadline of a request, in seconds."""
        written = request.query_params.get("deadline", written)
        return deadline_of(written, request.headers, self.limits.default, self.limits.deadline, microseconds)

    def drain(self) -> None:
        """Admit nothing more, and let the streams end with what they have."""
        self.draining = True
        for queue in self.streams:
            queue.put_nowait(None)

    def refuse_others(self) -> None:
        """End the requests that the engine does not have: those whose bodies or images take long."""
        for exchange in self.exchanges:
            if not exchange.admitted and exchange.task is not None:
                exchange.task.cancel()

    @contextmanager
    def exchange(self, request: Request, route: str) -> Iterator[Exchange]:
        """Count a request by how it ends, and note the facts for the access log."""
        exchange, outcome = Exchange(), "failed"
        closing = HTTPException(503, "the server is shutting down", {"Retry-After": "1", "Connection": "close"})
        self.exchanges.add(exchange)
        try:
            if self.draining:
                raise closing
            yield exchange
            late = exchange.deadline is not None and exchange.seconds > exchange.deadline
            outcome = "late" if late else "answered"
        except (asyncio.CancelledError, ClientGoneError) as error:
            if isinstance(error, asyncio.CancelledError) and self.draining and not exchange.admitted:
                outcome = "refused"
                raise closing from None
            outcome = "gone"
            raise
        except (OverloadedError, UnfinishedError):
            outcome = "refused"
            raise
        except EngineDiedError:
            raise
        except (AnytimeError, HTTPException) as error:
            status = error.status_code if isinstance(error, HTTPException) else 400
            outcome = "refused" if status >= 500 else "invalid"
            raise
        finally:
            self.exchanges.discard(exchange)
            # Once the reply is on its way.
            note = partial(self.metrics.count, exchange.model, route, outcome, exchange.exits, exchange.seconds)
            asyncio.get_running_loop().call_soon(note)
            facts = {"model": exchange.model, "outcome": outcome, "deadline": exchange.deadline}
            request.scope["facts"] = {**facts, "exits": exchange.exits}


async def answers_of(request: Request, futures: list["asyncio.Future[Any]"]) -> list[Any]:
    """Wait for results. On a disconnect, or if one of them fails, the others are not computed any further."""
    connection = request.scope["connection"]

    def cancel() -> None:
        for future in futures:
            future.cancel()

    connection.on_lost = cancel
    try:
        if connection.lost:
            raise ClientGoneError
        return [await futures[0]] if len(futures) == 1 else await asyncio.gather(*futures)
    except asyncio.CancelledError:
        if connection.lost:
            raise ClientGoneError from None
        raise
    finally:
        connection.on_lost = None
        cancel()


def submit(loaded: Loaded, x: Any, exchange: Exchange, **options: Any) -> "asyncio.Future[Answer]":
    """Give a sample to the engine; cancelling the future takes it back."""
    future = loaded.engine.asubmit(loaded.check_sample(x), deadline=exchange.left, **options)
    exchange.admitted = True
    return future
