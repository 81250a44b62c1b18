"""Attacks on a whole server: every request is answered or refused, the server stays alive, and ends when told to."""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from pictures import encoded
from waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the engine's process in /proc"),
]


def engine_of(pid):
    """The process of the engine: the first one that the server has started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return min(int(child) for file in files for child in file.read_text().split())


def asked(server, count, deadline, outcomes):
    """Clients that wait for their answers."""

    def ask():
        with server.client() as client:
            outcomes.append(client.post(f"/predict?deadline={deadline}s", content=encoded()).status_code)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def hang_up(server, count):
    """Clients that send a whole request and are gone."""
    content = encoded()
    head = b"POST /predict?deadline=30s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(content)
    for _ in range(count):
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + content)


def is_as_before(server):
    """Whether nothing is left of an attack."""
    with server.client() as client:
        until(lambda: 'anytime_engine_queue_length{model="digits"} 0.0' in client.get("/metrics").text)
        until(lambda: client.get("/v2/health/ready").status_code == 200)
        return client.post("/predict?deadline=30s", content=encoded()).status_code == 200


@pytest.mark.parametrize("stops", [False, True])
def test_clients_that_hang_up_take_no_answer_from_others(serve, run_folder, stops):
    """Also while the engine's process stands still and takes no messages for a while."""
    with serve(run_folder) as server, server.client() as client:
        outcomes, engine = [], engine_of(server.process.pid)
        if stops:
            os.kill(engine, signal.SIGSTOP)
        try:
            threads = asked(server, 10, 60, outcomes)
            hang_up(server, 600)
            assert client.get("/v2/health/live").status_code == 200
            threads += asked(server, 10, 60, outcomes)
        finally:
            os.kill(engine, signal.SIGCONT)
        for thread in threads:
            thread.join()
        assert len(outcomes) == 20
        assert set(outcomes) <= {200, 503}
        assert is_as_before(server)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_an_engine_that_hangs_or_dies_is_replaced(serve, run_folder, number):
    with serve(run_folder) as server, server.client() as client:
        outcomes, engine = [], engine_of(server.process.pid)
        os.kill(engine, number)
        threads = asked(server, 10, 1, outcomes) + asked(server, 10, 60, outcomes)
        assert client.get("/v2/health/live").status_code == 200
        for thread in threads:
            thread.join()
        assert len(outcomes) == 20
        assert set(outcomes) <= {200, 503, 504, 500}
        until(lambda: 'anytime_engine_restarts{model="digits"} 1.0' in client.get("/metrics").text)
        assert is_as_before(server)
        assert engine_of(server.process.pid) != engine
