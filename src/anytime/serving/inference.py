"""The routes of the Open Inference Protocol: /v2/…"""

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
from anytime.serving.images import prepare_soon
from anytime.serving.protocol import LENGTH_HEADER, format_response, parse_request
from anytime.serving.protocol import Request as Inference
from anytime.serving.replies import json_reply
from anytime.serving.served import Loaded, Served, check_finite
from anytime.serving.service import ClientGoneError, Exchange, Service, answers_of, submit

INPUT = "input"
OUTPUTS = {
    "logits": "FP32",
    "probabilities": "FP32",
    "class": "BYTES",
    "exit": "INT64",
    "complete": "BOOL",
    "seconds": "FP64",
    "macs": "INT64",
}


def _service(request: Request) -> Service:
    return request.scope["service"]


def _served(request: Request) -> Served:
    if request.path_params.get("version", "1") != "1":
        raise HTTPException(404, "models have one version: 1")
    return _service(request).model(request.path_params["model"])


async def server(request: Request) -> Response:
    """What this server is."""
    extensions = ["binary_tensor_data", "model_repository"]
    return json_reply({"name": "anytime", "version": _service(request).version, "extensions": extensions})


async def live(request: Request) -> Response:  # noqa: ARG001
    """The process runs."""
    return json_reply({"live": True})


async def ready(request: Request) -> Response:
    """The server, or one of its models, admits requests."""
    if "model" in request.path_params:
        _served(request)
    if _service(request).draining:
        raise HTTPException(503, "the server is shutting down")
    return json_reply({"ready": True})


async def metadata(request: Request) -> Response:
    """The inputs and outputs of a model."""
    served = _served(request)
    shape = list(served.loaded.shape or [])
    classes = len(served.loaded.classes) or -1
    return json_reply(
        {
            "name": served.name,
            "versions": ["1"],
            "platform": "anytime_pytorch",
            "inputs": [{"name": INPUT, "datatype": "FP32", "shape": [-1, *shape]}],
            "outputs": [
                {
                    "name": name,
                    "datatype": kind,
                    "shape": [-1, classes] if name in ("logits", "probabilities") else [-1],
                }
                for name, kind in OUTPUTS.items()
            ],
        }
    )


async def index(request: Request) -> Response:
    """All models."""
    state = {"version": "1", "state": "UNAVAILABLE" if _service(request).draining else "READY", "reason": ""}
    return json_reply([{"name": name, **state} for name in _service(request).models])


async def load(request: Request) -> Response:
    """Read a model's folder again and replace the model."""
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
            inference = parse_request(body, request.headers.get(LENGTH_HEADER))
            inference.wants(OUTPUTS)
            exchange.begin(service.deadline(request, None, inference.parameters.get("timeout")))
            batch = await _batch(request, inference, loaded, exchange)
            futures = []
            try:
                futures = [submit(loaded, row, exchange) for row in batch.split(1)]
                answers = await answers_of(request, futures)
            finally:
                for future in futures:  # one that was refused takes the others with it
                    future.cancel()
            exchange.answered(answers)
            content, headers = format_response(served.name, inference, _outputs(loaded, answers))
            return Response(content, headers=headers)


async def _batch(request: Request, inference: Inference, loaded: Loaded, exchange: Exchange) -> Tensor:
    """The samples of a request: floats as the network sees them, pixels, or encoded images."""
    if list(inference.arrays) != [INPUT]:
        raise AnytimeError(f"the inputs are {list(inference.arrays)[:9]}; expected one, called {INPUT!r}")
    array, prepare, limits = inference.arrays[INPUT], loaded.preprocessing, _service(request).limits
    if array.ndim < 1 or not 1 <= len(array) <= limits.rows:
        raise AnytimeError(f"the input has the shape {list(array.shape)}; expected 1 to {limits.rows} samples")
    if array.dtype == object:
        if prepare is None or array.ndim != 1:
            raise AnytimeError("encoded images are a list of BYTES, for a model that knows how to preprocess them")
        rows = []
        for each in array:
            _ = exchange.left  # raises after the deadline
            if request.scope["connection"].lost:
                raise ClientGoneError
            rows.append(await prepare_soon(each, prepare, limits.pixels))
        return torch.cat(rows)
    if array.dtype == np.uint8 and prepare is not None:
        if array.shape[1:] != loaded.shape:
            raise AnytimeError(f"the pixels have the shape {list(array.shape)}; expected [N, *{loaded.shape}]")
        return prepare(array)
    tensor = torch.from_numpy(array.copy())  # what came from the network is read-only
    return check_finite(tensor.float()) if tensor.is_floating_point() else tensor


def _outputs(loaded: Loaded, answers: list[Answer]) -> dict[str, np.ndarray]:
    probabilities = np.array([loaded.probabilities(answer) for answer in answers])
    names = [loaded.class_name(int(best)).encode() for best in probabilities.argmax(1)]
    columns: dict[str, Any] = {
        "logits": np.stack([answer.logits.reshape(-1).numpy() for answer in answers]).astype("<f4"),
        "probabilities": probabilities.astype("<f4"),
        "class": np.array(names, object),
        "exit": np.array([answer.exit for answer in answers], "<i8"),
        "complete": np.array([answer.complete for answer in answers], "?"),
        "seconds": np.array([answer.seconds for answer in answers], "<f8"),
        "macs": np.array([loaded.macs(answer.exit) for answer in answers], "<i8"),
    }
    assert columns.keys() == OUTPUTS.keys()
    return columns
