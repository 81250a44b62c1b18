"""Servers in processes of their own, as `anytime serve` starts them."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

import anytime


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """A small network for images of handwritten digits, trained a little."""
    folder = tmp_path_factory.mktemp("served") / "digits"
    net = anytime.create_model("resann-1-4", in_channels=1)
    anytime.fit(net, anytime.load_data("digits").subset(200), epochs=2, output=folder, show=False)
    return folder


class Running:
    """A server process and a client of it."""

    def __init__(self, process, address, log, grpc=None):
        self.process, self.address, self.log = process, address, log
        self.port = int(address.rpartition(":")[2])
        self.grpc = grpc

    def client(self, **options):
        return httpx.Client(base_url=self.address, timeout=60, **options)

    def requests(self):
        """What its log says of the requests so far; a line follows its reply."""
        return [
            json.loads(line)
            for line in self.log.read_text().splitlines()
            if line.startswith("{") and line.endswith("}")
        ]

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        return self.process.wait(60)


@contextmanager
def started(command, log):
    """Start a server; wait until it says that it is ready; end it in the end, if it has not ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(log, "w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready http://"), (line, log.read_text())
        words = line.split()
        yield Running(process, words[1], log, words[3] if "grpc" in words else None)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(60) == 0, log.read_text()
        finally:
            process.kill()
            process.stdout.close()


@pytest.fixture(scope="session")
def serving_started():
    """Start any command that serves."""
    return started


@pytest.fixture(scope="session")
def serve(tmp_path_factory):
    """Start `anytime serve` with these words."""

    def start(*words):
        log = tmp_path_factory.mktemp("log") / "server.log"
        return started([sys.executable, "-m", "anytime", "serve", "--port", "0", *map(str, words)], log)

    return start


@pytest.fixture(scope="session")
def server(serve, run_folder):
    """One server for all tests that do not end it."""
    with serve(run_folder) as running:
        yield running


@pytest.fixture(scope="session")
def client(server):
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def serve_with(tmp_path_factory):
    """Start a server with other limits than the command has, its engine in a thread: one process starts sooner."""
    code = (
        "import sys; from functools import partial; from pathlib import Path; "
        "from anytime.serving.server import serve; from anytime.serving.served import Served; "
        "from anytime.serving.engine import Engine; "
        "from anytime.serving.limits import Limits; "
        "folder = Path(sys.argv[1]); start = partial(Engine, folder, processes=0); "
        "serve(lambda loop: {'digits': Served('digits', folder, start)}, port=0, "
        "limits=Limits(**eval(sys.argv[2])), say=partial(print, flush=True))"
    )

    def start(folder, **limits):
        log = tmp_path_factory.mktemp("log") / "server.log"
        return started([sys.executable, "-c", code, str(folder), repr(limits)], log)

    return start
