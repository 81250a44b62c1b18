"""The Open Inference Protocol over gRPC: the same models, limits, token, audits and log as over HTTP.

A call is looked at as the HTTP/2 request that it is: its metadata are the headers, its deadline is the `grpc-timeout`
header that the client sent, less what has passed since. So one set of functions answers both.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Scope

from anytime.errors import AnytimeError, check_number, require
from anytime.serving.bodies import held
from anytime.serving.engine import OverloadedError
from anytime.serving.exchange import LATE, Exchange
from anytime.serving.guard import TOKEN_NEEDED, has_token, log
from anytime.serving.inference import (
    EXTENSIONS,
    OUTPUTS,
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
from anytime.serving.protocol import InferenceRequest as Inference
from anytime.serving.replies import status_of
from anytime.serving.rpc_messages import (
    POOL,
    SERVICE,
    infer_response,
    message,
    parameters_of,
    parse_message,
    read_message,
    stream_error,
    stream_response,
)
from anytime.serving.service import Service
from anytime.serving.threads import parse_soon

grpc: Any = require("grpc", "grpc")
aio: Any = require("grpc.aio", "grpc")

OPEN = ("ServerLive", "ServerReady")
"""Calls that need no token: orchestrators have none."""

MOMENT = 0.25
"""Seconds in which calls that have arrived are taken up."""

CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
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
            ("grpc.absolute_max_metadata_size", limits.header),
            ("grpc.max_connection_idle_ms", int(1000 * limits.idle)),
            ("grpc.server_handshake_timeout_ms", int(1000 * limits.read)),
            ("grpc.max_allowed_incoming_connections", limits.connections),
            ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message may be a large one
        ]
        self._server = aio.server(options=options, maximum_concurrent_rpcs=limits.connections)
        # gRPC keeps whole messages in memory before anybody sees their sizes, so that few are received at one time.
        self._receiving = asyncio.Semaphore(limits.bodies // limits.body)
        self.open = 0
        """Calls that have no reply yet, besides streams."""
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise AnytimeError(f"cannot listen at {address}: {error}; choose another --grpc-port") from error
        self.address = f"{address.rpartition(':')[0]}:{port}"

    async def start(self, service: Service) -> None:
        """Answer calls from now on."""
        handlers = {}
        for method in POOL.FindServiceByName(SERVICE).methods:
            if method.name == "ModelStreamInfer":
                handlers[method.name] = grpc.stream_stream_rpc_method_handler(partial(self._stream, service))
            else:
                asked, said = message(method.input_type.name), message(method.output_type.name)
                work = partial(self._one, service, method.name, asked, partial(METHODS[method.name], said))
                # As a stream of one message: who may call is known before it is received.
                handlers[method.name] = grpc.stream_unary_rpc_method_handler(work)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        await self._server.start()

    async def leave(self, grace: float) -> None:
        """Tell clients to go elsewhere; calls that are open have so many seconds.

        gRPC ends calls that nobody has taken up as if their clients had cancelled them: a moment before, a draining
        service refuses them itself.
        """
        await asyncio.sleep(MOMENT)
        self._leaving = asyncio.ensure_future(self._server.stop(grace))

    async def stop(self, grace: float) -> None:
        """Accept no more calls; those that are open have so many seconds."""
        await self._server.stop(grace)

    async def _one(
        self, service: Service, name: str, asked: Any, work: Callable[..., Any], messages: Any, context: Any
    ) -> bytes:  # fmt: skip
        """A call with one message and one reply."""
        del messages  # context.read() reads them, within a time
        self.open += 1
        try:
            async with _call(service, self._scope(service, name, context), context) as request:
                async with self._receiving:
                    content = await _received(context, service.limits.read)
                if content is None:
                    raise AnytimeError("the call has no message")
                reply = await work(service, request, read_message(asked, content), context)
                content = reply.SerializeToString()
                request.scope["sent"] = len(content)
                return content
        finally:
            self.open -= 1

    async def _stream(self, service: Service, messages: Any, context: Any) -> AsyncIterator[bytes]:
        """For each request of a stream, the answer of every exit as it is reached; an error ends that request alone."""
        del messages
        name: str = "ModelStreamInfer"
        queue: asyncio.Queue[Any] = asyncio.Queue()
        async with _call(service, self._scope(service, name, context), context):
            if len(service.streams) >= service.limits.streams:
                raise HTTPException(503, f"{service.limits.streams} streams are open already", {"Retry-After": "1"})
            service.streams.add(queue)
            try:
                while (content := await _received(context, service.limits.deadline)) is not None:
                    asked = read_message(message("ModelInferRequest"), content)
                    service.streams.discard(queue)
                    queue = asyncio.Queue()  # what came too late for the request before is in the other
                    service.streams.add(queue)
                    scope = self._scope(service, name, context)
                    try:
                        async with (
                            _logged(service, scope) as request,
                            aclosing(_answers(service, request, asked, context, queue)) as answers,
                        ):
                            async for reply in answers:
                                scope["sent"] += len(reply)
                                yield reply
                    except Exception:
                        yield stream_error(scope["failed"][1], asked.id)
            finally:
                service.streams.discard(queue)

    def _scope(self, service: Service, name: str, context: Any) -> Scope:
        """A call as an ASGI scope."""
        given = [(key.encode(), _bytes(value)) for key, value in context.invocation_metadata() or ()]
        client = (_host(context.peer()), 0)
        return {
            "type": "http",
            "method": "POST",
            "path": f"/{SERVICE}/{name}",
            "query_string": b"",
            "headers": given,
            "client": client,
            # A disconnect cancels the call's task.
            "connection": SimpleNamespace(lost=False, on_lost=None, client=client),
            "allowed": name in OPEN or has_token(Request({"type": "http", "headers": given}).headers, self._token),
            "service": service,
            "sent": 0,
        }


async def _received(context: Any, seconds: float) -> bytes | None:
    """The next message of a call, within so many seconds; None after the last one."""
    try:
        async with asyncio.timeout(seconds):
            content = await context.read()
    except TimeoutError:
        raise HTTPException(408, f"no whole message came for {seconds:g} seconds") from None
    return None if content is aio.EOF else content


@asynccontextmanager
async def _call(service: Service, scope: Scope, context: Any) -> AsyncIterator[Request]:
    """A call as a request. What is raised becomes the call's status."""
    try:
        async with _logged(service, scope) as request:
            if not scope["allowed"]:
                raise HTTPException(401, TOKEN_NEEDED)
            yield request
    except Exception as error:
        status, reason, headers = scope["failed"]
        code = CODES.get(status, grpc.StatusCode.INTERNAL)
        if service.draining and status == 503:
            code = grpc.StatusCode.UNAVAILABLE  # another server may take it
        await context.abort(code, reason, _trailing(error, headers or {}))


