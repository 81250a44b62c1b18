"""A request's time, from its arrival to its reply, and a synthetic load's count of what becomes of its requests."""

import asyncio
import time
from concurrent.futures import Future

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request

from anytime.errors import AnytimeError
from anytime.inference.batch_times import BatchTimes, Line
from anytime.serving.booking import LEAST, MOST, WAY, Route
from anytime.serving.engine import Answer, OverloadedError
from anytime.serving.limits import Limits
from anytime.serving.rush import Load
from anytime.serving.served import Loaded
from anytime.serving.service import Service


def replied(age, deadline):
    """The exchange of a request that came so long ago, once its reply is written, and what the metrics say."""

    async def run():
        service = Service({}, Limits())
        request = Request({"type": "http", "headers": []})
        with service.exchange(request, "predict") as exchange:
            exchange.model, exchange.came = "m", time.perf_counter() - age
            exchange.until(deadline)
            await exchange.answered([Answer(torch.zeros(1, 2), 1, False, 0.01, "deadline")])
            late = exchange.late
        service.end(exchange, request)
        await asyncio.sleep(0)
        return exchange, late, request.scope["facts"], service.metrics.text().decode()

    return asyncio.run(run())


def test_a_reply_says_how_late_it_is():
    exchange, late, facts, metrics = replied(age=100.0, deadline=60.0)
    assert exchange.outcome == facts["outcome"] == "late"
    assert 40 <= late < 50
    assert 40 <= facts["late"] < 50
    assert 'anytime_lateness_seconds_bucket{le="0.0",model="m",route="predict"} 0.0' in metrics
    assert 'anytime_lateness_seconds_count{model="m",route="predict"} 1.0' in metrics


def test_a_reply_in_time_is_not_late():
    exchange, late, facts, metrics = replied(age=1.0, deadline=1000.0)
    assert exchange.outcome == facts["outcome"] == "answered"
    assert late == facts["late"] == 0
    assert 'anytime_lateness_seconds_bucket{le="0.0",model="m",route="predict"} 1.0' in metrics


def test_late_replies_move_the_time_that_is_kept_ahead():
    early, late = replied(1.0, 1000.0)[0].learned.ahead, replied(100.0, 60.0)[0].learned.ahead
    assert early < Route().ahead < late


def test_replies_of_a_burst_that_are_late_together_keep_no_more_ahead_than_would_have_been_enough():
    route = Route()
    booked = route.ahead
    for _ in range(100):
        route.replied(left=-0.003, ahead=booked)
    assert route.ahead == pytest.approx(booked + 0.003 + WAY)


@given(st.lists(st.floats(-1.0, 1.0), max_size=200))
def test_what_is_kept_ahead_has_bounds(lefts):
    route = Route()
    for left in lefts:
        before = route.ahead
        route.replied(left, before)
        assert LEAST <= route.ahead <= MOST
        assert route.ahead >= before if left < WAY else route.ahead <= before


def test_a_deadline_that_has_passed_is_said_so():
    async def run():
        with Service({}, Limits()).exchange(Request({"type": "http", "headers": []}), "predict") as exchange:
            exchange.came, exchange.deadline = time.perf_counter() - 2, 1.0
            _ = exchange.left

    with pytest.raises(HTTPException, match="504"):
        asyncio.run(run())


class Engine:
    """Of four requests it refuses the first, fails at the second, and answers the others with exits 0 and 2."""

    times = BatchTimes([Line(0.0, 1e-6)] * 3, [Line(0.0, 1e-6)] * 3)

    def __init__(self):
        self.asked = 0

    def status(self):
        return {"slow_down": 1.0}

    def submit(self, x, deadline):  # noqa: ARG002
        turn, self.asked = self.asked % 4, self.asked + 1
        if turn == 0:
            raise OverloadedError("too much", 1.0)
        future = Future()
        if turn == 1:
            future.set_exception(AnytimeError("the network failed"))
        else:
            future.set_result(Answer(torch.zeros(1, 2), 0 if turn == 2 else 2, turn == 3, 0.01, None))
        return future


@pytest.mark.parametrize("deadline", [1000.0, 1e-9])
def test_a_synthetic_load_counts_every_outcome(deadline):
    loaded = Loaded(Engine(), 3, (1, 2, 2), None, (), None, None, [])
    load = Load(loaded, rate=1e6, length=1e-4, deadline=deadline)
    load.moments = [0.0] * 40
    asyncio.run(load.feed())
    report = load.report()
    assert (load.done, load.open) == (True, 0)
    assert [report[name] for name in ("sent", "answered", "refused", "failed")] == [40, 20, 10, 10]
    assert report["exits"] == [10, 0, 10]
    assert load.report()["exits"] == [0, 0, 0]  # since the last report
    assert report["in_time"] == (20 if deadline == 1000 else 0)
    assert (report["late"] > 0) == (deadline < 1)
