"""Requests through an engine: answered as alone, whoever they share batches with."""

import asyncio
import threading

import pytest
import torch
from torch import nn

import anytime
from anytime.inference.batch_times import BatchTimes, Line
from anytime.inference.policy import Policy
from anytime.serving.engine import EngineDiedError, OverloadedError

LONG = 600.0  # seconds: no test waits for it


class Gate(nn.Module):
    """A stage that waits until it is opened, and refuses NaN."""

    def __init__(self):
        super().__init__()
        self.open = threading.Event()
        self.arrived = threading.Event()
        self.sizes = []

    def forward(self, x):
        self.sizes.append(len(x))
        self.arrived.set()
        assert self.open.wait(60)
        if x.isnan().any():
            raise ValueError("NaN in the input")
        return x + 1


def gated(stages=3):
    gate = Gate()
    torch.manual_seed(0)
    net = anytime.AnytimeNetwork([gate] + [nn.Linear(4, 4) for _ in range(stages - 1)], [nn.Linear(4, 3)] * stages)
    return net.eval(), gate


def instant(stages=3):
    return BatchTimes([Line(1e-6, 1e-6)] * stages, [Line(1e-6, 1e-6)] * stages)


@pytest.fixture
def served():
    net, gate = gated()
    with anytime.Engine(net, processes=0, profile=instant(), example=torch.zeros(1, 4), max_batch=8) as engine:
        yield engine, net, gate
        gate.open.set()


def same(answer, net, x):
    with torch.inference_mode():
        torch.testing.assert_close(answer.logits, net(x)[answer.exit], atol=1e-5, rtol=1e-5)


def test_requests_that_arrive_together_run_together(served):
    engine, net, gate = served
    xs = [torch.randn(1 + i % 2, 4) for i in range(5)]
    first = engine.submit(xs[0], deadline=LONG)
    assert gate.arrived.wait(60)
    futures = [first, *(engine.submit(x, deadline=LONG) for x in xs[1:])]
    gate.open.set()
    for x, future in zip(xs, futures, strict=True):
        answer = future.result(60)
        assert answer.complete
        assert answer.stopped_by is None
        same(answer, net, x)
    assert gate.sizes[:2] == [1, 6]
    assert engine.stats()["exits"] == [0, 0, 5]
    assert engine.stats()["in_time"] == 5


def test_a_poisoned_input_fails_alone(served):
    engine, net, gate = served
    first = engine.submit(torch.zeros(1, 4), deadline=LONG)
    assert gate.arrived.wait(60)
    xs = [torch.randn(1, 4) for _ in range(3)]
    xs[1][0, 0] = torch.nan
    futures = [engine.submit(x, deadline=LONG) for x in xs]
    gate.open.set()
    with pytest.raises(anytime.AnytimeError, match="failed on this input: ValueError: NaN"):
        futures[1].result(60)
    for x, future in zip(xs[::2], futures[::2], strict=True):
        same(future.result(60), net, x)
    assert first.result(60).complete


def test_what_is_cancelled_leaves_and_frees_its_place(served):
    engine, _, gate = served
    first = engine.submit(torch.zeros(1, 4), deadline=LONG)
    assert gate.arrived.wait(60)
    others = [engine.submit(torch.zeros(1, 4), deadline=LONG) for _ in range(3)]
    assert others[1].cancel()
    assert engine.status()["in_flight"] == 3
    gate.open.set()
    assert all(future.result(60).complete for future in (first, others[0], others[2]))
    assert gate.sizes == [1, 2]
    assert engine.stats()["cancelled"] == 1


def test_every_exit_is_told_on_the_way(served):
    engine, net, gate = served
    gate.open.set()
    seen, x = [], torch.randn(2, 4)
    last = engine.submit(x, deadline=LONG, on_exit=seen.append).result(60)
    assert [answer.exit for answer in seen] == [0, 1, 2]
    assert last.exit == 2
    for answer in seen:
        same(answer, net, x)


def test_an_error_in_on_exit_ends_its_own_request(served):
    engine, _, gate = served
    gate.open.set()
    with pytest.raises(ZeroDivisionError):
        engine.submit(torch.zeros(1, 4), deadline=LONG, on_exit=lambda _: 1 / 0).result(60)
    assert engine.submit(torch.zeros(1, 4), deadline=LONG).result(60).complete


def test_async(served):
    engine, net, gate = served
    gate.open.set()

    async def ask():
        return await asyncio.gather(*(engine.asubmit(torch.ones(1, 4) * i, deadline=LONG) for i in range(10)))

    for i, answer in enumerate(asyncio.run(ask())):
        same(answer, net, torch.ones(1, 4) * i)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"queue": 2}, "2 requests are in flight"), ({"queue_bytes": 40}, "40 bytes"), ({}, "would be late")],
)
def test_more_than_fits_is_refused_at_once(options, said):
    net, gate = gated()
    slow = BatchTimes([Line(0.0, 10.0)] * 3, [Line(0.0, 0.0)] * 3)
    options = {"queue_seconds": 1e6, **options}
    with anytime.Engine(net, processes=0, profile=slow, example=torch.zeros(1, 4), **options) as engine:
        ask = (engine.submit(torch.zeros(1, 4), deadline=55.0) for _ in range(5))
        with pytest.raises(OverloadedError, match=said) as refused:
            list(ask)
        assert refused.value.retry_after > 0
        assert engine.stats()["refused"] == 1
        gate.open.set()


