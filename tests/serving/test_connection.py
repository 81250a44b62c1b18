"""A connection by itself: it is fed by hand."""

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from uvicorn.config import Config
from uvicorn.server import ServerState

from anytime.serving.connection import bounded
from anytime.serving.limits import Limits


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

    def get_extra_info(self, name):
        return None

    def pause_reading(self):
        pass

    resume_reading = pause_reading


async def connected(**limits):
    """A connection to an application that reads no bodies, and its transport."""
    config = Config(PlainTextResponse("hello"), log_config=None)
    connection, transport = bounded(Limits(**limits))(config, ServerState(), {}), Transport()
    connection.connection_made(transport)
    return connection, transport


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
