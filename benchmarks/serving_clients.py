"""What clients see of ``anytime serve`` by their own clocks: an open-loop generator and clients of others.

python benchmarks/serving_clients.py FOLDER [--deadline 50] [--only poisson,hey,wrk,ab,triton,grpc,nginx] [--seconds 5]

- ``poisson``: an open loop at 0.5× to 5× of what the network can do at full depth in its best batches.
- ``hey``: bursts of 100 requests, once and three times a second. A simulation says how many of a burst can be answered:
  the HTTP process works on one request at a time, for as long as its processor time per request at low load, half of
  it before the engine and half after; the engine decides and admits as it does, on the measured times of the stages.
- ``wrk``, ``ab``: as many requests as 16 connections can send. ``triton``, ``grpc``: eight ``tritonclient``, which ask
  at random moments. ``nginx``: the open loop through nginx.

Server, engine and clients share this machine's cores. The open loop has priority (nice -10) where that is allowed, so
that its clock is right; it needs little time. The clients of others have none. In time: answered within the deadline
by the client's clock; its share is that of the requests that were not refused.
"""

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from ratio import fact, machine, verdict
from serving_http import Client, percentile, server

from anytime.inference.batch_times import read_batch_times
from anytime.serving.embedded import samples
from anytime.serving.model import saved_accuracy
from anytime.serving.simulation import Arrival, simulate
from anytime.serving.ways import Tables, make_tables

LOADS = (0.5, 1.0, 2.0, 3.0, 5.0)
BURST, BURSTS, REFUSAL = 100, (1, 3), 0.010
GENERATOR = Path(__file__).with_name("serving_generator.py")
FIRST = ["nice", "-n", "-10"]
WRK = """
local file = io.open("{body}", "rb"); wrk.method = "POST"; wrk.body = file:read("*a"); file:close()
local threads = {{}}
function setup(thread) table.insert(threads, thread) end
function init() answered, refused, others = 0, 0, 0 end
function response(status)
  if status == 200 then answered = answered + 1
  elseif status == 503 then refused = refused + 1
  else others = others + 1 end
end
function done(summary, latency, requests)
  for _, t in ipairs(threads) do
    io.write(string.format("counts %d %d %d\\n", t:get("answered"), t:get("refused"), t:get("others")))
  end
  io.write(string.format("p50 %d p99 %d\\n", latency:percentile(50), latency:percentile(99)))
end
"""
NGINX = """
pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; daemon off;
events {{ worker_connections 1024; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    upstream anytime_http {{ server 127.0.0.1:{port}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{front};
        location / {{
            proxy_pass http://anytime_http; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $host; proxy_set_header X-Request-Start "t=${{msec}}";
            proxy_next_upstream error timeout;
        }}
    }}
}}
"""


class Asked:
    """A running server, and what is asked of it."""

    def __init__(self, port: int, body: Path, deadline: float, tables: Tables, seconds: float) -> None:
        self.port, self.body, self.deadline, self.tables, self.seconds = port, body, deadline, tables, seconds
        self.path = f"/predict?deadline={1000 * deadline:g}ms"
        self.url = f"http://127.0.0.1:{port}{self.path}"


def judge(name: str, outcomes: list[tuple[int, float]], deadline: float, limit: float) -> float:
    """What became of requests: status and seconds of each. The number that was admitted."""
    admitted = [seconds for status, seconds in outcomes if status != 503]
    refused = [seconds for status, seconds in outcomes if status == 503]
    in_time = sum(status == 200 and seconds <= deadline for status, seconds in outcomes)
    fact(f"{name}_requests", len(outcomes))
    fact(f"{name}_admitted", len(admitted) / max(len(outcomes), 1))
    for share in (0.5, 0.99):
        fact(f"{name}_p{100 * share:g}_ms", 1000 * percentile(admitted or [0.0], share), "ms, admitted")
    failed = Counter(status for status, _ in outcomes if status not in (200, 503))
    fact(f"{name}_failed", sum(failed.values()), str(dict(failed)) if failed else "")
    if refused:
        fact(f"{name}_refusal_p50_ms", 1000 * percentile(refused, 0.5), "ms")
        fact(f"{name}_refusal_p99_ms", 1000 * percentile(refused, 0.99), "ms")
    verdict(f"clients_{name}_in_time", in_time / max(len(admitted), 1), limit, least=True)
    return len(admitted)


