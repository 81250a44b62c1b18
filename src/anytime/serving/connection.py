"""A connection with what uvicorn's lacks: bounds for headers, their time and the number of connections; disconnects."""

import logging
import math
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, ClassVar, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from anytime.serving.admission import OverloadedError
from anytime.serving.arrival import age_of_data
from anytime.serving.guard import LOG, SAFE_HEADERS, log
from anytime.serving.limits import Limits
from anytime.serving.service import Service

OVERLOADED = b"".join(
    [
        STATUS_LINE[503],
        b"%s%scontent-type: application/json\r\n",
        *(b"%s: %s\r\n" % header for header in SAFE_HEADERS),
        b"retry-after: %d\r\ncontent-length: %d\r\n\r\n%s",
    ]
)


def bounded(service: Service) -> type[HttpToolsProtocol]:
    """A protocol for uvicorn in front of a service, with its limits."""
    return type("Bounded", (Connection,), {"service": service, "limits": service.limits, "idle": {}})


class Connection(HttpToolsProtocol):
    """One client. A request's headers must be here within ``limits.read`` seconds and ``limits.header`` bytes;
    what comes after a reply counts as the beginning of the next one. A connection beyond ``limits.connections`` closes
    the one that has been without a request for longest, so that idle connections keep nobody out.

    Requests find it as ``scope["connection"]``, and the moment at which they came as ``scope["came"]``.
    """

    service: Service
    limits: Limits
    idle: ClassVar[dict["Connection", None]] = {}
    """The server's connections without a request, in the order in which they became so."""
    _held: tuple[RequestResponseCycle, Any] | None = None
    lost = False
    """Whether the client has disconnected."""
    on_lost: Callable[[], object] | None = None
    """Called on disconnect; set by the handler of its request."""

    def connection_made(self, transport: Any) -> None:
        """Accept a connection: its first request must begin soon."""
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket")
        self._header_bytes, self._unfinished, self._in_headers, self._timer = 0, 0, True, None
        self._expect_headers()
        if len(self.connections) > self.limits.connections:
            oldest = next(iter(self.idle), None)
            if oldest is None:
                self._refuse(503, "too many connections are open")
                return
            del self.idle[oldest]
            oldest.transport.close()
        self.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a disconnect."""
        self._forget_timer()
        self.idle.pop(self, None)
        super().connection_lost(exc)
        self.lost = True
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._held is not None:  # its body is still arriving
            (cycle, app), self._held = self._held, None
            super()._start_asgi_task(cycle, app)
        if self._timer is None and self.cycle is not None and self.cycle.response_complete:
            self._expect_headers()  # also after what is left of a body that nobody reads: it keeps no connection open
        if self._in_headers and self._header_bytes + self._unfinished > self.limits.header:
            self._refuse(431, "the headers are too large")

    def on_message_begin(self) -> None:
        """Handle the start of a request."""
        super().on_message_begin()
        self._header_bytes, self._unfinished, self._in_headers, self._too_large = 0, 0, True, False
        if self._timer is None:
            self._expect_headers()

    def on_url(self, url: bytes) -> None:
        """Handle a part of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header."""
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle the end of the headers; the application reads the body."""
        self._forget_timer()
        self._in_headers = False
        self.idle.pop(self, None)
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()
        if self.service.leaving:
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """A request may begin: it does when it is whole and its turn comes, or when its body is awaited."""
        if not cycle.more_body:  # one of several that were sent at once
            self._enter(cycle, app)
        else:
            self._held = (cycle, app)

    def _enter(self, cycle: RequestResponseCycle, app: Any) -> None:
        start = partial(super()._start_asgi_task, cycle, app)
        self.service.enter(cast(Scope, cycle.scope), start, partial(self._overloaded, cycle))

    def _overloaded(self, cycle: RequestResponseCycle, error: OverloadedError) -> None:
        """Refuse a request without starting it: in a burst there may be many of those."""
        body, after = b'{"error":"%s"}' % str(error).encode(), max(1, math.ceil(error.retry_after))
        date = b"".join([b"%s: %s\r\n" % header for header in cycle.default_headers])
        end = b"" if cycle.keep_alive else b"connection: close\r\n"
        self.transport.write(OVERLOADED % (date, end, after, len(body), body))
        cycle.response_started = cycle.response_complete = True
        if LOG.isEnabledFor(logging.INFO):
            scope = cast(Scope, cycle.scope)
            scope["facts"] = {"outcome": "refused"}
            self.loop.call_later(0.01, log, scope, 503, len(body), 0.0)  # once there is time
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_message_complete(self) -> None:
        """Handle the end of a request."""
        came = min(self.service.work.turns.mark(), perf_counter() - age_of_data(self._socket))
        self.cycle.scope["came"] = came  # type: ignore[typeddict-unknown-key]
        super().on_message_complete()
        if self._held is not None:
            (cycle, app), self._held = self._held, None
            self._enter(cycle, app)

    def on_response_complete(self) -> None:
        """Handle the end of a reply."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.idle[self] = None

    def send_400_response(self, msg: str) -> None:
        """Reply 400 to a request that cannot be parsed, 431 if its headers are too large."""
        if getattr(self, "_too_large", False):
            self._refuse(431, "the headers are too large")
        else:
            self._refuse(400, msg)

    def _count(self, size: int) -> None:
        """Count a complete part of the headers; reads after it lie within the next. The error ends the parsing."""
        self._header_bytes, self._unfinished = self._header_bytes + size, 0
        if self._header_bytes > self.limits.header:
            self._too_large = True
            raise ValueError("the headers are too large")

    def _expect_headers(self) -> None:
        self._timer = self.loop.call_later(self.limits.read, self._refuse, 408, "the headers took too long to arrive")

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, reason: str) -> None:
        self._forget_timer()
        if self.transport.is_closing():
            return
        body = b'{"error":"%s"}' % reason.encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