@asynccontextmanager
async def _logged(service: Service, scope: Scope) -> AsyncIterator[Request]:
    """A request of a call, counted and with a line in the log however it ends; its status there is that of HTTP."""
    request, started, status = Request(scope), perf_counter(), 0
    try:
        yield request
        status = 200
    except Exception as error:
        scope["failed"] = status_of(request, error)
        status = scope["failed"][0]
        raise
    finally:
        if "exchange" in scope:
            exchange: Exchange = scope["exchange"]
            if exchange.outcome == "gone" and exchange.late:  # gRPC itself ends a call at its deadline
                exchange.outcome = "late" if exchange.admitted else "refused"
                if exchange.admitted:
                    exchange.learned.replied(-exchange.late, exchange.ahead)
            service.end(exchange, request)
        asyncio.get_running_loop().call_soon(log, scope, status, scope["sent"], perf_counter() - started)


def _trailing(error: Exception, headers: Any) -> tuple[tuple[str, str], ...]:
    """When to try again: in seconds as over HTTP, and in milliseconds for gRPC's own retries."""
    if "Retry-After" not in headers:
        return ()
    seconds = error.retry_after if isinstance(error, OverloadedError) else float(headers["Retry-After"])
    milliseconds = str(max(1, math.ceil(1000 * seconds)))
    return (("retry-after", headers["Retry-After"]), ("grpc-retry-pushback-ms", milliseconds))


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")


def _host(peer: str) -> str:
    """The address in what gRPC calls a peer: ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000."""
    return peer.partition(":")[2].rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]") or peer


async def _live(said: Any, service: Service, request: Request, asked: Any, context: Any) -> Any:  # noqa: ARG001
    return said(live=True)


async def _ready(said: Any, service: Service, request: Request, asked: Any, context: Any) -> Any:  # noqa: ARG001
    return said(ready=_is_ready(service, None))


