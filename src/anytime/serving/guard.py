"""Authentication, host checks and the access log."""

import asyncio
import hmac
import logging
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anytime.serving.replies import error_reply

LOG = logging.getLogger("anytime.access")
OPEN = ("/", "/openapi.json", "/v2/health/live", "/v2/health/ready")
"""Paths that need no token, besides the page's files: the page asks for it, and orchestrators have none."""


TOKEN_NEEDED = "a token is needed: Authorization: Bearer …"


def has_token(headers: Mapping[str, str], token: str | None) -> bool:
    """Whether a client has sent the token; None: none is needed."""
    if token is None:
        return True
    given = headers.get("authorization", "").encode("latin-1", "replace")
    return hmac.compare_digest(given, f"Bearer {token}".encode())  # constant-time comparison


class Guard:
    """Checks the token, host and origin of every request.

    Args:
        app: what answers them.
        token: that clients must send as ``Authorization: Bearer …``; None: nobody must.
        hosts: names by which this server may be called, against pages that rebind their name to it; empty: any.
    """

    def __init__(self, app: ASGIApp, token: str | None = None, hosts: Iterable[str] = ()) -> None:
        self.app, self.hosts = app, frozenset(hosts)
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle or refuse a request, and log it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, sent = time.perf_counter(), 0, 0

        async def watched(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *SAFE_HEADERS]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            refusal = self._refusal(scope)
            await (self.app if refusal is None else refusal)(scope, receive, watched)
        finally:
            # Once the reply is on its way.
            asyncio.get_running_loop().call_soon(log, scope, status, sent, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self.hosts and _name(host) not in self.hosts:
            return error_reply(421, f"this server is not called {host[:60]!r}")
        origin = headers.get("origin")
        if origin is not None and _place(origin) != host:
            return error_reply(403, "pages of other sites may not use this server")
        if scope["path"] in OPEN or scope["path"].startswith("/page/") or has_token(headers, self.token):
            return None
        return error_reply(401, TOKEN_NEEDED, {"WWW-Authenticate": "Bearer"})


SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


def _place(origin: str) -> str | None:
    """The name and port in an Origin header; None if it is no address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def log(scope: Scope, status: int, sent: int, seconds: float) -> None:
    """Write the access log line of a request."""
    if LOG.isEnabledFor(logging.INFO):
        LOG.info(_line(scope, status, sent, seconds))


def _line(scope: Scope, status: int, sent: int, seconds: float) -> str:
    """The JSON log record of a request."""
    facts: dict[str, Any] = scope.get("facts", {})
    record = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "client": (scope.get("client") or ("",))[0],
        "method": scope["method"],
        "path": scope["path"],
        "status": status,  # 0: the client disconnected
        "seconds": round(seconds, 6),
        "bytes": sent,
        **facts,
    }
    return msgspec.json.encode(record).decode()