def open_loop(port: int, asked: Asked, rate: float, seed: int) -> list[tuple[int, float]]:
    """Status and seconds of requests at random moments."""
    words = [str(port), asked.path, str(asked.body), str(rate), str(asked.seconds), str(seed)]
    said = subprocess.run(
        [*FIRST, sys.executable, str(GENERATOR), *words], capture_output=True, text=True, check=True
    ).stdout
    outcomes = json.loads(said)
    fact("generator_lag_p99_ms", 1000 * percentile([each[1] for each in outcomes], 0.99), "ms")
    return [(status, seconds) for _, _, status, seconds, *_ in outcomes]


def poisson(asked: Asked, loads: list[float], capacity: float) -> None:
    """The open loop at parts of the capacity."""
    for turn, load in enumerate(loads):
        outcomes = open_loop(asked.port, asked, load * capacity, turn)
        judge(f"poisson_{load:g}x", outcomes, asked.deadline, 0.99)
        time.sleep(0.5)


def hey(asked: Asked) -> None:
    """Bursts, and how many of each a simulation allows."""
    possible = largest_burst(asked.tables, http_seconds(asked), asked.deadline)
    fact("burst_possible", possible, f"of {BURST}, simulated")
    for rate in BURSTS:
        words = [
            "hey",
            "-z",
            f"{max(asked.seconds, 4):g}s",
            "-c",
            str(BURST),
            "-q",
            str(rate),
            "-o",
            "csv",
            "-m",
            "POST",
        ]
        done = subprocess.run([*words, "-D", str(asked.body), asked.url], capture_output=True, text=True, check=True)
        rows = list(csv.DictReader(done.stdout.splitlines()))
        outcomes = [(int(row["status-code"]), float(row["response-time"])) for row in rows]
        name = f"burst_{rate}"
        admitted = judge(name, outcomes, asked.deadline, 0.95)
        each = BURST * admitted / len(outcomes)
        verdict(f"clients_{name}_admitted_of_possible", each / possible, 1.0, least=True)
        refused = [seconds for status, seconds in outcomes if status == 503]
        if refused:
            verdict(f"clients_{name}_refusal_ms", 1000 * percentile(refused, 0.99), 1000 * REFUSAL)


def http_seconds(asked: Asked) -> float:
    """Processor seconds of the HTTP process for one request that is answered."""
    pid = process_at(asked.port)
    client, content, requests = Client(asked.port, asked.path), asked.body.read_bytes(), 200
    for _ in range(20):
        client.ask(content)
    before = processor_seconds(pid)
    for _ in range(requests):
        client.ask(content)
    each = (processor_seconds(pid) - before) / requests
    fact("http_us", 1e6 * each, "processor microseconds of HTTP for a request")
    return each


def process_at(port: int) -> int:
    """The process that listens at a port."""
    wanted = f":{port:04X} 00000000:0000 0A"
    inodes = {line.split()[9] for line in Path("/proc/net/tcp").read_text().splitlines() if wanted in line}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(descriptor).removeprefix("socket:[").rstrip("]") in inodes:
                return int(descriptor.parts[2])
        except OSError:
            continue
    raise RuntimeError(f"no process listens at port {port}")


def processor_seconds(pid: int) -> float:
    """Of a process, all its threads."""
    return sum(
        int(Path(thread, "schedstat").read_text().split()[0]) for thread in Path(f"/proc/{pid}/task").iterdir()
    ) / 1e9  # fmt: skip


