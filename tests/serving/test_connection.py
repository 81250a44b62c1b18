"""A connection by itself: it is fed by hand."""

import asyncio
import json
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest
from starlette.responses import PlainTextResponse
from uvicorn.config import Config
from uvicorn.server import ServerState

from anytime.serving.connection import bounded
from anytime.serving.limits import Limits
from anytime.serving.service import Service


class Transport:
    """Keeps what is written."""

    def __init__(self):
        self.written, self.closed = b"", False

    def write(self, content):
        self.written += content

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def get_extra_info(self, _):
        return None

    def pause_reading(self):
        pass

    resume_reading = pause_reading


async def connected(**limits):
    """A connection to an application that reads no bodies, and its transport."""
    return (await several(1, **limits))[0]


async def several(count, models=None, busy=False, **limits):
    """Connections to one server, each with its transport; ``busy``: its event loop has no time for minutes."""
    config, state = Config(PlainTextResponse("hello"), log_config=None), ServerState()
    service = Service(models or {}, Limits(**limits))
    if busy:
        service.work.calendar.book(time.perf_counter() + 1000, 1000)
    kind = bounded(service)
    every = [(kind(config, state, {}), Transport()) for _ in range(count)]
    for connection, transport in every:
        connection.connection_made(transport)
    return every


async def soon(condition):
    for _ in range(500):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("more", [b"x", b"\r\n"])
def test_bytes_after_a_reply_keep_no_connection_open(more):
    async def drip():
        connection, transport = await connected(read=0.1)
        length = b"Content-Length: 1000000\r\n" if more == b"x" else b""
        connection.data_received(b"GET / HTTP/1.1\r\n" + length + b"\r\n")
        assert await soon(lambda: b"hello" in transport.written)
        assert not transport.closed
        assert await soon(lambda: transport.closed or connection.data_received(more))

    asyncio.run(drip())


def replies(*reads):
    """What comes back if a connection with 4,000 bytes for headers reads this."""

    async def read():
        connection, transport = await connected(header=4000)
        for data in reads:
            if not transport.closed:
                connection.data_received(data)
        await soon(lambda: transport.written)
        return transport.written

    return asyncio.run(read())


def test_headers_are_counted_once():
    assert replies(b"GET / HTTP/1.1\r\nX: " + 2500 * b"a" + b"\r\n", b"Y: " + 1000 * b"a" + b"\r\n\r\n").endswith(
        b"hello"
    )


def test_bodies_are_no_headers():
    first = b"POST / HTTP/1.1\r\nContent-Length: 5000\r\n\r\n" + bytes(5000)
    assert replies(first + b"GET / HTTP/1.1\r\nX: ").endswith(b"hello")


@pytest.mark.parametrize("part", [b"a", b"X: a\r\n", b"a" * 500])
def test_headers_without_an_end(part):
    assert replies(b"GET / HTTP/1.1\r\nX: ", *[part] * 4000).startswith(b"HTTP/1.1 431")


def test_an_address_without_an_end():
    assert replies(b"GET /", *[b"a" * 500] * 9).startswith(b"HTTP/1.1 431")


def test_the_connection_that_is_idle_for_longest_makes_room():
    async def opened():
        every = await several(3, connections=3)
        (first, transport), (second, other), (third, _) = every
        first.data_received(b"GET / HTTP/1.1\r\n\r\n")  # idle since now
        assert await soon(lambda: b"hello" in transport.written)
        second.data_received(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        assert not second.cycle.response_complete  # busy
        closed = []
        for _ in range(3):
            new, at = type(first)(first.config, first.server_state, {}), Transport()
            new.connection_made(at)
            closed.append([each.transport.closed for each in (third, first, second)] + [at.written[:12]])
            new.data_received(b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        assert not other.closed
        return closed

    assert asyncio.run(opened()) == [
        [True, False, False, b""],
        [True, True, False, b""],
        [True, True, False, b"HTTP/1.1 503"],
    ]


STATS = defaultdict(int)
ENGINE = SimpleNamespace(first_exit=lambda _: 0.001, stats=lambda: STATS, check=lambda _: None)
MODELS = {"model": SimpleNamespace(name="model", loaded=SimpleNamespace(engine=ENGINE, audit=None))}
PATHS = ("/predict?deadline=50ms", "/predict", "/stream?model=model", "/v2/models/model/infer?deadline=1s")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"])
def test_what_cannot_be_replied_to_in_time_is_refused_as_it_is_read(path, header):
    async def ask():
        ((connection, transport),) = await several(1, MODELS, busy=True)
        head = b"POST %s HTTP/1.1\r\n%sContent-Length: 3\r\n\r\n" % (path.encode(), header)
        connection.data_received(head + b"abc")
        refusal, transport.written = transport.written, b""
        assert transport.closed == bool(header)
        if not header:
            connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
            assert await soon(lambda: transport.written.endswith(b"hello"))
        return refusal, connection.service.metrics.text().decode()

    refusal, metrics = asyncio.run(ask())
    head, _, body = refusal.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: " in head
    assert b"content-length: %d" % len(body) in head
    assert "its reply would be late" in json.loads(body)["error"]
    route = path.split("?")[0].rpartition("/")[2]
    assert f'anytime_requests_total{{model="model",outcome="refused",route="{route}"}} 1.0' in metrics


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("/predict", b"Content-Type: application/json\r\n"),
        ("/v2/models/model/infer", b""),
        ("/predict?deadline=soon", b""),
        ("/predict?model=nobody", b""),
        ("/rush", b""),
    ],
)
def test_what_may_have_time_or_another_answer_is_not_refused_at_the_door(path, header):
    async def ask():
        ((connection, transport),) = await several(1, MODELS, busy=True)
        connection.data_received(b"POST %s HTTP/1.1\r\n%sContent-Length: 3\r\n\r\nabc" % (path.encode(), header))
        assert await soon(lambda: transport.written)
        return transport.written

    assert asyncio.run(ask()).endswith(b"hello")
