"""The state of a server: its models, limits and counters, and whether it is shutting down."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Scope

from anytime.errors import AnytimeError
from anytime.inference.prediction import UnfinishedError
from anytime.serving.arrival import Proxies
from anytime.serving.booking import Route, Work
from anytime.serving.deadlines import deadline_of
from anytime.serving.engine import Engine, EngineDiedError, OverloadedError
from anytime.serving.exchange import Exchange
from anytime.serving.limits import Limits
from anytime.serving.metrics import Metrics
from anytime.serving.served import Loaded, Served

LONGEST_ID = 64
"""Longest request ID of a client, in characters."""


class ClientGoneError(Exception):
    """The client disconnected before it was answered."""


class Service:
    """The state of a server.

    Args:
        models: by name; the first one answers requests that name none.
        limits: what clients may ask for.
        rush: whether clients may start a synthetic load.
        version: of the library.
        proxies: whose word counts about when a request came and is due.
        audits: whether requests are those of clients, and may be audited.
    """

    def __init__(
        self,
        models: Mapping[str, Served],
        limits: Limits,
        rush: bool = False,
        version: str = "",
        proxies: Proxies | None = None,
        audits: bool = True,
    ) -> None:
        self.models, self.limits, self.rush, self.version, self.audits = models, limits, rush, version, audits
        self.proxies = proxies or Proxies()
        self.work = Work()
        self.metrics = Metrics(models)
        self.metrics.active.set_function(lambda: len(self.exchanges))
        self.metrics.streams.set_function(lambda: len(self.streams))
        self.ready = False
        """Whether clients should send requests here."""
        self.leaving = False
        """Whether connections are closed after their replies, so that clients open new ones elsewhere."""
        self.draining = False
        """Whether nothing is admitted any more."""
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

    def deadline(self, request: Request, written: str | None = None, microseconds: Any = None) -> float:
        """The deadline of a request, in seconds from when it came."""
        written = request.query_params.get("deadline", written)
        return self._deadline(request.scope, request.headers, written, microseconds)

    def _deadline(
        self, scope: Scope, headers: Mapping[str, str], written: str | None, microseconds: Any = None
    ) -> float:
        default = scope.get("due", self.limits.default)
        return deadline_of(written, headers, default, self.limits.deadline, microseconds)

    def drain(self) -> None:
        """Admit nothing more, and let the streams end with what they have."""
        self.ready, self.leaving, self.draining = False, True, True
        for queue in self.streams:
            queue.put_nowait(None)

    def refuse_others(self) -> None:
        """End the requests that the engine does not have: those whose bodies or images take long."""
        for exchange in self.exchanges:
            if not exchange.admitted and exchange.task is not None:
                exchange.task.cancel()

    @contextmanager
    def exchange(self, request: Request, route: str) -> Iterator[Exchange]:
        """Track the outcome of a prediction request; ``end`` counts it once the reply is written."""
        exchange = Exchange(route, self.work, audited=self.audits)
        exchange.id = request.headers.get("x-request-id", exchange.id)[:LONGEST_ID]
        closing = HTTPException(503, "the server is shutting down", {"Retry-After": "1", "Connection": "close"})
        self.exchanges.add(exchange)
        request.scope["exchange"] = exchange
        try:
            if self.draining:
                raise closing
            yield exchange
            exchange.outcome = "answered"
        except (asyncio.CancelledError, ClientGoneError) as error:
            if isinstance(error, asyncio.CancelledError) and self.draining and not exchange.admitted:
                exchange.outcome = "refused"
                raise closing from None
            exchange.outcome = "gone"
            raise
        except (OverloadedError, UnfinishedError):
            exchange.outcome = "refused"
            raise
        except EngineDiedError:
            raise
        except (AnytimeError, HTTPException) as error:
            status = error.status_code if isinstance(error, HTTPException) else 400
            exchange.outcome = "refused" if status >= 500 else "invalid"
            raise

    def enter(self, scope: Scope, start: Callable[[], object], refuse: Callable[[OverloadedError], object]) -> None:
        """Handle a complete request: refuse it before any work is spent on it, or start it when it is its turn.

        Args:
            scope: of the request.
            start: starts its endpoint.
            refuse: replies 503.
        """
        route = route_of(scope)
        if route is None or self.draining:
            start()
            return
        try:
            deadline = self._arrive(scope)
            served = self.model(model_of(scope))
        except (AnytimeError, HTTPException):  # the endpoint replies with the error
            start()
            return
        engine, learned = served.loaded.engine, self.work.routes[route]
        due = scope["came"] + (self.limits.default if deadline is None else deadline)

        def refused(check: Callable[[Engine, Route, float], None]) -> bool:
            try:
                if deadline is not None:
                    check(engine, learned, due)
            except OverloadedError as error:
                refuse(error)
                self.metrics.refused(served.name, route)
                return True
            return False

        def begin() -> bool:
            if refused(self.work.check_turn):
                return False
            start()
            return True

        scope["waited"], scope["deadline"] = True, deadline
        if not refused(self.work.check):
            self.work.turns.call(due, begin, partial(refused, partial(self.work.check, waits=True, reserve=0.0)))

    def _arrive(self, scope: Scope) -> float | None:
        """Set the arrival of a request; return its deadline in seconds, None if its body may contain it."""
        now = perf_counter()
        came = scope.setdefault("came", now)
        headers = Headers(scope=scope)
        if self.proxies.networks:
            said, due = self.proxies.moments(scope["connection"].client, headers, now)
            scope["came"] = came if said is None else min(came, said)
            if due is not None:
                scope["due"] = due - scope["came"]
        written = query_of(scope["query_string"]).get("deadline")
        if written is None and (route_of(scope) == "infer" or is_json(headers)):
            return None
        return self._deadline(scope, headers, written)

    async def begin(self, exchange: Exchange, request: Request, loaded: Loaded) -> None:
        """Wait for the turn of a request whose body has arrived, unless it has had it."""
        scope, waited = request.scope, "waited" in request.scope
        exchange.deadline = scope["deadline"] if waited else self._arrive(scope)
        exchange.came = scope["came"]
        due = exchange.came + (self.limits.default if exchange.deadline is None else exchange.deadline)
        await exchange.begin(loaded, due, waited)

    def end(self, exchange: Exchange, request: Request) -> None:
        """Finish a request: its reply is written, or there will be none."""
        exchange.replied()
        self.exchanges.discard(exchange)
        asyncio.get_running_loop().call_soon(partial(self.metrics.count, exchange))
        request.scope["facts"] = {
            "model": exchange.model,
            "outcome": exchange.outcome,
            "deadline": exchange.deadline,
            "late": round(exchange.late, 6) if exchange.outcome == "late" else 0.0,
            "exits": exchange.exits,
        }


@lru_cache(1024)
def query_of(text: bytes) -> dict[str, str]:
    """The parameters of a query string."""
    return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True))


def route_of(scope: Scope) -> str | None:
    """The route of a request for predictions; None for others."""
    if scope["method"] != "POST":
        return None
    path = scope["path"]
    return {"/predict": "predict", "/stream": "stream"}.get(path, "infer" if path.endswith("/infer") else None)


def model_of(scope: Scope) -> str | None:
    """The name of the model that a request for predictions is for."""
    if scope["path"].endswith("/infer"):
        return scope["path"].split("/")[3] if scope["path"].startswith("/v2/models/") else None
    return query_of(scope["query_string"]).get("model")


def is_json(headers: Mapping[str, str]) -> bool:
    """Whether a body is JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


async def answers_of(request: Request, futures: list["asyncio.Future[Any]"]) -> list[Any]:
    """Wait for answers. On a disconnect, or if one of them fails, the others are cancelled."""
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
