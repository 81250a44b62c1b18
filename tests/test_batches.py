"""Batches of any form, as training and evaluation take them."""

from collections import UserDict

import pytest
import torch
from torch import nn

import anytime
from anytime.batches import as_batch, batches_of
from anytime.evaluation import collect


def net(width=4, outputs=3):
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(width, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh())]
    return anytime.AnytimeNetwork(stages, [nn.Linear(8, outputs), nn.Linear(8, outputs)])


X, Y = torch.randn(10, 4), torch.randint(3, (10,))
FORMS = {
    "pairs": [(X[:6], Y[:6]), (X[6:], Y[6:])],
    "lists": [[X[:6], Y[:6]], [X[6:], Y[6:]]],
    "dicts": [{"x": X[:6], "labels": Y[:6]}, {"x": X[6:], "labels": Y[6:]}],
    "Hugging Face's": [UserDict(x=X[:6], labels=Y[:6]), UserDict(x=X[6:], labels=Y[6:])],
    "with an empty one": [(X[:6], Y[:6]), (X[:0], Y[:0]), (X[6:], Y[6:])],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_curve(form):
    curve = anytime.evaluate(net(), FORMS[form])
    wrong = [(output.argmax(-1) != Y).float().mean().item() for output in net()(X)]
    assert curve.errors == pytest.approx(wrong)
    assert curve.images == 10
    assert curve.metric == "error"
    assert len(curve.costs.macs) == 2
    assert len(collect(net(), FORMS[form]).labels) == 10


def test_any_metric_is_averaged_over_the_samples():
    targets = torch.randn(10, 3)
    batches = [(X[:7], targets[:7]), (X[7:], targets[7:])]
    curve = anytime.evaluate(net(), batches, metric=lambda outputs, y: (outputs - y).abs().amax(1))
    own = [(output - targets).abs().amax(1).mean().item() for output in net()(X)]
    assert curve.errors == pytest.approx(own, rel=1e-5)
    assert curve.losses == [None, None]
    curve = anytime.evaluate(net(), batches, metric=anytime.losses.absolute, loss=anytime.losses.squared, only=[-1])
    assert curve.errors[0] is curve.losses[0] is None
    assert curve.losses[1] == pytest.approx((net()(X)[1] - targets).square().mean().item(), rel=1e-5)


def test_a_converted_network_gets_its_columns_by_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
            self.last = nn.Linear(4, 1)

        def forward(self, a, b=None):
            return self.last(self.layers(a if b is None else a + b))

    both = anytime.convert(Two(), {"a": X, "b": X}, exits=2)
    columns = {"a": X, "b": X, "label": torch.zeros(10, 1)}
    assert len(anytime.evaluate(both, [columns], metric=anytime.losses.squared).errors) == 2
    one = anytime.convert(Two(), {"a": X}, exits=2)
    for whole in (
        one,
        anytime.combine(one, "boosting"),
        anytime.EANN([one, anytime.convert(Two(), {"a": X}, exits=2)]),
    ):
        assert as_batch(whole, {"a": X, "labels": Y}).inputs.keys() == {"a"}
        assert whole.eval()({"a": X})
    anytime.fit(one, [{"a": X, "labels": torch.randn(10)}], loss=anytime.losses.squared, epochs=1, show=False)


def test_what_is_no_batch_says_so():
    for wrong, says in (
        ([X], "make a list"),
        ([(X, Y, Y)], "a tuple of 3"),
        ([{"x": X, "y": Y}], "columns x, y; expected the targets under one of labels"),
        (X, "expects batches, not a Tensor"),
    ):
        with pytest.raises(anytime.AnytimeError, match=says):
            list(batches_of(net(), wrong))
    with pytest.raises(anytime.AnytimeError, match="no batches"):
        anytime.evaluate(net(), [])


def test_a_policy_by_any_score(tmp_path):
    """For outputs that are no logits: here, samples leave when two numbers agree."""
    regression = net(outputs=2)
    batches = [(X[:6], torch.zeros(6, 2)), (X[6:], torch.zeros(4, 2))]
    policy = anytime.calibrate(regression, batches, budget=0.8, unit="fraction", score=agree)
    answers = policy.predict(regression.eval(), X)
    outputs = torch.stack(regression(X))
    leaves = agree(outputs[0]) >= policy.thresholds[0]
    assert torch.equal(answers.exits, (~leaves).long())
    assert torch.allclose(answers.logits, torch.where(leaves[:, None], outputs[0], outputs[1]), atol=1e-6)
    assert policy.cost(answers.exits) <= policy.budget
    with pytest.raises(anytime.AnytimeError, match="cannot be saved"):
        policy.save(tmp_path)
    with pytest.raises(anytime.AnytimeError, match="a risk needs a score by name"):
        anytime.calibrate(regression, batches, risk=0.1, score=agree)


def agree(outputs):
    return -(outputs[:, 0] - outputs[:, 1]).abs()


def test_profile_takes_a_loader():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=5)
    profile = anytime.profile(net(), loader, repeats=1, warmup=0)
    assert profile.kind.inputs == (("float32", (5, 4)),)
