import math

import pytest
import torch
from short_runs import linear, small, train
from torch import nn

import anytime
from anytime.files import read_tensors
from anytime.training.finite import FiniteGuard


class Fails(nn.Module):
    """A head whose logits are NaN from some call on; with ``once``, in that call only."""

    def __init__(self, head, after, once=False):
        super().__init__()
        self.head, self.left, self.once = head, after, once

    def forward(self, x):
        self.left -= self.training
        bad = self.left == -1 if self.once else self.left < 0
        return self.head(x) * (math.nan if bad and self.training else 1)


class NaNGradient(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        return gradient * math.nan


class BadGradient(nn.Module):
    """A head whose gradient is NaN from some call on, though its logits are finite."""

    def __init__(self, head, after):
        super().__init__()
        self.head, self.left = head, after

    def forward(self, x):
        self.left -= self.training
        return NaNGradient.apply(self.head(x)) if self.left < 0 else self.head(x)


def everything(net, scheme):
    state = [*net.named_parameters(), *net.named_buffers(), *scheme.state_dict().items()]
    return {name: value.detach().clone() for name, value in state}


def remember(net, scheme):
    """The state before each forward pass."""
    seen = []
    net.register_forward_pre_hook(lambda *_: seen.append(everything(net, scheme)) if net.training else None)
    return seen


def equal(one, other):
    return all(torch.equal(value.nan_to_num(), other[name].nan_to_num()) for name, value in one.items())


@pytest.fixture
def look_every_50(monkeypatch):
    """As on an accelerator, where to look at the losses is to wait for the device."""
    original = FiniteGuard.__init__

    def rarely(self, *arguments):
        original(self, *arguments)
        self.look_every = 50

    monkeypatch.setattr(FiniteGuard, "__init__", rarely)


def test_a_loss_that_is_not_finite_stops_before_the_update(data, tmp_path):
    net, scheme = small(), anytime.AdaLoss(3)
    net.heads[1] = Fails(net.heads[1], after=5)
    seen = remember(net, scheme)
    with pytest.raises(anytime.NonFiniteLossError, match=r"exit 2 of 3 \(index 1\) is nan at step 6 \(epoch 2"):
        train(net, data, scheme, batch_size=30, output=tmp_path / "run", checkpoint_seconds=0)
    assert equal(everything(net, scheme), seen[5])
    assert read_tensors(tmp_path / "run/checkpoint.safetensors")[1]["position"] == 1


def test_an_objective_that_is_not_finite_stops_too(data):
    net = small()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(anytime.NonFiniteLossError, match=r"every loss is finite but .* objective is nan at step 1 "):
        train(net, data, lambda losses: losses.sum() * math.nan)
    assert equal(net.state_dict(), before)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_gradient_that_is_not_finite_stops_too(optimizer, data, tmp_path):
    net, scheme = small(), anytime.AdaLoss(3)
    net.heads[1] = BadGradient(net.heads[1], after=5)
    seen = remember(net, scheme)
    with pytest.raises(anytime.NonFiniteLossError, match=r"the gradient of net\.\S+ is not at step 6 "):
        train(net, data, scheme, batch_size=30, lr=0.01, optimizer=optimizer, output=tmp_path / "run",
              checkpoint_seconds=0)  # fmt: skip
    assert equal(everything(net, scheme), seen[5])
    tensors, about = read_tensors(tmp_path / "run/checkpoint.safetensors")
    assert (about["epoch"], about["position"]) == (1, 1)
    assert all(value.isfinite().all() for name, value in tensors.items() if name.startswith("net/"))


def test_a_bad_part_of_a_batch_moves_nothing(data):
    net, scheme = small(), anytime.AdaLoss(3)
    net.heads[1] = Fails(net.heads[1], after=3)  # the second part of the second step
    seen = remember(net, scheme)
    with pytest.raises(anytime.NonFiniteLossError, match="at step 2 "):
        train(net, data, scheme, batch_size=20, accumulate=2)
    assert equal(scheme.state_dict(), {name: seen[2][name] for name in scheme.state_dict()})


@pytest.mark.parametrize("fault", [Fails, BadGradient])
@pytest.mark.usefixtures("look_every_50")
def test_where_looking_waits_for_the_device_nothing_changes_until_it_is_done(fault, data):
    net, scheme = small(), anytime.AdaLoss(3)
    net.heads[1] = fault(net.heads[1], after=5)
    seen = remember(net, scheme)
    with pytest.raises(anytime.NonFiniteLossError, match=r"at step 6 "):
        train(net, data, scheme, batch_size=10)
    assert len(seen) == 10, "it went on to the end of the epoch"
    assert equal(everything(net, scheme), seen[5])


@pytest.mark.usefixtures("look_every_50")
def test_no_checkpoint_is_written_between_a_bad_step_and_the_look(data, tmp_path):
    net, scheme = small(), anytime.AdaLoss(3)
    net.heads[1] = Fails(net.heads[1], after=5, once=True)
    with pytest.raises(anytime.NonFiniteLossError, match="at step 6 "):
        train(net, data, scheme, batch_size=10, output=tmp_path / "run", checkpoint_seconds=0)
    tensors, about = read_tensors(tmp_path / "run/checkpoint.safetensors")
    assert about["position"] == 5, "the last step before the bad one"
    assert all(value.isfinite().all() for value in tensors.values())


@pytest.mark.usefixtures("look_every_50")
def test_with_float16_too_nothing_changes_after_a_bad_step(data):
    net, scheme = linear(), anytime.AdaLoss(2)
    net.heads[0] = Fails(net.heads[0], after=5, once=True)
    seen = remember(net, scheme)
    with pytest.raises(anytime.NonFiniteLossError, match=r"exit 1 of 2 .* at step 6 "):
        train(net, data, scheme, batch_size=10, lr=0.01, precision="float16")
    assert len(seen) == 10
    assert not equal(seen[5], seen[4]), "steps were taken before"
    assert equal(everything(net, scheme), seen[5])


def test_gradients_that_overflow_float16_at_every_scale_are_reported(data):
    net = linear()
    net.heads[0] = BadGradient(net.heads[0], after=0)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(anytime.NonFiniteLossError, match="overflow float16"):
        train(net, data, batch_size=5, precision="float16")
    assert equal(net.state_dict(), before)
