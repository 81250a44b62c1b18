"""Predictions in the background: start and astart."""

import asyncio
import subprocess
import sys
import threading

import pytest
import torch
from backends import BACKENDS, ZERO, adding, on
from torch import nn

import anytime


class Gates:
    """Every stage waits here when it begins, until it is let through."""

    def __init__(self):
        self._waiting, self._open = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self):
        self._waiting.release()
        assert self._open.acquire(timeout=60)

    def open(self, stages):
        self._open.release(stages)

    def until_begun(self, stages=1):
        """Wait until so many more stages have begun; the predictions of those before are there then."""
        for _ in range(stages):
            assert self._waiting.acquire(timeout=60)


def gated(backend="eager", stages=6):
    gates = Gates()
    return adding(backend, stages, before=lambda _: gates.wait()), gates


every_backend = pytest.mark.parametrize("backend", BACKENDS)


@every_backend
def test_a_prediction_runs_in_the_background(backend):
    net, gates = gated(backend)
    with anytime.start(net, ZERO) as background:
        gates.until_begun()
        assert background.latest() is None
        assert not background.done
        with pytest.raises(anytime.UnfinishedError):
            background.result(timeout=0)
        gates.open(3)
        gates.until_begun(3)
        early = background.result(timeout=0)
        assert (early.exit, early.complete, early.stopped_by) == (2, False, None)
        gates.open(3)
        last = background.result()
    assert last.complete
    assert torch.equal(last.logits, ZERO + 6)
    assert torch.equal(early.logits, ZERO + 3)


@every_backend
def test_a_result_can_wait_for_the_first_exit(backend):
    net, gates = gated(backend)
    with anytime.start(net, ZERO) as background:
        gates.until_begun()
        opening = threading.Timer(0.05, gates.open, [1])
        opening.start()
        assert background.result(timeout=0, wait_for_first=True).exit == 0
        gates.open(5)
        assert background.result().complete
    with pytest.raises(anytime.UnfinishedError):
        anytime.start(net, ZERO, deadline=0).result(timeout=0, wait_for_first=True)


@every_backend
def test_a_stopped_prediction_keeps_what_it_had(backend):
    net, gates = gated(backend)
    background = anytime.start(net, ZERO)
    gates.open(3)
    gates.until_begun(4)
    stopping = threading.Thread(target=background.stop)
    stopping.start()
    assert background._halt.wait(60)
    assert not background.done, "the stage that runs has not ended"
    gates.open(1)
    stopping.join(60)
    assert background.done
    assert net.stages[4].begun == 0
    assert background.latest().exit == 2
    assert background.latest().stopped_by == background.result().stopped_by == "stop"
    assert not background.result().complete


def test_exceptions_reach_the_caller():
    net = adding("eager", 3)
    net.stages[1] = nn.Linear(5, 5)
    background = anytime.start(net, ZERO)
    for ask in (background.result, background.latest):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            ask()
    background.stop()


def resann():
    return anytime.create_model("resann-2-8").eval()


INPUTS = torch.randn(16, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@every_backend
def test_many_predictions_at_once_are_each_their_own(backend):
    net, inputs = on(backend, resann, INPUTS[0]), INPUTS
    with torch.no_grad():
        wanted = [net(x)[-1] for x in inputs]
    before = threading.active_count()
    backgrounds = [anytime.start(net, x) for x in inputs]
    for background, logits in zip(backgrounds, wanted, strict=True):
        assert torch.allclose(background.result().logits, logits, atol=1e-5)
    assert threading.active_count() == before


def test_the_interpreter_ends_though_a_prediction_runs(environment):
    code = """
import threading, time, torch, anytime
begun = threading.Event()
class Slow(torch.nn.Module):
    def forward(self, x):
        begun.set()
        time.sleep(0.05)
        return x
net = anytime.AnytimeNetwork([Slow() for _ in range(2000)], [torch.nn.Identity() for _ in range(2000)]).eval()
background = anytime.start(net, torch.zeros(1))
begun.wait()
print("end")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


@every_backend
def test_async_gives_every_exit(backend):
    net = adding(backend, 6)

    async def exits(**limits):
        return [prediction.exit async for prediction in anytime.astart(net, ZERO, **limits)]

    assert asyncio.run(exits()) == [0, 1, 2, 3, 4, 5]
    assert asyncio.run(exits(exits=3)) == [0, 1, 2]


def test_async_raises_what_the_network_raises():
    net = adding("eager", 3)
    net.stages[1] = nn.Linear(5, 5)

    async def exits():
        return [prediction.exit async for prediction in anytime.astart(net, ZERO)]

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        asyncio.run(exits())


@every_backend
def test_async_stops_when_left(backend):
    net, gates = gated(backend)
    gates.open(2)

    async def part():
        async for prediction in anytime.astart(net, ZERO):
            if prediction.exit == 1:
                gates.until_begun(3)
                break

    asyncio.run(part())
    gates.open(1)  # the stage that was running
    for thread in [thread for thread in threading.enumerate() if thread.name == "anytime"]:
        thread.join(60)
    assert net.stages[2].begun == 1
    assert net.stages[3].begun == 0


def test_autocast_holds_in_the_background_too():
    net = anytime.AnytimeNetwork([nn.Linear(8, 8)], [nn.Linear(8, 3)]).eval()
    x = torch.randn(2, 8)
    with torch.autocast("cpu", torch.bfloat16), anytime.start(net, x) as running:
        assert torch.equal(running.result().logits, anytime.predict(net, x).logits)
        assert running.result().logits.dtype == torch.bfloat16
