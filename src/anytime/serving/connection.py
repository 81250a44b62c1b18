"""A connection with what uvicorn's lacks: bounds for headers, their time and the number of connections; disconnects."""

from collections.abc import Callable
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from anytime.serving.limits import Limits


def bounded(limits: Limits) -> type[HttpToolsProtocol]:
    """A protocol for uvicorn with these limits."""
    return type("Bounded", (Connection,), {"limits": limits, "idle": {}})


class Connection(HttpToolsProtocol):
    """One client. A request's headers must be here within ``limits.read`` seconds and ``limits.header`` bytes;
    what comes after a reply counts as the beginning of the next one. A connection beyond ``limits.connections`` closes
    the one that has been without a request for longest, so that idle connections keep nobody out.

    Requests find it as ``scope["connection"]``.
    """

    limits = Limits()
    idle: ClassVar[dict["Connection", None]] = {}
    """The server's connections without a request, in the order in which they became so."""
    lost = False
    """Whether the client is gone."""
    on_lost: Callable[[], object] | None = None
    """Called when it goes; set by whoever works for it."""

    def connection_made(self, transport: Any) -> None:
        """A new connection: its first request must begin soon."""
        super().connection_made(transport)
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
        """The client is gone."""
        self._forget_timer()
        self.idle.pop(self, None)
        super().connection_lost(exc)
        self.lost = True
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        self._unfinished += len(data)
        super().data_received(data)
        if self._timer is None and self.cycle is not None and self.cycle.response_complete:
            self._expect_headers()  # also after what is left of a body that nobody reads: it keeps no connection open
        if self._in_headers and self._header_bytes + self._unfinished > self.limits.header:
            self._refuse(431, "the headers are too large")

    def on_message_begin(self) -> None:
        """The first line of a request has begun."""
        super().on_message_begin()
        self._header_bytes, self._unfinished, self._in_headers, self._too_large = 0, 0, True, False
        if self._timer is None:
            self._expect_headers()

    def on_url(self, url: bytes) -> None:
        """A part of the address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        self._count(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """All headers are here; the application reads the body."""
        self._forget_timer()
        self._in_headers = False
        self.idle.pop(self, None)
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """A reply is sent."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.idle[self] = None

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed is answered with 400, or 431 if that is the reason."""
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
