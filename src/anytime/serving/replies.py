"""Replies: JSON, errors as the Open Inference Protocol has them, server-sent events."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from anytime.errors import AnytimeError
from anytime.inference.prediction import UnfinishedError
from anytime.serving.engine import EngineDiedError, OverloadedError
from anytime.serving.service import ClientGoneError

encode = msgspec.json.Encoder().encode


def json_reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON reply."""
    return Response(encode(content), status, headers, "application/json")


def error_reply(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error as clients of the protocol expect it."""
    return json_reply({"error": reason}, status, headers)


def event(name: str, content: Any) -> bytes:
    """A server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), encode(content))


def explain(request: Request, error: Exception) -> Response:
    """The reply to a request that could not be answered."""
    if isinstance(error, ClientGoneError):
        return Response(status_code=499)  # the client disconnected
    return error_reply(*status_of(request, error))


def status_of(request: Request, error: Exception) -> tuple[int, str, Mapping[str, str] | None]:
    """The status, the reason and the headers of a request that could not be answered."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail, error.headers
    if isinstance(error, OverloadedError):
        return 503, str(error), {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, UnfinishedError):
        return 504, str(error), None
    if isinstance(error, AnytimeError) and not isinstance(error, EngineDiedError):
        return 400, str(error), None
    logging.getLogger("anytime.serving").error("%s %s failed", request.method, request.url.path, exc_info=error)
    return 500, f"{type(error).__name__}: {error}", None
