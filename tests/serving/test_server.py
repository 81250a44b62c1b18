"""The server process: who may use it, what it bears, and how it ends."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from encoded_images import encoded
from waiting import until

import anytime
from anytime.serving.limits import Limits
from anytime.serving.server import within_files

TOKEN = "a-token-of-sixteen-or-more"


def raw(server, content, more=0.0):
    """Send bytes as they are; everything that comes back until the server closes.

    A server may hang up while more is being sent: what it said before that is still read.
    """
    reply = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        with suppress(ConnectionError):
            connection.sendall(content)
        time.sleep(more)
        with suppress(ConnectionError):
            while part := connection.recv(2**16):
                reply += part
    return reply


@pytest.fixture(scope="module")
def private(serve, run_folder, tmp_path_factory):
    """A server at all addresses with a token, and two models."""
    folder = tmp_path_factory.mktemp("token")
    (folder / "secret").write_text(TOKEN + "\n")
    shutil.copytree(run_folder, folder / "second")
    with serve(run_folder, folder / "second", "--host", "0.0.0.0", "--token-file", folder / "secret") as running:
        running.address = f"http://127.0.0.1:{running.port}"
        yield running


@pytest.mark.parametrize(
    "header", [None, "", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer ÿ", f"bearer{TOKEN}"]
)
@pytest.mark.promise
def test_without_the_token_nothing_is_answered(private, header):
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    with private.client(headers=headers) as client:
        for path in ("/models", "/metrics", "/v2", "/v2/models/digits", "/nowhere", "/v2/health/../models/digits"):
            assert client.get(path).status_code == 401, path
        for path in ("/predict", "/stream", "/rush", "/v2/models/digits/infer", "/v2/repository/index"):
            assert client.post(path, content=encoded()).status_code == 401, path
        assert client.get("/").status_code == 200
        assert client.get("/page/app.js").status_code == 200
        assert client.get("/v2/health/ready").status_code == 200


@pytest.mark.promise
def test_with_the_token_everything_is(private):
    with private.client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        assert client.post("/predict?deadline=30s&model=second", content=encoded()).json()["model"] == "second"
        models = client.get("/models").json()
        assert [model["name"] for model in models["models"]] == ["digits", "second"]
        assert not models["rush"]
        assert client.post("/rush").status_code == 404  # not for servers that others can reach


def test_pages_of_other_sites_may_not_use_a_server(strict):
    client = strict.client()
    assert client.post("/predict", content=encoded(), headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.get("/models", headers={"Host": "evil.example"}).status_code == 421
    assert client.get("/models", headers={"Host": "localhost:99"}).status_code == 200


@pytest.fixture(scope="module")
def strict(serve_with, run_folder):
    """A server with limits that tests can reach."""
    limits = {"body": 10_000, "bodies": 30_000, "header": 4_000, "read": 1.0, "streams": 1, "pixels": 10_000}
    limits["connections"] = 30
    with serve_with(run_folder, **limits) as running:
        yield running


def test_bodies_that_are_too_large(strict):
    def parts():
        for _ in range(20):
            yield bytes(1000)

    with strict.client() as client:
        assert client.post("/predict", content=bytes(10_001)).status_code == 413
        assert client.post("/predict", content=parts()).status_code == 413
        assert client.post("/v2/models/digits/infer", content=bytes(39_000)).status_code == 413
        assert client.post("/predict", content=bytes(10_000)).status_code == 400
        assert client.post("/predict", content=b"", headers={"Content-Encoding": "gzip"}).status_code == 415
        assert "at most 10,000 are allowed" in client.post("/predict", content=encoded("JPEG", 101)).json()["error"]
        assert client.post("/predict?deadline=30s", content=encoded("JPEG", 100)).status_code == 200


@pytest.mark.parametrize(("size", "end"), [(5_000, b"\r\n\r\n"), (100_000, b"\r\n\r\n"), (1_000_000, b"")])
def test_headers_that_are_too_large(strict, size, end):
    reply = raw(strict, b"GET /models HTTP/1.1\r\nHost: localhost\r\nX: " + size * b"a" + end)
    assert reply.startswith(b"HTTP/1.1 431"), reply[:200]


def test_idle_connections_keep_nobody_out(strict):
    with ExitStack() as idle:
        for _ in range(100):
            idle.enter_context(socket.create_connection(("127.0.0.1", strict.port)))
        with strict.client() as client:
            assert client.get("/v2/health/live").status_code == 200


def test_connections_leave_files_to_everything_else():
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 1024), most))
    try:
        assert within_files(Limits(connections=10**6)).connections <= 768
        assert within_files(Limits(connections=5)).connections == 5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /models HTTP/1.1\r\nX: ",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ],
)
def test_slow_clients_are_told_so(strict, begun):
    assert raw(strict, begun).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # a TLS client
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes(range(256)) * 10,
    ],
)
def test_garbage_is_answered_with_400(strict, garbage):
    assert raw(strict, garbage).startswith((b"HTTP/1.1 400", b"HTTP/1.1 408", b"HTTP/1.1 431"))
    with strict.client() as client:
        assert client.get("/v2/health/live").status_code == 200


def metric(client, name):
    for line in client.get("/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.rpartition(" ")[2])
    return 0.0


def test_clients_that_hang_up_are_counted_and_nothing_is_left_behind(server, client):
    gone = 'anytime_requests_total{model="digits",outcome="gone",route="predict"}'
    before = metric(client, gone)
    head = b"POST /predict?deadline=30s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head)
    until(lambda: metric(client, gone) == before + 20)
    until(lambda: metric(client, 'anytime_engine_queue_length{model="digits"}') == 0)
    assert client.post("/predict?deadline=30s", content=encoded()).status_code == 200


def requests_until(server, stop, outcomes):
    """A client that asks until it is told to stop or the server is gone."""
    content = encoded()
    with server.client() as client:
        while not stop.is_set():
            try:
                outcomes.append(client.post("/predict?deadline=20s", content=content).status_code)
            except httpx.ConnectError:  # refused: the request was never taken
                return
            except httpx.RemoteProtocolError:  # hung up before a byte of an answer: a connection kept open
                outcomes.append("closed")
                return
            if outcomes[-1] != 200:
                return


def refuses(address):
    """Whether nobody listens at an address."""
    with socket.socket() as attempt:
        return attempt.connect_ex(address) != 0


def test_a_server_ends_in_an_orderly_way(serve_with, run_folder):
    """What was admitted is answered; what is on its way is told that it is too late; the exit code is 0."""
    with serve_with(run_folder) as running, running.client() as client:
        stop, outcomes = threading.Event(), []
        clients = [threading.Thread(target=requests_until, args=(running, stop, outcomes)) for _ in range(4)]
        for thread in clients:
            thread.start()
        until(lambda: len(outcomes) > 20)
        address = ("127.0.0.1", running.port)
        with socket.create_connection(address, timeout=60) as open_request, socket.create_connection(address) as kept:
            open_request.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabc")
            kept.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            live = b""
            while not live.endswith(b'{"live":true}'):
                live += kept.recv(1000)
            until(lambda: metric(client, "anytime_active_requests") >= 1)
            running.signal(signal.SIGTERM)
            until(lambda: refuses(address))
            kept.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\na")
            assert kept.recv(1000).startswith(b"HTTP/1.1 503")
            open_request.sendall(b"de")
            assert open_request.recv(100).startswith(b"HTTP/1.1 400")  # no image, but it was answered
        assert running.wait() == 0
        stop.set()
        for thread in clients:
            thread.join()
    assert outcomes.count(200) > 20
    assert set(outcomes) <= {200, 503, "closed"}


def test_a_server_that_leaves_takes_requests_until_nobody_sends_any(serve_with, run_folder):
    """After SIGTERM it is not ready, and answers; connections end with their replies; a second SIGTERM ends it."""
    with serve_with(run_folder, drain=3600.0) as running, running.client() as client:
        assert client.get("/v2/health/ready").status_code == 200
        running.signal(signal.SIGTERM)
        until(lambda: client.get("/v2/health/ready").status_code == 503)
        assert client.get("/v2/health/live").status_code == 200
        reply = client.post("/predict?deadline=30s", content=encoded())
        assert (reply.status_code, reply.headers["connection"]) == (200, "close")
        running.signal(signal.SIGTERM)
        assert running.wait() == 0


def test_nobody_who_connects_before_the_socket_closes_is_refused(serve_with, run_folder):
    with serve_with(run_folder, drain=1.0) as running:
        outcomes = []

        def ask():
            try:
                return httpx.post(f"{running.address}/predict?deadline=30s", content=encoded(), timeout=60).status_code
            except httpx.TransportError:  # nobody listens any more
                return None

        assert ask() == 200
        running.signal(signal.SIGTERM)
        while (outcome := ask()) is not None:
            outcomes.append(outcome)
        assert running.wait() == 0
    assert set(outcomes) == {200}


def test_requests_that_do_not_arrive_keep_no_server_running(serve_with, run_folder):
    with serve_with(run_folder, read=600.0, deadline=600.0, grace=0.1) as running, running.client() as client:
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as unfinished:
            unfinished.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nabc")
            until(lambda: metric(client, "anytime_active_requests") == 1)
            running.signal(signal.SIGTERM)
            assert unfinished.recv(100).startswith(b"HTTP/1.1 503")
        assert running.wait() == 0


def test_a_port_belongs_to_one_server():
    """Sockets can be bound to one port by several processes, as long as none of them listens."""
    code = (
        "import sys; from functools import partial; from anytime.serving.server import serve\n"
        "def load(loop):\n    print('bound', flush=True)\n    sys.stdin.readline()\n    return {}\n"
        "serve(load, port=int(sys.argv[1]), say=partial(print, flush=True))"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    servers = [subprocess.Popen([sys.executable, "-c", code, str(port)], **pipes) for _ in range(2)]
    try:
        assert [server.stdout.readline() for server in servers] == ["bound\n"] * 2
        said = []
        for server in servers:
            server.stdin.write("go on\n")
            server.stdin.flush()
            said.append(server.stdout.readline())
        assert said == [f"ready http://127.0.0.1:{port}\n", ""]
        assert f"cannot listen at 127.0.0.1, port {port}" in servers[1].communicate()[1]
        assert servers[1].returncode != 0
    finally:
        for server in servers:
            server.terminate()
            server.communicate()


@pytest.mark.promise
def test_sigterm_under_load(serve, run_folder):
    with serve(run_folder) as running:
        stop, outcomes = threading.Event(), []
        clients = [threading.Thread(target=requests_until, args=(running, stop, outcomes)) for _ in range(16)]
        for thread in clients:
            thread.start()
        until(lambda: len(outcomes) > 500)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        stop.set()
        for thread in clients:
            thread.join()
    asked = [line for line in running.requests() if line["path"] == "/predict"]
    assert {line["status"] for line in asked} <= {200, 503}
    assert outcomes.count(200) == sum(line["status"] == 200 for line in asked), "an answer was lost"
    assert set(outcomes) <= {200, 503, "closed"}


@pytest.mark.promise
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the engine's process in /proc")
def test_an_engine_that_is_killed_is_replaced(serve, run_folder):
    with serve(run_folder) as running, running.client() as client:
        stop, outcomes = threading.Event(), []
        clients = [threading.Thread(target=requests_until, args=(running, stop, outcomes)) for _ in range(4)]
        for thread in clients:
            thread.start()
        until(lambda: len(outcomes) > 100)
        os.kill(min(children(running.process.pid)), signal.SIGKILL)
        until(lambda: 'anytime_engine_restarts{model="digits"} 1.0' in client.get("/metrics").text)
        until(lambda: client.post("/predict?deadline=20s", content=encoded()).status_code == 200)
        stop.set()
        for thread in clients:
            thread.join()
    assert set(outcomes) <= {200, 500, 503}  # all are 200 if the spare was ready


def children(pid):
    """The processes that a process has started: the engine, then its spare."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def test_a_model_is_replaced_without_a_lost_request(serve_with, run_folder, tmp_path):
    folder = tmp_path / "digits"
    shutil.copytree(run_folder, folder)
    with serve_with(folder) as running, running.client() as client:
        stop, outcomes = threading.Event(), []
        clients = [threading.Thread(target=requests_until, args=(running, stop, outcomes)) for _ in range(3)]
        for thread in clients:
            thread.start()

        def answer():
            return client.post("/predict?deadline=30s", content=encoded()).json()["top"]

        for how in ("request", "SIGHUP"):
            before = answer()
            net = anytime.load(folder)
            for parameter in net.heads.parameters():
                parameter.data.mul_(-2)
            anytime.save(net, folder)
            if how == "request":
                assert client.post("/v2/repository/models/digits/load").status_code == 200
            else:
                running.signal(signal.SIGHUP)
            until(lambda before=before: answer() != before)
        stop.set()
        for thread in clients:
            thread.join()
        assert set(outcomes) == {200}
        # A folder that cannot be loaded leaves the model as it was.
        (folder / "config.json").unlink()
        assert client.post("/v2/repository/models/digits/load").status_code == 400
        assert client.post("/predict?deadline=30s", content=encoded()).status_code == 200


