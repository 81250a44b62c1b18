"""What HTTP adds to a prediction in the same process, and what of the throughput of whole batches is left.

Low load: one client that waits for each answer, against decoding, preprocessing and ``predict`` in this process, in
turn. Saturated: as many clients as fill the batches, each of whom waits for its answer, against the same network on
whole batches of that size, offline, on one core.

python benchmarks/serving_http.py [FOLDER]        # default: the embedded model; 400 requests, 8 seconds of 64 clients
"""

import io
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from ratio import fact, interleaved, machine, verdict

import anytime
from anytime.serving.embedded import FOLDER, samples

REQUESTS, SECONDS, CLIENTS, BATCH = 400, 8.0, 64, 32


class Ports(NamedTuple):
    """Where a server listens."""

    http: int
    grpc: int | None


@contextmanager
def server(folder: Path, *words: str) -> Iterator[Ports]:
    """A server of a model, with more words for its command."""
    command = [sys.executable, "-m", "anytime", "serve", str(folder), "--port", "0", "--no-access-log", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            found = [int(number) for number in re.findall(r":(\d+)", process.stdout.readline())]
            time.sleep(10)  # the spare process is being started
            yield Ports(found[0], found[1] if len(found) > 1 else None)
        finally:
            process.send_signal(signal.SIGTERM)


class Client:
    """A connection that is kept open: a client whose own time is small against what is measured."""

    def __init__(self, port: int, path: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: ".encode()

    def ask(self, content: bytes) -> bytes:
        """The body of the reply."""
        self.socket.sendall(self.head + b"%d\r\n\r\n" % len(content) + content)
        reply = b""
        while b"\r\n\r\n" not in reply:
            reply += self.socket.recv(65536)
        head, _, body = reply.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        while len(body) < length:
            body += self.socket.recv(65536)
        assert head.startswith(b"HTTP/1.1 200"), body
        return body


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def low_load(port: int, net: anytime.Network, images: list[bytes]) -> None:
    """One request at a time, in turn with the same work in this process."""
    client, turn = Client(port, "/predict?deadline=10s"), 0

    def over_http() -> None:
        nonlocal turn
        turn += 1
        client.ask(images[turn % len(images)])

    def here() -> None:
        anytime.predict(net, net.preprocess(Image.open(io.BytesIO(images[turn % len(images)]))))

    for _ in range(20):
        over_http()
        here()
    pairs = interleaved(over_http, here, REQUESTS)
    ours, theirs = [first for first, _ in pairs], [second for _, second in pairs]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        fact(f"http_{name}_ms", 1000 * percentile(ours, share), "ms over HTTP")
        fact(f"here_{name}_ms", 1000 * percentile(theirs, share), "ms in this process")
    more = [1000 * (first - second) for first, second in pairs]
    p50, p99 = statistics.median(more), percentile(more, 0.99)
    fact("overhead_p50_ms", p50, "ms that HTTP adds, median")
    fact("overhead_p99_ms", p99, "ms, 99th percentile")
    verdict("serving_http_overhead_p50_ms", p50, 1.0)
    verdict("serving_http_overhead_p99_ms", p99, 3.0)


def saturated(port: int, net: anytime.Network, images: list[bytes]) -> None:
    """Many clients at once, for some seconds, before and after the same number of seconds of whole batches."""
    batch = torch.cat([net.preprocess(Image.open(io.BytesIO(images[i % len(images)]))) for i in range(BATCH)])

    def offline() -> float:
        done, begun = 0, time.perf_counter()
        with torch.inference_mode():
            while time.perf_counter() < begun + SECONDS / 2:
                anytime.predict(net, batch)
                done += BATCH
        return done / (time.perf_counter() - begun)

    def over_http() -> float:
        stop, counts = time.perf_counter() + SECONDS, [0] * CLIENTS

        def work(number: int) -> None:
            client = Client(port, "/predict?deadline=20s")
            while time.perf_counter() < stop:
                client.ask(images[number % len(images)])
                counts[number] += 1

        threads = [threading.Thread(target=work, args=(i,)) for i in range(CLIENTS)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - begun)

    before, ours, after = offline(), over_http(), offline()
    theirs = statistics.mean([before, after])
    fact("http_per_second", ours, f"predictions per second over HTTP, {CLIENTS} clients")
    fact("offline_per_second", theirs, f"per second in batches of {BATCH}, offline, one core")
    verdict("serving_http_throughput", ours / theirs, 0.9, least=True)


def main(source: Path) -> None:
    torch.set_num_threads(1)
    net = anytime.load(source).float()
    images = [path.read_bytes() for path in samples()]
    print(f"{source.name}, {machine()}")
    with tempfile.TemporaryDirectory() as temporary:
        # Without the policy, by which sure images leave early: both run the whole network.
        folder = shutil.copytree(source, Path(temporary) / "model", ignore=shutil.ignore_patterns("policy.json"))
        with server(folder) as ports:
            low_load(ports.http, net, images)
            saturated(ports.http, net, images)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
