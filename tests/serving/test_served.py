"""Models that are replaced while they are used."""

import asyncio
import os
from contextlib import ExitStack
from functools import partial

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

import anytime
from anytime.serving.engine import Engine
from anytime.serving.inference import ready
from anytime.serving.limits import Limits
from anytime.serving.served import Served
from anytime.serving.service import Service


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    anytime.save(anytime.create_model("resann-1-4").eval(), folder)
    return folder


class Counted(Engine):
    """An engine in a thread; counts those that are open."""

    opened, most = set(), 0

    def __init__(self, folder):
        super().__init__(folder, processes=0, max_batch=1)
        Counted.opened.add(self)
        Counted.most = max(Counted.most, len(Counted.opened))

    def close(self, drain=True):
        super().close(drain)
        Counted.opened.discard(self)


def test_however_often_a_model_is_loaded_again_there_are_two_engines_at_most(folder):
    """Each load comes while a request still uses what was loaded before."""

    async def main():
        served, seen, uses = Served("a", folder, partial(Counted, folder)), [], []
        loads = []
        for _ in range(6):
            use = ExitStack()
            seen.append(use.enter_context(served.use()))
            uses.append(use)
            loads.append(asyncio.ensure_future(served.reload()))
            # Until the new engine is there, or the load waits for the one before it.
            before = served.loaded
            for _ in range(50):
                await asyncio.sleep(0.01)
                if served.loaded is not before:
                    break
        assert Counted.most <= 2
        for use in uses:
            use.close()
        await asyncio.gather(*loads)
        assert served.loaded not in seen, "the last load is newer than the last request"
        assert Counted.opened == {served.loaded.engine}
        served.loaded.engine.close()

    asyncio.run(main())


def test_who_hangs_up_while_a_model_is_loaded_leaves_no_engine_behind(folder):
    async def main():
        served = Served("a", folder, partial(Counted, folder))
        before, asked = served.loaded, asyncio.ensure_future(served.reload())
        await asyncio.sleep(0)
        asked.cancel()
        while served.loaded is before or before.engine in Counted.opened:
            await asyncio.sleep(0.01)
        assert Counted.opened == {served.loaded.engine}
        served.loaded.engine.close()

    asyncio.run(main())


def test_a_server_is_ready_as_long_as_all_of_its_engines_have_workers(folder):
    models = {name: Served(name, folder, partial(Counted, folder)) for name in ("a", "b")}
    service = Service(models, Limits())
    service.ready = True  # as when it has warmed up

    def status(**path):
        try:
            return asyncio.run(ready(Request({"type": "http", "service": service, "path_params": path}))).status_code
        except HTTPException as error:
            return error.status_code

    assert status() == status(model="a") == status(model="b") == 200
    models["b"].loaded.engine.close()
    assert (status(), status(model="a"), status(model="b")) == (503, 200, 503)
    models["a"].loaded.engine.close()


def test_a_closed_engine_leaves_no_descriptor_behind(folder):
    """Also without a garbage collection: a server keeps that from most of its objects."""
    make = partial(Engine, folder, processes=1, spare=False, max_batch=1)
    make().close()
    before = len(os.listdir("/proc/self/fd"))
    engine = make()
    engine.close()
    assert len(os.listdir("/proc/self/fd")) == before
