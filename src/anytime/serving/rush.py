"""Rush hour: a synthetic load that a local client may start, and its outcome."""

import asyncio
import random
import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import torch
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.inference.batch_times import BatchTimes
from anytime.serving.embedded import samples_for
from anytime.serving.engine import OverloadedError
from anytime.serving.replies import event
from anytime.serving.served import Loaded, Served
from anytime.serving.service import Service

MOST_PER_SECOND, MOST_SECONDS = 3000.0, 30.0
TICK = 0.1
"""Seconds between two reports."""
LARGEST = 32
"""The largest batch of the network without exits."""


async def rush(request: Request) -> Response:
    """Run Poisson arrivals at a rate, and report their outcomes as server-sent events."""
    service: Service = request.scope["service"]
    if not service.rush:
        raise HTTPException(404, "this server takes no synthetic load")
    if service.rushing or service.draining:
        raise HTTPException(409, "a synthetic load is running already")
    query = request.query_params
    rate = _number(query.get("rate", "200"), "rate", MOST_PER_SECOND)
    length = _number(query.get("seconds", "10"), "seconds", MOST_SECONDS)
    deadline = service.deadline(request, "50ms")
    events = _events(service, service.model(query.get("model")), rate, length, deadline)
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _number(text: str, name: str, most: float) -> float:
    number = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else 0.0
    if not 0 < number <= most:
        raise AnytimeError(f"{name}={text[:20]} must be a number above 0 and at most {most:g}")
    return number


async def _events(
    service: Service, served: Served, rate: float, length: float, deadline: float
) -> AsyncIterator[bytes]:  # fmt: skip
    service.rushing = True
    try:
        with served.use() as loaded:
            load = Load(loaded, rate, length, deadline)
            feeding = asyncio.ensure_future(load.feed())
            try:
                while not load.done and not service.draining:
                    await asyncio.sleep(TICK)
                    yield event("tick", load.report())
                end = time.perf_counter() + deadline
                while load.open and time.perf_counter() < end:
                    await asyncio.sleep(0.01)
                yield event("end", load.report())
            finally:
                feeding.cancel()
    finally:
        service.rushing = False


class Load:
    """An open loop: requests come when they come, however many are waiting; times count from the moment meant.

    Args:
        loaded: the model.
        rate: requests per second, on average.
        length: seconds.
        deadline: seconds, of each request.
    """

    def __init__(self, loaded: Loaded, rate: float, length: float, deadline: float) -> None:
        self.loaded, self.rate, self.deadline = loaded, rate, deadline
        draw = random.Random()
        self.moments: list[float] = []
        moment = draw.expovariate(rate)
        while moment < length:
            self.moments.append(moment)
            moment += draw.expovariate(rate)
        self.inputs = _inputs(loaded)
        self.begun, self.sent, self.refused, self.failed = 0.0, 0, 0, 0
        self.answers: list[tuple[int, float]] = []
        """The exit of each, and by how many seconds it was late; 0 if it was in time."""
        self.reported, self.in_time, self.late = 0, 0, 0.0
        self.whole = WholeNetwork(loaded.engine.times, self.moments, deadline)

    @property
    def done(self) -> bool:
        """Whether all requests are sent."""
        return self.sent == len(self.moments)

    @property
    def open(self) -> int:
        """Number of requests without an answer yet."""
        return self.sent - len(self.answers) - self.refused - self.failed

    async def feed(self) -> None:
        """Send every request at its moment."""
        self.begun = time.perf_counter()
        for moment in self.moments:
            wait = self.begun + moment - time.perf_counter()
            if wait > 0 or self.sent % 8 == 0:  # yield to other tasks, also if this one is late
                await asyncio.sleep(max(wait, 0))
            self._send(self.begun + moment)

    def _send(self, moment: float) -> None:
        x = self.inputs[self.sent % len(self.inputs)]
        self.sent += 1
        left = self.deadline - (time.perf_counter() - moment)
        try:
            future = self.loaded.engine.submit(x, deadline=left)
        except (OverloadedError, AnytimeError):
            self.refused += 1
            return
        future.add_done_callback(partial(self._note, moment))

    def _note(self, moment: float, future: Any) -> None:
        late = max(0.0, time.perf_counter() - moment - self.deadline)
        if future.cancelled() or future.exception():
            self.failed += 1
        else:
            self.answers.append((future.result().exit, late))

    def report(self) -> dict[str, Any]:
        """Counts so far, and the exits since the last report."""
        fresh = self.answers[self.reported :]
        self.reported += len(fresh)
        self.in_time += sum(late == 0 for _, late in fresh)
        self.late = max([self.late, *(late for _, late in fresh)])
        exits = Counter(exit for exit, _ in fresh)
        return {
            "seconds": time.perf_counter() - self.begun,
            "sent": self.sent,
            "answered": self.reported,
            "in_time": self.in_time,
            "late": self.late,
            "refused": self.refused,
            "failed": self.failed,
            "whole": self.whole.in_time(time.perf_counter() - self.begun, self.loaded.engine.status()["slow_down"]),
            "exits": [exits[exit] for exit in range(self.loaded.exits)],
        }


class WholeNetwork:
    """What the same requests would get from the network without exits, by its measured times: a simulation.

    It runs batches of those who wait, earliest first, as large as keeps the first of them in time; who would be late
    alone is dropped at once.

    Args:
        times: of the stages and heads.
        moments: at which the requests come.
        deadline: seconds, of each.

    Examples:
        >>> from anytime.inference.batch_times import Line
        >>> times = BatchTimes([Line(0.5, 0.5)], [Line(0.0, 0.0)])      # 1 s alone, 1.5 s for two
        >>> whole = WholeNetwork(times, [0.0, 0.1, 0.2, 0.3], deadline=2.5)
        >>> whole.in_time(until=10.0, slow=1.0)                         # one, then the next two
        3
    """

    def __init__(self, times: BatchTimes, moments: list[float], deadline: float) -> None:
        self.times, self.moments, self.deadline = times, moments, deadline
        self._next, self._free, self._count = 0, 0.0, 0

    def _seconds(self, batch: int) -> float:
        head = self.times.heads[-1]
        return sum(line.at(batch) for line in self.times.stages) + (head.at(batch) if head else 0.0)

    def in_time(self, until: float, slow: float) -> int:
        """How many of its answers were in time by then.

        Args:
            until: seconds since the first moment.
            slow: how much slower the machine is than when the times were measured.
        """
        while self._next < len(self.moments):
            begin = max(self._free, self.moments[self._next])
            left = self.moments[self._next] + self.deadline - begin
            if left < slow * self._seconds(1):
                self._next += 1
                continue
            waiting = bisect_right(self.moments, begin) - self._next
            batch = min(waiting, LARGEST)
            while batch > 1 and slow * self._seconds(batch) > left:
                batch -= 1
            if begin + slow * self._seconds(batch) > until:
                break
            self._free = begin + slow * self._seconds(batch)
            self._next += batch
            self._count += batch
        return self._count


def _inputs(loaded: Loaded) -> list[Tensor]:
    """The sample images, or noise for a model that they are not for."""
    images = [loaded.preprocessing(path) for path in samples_for(loaded.classes)] if loaded.preprocessing else []
    if not images and loaded.shape is None:
        raise AnytimeError("this model's folder does not say what its input looks like")
    return images or list(torch.randn(12, *(loaded.shape or ())).split(1))