def largest_burst(tables: Tables, http: float, deadline: float) -> int:
    """How many of the requests of a burst can be answered in time, if HTTP works on one after another."""
    for count in range(min(BURST, int(deadline / http)), 0, -1):  # it takes all of them before it replies to the first
        trace = [Arrival(0.5 * http * (i + 1), deadline - 0.5 * http * (count - i)) for i in range(count)]
        answers = simulate(tables, trace)
        if all(
            answer is not None and answer[1] <= arrival.deadline for answer, arrival in zip(answers, trace, strict=True)
        ):
            return count
    return 0


def wrk(asked: Asked) -> None:
    """Sixteen connections that ask without a pause, by wrk."""
    with TemporaryDirectory() as folder:
        script = Path(folder, "post.lua")
        script.write_text(WRK.format(body=asked.body))
        words = ["wrk", "-t", "1", "-c", "16", "-d", f"{asked.seconds:g}s", "-s", str(script), asked.url]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in said.splitlines()]
    counts = next(line for line in lines if line[:1] == ["counts"])
    p50, p99 = next((line[1], line[3]) for line in lines if line[:1] == ["p50"])
    for name, count in zip(("answered", "refused", "failed"), counts[1:], strict=True):
        fact(f"wrk_{name}", int(count))
    fact("wrk_p50_ms", int(p50) / 1000, "ms, all replies")
    verdict("clients_wrk_p99_of_deadline", int(p99) / 1e6 / asked.deadline, 1.0)


def ab(asked: Asked) -> None:
    """The same by ab, which keeps a time for each request, without its status."""
    with TemporaryDirectory() as folder:
        table = Path(folder, "times.tsv")
        words = ["ab", "-q", "-k", "-l", "-c", "16", "-n", "1500", "-p", str(asked.body), "-g", str(table)]
        words += ["-T", "application/octet-stream", asked.url]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        times = [float(row["ttime"]) for row in csv.DictReader(table.read_text().splitlines(), delimiter="\t")]
    failed = next((int(line.split()[-1]) for line in said.splitlines() if line.startswith("Non-2xx")), 0)
    fact("ab_requests", len(times))
    fact("ab_refused", failed)
    fact("ab_p50_ms", percentile(times, 0.5), "ms, all replies")
    verdict("clients_ab_in_time", sum(ms <= 1000 * asked.deadline for ms in times) / len(times), 0.99, least=True)


def at_random(asked: Asked, ask: Callable[[], int], rate: float) -> list[tuple[int, float]]:
    """Eight threads that ask at random moments, together ``rate`` a second."""
    outcomes: list[tuple[int, float]] = []
    end = time.perf_counter() + asked.seconds

    def work(seed: int) -> None:
        draw, one = random.Random(seed), ask()
        del one  # the first one opens the connection
        while time.perf_counter() < end:
            time.sleep(draw.expovariate(rate / 8))
            begun = time.perf_counter()
            status = ask()
            outcomes.append((status, time.perf_counter() - begun))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def triton(asked: Asked, name: str, x: np.ndarray, rate: float, grpc_port: int) -> None:
    """Triton's client over HTTP."""
    del grpc_port
    import tritonclient.http as client_library
    from tritonclient.utils import InferenceServerException

    local = threading.local()

    def ask() -> int:
        if not hasattr(local, "client"):
            local.client = client_library.InferenceServerClient(f"127.0.0.1:{asked.port}")
            local.input = client_library.InferInput("input", list(x.shape), "FP32")
            local.input.set_data_from_numpy(x)
        try:
            local.client.infer(name, [local.input], timeout=int(1e6 * asked.deadline))
        except InferenceServerException as error:
            return int(error.status() or 0)
        return 200

    judge("triton", at_random(asked, ask, rate), asked.deadline, 0.99)