def test_samples_that_are_sure_leave():
    net, gate = gated()
    gate.open.set()
    policy = Policy("confidence", [0.0, 0.0], [1.0] * 3, [1.0] * 3, [1.0] * 3, 1.0)
    with anytime.Engine(net, processes=0, policy=policy, profile=instant(), example=torch.zeros(1, 4)) as engine:
        answer = engine.submit(torch.zeros(1, 4), deadline=LONG).result(60)
    assert (answer.exit, answer.complete, answer.stopped_by) == (0, False, "policy")


def test_numbers_that_are_too_large_leave_the_engine_alive():
    net, gate = gated()
    gate.open.set()
    policy = Policy("confidence", [1.0, 1.0], [1.0] * 3, [1.0] * 3, [1.0] * 3, 1.0)
    with anytime.Engine(net, processes=0, policy=policy, profile=instant(), example=torch.zeros(1, 4)) as engine:
        assert engine.submit(torch.full((1, 4), torch.inf), deadline=LONG).result(60).logits.isnan().any()
        assert engine.submit(torch.zeros(1, 4), deadline=LONG).result(60).complete


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_thread_has_ended_says_so(served):
    engine, _, _ = served
    engine._crew.workers[0].runner.step = lambda: 1 / 0
    with pytest.raises(EngineDiedError, match="thread ended with ZeroDivisionError"):
        engine.submit(torch.zeros(1, 4), deadline=LONG).result(60)
    with pytest.raises(EngineDiedError, match="make a new Engine"):
        engine.submit(torch.zeros(1, 4), deadline=LONG)


@pytest.mark.parametrize("score", ["confidence", "patience"])
def test_a_policy_chooses_the_exits_that_it_chooses_alone(score):
    torch.manual_seed(1)
    net, gate = gated(5)
    gate.open.set()
    policy = Policy(score, [0.45 + (score == "patience")] * 4, [1.0] * 5, [1.0] * 5, [1.0] * 5, 1.0)
    x = torch.randn(40, 4)
    expected = policy.predict(net, x)
    with anytime.Engine(net, processes=0, policy=policy, profile=instant(5), example=x[:1]) as engine:
        answers = [future.result(60) for future in [engine.submit(row[None], deadline=LONG) for row in x]]
    assert [answer.exit for answer in answers] == expected.exits.tolist()
    torch.testing.assert_close(torch.cat([answer.logits for answer in answers]), expected.logits)


def test_an_ensemble_with_stages_without_an_exit():
    torch.manual_seed(0)
    members = [
        anytime.AnytimeNetwork([nn.Linear(4, 4) for _ in range(3)], [nn.Linear(4, 3) for _ in range(3)])
        for _ in range(2)
    ]
    net = anytime.EANN(members).eval()
    net.offered = [(0, 0), (1, 2)]
    xs = [torch.randn(1, 4) for _ in range(6)]
    with anytime.Engine(net, processes=0, example=xs[0], max_batch=4) as engine:
        for x, future in [(x, engine.submit(x)) for x in xs]:
            same(future.result(60), net, x)


def test_closing_answers_what_was_admitted(served):
    engine, _, gate = served
    future = engine.submit(torch.zeros(1, 4), deadline=LONG)
    threading.Timer(0.05, gate.open.set).start()
    engine.close()
    assert future.result(0).complete
    with pytest.raises(OverloadedError, match="closing"):
        engine.submit(torch.zeros(1, 4), deadline=LONG)


def test_closing_without_waiting_says_so(served):
    engine, _, gate = served
    future = engine.submit(torch.zeros(1, 4), deadline=LONG)
    assert gate.arrived.wait(60)
    threading.Timer(0.05, gate.open.set).start()
    engine.close(drain=False)
    with pytest.raises(anytime.AnytimeError, match="closed before"):
        future.result(0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda e: e.submit(torch.zeros(4), deadline=1.0), "x\\[None\\]"),
        (lambda e: e.submit(torch.zeros(9, 4), deadline=1.0), "1 to 8"),
        (lambda e: e.submit(torch.zeros(1, 4), deadline=-1.0), "deadline=-1.0 must be"),
        (lambda e: e.submit("cat.png", deadline=1.0), "the input is a str"),
        (lambda _: anytime.Engine(nn.Linear(1, 1)), "not an anytime network"),
        (lambda _: anytime.Engine(gated()[0].train()), "net.eval()"),
        (lambda _: anytime.Engine(gated()[0]), "example=x"),
        (lambda _: anytime.Engine(gated()[0], example=torch.zeros(1, 4), accuracy=[0.5]), "one for each"),
    ],
)
def test_errors_say_what_to_do(served, call, said):
    served[2].open.set()
    with pytest.raises(anytime.AnytimeError, match=said):
        call(served[0])


def test_exported_stages_answer_as_the_network(tmp_path):
    pytest.importorskip("onnxruntime")
    net = anytime.create_model("resann-1-8", num_classes=5).eval()
    anytime.save(net, tmp_path)
    xs = [torch.randn(1, 3, 32, 32) for _ in range(5)]
    with anytime.Engine(tmp_path, backend="onnx", processes=0, max_batch=2) as engine:
        for x, future in [(x, engine.submit(x)) for x in xs]:
            answer = future.result(60)
            with torch.inference_mode():
                torch.testing.assert_close(answer.logits, net(x)[answer.exit], atol=1e-4, rtol=1e-4)
