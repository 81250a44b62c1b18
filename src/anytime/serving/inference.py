"""The routes of the Open Inference Protocol: /v2/…"""

from functools import partial
from typing import Any

import numpy as np
import torch
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.serving.bodies import body_of
from anytime.serving.engine import Answer
from anytime.serving.exchange import Exchange
from anytime.serving.protocol import LENGTH_HEADER, InferenceRequest, InputTensor, format_response, parse_request
from anytime.serving.replies import json_reply
from anytime.serving.served import Loaded, Served, check_finite
from anytime.serving.service import Service, answers_of
from anytime.serving.threads import parse_soon, prepare_soon

EXTENSIONS = ["binary_tensor_data", "model_repository"]
INPUT = "input"
OUTPUTS = {
    "logits": "FP32",
    "probabilities": "FP32",
    "class": "BYTES",
    "exit": "INT64",
    "complete": "BOOL",
    "seconds": "FP64",
    "late": "FP64",
    "macs": "INT64",
}


def _service(request: Request) -> Service:
    return request.scope["service"]


def _served(request: Request) -> Served:
    return served_as(_service(request), request.path_params["model"], request.path_params.get("version", "1"))


def served_as(service: Service, name: str, version: str) -> Served:
    """The model of a name and a version."""
    if version != "1":
        raise HTTPException(404, "models have one version: 1")
    return service.model(name)


async def server(request: Request) -> Response:
    """Server metadata."""
    return json_reply({"name": "anytime", "version": _service(request).version, "extensions": EXTENSIONS})


async def live(request: Request) -> Response:  # noqa: ARG001
    """Liveness."""
    return json_reply({"live": True})


async def ready(request: Request) -> Response:
    """Readiness of the server or of one of its models."""
    check_ready(_service(request), _served(request) if "model" in request.path_params else None)
    return json_reply({"ready": True})


def check_ready(service: Service, served: Served | None = None) -> None:
    """Raise if the server, or this one of its models, admits no requests."""
    if not service.ready:
        raise HTTPException(503, "the server is starting or shutting down")
    asked = service.models.values() if served is None else [served]
    if waits := [each.name for each in asked if not each.loaded.engine.ready]:
        raise HTTPException(503, f"no engine process of {', '.join(waits)} is ready")


async def metadata(request: Request) -> Response:
    """Model metadata: inputs and outputs."""
    return json_reply(about(_served(request)))


def about(served: Served) -> dict[str, Any]:
    """What the protocol says of a model."""
    shape = list(served.loaded.shape or [])
    classes = len(served.loaded.classes) or -1
    return {
        "name": served.name,
        "versions": ["1"],
        "platform": "anytime_pytorch",
        "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [-1, *shape]}],
        "outputs": [
            {"name": name, "datatype": kind, "shape": [-1, classes] if name in ("logits", "probabilities") else [-1]}
            for name, kind in OUTPUTS.items()
        ],
    }


async def index(request: Request) -> Response:
    """The repository index: all models."""
    state = {"version": "1", "state": "READY" if _service(request).ready else "UNAVAILABLE", "reason": ""}
    return json_reply([{"name": name, **state} for name in _service(request).models])


async def load(request: Request) -> Response:
    """Reload a model from its folder."""
    service, served = _service(request), _served(request)
    async with body_of(request, service):  # parameters of the load are ignored: a client names no files
        await served.reload()
    return json_reply({})


async def infer(request: Request) -> Response:
    """Answers for the samples of a request, all before its deadline."""
    service, served = _service(request), _served(request)
    with service.exchange(request, "infer") as exchange, served.use() as loaded:
        exchange.model = served.name
        async with body_of(request, service) as body:
            await service.begin(exchange, request, loaded)
            check = partial(check_inputs, loaded, service.limits.rows)
            parse = partial(parse_request, header_length=request.headers.get(LENGTH_HEADER), check=check)
            inference = await parse_soon(request, exchange, parse, body)
            if exchange.deadline is None:
                exchange.until(service.deadline(request, None, inference.parameters.get("timeout")))
            answers = await answer(request, inference, loaded, exchange)
            content, headers = format_response(served.name, inference, outputs_of(loaded, answers, exchange))
            return Response(content, headers=headers)


async def answer(request: Request, inference: InferenceRequest, loaded: Loaded, exchange: Exchange) -> list[Answer]:
    """The answers to a request that is parsed and has its deadline, one for each sample."""
    inference.wants(OUTPUTS)
    batch = await batch_of(request, inference, loaded, exchange)
    futures = []
    try:
        rows, exchange.id = batch.split(1), inference.id or exchange.id
        ids = [exchange.id] if len(rows) == 1 else [f"{exchange.id}/{i}" for i in range(len(rows))]
        futures = [exchange.admit(loaded, row, id) for row, id in zip(rows, ids, strict=True)]
        answers = await answers_of(request, futures)
    finally:
        for future in futures:  # one that was refused takes the others with it
            future.cancel()
    await exchange.answered(answers)
    return answers


def check_inputs(loaded: Loaded, rows: int, inputs: list[InputTensor]) -> None:
    """Raise if the model does not take these inputs."""
    if [tensor.name for tensor in inputs] != [INPUT]:
        names = [tensor.name[:40] for tensor in inputs[:9]]
        raise AnytimeError(f"the inputs are {names}; expected one, called {INPUT!r}")
    (tensor,) = inputs
    if not tensor.shape or not 1 <= tensor.shape[0] <= rows:
        raise AnytimeError(f"the input has the shape {tensor.shape}; expected 1 to {rows} samples")
    if tensor.datatype == "BYTES":
        if loaded.preprocessing is None or len(tensor.shape) != 1:
            raise AnytimeError("encoded images are a list of BYTES, for a model that knows how to preprocess them")
    elif loaded.shape is not None and tuple(tensor.shape[1:]) != loaded.shape:
        expected = ", ".join(map(str, loaded.shape))
        raise AnytimeError(f"the input has the shape {tensor.shape}; expected [N, {expected}]")


async def batch_of(request: Request, inference: InferenceRequest, loaded: Loaded, exchange: Exchange) -> Tensor:
    """The samples of a request: floats as the network sees them, pixels, or encoded images."""
    array, prepare = inference.arrays[INPUT], loaded.preprocessing
    if array.dtype == object and prepare is not None:
        return torch.cat([await prepare_soon(request, exchange, each, prepare) for each in array])
    if array.dtype == np.uint8 and prepare is not None:
        return prepare(array)
    tensor = torch.from_numpy(array.copy())  # what came from the network is read-only
    return check_finite(tensor.float()) if tensor.is_floating_point() else tensor


def outputs_of(loaded: Loaded, answers: list[Answer], exchange: Exchange) -> dict[str, np.ndarray]:
    """All outputs, with a row for each sample."""
    probabilities = np.array([loaded.probabilities(answer) for answer in answers])
    names = [loaded.class_name(int(best)).encode() for best in probabilities.argmax(1)]
    columns: dict[str, Any] = {
        "logits": np.stack([answer.logits.reshape(-1).numpy() for answer in answers]).astype("<f4"),
        "probabilities": probabilities.astype("<f4"),
        "class": np.array(names, object),
        "exit": np.array([answer.exit for answer in answers], "<i8"),
        "complete": np.array([answer.complete for answer in answers], "?"),
        "seconds": np.full(len(answers), exchange.elapsed, "<f8"),
        "late": np.full(len(answers), exchange.late, "<f8"),
        "macs": np.array([loaded.macs(answer.exit) for answer in answers], "<i8"),
    }
    assert columns.keys() == OUTPUTS.keys()
    return columns
