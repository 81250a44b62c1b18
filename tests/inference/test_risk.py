"""What leaves early loses at most so much: what risk control promises."""

import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import outputs

import anytime
from anytime.batches import Batch
from anytime.evaluation import Outputs
from anytime.inference.policy import SCORES
from anytime.inference.risk import bounded, control_risk, expected, gap_losses

COSTS = [10.0, 25.0, 40.0, 70.0, 100.0]


@pytest.mark.parametrize(("mean", "gain"), [(0.05, 0.0), (0.1, 0.05), (0.02, 0.0)])
def test_a_threshold_of_too_high_a_risk_passes_with_probability_delta_at_most(mean, gain):
    draw = torch.Generator().manual_seed(0)
    chance = torch.rand(2000, 600, generator=draw, dtype=torch.float64)
    losses = (chance < mean + gain).double() - (chance > 1 - gain).double()  # their mean is just the risk
    for delta in (0.05, 0.2):
        assert bounded(losses, mean, delta).double().mean() <= delta + 3 * (delta * (1 - delta) / 2000) ** 0.5
    assert bounded(losses, mean + 0.1, 0.05).double().mean() > 0.9, "it is hardly ever passed: of no use"


def test_the_accuracy_lost_is_at_most_the_risk():
    everything = outputs(7, samples=20000)
    generator = torch.Generator().manual_seed(1)
    lost = {None: [], 0.1: []}
    for _ in range(60):
        held_out = torch.randperm(20000, generator=generator)[:800]
        some = Outputs(everything.logits[:, held_out], everything.labels[held_out])
        for delta, found in lost.items():
            policy = control_risk(some, COSTS, 0.03, delta)
            found.append(gap_losses(everything, policy.choose_exits(everything.logits)[None]).mean().item())
            assert policy.budget < COSTS[-1]
    assert sum(lost[None]) / 60 <= 0.03
    assert sum(each > 0.03 for each in lost[0.1]) <= 6 + 3 * (60 * 0.1 * 0.9) ** 0.5


@settings(max_examples=40)
@given(st.integers(0, 1000), st.sampled_from(SCORES), st.sampled_from([None, 0.05]), st.floats(0.02, 0.3))
def test_exits_are_those_that_were_tested(seed, score, delta, risk):
    known = outputs(seed, samples=400)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy, bolder = (control_risk(known, COSTS, each, delta, score) for each in (risk, risk + 0.2))
    assert bolder.budget <= policy.budget
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))[100:]
    left = policy.choose_exits(known.logits[:, order])
    assert policy.cost(left) == pytest.approx(policy.budget)
    assert policy.shares == pytest.approx((left.bincount(minlength=5) / 300).tolist())


@pytest.mark.parametrize(("samples", "passes"), [(18, False), (19, True)])
def test_without_a_loss_one_sample_more_counts_as_lost(samples, passes):
    """(0 + 1) / (n + 1) ≤ ε: 1/19 is above 0.05, 1/20 is not."""
    assert expected(torch.zeros(1, samples, dtype=torch.float64), 0.05).item() == passes


@given(st.integers(0, 1000))
def test_losses_count_at_their_worst_so_far(seed):
    losses = torch.randint(-1, 2, (20, 50), generator=torch.Generator().manual_seed(seed)).double()
    passed = expected(losses, 0.9)
    assert torch.equal(passed, passed.int().cumprod(0).bool()), "one that fails is followed by one that passes"


def test_without_labels_it_is_the_disagreement_with_the_last_exit():
    net = anytime.create_model("resann-2-8", in_channels=1).eval()
    x = torch.randn(300, 1, 8, 8)
    with torch.no_grad():
        last = net(x)[-1].argmax(-1)
    alone = anytime.calibrate(net, [x[:100], x[100:]], risk=0.1, delta=0.1, labels=False)
    same = anytime.calibrate(net, [(x, last)], risk=0.1, delta=0.1)
    assert (alone.labels, same.labels) == (False, True)
    assert alone == replace(same, labels=False)
    single = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=100)
    labeled = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, last), batch_size=100)
    for batches in (single, labeled, [x.numpy()], [{"x": x}], [{"x": x, "label": last}], [Batch(x, last)]):
        assert alone == anytime.calibrate(net, batches, risk=0.1, delta=0.1, labels=False)
    answers = alone.predict(net, x)
    assert torch.equal(answers.exits, alone.choose_exits(torch.stack(net(x))))


def test_a_promise_is_saved_with_the_model(tmp_path):
    policy = control_risk(outputs(0), COSTS, 0.1, 0.05)
    policy.save(tmp_path)
    assert anytime.Policy.load(tmp_path) == policy
    assert (policy.risk, policy.delta) == (0.1, 0.05)


def test_too_few_samples_for_any_promise():
    with pytest.warns(UserWarning, match=r"200 held-out .* too few for a risk of 0\.001.*: no .*; give more"):
        policy = control_risk(outputs(0), COSTS, 0.001, 0.05)
    assert policy.thresholds == [None] * 4
    assert policy.budget == COSTS[-1]


def test_what_makes_no_sense_is_refused():
    net, batches = anytime.create_model("resann-1-4"), [(torch.zeros(4, 3, 32, 32), torch.zeros(4).long())]
    for options, message in [
        ({}, "either a budget, or a risk"),
        ({"budget": 1, "risk": 0.1}, "either a budget, or a risk"),
        ({"budget": 1, "delta": 0.1}, "either a budget, or a risk"),
        ({"budget": 1, "labels": False}, "either a budget, or a risk"),
        ({"risk": 0}, "risk=0 must be a number > 0"),
        ({"risk": 0.1, "delta": 1}, "delta=1 must be"),
        ({"risk": 0.1, "score": "hope"}, "confidence"),
    ]:
        with pytest.raises(anytime.AnytimeError, match=message):
            anytime.calibrate(net, batches, **options)
    for options in ({"risk": 0.1}, {"budget": 0.5, "unit": "fraction"}):
        with pytest.raises(anytime.AnytimeError, match="at least two classes"):
            anytime.calibrate(anytime.create_model("resann-1-4", num_classes=1), batches, **options)
