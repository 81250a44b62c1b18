"""The servers that ours is compared with, each with the network in a process of its own on core 0."""

import base64
import json
import logging
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

import anytime

Done = Callable[[Any, int], object]


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
            return self.net(torch.from_numpy(x.copy()), [-1])[0].numpy()
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


class LitServer:
    """LitServe at full depth; its documented batching, with the batch that is fastest here."""

    def __init__(self, folder: str, batch: int, port: int = 8123) -> None:
        with open("/tmp/serving_litserve.py", "w") as file:
            file.write(LIT)
        command = [sys.executable, "/tmp/serving_litserve.py", folder, str(batch), "0.002", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        self.port, self.local = port, threading.local()
        self.pool = ThreadPoolExecutor(64)
        for _ in range(240):
            try:
                if self._post(torch.zeros(1, 3, 32, 32)) is not None:
                    break
            except OSError:
                pass
            time.sleep(0.25)

    def _post(self, x: torch.Tensor) -> Any:
        connection = getattr(self.local, "connection", None)
        if connection is None:
            connection = self.local.connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        body = json.dumps({"x": base64.b64encode(x.numpy().tobytes()).decode()})
        try:
            connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            self.local.connection = None
            raise
        return np.array(json.loads(content)["logits"]) if response.status == 200 else None

    def ask(self, x: torch.Tensor, left: float, done: Done) -> None:
        end = time.perf_counter() + left

        def work() -> None:
            try:
                # A client whose deadline has passed does not send any more.
                logits = self._post(x) if time.perf_counter() < end else None
            except (OSError, ValueError):
                logits = None
            done(logits, 26)

        self.pool.submit(work)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        os.killpg(self.process.pid, 9)
        self.process.wait()


class RayServer:
    """Ray Serve at full depth with ``@serve.batch``, called through its own handle."""

    def __init__(self, folder: str, batch: int) -> None:
        import ray
        from ray import serve

        if not ray.is_initialized():
            ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)

        @serve.deployment(max_ongoing_requests=10_000)
        class Full:
            def __init__(self) -> None:
                self.net = _prepare(folder)

            @serve.batch(max_batch_size=batch, batch_wait_timeout_s=0.002)
            async def predict(self, xs: list[np.ndarray]) -> list[np.ndarray]:
                with torch.inference_mode():
                    logits = self.net(torch.from_numpy(np.concatenate(xs)), [-1])[0].numpy()
                return [logits[i] for i in range(len(xs))]

            async def __call__(self, x: np.ndarray) -> np.ndarray:
                return await self.predict(x)

        self.serve = serve
        self.handle = serve.run(Full.bind(), logging_config={"log_level": "ERROR", "enable_access_log": False})
        self.handle.remote(np.zeros((1, 3, 32, 32), np.float32)).result()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.pool = ThreadPoolExecutor(64)

    def ask(self, x: torch.Tensor, left: float, done: Done) -> None:  # noqa: ARG002
        response = self.handle.remote(x.numpy())

        def work() -> None:
            try:
                logits = response.result(timeout_s=2)
            except Exception:
                logits = None
            done(logits, 26)

        self.pool.submit(work)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.serve.delete("default")