@pytest.mark.promise
def test_200_slow_clients_keep_nobody_waiting(serve_with, run_folder):
    with serve_with(run_folder, read=5.0) as running, running.client() as client:
        slow = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(200)]
        for i, connection in enumerate(slow):
            head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
            connection.sendall(head[: 20 if i % 2 else None])
        for _ in range(50):
            assert client.post("/predict?deadline=10s", content=encoded()).status_code == 200
        for connection in slow:
            assert connection.recv(12) == b"HTTP/1.1 408"
            connection.close()
        assert len(os.listdir(f"/proc/{running.process.pid}/fd")) < 150


@pytest.mark.promise
def test_half_of_the_clients_hang_up(serve, run_folder):
    with serve(run_folder) as running, running.client() as client:
        content = encoded()
        head = b"POST /predict?deadline=5s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(content)
        for _ in range(500):
            with socket.create_connection(("127.0.0.1", running.port)) as connection:
                connection.sendall(head + content)
            assert client.post("/predict?deadline=10s", content=content).status_code == 200
        until(lambda: metric(client, 'anytime_engine_queue_length{model="digits"}') == 0)


@pytest.mark.promise
def test_the_document_is_true(server, tmp_path):
    """schemathesis makes thousands of requests out of the document and checks what comes back.

    Some of them have deadlines of milliseconds: 503 and 504 are the documented answers of a busy machine.
    """
    pytest.importorskip("schemathesis", reason="needs: pip install schemathesis")
    config = "[checks.not_a_server_error]\nexpected-statuses = ['2xx', '3xx', '4xx', 503, 504]\n"
    (tmp_path / "schemathesis.toml").write_text(config)
    schemathesis = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    command = [schemathesis, "run", f"{server.address}/openapi.json", "--exclude-path", "/rush"]
    checks = "status_code_conformance,content_type_conformance,response_schema_conformance,not_a_server_error"
    command += ["--checks", checks, "--max-examples", "100", "--seed", "1", "--generation-deterministic"]
    command += ["--request-timeout", "300"]  # a busy machine may stop the server for longer than the default
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-6000:]
