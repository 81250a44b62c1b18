"""The Open Inference Protocol over gRPC: the same models, limits, token and log as over HTTP.

A call is looked at as the HTTP/2 request that it is: its metadata are the headers, its deadline is the `grpc-timeout`
header that the client sent, less what has passed since. So one set of functions answers both.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Scope

from anytime.errors import AnytimeError, require
from anytime.serving.bodies import held
from anytime.serving.engine import OverloadedError
from anytime.serving.guard import TOKEN_NEEDED, has_token, log
from anytime.serving.inference import (
    EXTENSIONS,
    about,
    answer,
    batch_of,
    check_inputs,
    check_ready,
    outputs_of,
    served_as,
)
from anytime.serving.limits import Limits
from anytime.serving.predict import answers_on_the_way
from anytime.serving.protocol import Request as Inference
from anytime.serving.replies import status_of
from anytime.serving.rpc_messages import (
    POOL,
    SERVICE,
    infer_response,
    message,
    parse_message,
    stream_error,
    stream_response,
)
from anytime.serving.service import Exchange, Service
from anytime.serving.threads import parse_soon

grpc: Any = require("grpc", "grpc")
aio: Any = require("grpc.aio", "grpc")

OPEN = ("ServerLive", "ServerReady")
"""Calls that need no token: orchestrators have none."""

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.RESOURCE_EXHAUSTED,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""By the status that HTTP has for it; any other is INTERNAL."""


class RpcServer:
    """gRPC beside HTTP, in the same event loop. Make it in the loop: it binds its port at once.

    Args:
        address: such as ``127.0.0.1:8001``; port 0 takes a free one.
        limits: those of the service.
        token: that clients must send as ``authorization: Bearer …`` in the metadata; None: nobody must.
    """

    def __init__(self, address: str, limits: Limits, token: str | None) -> None:
        self._token = token
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", limits.body),
            ("grpc.max_metadata_size", limits.header),
            ("grpc.max_connection_idle_ms", int(1000 * limits.idle)),
        ]
        self._server = aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise AnytimeError(f"cannot listen at {address}: {error}; choose another --grpc-port") from error
        self.address = f"{address.rpartition(':')[0]}:{port}"

    async def start(self, service: Service) -> None:
        """Answer calls from now on."""
        handlers, unary = {}, partial(_unary, service, self._token)
        for method in POOL.FindServiceByName(SERVICE).methods:
            asked, said = message(method.input_type.name), message(method.output_type.name)
            forms = {"request_deserializer": asked.FromString, "response_serializer": said.SerializeToString}
            if method.name == "ModelStreamInfer":
                stream = partial(_stream, service, self._token)
                handlers[method.name] = grpc.stream_stream_rpc_method_handler(stream, **forms)
            else:
                work = partial(METHODS[method.name], said)
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(unary(method.name, work), **forms)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        await self._server.start()

    async def stop(self, grace: float) -> None:
        """Accept no more calls; those that are open have so many seconds."""
        await self._server.stop(grace)


@asynccontextmanager
async def _call(service: Service, token: str | None, name: str, context: Any) -> AsyncIterator[Request]:
    """A call as a request. What is raised becomes the call's status; one line in the log in any case."""
    request, started, status = Request(_scope(service, name, context)), time.perf_counter(), 0
    try:
        if name not in OPEN and not has_token(request.headers, token):
            raise HTTPException(401, TOKEN_NEEDED)
        yield request
        status = 200
    except Exception as error:
        status, reason, headers = status_of(request, error)
        code = CODES.get(status, grpc.StatusCode.INTERNAL)
        if service.draining and status == 503:
            code = grpc.StatusCode.UNAVAILABLE  # another server may take it
        await context.abort(code, reason, _trailing(error, headers or {}))
    finally:
        seconds = time.perf_counter() - started
        asyncio.get_running_loop().call_soon(log, request.scope, status, request.scope["sent"], seconds)


def _trailing(error: Exception, headers: Any) -> tuple[tuple[str, str], ...]:
    """When to try again: in seconds as over HTTP, and in milliseconds for gRPC's own retries."""
    if "Retry-After" not in headers:
        return ()
    seconds = error.retry_after if isinstance(error, OverloadedError) else float(headers["Retry-After"])
    milliseconds = str(max(1, math.ceil(1000 * seconds)))
    return (("retry-after", headers["Retry-After"]), ("grpc-retry-pushback-ms", milliseconds))


def _scope(service: Service, name: str, context: Any) -> Scope:
    """A call as an ASGI scope."""
    given = [(key.encode(), _bytes(value)) for key, value in context.invocation_metadata() or ()]
    left = context.time_remaining()
    if left is not None:
        given.append((b"grpc-timeout", _timeout(left).encode()))
    return {
        "type": "http",
        "method": "POST",
        "path": f"/{SERVICE}/{name}",
        "query_string": b"",
        "headers": given,
        "client": (_host(context.peer()), 0),
        "connection": SimpleNamespace(lost=False, on_lost=None),  # a hang-up cancels the call's task
        "service": service,
        "sent": 0,
    }


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")


