"""The servers that ours is compared with, and ours behind HTTP; the network of each is in a process on core 0."""

import base64
import json
import logging
import multiprocessing
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np
import torch

import anytime

Done = Callable[[Any, int], object]
"""Called with the logits and the exit of an answer; None and REFUSED or FAILED if there is none."""
FAILED, REFUSED = -1, -2
JSON = "Content-Type: application/json"


class PipeServer:
    """A process that answers over a pipe; requests wait in it, first come, first served."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self.pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=target, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()
        self.asked: dict[int, Done] = {}
        self.pipe.recv()  # ready
        threading.Thread(target=self._listen, daemon=True).start()
        self.number = 0

    def ask(self, x: torch.Tensor, left: float, done: Done) -> None:
        self.number += 1
        self.asked[self.number] = done
        self.pipe.send((self.number, x.numpy(), time.perf_counter() + left))

    def _listen(self) -> None:
        try:
            while True:
                for number, logits, exit in self.pipe.recv():
                    self.asked.pop(number)(logits, exit)
        except (EOFError, OSError):
            return

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def _prepare(folder: str) -> Any:
    os.sched_setaffinity(0, {0})
    torch.set_num_threads(1)
    return anytime.load(folder)


def _waiting(pipe: Connection, most: int, held: list[Any]) -> list[Any]:
    """What has arrived, at least one, without what has expired already."""
    while True:
        while not held or pipe.poll():
            held.append(pipe.recv())
        now = time.perf_counter()
        expired = [entry for entry in held if entry[2] <= now]
        if expired:
            pipe.send([(number, None, -1) for number, _, _ in expired])
        held[:] = [entry for entry in held if entry[2] > now]
        if held:
            taken, held[:] = held[:most], held[most:]
            return taken


def _serve_fixed(pipe: Connection, folder: str, exit: int, batch: int) -> None:
    net, held = _prepare(folder), []
    pipe.send("ready")
    with torch.inference_mode():
        while True:
            taken = _waiting(pipe, batch, held)
            logits = net(torch.from_numpy(np.concatenate([x for _, x, _ in taken])), [exit])[0].numpy()
            pipe.send([(number, logits[i : i + 1], exit) for i, (number, _, _) in enumerate(taken)])


def _serve_predict(pipe: Connection, folder: str) -> None:
    net, held = _prepare(folder), []
    anytime.profile(net, torch.zeros(1, 3, 32, 32))
    pipe.send("ready")
    while True:
        ((number, x, deadline),) = _waiting(pipe, 1, held)
        try:
            found = anytime.predict(net, torch.from_numpy(x), deadline=max(deadline - time.perf_counter() - 0.0005, 0))
            pipe.send([(number, found.logits.numpy(), found.exit)])
        except anytime.UnfinishedError:
            pipe.send([(number, None, -1)])


class FixedServer(PipeServer):
    """Batches of up to ``batch`` to one exit; what has expired in the queue is dropped."""

    def __init__(self, folder: str, exit: int, batch: int) -> None:
        super().__init__(_serve_fixed, folder, exit, batch)


class PredictServer(PipeServer):
    """One request after another, each with ``anytime.predict(deadline=what is left)``."""

    def __init__(self, folder: str) -> None:
        super().__init__(_serve_predict, folder)


LIT = """
import base64, os, sys, numpy as np, torch, litserve, anytime
class API(litserve.LitAPI):
    def setup(self, device):
        os.sched_setaffinity(0, {0}); torch.set_num_threads(1)
        self.net = anytime.load(sys.argv[1])
    def decode_request(self, request):
        return np.frombuffer(base64.b64decode(request["x"]), np.float32).reshape(3, 32, 32)
    def batch(self, inputs):
        return np.stack(inputs)
    def predict(self, x):
        with torch.inference_mode():
            logits = self.net(torch.from_numpy(x.copy()).reshape(-1, 3, 32, 32), [int(sys.argv[5])])[0].numpy()
        return logits if x.ndim == 4 else logits[0]  # without batches there is neither batch nor unbatch
    def unbatch(self, output):
        return list(output)
    def encode_response(self, output):
        return {"logits": output.tolist()}
if __name__ == "__main__":
    api = API(max_batch_size=int(sys.argv[2]), batch_timeout=float(sys.argv[3]))
    os.sched_setaffinity(0, {1})
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, timeout=10)
    server.run(port=int(sys.argv[4]), generate_client_file=False, log_level="error")
