"""/predict and /stream: an image in, its class out; once, or at every exit."""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from heapq import nlargest
from typing import Any

import msgspec
import torch
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.serving.bodies import body_of
from anytime.serving.engine import Answer
from anytime.serving.exchange import Exchange
from anytime.serving.protocol import InputTensor, from_list, parse_json
from anytime.serving.replies import event, json_reply
from anytime.serving.served import Loaded, check_finite
from anytime.serving.service import Service, answers_of, is_json
from anytime.serving.threads import parse_soon, prepare_soon

TOP = 5
"""Classes in an answer."""


ABSENT = msgspec.Raw()


class SampleBody(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON body of a prediction: either of the first two."""

    image: str | None = None
    """An encoded image in base64."""
    input: msgspec.Raw = ABSENT
    """The network's input: nested lists of numbers, channels × height × width."""
    deadline: str | float | None = None
    """With its unit: a number is refused with that reason."""


_decoder = msgspec.json.Decoder(SampleBody)


async def predict(request: Request) -> Response:
    """The best answer before the deadline."""
    service: Service = request.scope["service"]
    with service.exchange(request, "predict") as exchange:
        served = service.model(request.query_params.get("model"))
        exchange.model = served.name
        with served.use() as loaded:
            x = await _sample(request, service, loaded, exchange)
            (answer,) = await answers_of(request, [exchange.admit(loaded, x)])
            await exchange.answered([answer])
            return json_reply({"model": served.name, **described(loaded, answer, exchange)})


async def _sample(request: Request, service: Service, loaded: Loaded, exchange: Exchange) -> Tensor:
    """Parse the body to a batch of one, and set the deadline."""
    async with body_of(request, service) as body:
        await service.begin(exchange, request, loaded)
        deadline, content = None, body
        if is_json(request.headers):
            deadline, content = await parse_soon(request, exchange, partial(_parsed, loaded.shape), body)
        if exchange.deadline is None:
            exchange.until(service.deadline(request, deadline))
        if isinstance(content, Tensor):
            return content
        if loaded.preprocessing is None:
            raise AnytimeError('this model does not know how images are preprocessed: send JSON {"input": [...]}')
        return await prepare_soon(request, exchange, content, loaded.preprocessing)


def _parsed(shape: tuple[int, ...] | None, body: bytes) -> tuple[str | None, Tensor | bytes]:
    """The deadline in a JSON body, and its sample: numbers of this shape as a batch of one, or an encoded image."""
    sample = parse_json(_decoder, body)
    deadline = f"{sample.deadline:g}" if isinstance(sample.deadline, float) else sample.deadline
    if (sample.image is None) == (sample.input is ABSENT):
        raise AnytimeError('the JSON must hold either "image" or "input"')
    if sample.image is not None:
        return deadline, _bytes(sample.image)
    if shape is None:
        raise AnytimeError("this model's input is not one tensor: /predict cannot take it")
    numbers = from_list(InputTensor("input", list(shape), "FP32", data=sample.input))
    return deadline, check_finite(torch.from_numpy(numbers)[None])


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # many encoders wrap lines
    except ValueError as error:
        raise AnytimeError(
            f"image must be base64, with nothing such as data:image/png;base64, before it: {error}"
        ) from error


def described(loaded: Loaded, answer: Answer, exchange: Exchange, every: bool = False) -> dict[str, Any]:
    """An answer as JSON holds it; ``every``: the heads of the earlier exits were evaluated too."""
    probabilities = loaded.probabilities(answer)
    best = nlargest(TOP, range(len(probabilities)), key=probabilities.__getitem__)
    top = [{"class": loaded.class_name(i), "probability": probabilities[i]} for i in best]
    return {
        **top[0],
        "top": top,
        "id": exchange.id,
        "exit": answer.exit,
        "exits": loaded.exits,
        "complete": answer.complete,
        "seconds": exchange.elapsed,
        "late": exchange.late,
        "macs": loaded.macs(answer.exit, every),
        "stopped_by": answer.stopped_by,
    }


async def stream(request: Request) -> Response:
    """The answer of every exit as it is reached, as server-sent events."""
    service: Service = request.scope["service"]
    if len(service.streams) >= service.limits.streams:
        raise HTTPException(503, f"{service.limits.streams} streams are open already", {"Retry-After": "1"})
    queue: asyncio.Queue[Any] = asyncio.Queue()
    service.streams.add(queue)
    try:
        events = _events(request, service, queue)
        first = await anext(events)  # errors before the first answer have a status of their own
    except BaseException:
        service.streams.discard(queue)
        raise

    async def all_events() -> AsyncIterator[bytes]:
        try:
            yield first
            async for each in events:
                yield each
        finally:
            await events.aclose()
            service.streams.discard(queue)

    return StreamingResponse(all_events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _events(request: Request, service: Service, queue: "asyncio.Queue[Any]") -> AsyncGenerator[bytes]:
    with service.exchange(request, "stream") as exchange:
        served = service.model(request.query_params.get("model"))
        exchange.model = served.name
        with served.use() as loaded:
            x, shown = await _sample(request, service, loaded, exchange), False
            try:
                async with aclosing(answers_on_the_way(loaded, x, exchange, queue)) as answers:
                    async for answer, final in answers:
                        kind, shown = "answer" if final else "exit", True
                        yield event(kind, {"model": served.name, **described(loaded, answer, exchange, every=True)})
            except Exception as error:
                if not shown:
                    raise
                yield event("error", {"error": str(error)})


async def answers_on_the_way(
    loaded: Loaded, x: Tensor, exchange: Exchange, queue: "asyncio.Queue[Any]"
) -> AsyncGenerator[tuple[Answer, bool]]:
    """The answer of every exit as it is reached, then the one that counts, with True.

    Args:
        loaded: the model.
        x: a batch of one.
        exchange: of the request.
        queue: what comes is put there; None ends the stream with the latest answer.
    """
    loop = asyncio.get_running_loop()
    future = exchange.admit(loaded, x, on_exit=lambda answer: loop.call_soon_threadsafe(queue.put_nowait, answer))
    future.add_done_callback(queue.put_nowait)
    latest: Answer | None = None
    try:
        while (item := await queue.get()) is not future and (item or not latest):
            if item:  # and not the signal to end the stream
                latest = item
                yield item, False
        latest = future.result() if item is future else latest
        assert latest is not None
        await exchange.answered([latest])
        yield latest, True
    finally:
        future.cancel()