def _timeout(seconds: float) -> str:
    """As the header has it: at most 8 digits and a unit."""
    micro = max(0, int(1e6 * seconds))
    return f"{micro}u" if micro < 10**8 else f"{min(math.ceil(seconds), 10**8 - 1)}S"


def _host(peer: str) -> str:
    """The address in what gRPC calls a peer: ipv4:127.0.0.1:5000, ipv6:[::1]:5000."""
    return peer.partition(":")[2].rpartition(":")[0].strip("[]") or peer


def _unary(service: Service, token: str | None, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    async def handler(asked: Any, context: Any) -> Any:
        async with _call(service, token, name, context) as request:
            reply = await work(service, request, asked)
            request.scope["sent"] = reply.ByteSize()
            return reply

    return handler


async def _live(said: Any, service: Service, request: Request, asked: Any) -> Any:  # noqa: ARG001
    return said(live=True)


async def _ready(said: Any, service: Service, request: Request, asked: Any) -> Any:  # noqa: ARG001
    return said(ready=_is_ready(service, None))


async def _model_ready(said: Any, service: Service, request: Request, asked: Any) -> Any:  # noqa: ARG001
    return said(ready=_is_ready(service, served_as(service, asked.name, asked.version or "1")))


def _is_ready(service: Service, served: Any) -> bool:
    try:
        check_ready(service, served)
    except HTTPException:
        return False
    return True


async def _server(said: Any, service: Service, request: Request, asked: Any) -> Any:  # noqa: ARG001
    return said(name="anytime", version=service.version, extensions=EXTENSIONS[:1])


async def _metadata(said: Any, service: Service, request: Request, asked: Any) -> Any:  # noqa: ARG001
    return said(**about(served_as(service, asked.name, asked.version or "1")))


async def _infer(said: Any, service: Service, request: Request, asked: Any) -> Any:  # noqa: ARG001
    served = served_as(service, asked.model_name, asked.model_version or "1")
    with service.exchange(request, "infer") as exchange, served.use() as loaded:
        exchange.model = served.name
        with held(asked.ByteSize(), service):
            inference = await _begin(service, request, exchange, loaded, asked)
            answers = await answer(request, inference, loaded, exchange)
        return infer_response(served.name, inference, outputs_of(loaded, answers), _is_raw(asked))


async def _begin(service: Service, request: Request, exchange: Exchange, loaded: Any, asked: Any) -> Inference:
    """A message is here: its time starts. The earlier of the call's deadline and the message's own counts."""
    exchange.begin()
    check = partial(check_inputs, loaded, service.limits.rows)
    inference = await parse_soon(request, exchange, partial(parse_message, check=check), asked, asked.ByteSize())
    own = inference.parameters.get("timeout")
    exchange.deadline = service.deadline(request, None, own)
    if own and "grpc-timeout" in request.headers:
        exchange.deadline = min(exchange.deadline, service.deadline(request, None))
    return inference


def _is_raw(asked: Any) -> bool:
    """Whether the tensors of a request are raw bytes; the answer's are of the same form."""
    return bool(asked.raw_input_contents)


METHODS = {
    "ServerLive": _live,
    "ServerReady": _ready,
    "ModelReady": _model_ready,
    "ServerMetadata": _server,
    "ModelMetadata": _metadata,
    "ModelInfer": _infer,
}


async def _stream(service: Service, token: str | None, messages: Any, context: Any) -> AsyncIterator[Any]:
    """For each request of a stream, the answer of every exit as it is reached; an error ends that request alone."""
    async with _call(service, token, "ModelStreamInfer", context) as request:
        async for asked in messages:
            request.scope["headers"] = _scope(service, "", context)["headers"]  # with the time that is left now
            each = Request(request.scope)
            try:
                async with aclosing(_answers(service, each, asked)) as answers:
                    async for reply in answers:
                        request.scope["sent"] += reply.ByteSize()
                        yield reply
            except Exception as error:
                yield stream_error(status_of(each, error)[1], asked.id)


async def _answers(service: Service, request: Request, asked: Any) -> AsyncIterator[Any]:
    served = served_as(service, asked.model_name, asked.model_version or "1")
    queue: asyncio.Queue[Any] = asyncio.Queue()
    if len(service.streams) >= service.limits.streams:
        raise HTTPException(503, f"{service.limits.streams} streams are open already", {"Retry-After": "1"})
    service.streams.add(queue)
    try:
        with service.exchange(request, "stream") as exchange, served.use() as loaded:
            exchange.model = served.name
            with held(asked.ByteSize(), service):
                inference = await _begin(service, request, exchange, loaded, asked)
                batch = await batch_of(request, inference, loaded, exchange)
            if len(batch) != 1:
                raise AnytimeError(f"a request of a stream has one sample; got {len(batch)}")
            async with aclosing(answers_on_the_way(loaded, batch, exchange, queue)) as answers:
                async for found, final in answers:
                    outputs = outputs_of(loaded, [found])
                    yield stream_response(infer_response(served.name, inference, outputs, _is_raw(asked)), final)
    finally:
        service.streams.discard(queue)
