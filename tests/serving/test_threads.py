"""Work in threads: a request waits for it until its deadline, a disconnect or the shutdown, and no longer."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from encoded_images import encoded, packed_text
from starlette.exceptions import HTTPException
from starlette.requests import Request

from anytime.preprocessing import Preprocessing
from anytime.serving.images import prepare, small
from anytime.serving.limits import Limits
from anytime.serving.service import ClientGoneError, Service
from anytime.serving.threads import _in_thread


class Client:
    """The connection of a client that may hang up."""

    lost, on_lost = False, None

    def hang_up(self):
        self.lost = True
        self.on_lost()


@pytest.mark.parametrize("end", ["deadline", "disconnect", "shutdown"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_request_does_not_wait_for_a_thread_forever(end, begun):
    release, started, ran = threading.Event(), threading.Event(), []

    def work():
        ran.append(True)
        started.set()
        release.wait()

    async def ask(pool, service, client):
        request = Request({"type": "http", "headers": [], "connection": client, "service": service})
        try:
            with service.exchange(request, "predict") as exchange:
                exchange.deadline = 0.01 if end == "deadline" else 600.0
                await _in_thread(pool, request, exchange, work)
        finally:
            service.end(exchange, request)

    async def asked(pool):
        service, client = Service({}, Limits()), Client()
        task = asyncio.ensure_future(ask(pool, service, client))
        while not task.done() and (client.on_lost is None or (begun and not started.is_set())):
            await asyncio.sleep(0)
        if end == "disconnect":
            client.hang_up()
        elif end == "shutdown":
            service.drain()
            service.refuse_others()
        try:
            await task
        finally:
            assert not service.exchanges

    with ThreadPoolExecutor(1) as pool:
        if not begun:
            pool.submit(release.wait)
        try:
            with pytest.raises(ClientGoneError if end == "disconnect" else HTTPException) as raised:
                asyncio.run(asked(pool))
        finally:
            release.set()
    assert begun or not ran, "what has not begun is dropped"
    if end != "disconnect":
        assert raised.value.status_code == {"deadline": 504, "shutdown": 503}[end]


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt", b"iCCP"])
def test_a_header_that_unpacks_megabytes_is_not_read_by_the_event_loop(kind):
    plain, packed = encoded(size=8), packed_text(kind, 25)
    assert len(packed) < 2**15
    assert small(plain, 10_000) is not None
    assert small(packed, 10_000) is None
    how = Preprocessing(3, (8, 8), [0.5] * 3, [0.5] * 3)
    assert torch.equal(prepare(packed, how, 10_000), prepare(plain, how, 10_000))
