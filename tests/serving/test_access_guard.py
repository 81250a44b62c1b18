"""Who may ask."""

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse

from anytime.serving.guard import Guard

TOKEN = "a-token-of-sixteen-or-more"


def status(guard, path="/models", method="GET", **headers):
    async def ask():
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            return (await client.request(method, path, headers=headers)).status_code

    return asyncio.run(ask())


ANSWERS = PlainTextResponse("hello")


@pytest.mark.parametrize(
    "given",
    [None, "", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer é", f"bearer{TOKEN}", f"Basic {TOKEN}"],
)
def test_without_the_token_nothing_is_answered(given):
    guard = Guard(ANSWERS, TOKEN)
    headers = {} if given is None else {"Authorization": given.encode("latin-1")}
    for path in (
        "/models",
        "/metrics",
        "/v2",
        "/v2/health",
        "/v2/health/../models",
        "/nowhere",
        "/pages",
        "/page",
    ):
        assert status(guard, path, **headers) == 401, path
    for path in ("/", "/page/app.js", "/openapi.json", "/v2/health/ready", "/v2/health/live"):
        assert status(guard, path, **headers) == 200, path


def test_with_the_token_everything_is():
    assert status(Guard(ANSWERS, TOKEN), Authorization=f"Bearer {TOKEN}") == 200
    assert status(Guard(ANSWERS)) == 200


def test_pages_of_other_sites_may_not_use_it():
    guard = Guard(ANSWERS)
    assert status(guard, method="POST", Origin="http://evil.example") == 403
    assert status(guard, method="POST", Origin="null") == 403
    assert status(guard, method="POST", Origin="http://[") == 403
    assert status(guard, method="POST", Origin="http://localhost:8001") == 403
    assert status(guard, method="POST", Origin="http://localhost:8000") == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "[", "127.0.0.1.evil.example:8000"])
def test_names_that_were_rebound_to_this_machine_are_refused(host):
    assert status(Guard(ANSWERS, hosts=["localhost", "127.0.0.1", "::1"]), Host=host) == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000"])
def test_names_of_this_machine_are_not(host):
    assert status(Guard(ANSWERS, hosts=["localhost", "127.0.0.1", "::1"]), Host=host) == 200
