"""A rehearsal before the first client: requests of its own take the way of all others, so that all that runs for the
first time has run, and what the event loop's work takes is known when the first burst comes.
"""

import asyncio
import io
import socket
from contextlib import suppress

import uvicorn
from torch import Tensor
from uvicorn.server import ServerState

from anytime.errors import require
from anytime.serving.app import create_app
from anytime.serving.connection import bounded
from anytime.serving.served import Loaded, Served
from anytime.serving.service import Service

AT_ONCE = (1, 4, 24, 24)
"""Requests that come together, time after time."""
DEADLINE = 1.0
PATIENCE = 5.0


async def rehearse(service: Service) -> None:
    """Answer requests for every model; neither metrics nor audits count them, nor are they logged."""
    twin = Service(service.models, service.limits, audits=False)
    twin.work = service.work  # which is what learns
    config = uvicorn.Config(create_app(twin).app, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    for served in service.models.values():
        content = _request(served)
        for count in AT_ONCE if content else ():
            if served.loaded.engine.first_exit(count) < DEADLINE / 4:
                replies = (_ask(bounded(twin), config, content) for _ in range(count))
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.gather(*replies), PATIENCE)


async def _ask(protocol: type, config: uvicorn.Config, content: bytes) -> None:
    """Send a request over a connection within this process, and wait for the reply."""
    ours, theirs = socket.socketpair()
    made = asyncio.get_running_loop().connect_accepted_socket(lambda: protocol(config, ServerState(), {}), theirs)
    transport, _ = await made
    reader, writer = await asyncio.open_connection(sock=ours)
    writer.write(content)
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
    writer.close()
    transport.close()


def _request(served: Served) -> bytes:
    """For a model of images an image, for others what it was measured with; empty if that is not one tensor."""
    loaded: Loaded = served.loaded
    if loaded.preprocessing is not None and loaded.preprocessing.channels in (1, 3):
        image, content = require("PIL.Image", "serve"), io.BytesIO()
        height, width = loaded.preprocessing.size
        image.radial_gradient("L").resize((width, height)).convert("RGB").save(content, "PNG")
        return _post(f"/predict?model={served.name}&deadline={DEADLINE:g}s", content.getvalue())
    example = loaded.engine.model.example
    if not isinstance(example, Tensor) or not example.is_floating_point():
        return b""
    numbers = example.float().numpy().tobytes()
    head = (
        b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": %s, "parameters": {"binary_data_size": %d}}], '
        b'"parameters": {"timeout": %d}}'
    ) % (str(list(example.shape)).encode(), len(numbers), 1e6 * DEADLINE)
    extra = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return _post(f"/v2/models/{served.name}/infer", head + numbers, extra)


def _post(path: str, body: bytes, extra: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body