def grpc(asked: Asked, name: str, x: np.ndarray, rate: float, grpc_port: int) -> None:
    """Triton's client over gRPC: the deadline of the call is the deadline, so none that is late is seen."""
    import tritonclient.grpc as client_library
    from tritonclient.utils import InferenceServerException

    client = client_library.InferenceServerClient(f"127.0.0.1:{grpc_port}")
    tensor = client_library.InferInput("input", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x)

    def ask() -> int:
        try:
            client.infer(name, [tensor], client_timeout=asked.deadline)
        except InferenceServerException as error:
            return {"StatusCode.RESOURCE_EXHAUSTED": 503, "StatusCode.DEADLINE_EXCEEDED": 504}.get(
                str(error.status()), 500
            )
        return 200

    judge("grpc", at_random(asked, ask, rate), asked.deadline, 0.99)


def through_nginx(asked: Asked, loads: list[float], capacity: float) -> None:
    """The open loop with nginx in between."""
    front = asked.port + 1 if asked.port < 65535 else asked.port - 1
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder, "nginx.conf")
        file.write_text(NGINX.format(folder=folder, port=asked.port, front=front))
        where = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
        assert where is not None, "nginx is not installed"
        process = subprocess.Popen([where, "-p", folder, "-c", str(file)])
        try:
            time.sleep(0.5)
            for turn, load in enumerate(loads):
                outcomes = open_loop(front, asked, load * capacity, 100 + turn)
                judge(f"nginx_{load:g}x", outcomes, asked.deadline, 0.99)
        finally:
            process.terminate()
            process.wait()


@contextmanager
def without_policy(source: Path) -> Iterator[Path]:
    """A copy by whose policy no sample leaves early."""
    with TemporaryDirectory() as temporary:
        yield Path(shutil.copytree(source, Path(temporary) / "model", ignore=shutil.ignore_patterns("policy.json")))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--deadline", type=float, default=50.0, help="milliseconds")
    parser.add_argument("--only", default="poisson,hey,wrk,ab,triton,grpc,nginx")
    parser.add_argument("--loads", default=",".join(f"{load:g}" for load in LOADS))
    parser.add_argument("--rates", default="", help="requests per second, instead of --loads")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--image", type=Path, default=None, help="that is asked about; default: one of the package")
    options = parser.parse_args()
    only, image = options.only.split(","), options.image or next(iter(samples()))
    print(f"{options.folder.name}, {machine()}")
    with without_policy(options.folder) as folder:
        words = [
            "--backend",
            options.backend,
            *(["--grpc-port", "0"] if "grpc" in only else []),
            "--proxy",
            "127.0.0.1",
        ]
        with server(folder, *words) as ports:
            times = (read_batch_times(folder) or read_batch_times(folder / "onnx"))[0]
            exits = sum(head is not None for head in times.heads)
            accuracy = saved_accuracy(folder, exits) or [(i + 1) / exits for i in range(exits)]
            tables = make_tables(times, accuracy, largest=32)
            seconds = {batch: sum(line.at(batch) for line in times.stages) for batch in tables.batches}
            capacity = max(batch / each for batch, each in seconds.items())
            fact("capacity", capacity, "a second at full depth in the best batches, as measured at the start: 1×")
            loads = [float(load) for load in options.loads.split(",")]
            if options.rates:
                loads = [float(rate) / capacity for rate in options.rates.split(",")]
            asked = Asked(ports.http, image, options.deadline / 1000, tables, options.seconds)
            client = Client(ports.http, asked.path)
            for _ in range(50):
                client.ask(image.read_bytes())
            kind: Any = times.kind
            x = np.random.default_rng(0).standard_normal((1, *kind.inputs[0][1][1:]), dtype=np.float32)
            if "poisson" in only:
                poisson(asked, loads, capacity)
            if "hey" in only:
                hey(asked)
            if "wrk" in only:
                wrk(asked)
            if "ab" in only:
                ab(asked)
            for key, ask in (("triton", triton), ("grpc", grpc)):
                if key in only:
                    ask(asked, folder.name, x, 0.5 * capacity, ports.grpc or 0)
            if "nginx" in only:
                through_nginx(asked, [1.0, 3.0], capacity)


if __name__ == "__main__":
    main()
