"""Two servers behind nginx are restarted one after the other, and no request fails."""

import random
import re
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from anytime.serving.embedded import samples

SITE = Path(__file__).parents[2] / "examples" / "deploy" / "nginx.conf"
RATE = 50


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def nginx_in_front(folder, ports):
    """The site of the examples without TLS, in front of servers at these ports; gives its own port."""
    where = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if where is None:
        pytest.skip("nginx is not installed")
    (front,) = free_ports(1)
    site = SITE.read_text().replace("listen 443 ssl http2;", f"listen 127.0.0.1:{front};")
    site = re.sub(r"^ *ssl_.*$", "", site, flags=re.M)
    for ours, theirs in zip(("127.0.0.1:8000", "127.0.0.1:8010"), ports, strict=True):
        assert ours in site
        site = site.replace(ours, f"127.0.0.1:{theirs}")
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"pid {folder}/pid; error_log {folder}/log; daemon off;\nevents {{}}\n"
    main += f"http {{ access_log off; {paths}\n{site}}}\n"
    (folder / "nginx.conf").write_text(main)
    process = subprocess.Popen([where, "-p", folder, "-c", folder / "nginx.conf"], stderr=subprocess.PIPE)
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", front)).close()
                break
            except OSError:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.1)
        yield front
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


@pytest.mark.promise
def test_a_rolling_restart_behind_nginx_loses_no_request(serve, tmp_path):
    ports, picture = free_ports(2), next(iter(samples())).read_bytes()
    tmp_path.chmod(0o755)
    statuses, asking = [], True

    def start(port):
        return serve("--port", port, "--drain-seconds", "2", "--proxy", "127.0.0.1")

    def ask(client):
        try:
            statuses.append(client.post("/predict?deadline=10s", content=picture).status_code)
        except httpx.HTTPError as error:
            statuses.append(repr(error))

    def send(port):
        draw = random.Random(0)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client, ThreadPoolExecutor(32) as pool:
            moment = time.monotonic()
            while asking:
                moment += draw.expovariate(RATE)
                time.sleep(max(0.0, moment - time.monotonic()))
                pool.submit(ask, client)

    with ExitStack() as stack:
        running = [stack.enter_context(start(port)) for port in ports]
        front = stack.enter_context(nginx_in_front(tmp_path, ports))
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send, front)
            try:
                for port, server in zip(ports, running, strict=True):
                    time.sleep(2)
                    server.signal(signal.SIGTERM)
                    assert server.wait() == 0
                    stack.enter_context(start(port))
                time.sleep(2)
            finally:
                asking = False
            sending.result()
    assert len(statuses) > 100
    assert statuses == [200] * len(statuses)