async def _model_ready(said: Any, service: Service, request: Request, asked: Any, context: Any) -> Any:  # noqa: ARG001
    return said(ready=_is_ready(service, served_as(service, asked.name, asked.version or "1")))


def _is_ready(service: Service, served: Any) -> bool:
    try:
        check_ready(service, served)
    except HTTPException:
        return False
    return True


async def _server(said: Any, service: Service, request: Request, asked: Any, context: Any) -> Any:  # noqa: ARG001
    return said(name="anytime", version=service.version, extensions=EXTENSIONS[:1])


async def _metadata(said: Any, service: Service, request: Request, asked: Any, context: Any) -> Any:  # noqa: ARG001
    return said(**about(served_as(service, asked.name, asked.version or "1")))


async def _infer(said: Any, service: Service, request: Request, asked: Any, context: Any) -> Any:  # noqa: ARG001
    served = served_as(service, asked.model_name, asked.model_version or "1")
    request = _timed(request, asked, _left(context), None)
    with service.exchange(request, "ModelInfer") as exchange, served.use() as loaded:
        exchange.model = served.name
        with held(asked.ByteSize(), service):
            inference = await _begin(service, request, exchange, loaded, asked)
            answers = await answer(request, inference, loaded, exchange)
        return infer_response(served.name, inference, outputs_of(loaded, answers, exchange), _is_raw(asked))


def _left(context: Any) -> float | None:
    """Seconds until the deadline of a call; None: it has none. Clients round it up to three digits as they send it."""
    left = context.time_remaining()
    if left is None:
        return None
    return left - next((unit for most, unit in ((1, 0.001), (10, 0.01), (100, 0.1)) if left < most), 1.0)


def _timed(request: Request, asked: Any, left: float | None, default: float | None) -> Request:
    """The request with its deadline as a header: the call's, or the message's own if that is earlier.

    Args:
        request: the call.
        asked: the message, which may have ``parameters.timeout`` in microseconds.
        left: seconds until the call's deadline; None: it has none.
        default: seconds for messages without a deadline of their own; None: the call's.
    """
    own = parameters_of(asked).get("timeout")
    written = default if not own else 1e-6 * check_number("parameters.timeout, in microseconds,", own)
    scope = request.scope
    if known := [seconds for seconds in (written, left) if seconds is not None]:
        if min(known) <= 0:
            raise HTTPException(504, LATE)
        timeout = (b"grpc-timeout", _timeout(min(known)).encode())
        scope["headers"] = [*(each for each in scope["headers"] if each[0] != b"grpc-timeout"), timeout]
    return Request(scope)


def _timeout(seconds: float) -> str:
    """Format a ``grpc-timeout`` header: at most 8 digits and a unit."""
    micro = max(1, int(1e6 * seconds))
    return f"{micro}u" if micro < 10**8 else f"{min(math.ceil(seconds), 10**8 - 1)}S"


async def _begin(service: Service, request: Request, exchange: Exchange, loaded: Any, asked: Any) -> Inference:
    """A message is here: it waits for its turn and is parsed."""
    await service.begin(exchange, request, loaded)
    check = partial(check_inputs, loaded, service.limits.rows)
    return await parse_soon(request, exchange, partial(parse_message, check=check), asked, asked.ByteSize())


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


async def _answers(
    service: Service, request: Request, asked: Any, context: Any, queue: "asyncio.Queue[Any]"
) -> AsyncGenerator[bytes]:
    """The answers of every exit to a request of a stream, and the one that counts."""
    served = served_as(service, asked.model_name, asked.model_version or "1")
    request = _timed(request, asked, _left(context), service.limits.default)
    with service.exchange(request, "ModelStreamInfer") as exchange, served.use() as loaded:
        exchange.model = served.name
        with held(asked.ByteSize(), service):
            inference = await _begin(service, request, exchange, loaded, asked)
            inference.wants(OUTPUTS)
            batch = await batch_of(request, inference, loaded, exchange)
        if len(batch) != 1:
            raise AnytimeError(f"a request of a stream has one sample; got {len(batch)}")
        async with aclosing(answers_on_the_way(loaded, batch, exchange, queue)) as answers:
            async for found, final in answers:
                outputs = outputs_of(loaded, [found], exchange)
                yield stream_response(infer_response(served.name, inference, outputs, _is_raw(asked)), final)
