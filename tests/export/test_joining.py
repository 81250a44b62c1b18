"""Stages that run as one graph where no exit between them is wanted."""

import functools
import tempfile
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_onnx import FAMILIES, Doubles, First, images, lively
from torch import nn

import anytime
from anytime.export.write import distance

pytest.importorskip("onnxruntime", reason='needs: pip install "anytime-nets[onnx]"')


def ensemble():
    return anytime.EANN([anytime.create_model("resann-1-8"), anytime.create_model("resann-2-8")])


def shared():
    stage = nn.Linear(32, 32)
    return anytime.AnytimeNetwork([stage] * 4, [nn.Identity(), *(nn.Linear(32, 32) for _ in range(3))])


NETWORKS = {
    "resann": (FAMILIES["resann"], images(2)),
    "msdnet": (FAMILIES["msdnet"], images(2)),
    "ensemble": (ensemble, images(2)),
    "weights of several stages": (shared, torch.randn(2, 32)),
    "several tensors": (
        lambda: anytime.AnytimeNetwork([Doubles(6) for _ in range(4)], [First(6) for _ in range(4)]),
        torch.randn(2, 6),
    ),
}


@functools.cache
def exported(name):
    build, x = NETWORKS[name]
    folder = anytime.export.onnx(lively(build()), x, tempfile.mkdtemp())
    apart, joined = anytime.load_exported(folder), anytime.load_exported(folder)
    apart.joins_stages = False
    return apart, joined, x


def same_law(name, only):
    """The exits that are wanted answer as they do when every stage and head runs by itself."""
    apart, joined, x = exported(name)
    expected, found = list(apart.steps(x, only)), list(joined.steps(x, only))
    assert [step.exit for step in found] == [step.exit for step in expected]
    assert all(distance(a.logits, b.logits) < 1e-5 for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_exits_answer_as_before(name):
    same_law(name, None)
    same_law(name, [-1])
    same_law(name, [])
    apart, joined, x = exported(name)
    for exits in (1, 3, joined.exits):
        one, other = (anytime.predict(net, x, exits=exits) for net in (apart, joined))
        assert (one.exit, one.complete, one.stopped_by) == (other.exit, other.complete, other.stopped_by)
        assert distance(one.logits, other.logits) < 1e-5
        assert one.macs == other.macs


@settings(max_examples=15, deadline=None)
@given(only=st.lists(st.integers(-4, 3), min_size=1, max_size=4))
def test_any_exits(only):
    same_law("several tensors", only)
    same_law("weights of several stages", only)


def test_threads_make_each_graph_once():
    _, joined, x = exported("weights of several stages")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(joined(x, [1, 2])[1])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert all(torch.equal(answer, answers[0]) for answer in answers)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("anytime.export.joining.MOST", 2)
    x = torch.randn(2, 32)
    folder = anytime.export.onnx(shared().eval(), x, tempfile.mkdtemp())
    net, made = anytime.load_exported(folder), []
    join = net._segments._runners.join
    net._segments._runners = net._segments._runners._replace(join=lambda *given: made.append(1) or join(*given))
    answers = [net(x, [exit])[0] for exit in (0, 1, 2, 3, 0)]
    assert len(made) == 2
    assert all(distance(a, b) < 1e-5 for a, b in zip(answers, net(x), strict=False))


def test_what_cannot_be_joined_runs_stage_by_stage(monkeypatch):
    monkeypatch.setattr("anytime.export.onnx_runtime.can_join", lambda _: False)
    folder = anytime.export.onnx(shared().eval(), torch.randn(2, 32), tempfile.mkdtemp())
    net = anytime.load_exported(folder)
    assert [step.exit for step in net.steps(torch.randn(3, 32), [0, 2])] == [0, 2]
    assert anytime.predict(net, torch.randn(3, 32)).complete
