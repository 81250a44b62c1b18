"""Running statistics of batch norm keep up with the weights."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from short_runs import linear, same, small, stopped, train
from torch import nn

import anytime
from anytime.training.statistics import keeping_up


def norms(net):
    return [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]


def with_momentum(momentum):
    net = small()
    for layer in norms(net):
        layer.momentum = momentum
    return net


def in_training(momentum, steps):
    """The momentum of a layer during a training of so many steps."""
    layer = nn.BatchNorm2d(3, momentum=momentum)
    with keeping_up(layer, steps, warn=False):
        during = layer.momentum
    assert layer.momentum == momentum
    return during


@pytest.mark.parametrize("momentum", [0.01, 0.001, 0.0, None])
def test_a_model_with_tiny_momentum_is_trained_as_one_with_the_usual_one(momentum, data, tmp_path):
    usual, tiny, parts, again = small(), *(with_momentum(momentum) for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = train(usual, data, lr=0.01)
    with pytest.warns(UserWarning, match=r"9 layers of batch norm have momentum .* training of this many steps \(8\)"):
        found = train(tiny, data, lr=0.01)
    assert same(usual, tiny)
    assert found.curve == expected.curve
    assert {layer.momentum for layer in norms(tiny)} == {momentum}
    with pytest.warns(UserWarning, match="batch norm"):
        stopped(parts, data, tmp_path / "run", after=3)
    assert {layer.momentum for layer in norms(parts)} == {momentum}
    with pytest.warns(UserWarning, match="batch norm"):
        train(again, data, lr=0.01, output=tmp_path / "run", resume=True)
    assert same(usual, again)


def test_a_model_with_tiny_momentum_is_as_good_on_test_images_as_on_those_of_the_training():
    net = with_momentum(0.001)
    with pytest.warns(UserWarning, match="batch norm"):
        result = train(net, anytime.load_data("digits"), "const", epochs=6)
    assert result.curve.errors[-1] < 0.3


@given(st.floats(1e-4, 0.099), st.integers(1, 10**6))
def test_a_momentum_is_kept_where_the_training_is_long_enough_for_it(momentum, steps):
    assert in_training(momentum, steps) == (0.1 if steps * momentum < 10 else momentum)
    assert in_training(momentum, None) == 0.1


@given(st.floats(0.1, 1), st.one_of(st.none(), st.integers(1, 10**6)))
def test_the_usual_momentum_and_larger_ones_are_kept(momentum, steps):
    assert in_training(momentum, steps) == momentum


def test_frozen_parts_and_layers_without_statistics_are_left_alone():
    frozen, free = nn.BatchNorm2d(3, momentum=0.001).eval(), nn.BatchNorm2d(3, 0.001, track_running_stats=False)
    with warnings.catch_warnings(), keeping_up(nn.ModuleList([frozen, free]), 8):
        warnings.simplefilter("error")
        assert frozen.momentum == 0.001
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(linear(), [(torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))], epochs=1)