"""


class HttpClient:
    """Connections that are kept open; sends from the thread that asks, and reads answers in one thread of its own."""

    def __init__(self, port: int, path: str) -> None:
        self.head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        self.port, self.free, self.selector = port, list[socket.socket](), selectors.DefaultSelector()
        self.asked: dict[socket.socket, tuple[bytearray, Callable[[Any, int], object]]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(
        self, body: bytes, done: Callable[[Any, int], object], header: str = "Content-Type: application/json"
    ) -> None:
        """``done`` is called with the JSON of the reply and its status; None and 0 if the connection was closed."""
        connection = self.free.pop() if self.free else self._connect()
        self.asked[connection] = bytearray(), done
        head = f"{self.head}{header}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.selector.register(connection, selectors.EVENT_READ)
        return connection

    def _listen(self) -> None:
        while True:
            for key, _ in self.selector.select(0.05):
                self._read(key.fileobj)

    def _read(self, connection: Any) -> None:
        try:
            part = connection.recv(65536)
        except OSError:  # reset
            part = b""
        content, done = self.asked.get(connection, (bytearray(), lambda *_: None))
        content += part
        head, found, body = bytes(content).partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        whole = len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")  # or in chunks
        if part and not (found and whole):
            return
        self.asked.pop(connection, None)
        if part:
            self.free.append(connection)
        else:
            self.selector.unregister(connection)
        content = body[body.find(b"{") : body.rfind(b"}") + 1]  # of one chunk, if there are any
        if part:
            done(json.loads(content) if content else None, int(head.split(b" ", 2)[1]))
        else:
            done(None, 0)


def ask_json(client: HttpClient, x: torch.Tensor, exit: int, done: Done) -> None:
    """Send an image, and call ``done`` with the logits of the exit that the server has."""
    body = b'{"x": "%s"}' % base64.b64encode(x.numpy().tobytes())

    def read(answer: Any, status: int) -> None:
        logits = None if status != 200 else np.array(answer["logits"])
        done(logits, FAILED if logits is None else exit)

    client.ask(body, read)


class Batching(NamedTuple):
    """How a server of others puts batches together."""

    largest: int
    wait: float
    """Seconds until a batch that is not full runs."""


class LitServer:
    """LitServe with a network to one exit, with its documented batching."""

    def __init__(self, folder: str, batching: Batching, exit: int, port: int = 8123) -> None:
        self.exit = exit
        self.folder = TemporaryDirectory()  # a file, since LitServe's processes import it
        script = Path(self.folder.name, "server.py")
        script.write_text(LIT, encoding="utf-8")
        command = [sys.executable, str(script), folder, *map(str, batching), str(port), str(exit)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
        self.client = HttpClient(port, "/predict")
        ready = threading.Event()
        for _ in range(480):
            with suppress(OSError):
                self.ask(torch.zeros(1, 3, 32, 32), 1.0, lambda logits, _: logits is not None and ready.set())
            if ready.wait(0.25):
                return
        self.close()
        raise RuntimeError("LitServe did not start")

    def ask(self, x: torch.Tensor, left: float, done: Done) -> None:  # noqa: ARG002
        ask_json(self.client, x, self.exit, done)

    def close(self) -> None:
        os.killpg(self.process.pid, 9)
        self.process.wait()
        self.folder.cleanup()


class HttpEngineServer:
    """Ours as ``anytime serve`` runs it: tensors and deadlines over the Open Inference Protocol, logits as JSON.

    The HTTP process shares core 1 with the generator, as the fronts of the other servers do.
    """

    def __init__(self, folder: str, backend: str) -> None:
        command = [sys.executable, "-m", "anytime", "serve", folder, "--port", "0", "--no-access-log"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [*command, "--backend", backend], stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        if not (found := re.search(r":(\d+)\s*$", ready)):
            self.close()
            raise RuntimeError(f"anytime serve did not start: {ready!r}")
        time.sleep(10)  # the spare process is being started
        for pid in descendants(self.process.pid):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {0})
        index = Request(f"http://127.0.0.1:{found[1]}/v2/repository/index", b"{}", method="POST")
        name = json.loads(urlopen(index).read())[0]["name"]
        self.client = HttpClient(int(found[1]), f"/v2/models/{name}/infer")

    def ask(self, x: torch.Tensor, left: float, done: Done) -> None:
        tensor = {"name": "input", "shape": list(x.shape), "datatype": "FP32"}
        tensor["parameters"] = {"binary_data_size": x.nbytes}
        wanted = [{"name": "logits"}, {"name": "exit"}]
        asked = {"inputs": [tensor], "outputs": wanted, "parameters": {"timeout": max(int(1e6 * left), 1)}}
        described = json.dumps(asked).encode()
        self.client.ask(
            described + x.numpy().tobytes(),
            lambda answer, status: done(*self._read(answer, status)),
            f"Inference-Header-Content-Length: {len(described)}",
        )

    @staticmethod
    def _read(answer: Any, status: int) -> tuple[Any, int]:
        if status != 200:
            return None, REFUSED if status == 503 else FAILED
        outputs = {each["name"]: each["data"] for each in answer["outputs"]}
        return np.array(outputs["logits"]), int(outputs["exit"][0])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (thread / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


class RayServer:
    """Ray Serve with a network to one exit and ``@serve.batch``, over its own HTTP."""

    def __init__(self, folder: str, batching: Batching, exit: int, port: int = 8124) -> None:
        self.exit = exit
        import ray
        from ray import serve

        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # replicas import this file
        if not ray.is_initialized():
            ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        serve.start(http_options={"port": port})

        @serve.deployment(max_ongoing_requests=10_000)
        class ToExit:
            def __init__(self) -> None:
                self.net = _prepare(folder)

            @serve.batch(max_batch_size=batching.largest, batch_wait_timeout_s=batching.wait)
            async def predict(self, xs: list[np.ndarray]) -> list[list[float]]:
                with torch.inference_mode():
                    return self.net(torch.from_numpy(np.stack(xs)), [exit])[0].tolist()

            async def __call__(self, request: Any) -> dict[str, Any]:
                x = np.frombuffer(base64.b64decode((await request.json())["x"]), np.float32).reshape(3, 32, 32)
                return {"logits": await self.predict(x)}

        self.serve = serve
        serve.run(ToExit.bind(), logging_config={"log_level": "ERROR", "enable_access_log": False})
        self.client = HttpClient(port, "/")

    def ask(self, x: torch.Tensor, left: float, done: Done) -> None:  # noqa: ARG002
        ask_json(self.client, x, self.exit, done)

    def close(self) -> None:
        self.serve.delete("default")
