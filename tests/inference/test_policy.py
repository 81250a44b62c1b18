"""Easy samples leave early: what calibrate and a policy promise."""

import json
import re
import time
from typing import ClassVar

import numpy as np
import pytest
import torch
from backends import BACKENDS, on
from forge import forge_json
from hypothesis import given
from hypothesis import strategies as st
from made_up import outputs
from torch.nn.functional import cross_entropy

import anytime
from anytime.evaluation import collect
from anytime.inference.calibration import fit_policy, sweep
from anytime.inference.policy import SCORES, Scorer
from anytime.inference.thresholds import RULES


@given(st.integers(0, 1000), st.floats(0, 1), st.sampled_from(SCORES), st.sampled_from(list(RULES)))
def test_the_average_cost_meets_the_budget(seed, part, score, rule):
    known, costs = outputs(seed), [10.0, 25.0, 40.0, 70.0, 100.0]
    budget = costs[0] + part * (costs[-1] - costs[0])
    policy = fit_policy(known, costs, budget, score=score, rule=rule)
    left = policy.choose_exits(known.logits)
    assert policy.shares == pytest.approx((left.bincount(minlength=5) / len(left)).tolist())
    assert policy.cost(left) <= budget + 1e-9
    # Not cheaper than needed either: one sample more on its way would be too much, or few.
    assert policy.cost(left) >= budget - (1.0 if rule == "common" else 2.5)


def test_more_budget_fewer_errors():
    points = sweep(outputs(0, samples=4000), outputs(1, samples=4000), [10.0, 25.0, 40.0, 70.0, 100.0])
    errors = [point.error for point in points]
    assert errors[0] > errors[5] > errors[-1] - 0.01
    assert all(point.cost == pytest.approx(point.budget, rel=0.03) for point in points)
    assert all(sum(point.shares) == pytest.approx(1) for point in points)


@given(st.integers(0, 1000))
def test_temperatures_are_the_best(seed):
    known = outputs(seed)
    policy = fit_policy(known, [1.0, 2.0, 3.0, 4.0, 5.0], 3.0)
    for logits, temperature in zip(known.logits.double(), policy.temperatures, strict=True):
        best = cross_entropy(logits / temperature, known.labels)
        for other in (0.9, 0.99, 1.01, 1.1):
            assert best <= cross_entropy(logits / (other * temperature), known.labels) + 1e-12


NETS = {
    "resann": lambda: anytime.create_model("resann-2-8"),
    "denseann": lambda: anytime.models.DenseANN((4, 4), 4, 8, num_classes=10, small=True, exits=[2, 4, 6, 8]),
    "msdnet": lambda: anytime.create_model("msdnet-cifar-4-2-1", num_classes=10),
}


IMAGE = torch.zeros(1, 3, 32, 32)


PROBABILITIES = torch.tensor([[0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.1, 0.8]], dtype=torch.float64)
LATER = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]], dtype=torch.float64)
BY_HAND = {  # 1 − H / ln 3, with H of the first row: ½ ln 2 + 0.3 ln(1 / 0.3) + 0.2 ln 5 = 1.029653
    "confidence": ([0.5, 1 / 3, 0.8], [0.6, 0.5, 0.6]),
    "margin": ([0.2, 0.0, 0.7], [0.3, 0.2, 0.3]),
    "entropy": ([0.062769, 0.0, 0.418328], [0.182655, 0.062769, 0.182655]),
    "patience": ([0.5, 1 / 3, 0.8], [1.6, 0.5, 1.6]),  # the second row's answer is another one
}


@pytest.mark.parametrize("score", SCORES)
def test_scores_computed_by_hand(score):
    """Of logits that temperatures of 2 and 3 turn into these probabilities, whatever is added to them."""
    scorer = Scorer(score, [2.0, 3.0])
    logits = 2 * PROBABILITIES.log() + 5, 3 * LATER.log() - 7
    for exit, expected in enumerate(BY_HAND[score]):
        assert scorer.score(exit, logits[exit]).tolist() == pytest.approx(expected, abs=1e-5)
    scorer.keep(torch.tensor([2, 0]))
    again = scorer.score(1, logits[1][[2, 0]])
    more = 1 if score == "patience" else 0  # the same answers once more
    assert again.tolist() == pytest.approx([BY_HAND[score][1][row] + more for row in (2, 0)], abs=1e-5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "eager") for name in NETS), *(("resann", b) for b in BACKENDS[1:])]
)
def test_a_batch_is_answered_as_each_of_its_samples(name, backend, score):
    net = on(backend, NETS[name], IMAGE).eval()
    x, labels = torch.randn(24, 3, 32, 32), torch.randint(10, (24,))
    policy = anytime.calibrate(net, [(x, labels)], budget=0.6, unit="fraction", score=score)
    arrived = [0] * net.exits
    for exit, stage in enumerate(net.stages):
        stage.register_forward_pre_hook(lambda _, args, exit=exit: arrived.__setitem__(exit, rows(args[0])))
    together = policy.predict(net, x)
    assert len(set(together.exits.tolist())) > 1, "all left at once: nothing was tried"
    # Each stage saw those alone that had not left before.
    assert arrived == [int((together.exits >= exit).sum()) for exit in range(net.exits)]
    for i in range(len(x)):
        alone = policy.predict(net, x[i : i + 1])
        assert alone.exits.item() == together.exits[i]
        scale = together.logits.abs().max().item()  # an untrained network's logits may be in the hundreds
        torch.testing.assert_close(alone.logits[0], together.logits[i], atol=1e-5 * max(1.0, scale), rtol=0)
    assert torch.equal(together.exits, policy.choose_exits(collect(net, [(x, labels)]).logits))


def rows(state):
    if isinstance(getattr(state, "values", None), dict):  # an exported network's
        return len(next(iter(state.values.values())))
    return len(state) if isinstance(state, torch.Tensor) else rows(state[0])


class Slow(torch.nn.Linear):
    """A stage that takes as long for one sample as for many, and notes how many."""

    sizes: ClassVar[set[int]] = set()

    def forward(self, x):
        self.sizes.add(len(x))
        time.sleep(0.01)
        return super().forward(x)


@pytest.mark.parametrize("score", ["confidence", lambda logits: logits.amax(-1)])
def test_seconds_are_those_of_a_sample_alone_unless_more_are_predicted_together(score):
    net = anytime.AnytimeNetwork([Slow(4, 4), Slow(4, 4)], [torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)]).eval()
    batches = [(torch.randn(100, 4), torch.randint(3, (100,)))]
    policy = anytime.calibrate(net, batches, 60.0, "seconds", score)
    assert policy.unit == "seconds"
    assert policy.costs[0] >= 0.01
    assert policy.costs[1] >= 0.02
    for told, sizes in ((None, {1, 100}), (5, {5, 100}), (100, {100})):
        Slow.sizes.clear()
        anytime.calibrate(net, batches, 60.0, "seconds", score, batch_size=told)
        assert Slow.sizes == sizes
    with pytest.raises(anytime.AnytimeError, match=r"batch_size=101: the first batch has 100 samples.*larger batches"):
        anytime.calibrate(net, batches, 60.0, "seconds", score, batch_size=101)
    with pytest.raises(anytime.AnytimeError, match=r"batch_size=0 must be an integer >= 1"):
        anytime.calibrate(net, batches, 60.0, "seconds", score, batch_size=0)
    with pytest.raises(anytime.AnytimeError, match=r'batch_size=5 counts for seconds alone: pass unit="seconds" too'):
        anytime.calibrate(net, batches, 0.5, batch_size=5)


def test_a_policy_is_saved_with_the_model(tmp_path):
    known = outputs(0)
    policy = fit_policy(known, [1.0, 2.0, 3.0, 4.0, 5.0], 3.0, rule="geometric")
    policy.save(tmp_path)
    assert anytime.Policy.load(tmp_path) == policy
    content = json.loads((tmp_path / "policy.json").read_text())
    for damage in (
        {"thresholds": [0.5]},
        {"score": "hope"},
        {"colour": "red"},
        {"costs": [10**400] * 5},
        {"unit": "fraction"},
    ):
        forge_json(tmp_path / "policy.json", content | damage)
        with pytest.raises(anytime.AnytimeError, match="is damaged"):
            anytime.Policy.load(tmp_path)
    with pytest.raises(anytime.AnytimeError, match=r"has no policy\.json"):
        anytime.Policy.load(tmp_path / "elsewhere")


def test_what_makes_no_sense_is_refused():
    known, costs = outputs(0), [1.0, 2.0, 3.0, 4.0, 5.0]
    for options, message in [
        ({"budget": 0.5}, "first exit takes 1"),
        ({"budget": 0.0}, "the last 5"),
        ({"budget": float("inf")}, "budget=inf must be a number"),
        ({"budget": True}, "budget=True must be a number"),
        ({"budget": 3.0, "score": "hope"}, "confidence"),
        ({"budget": 3.0, "rule": "hope"}, "geometric"),
    ]:
        with pytest.raises(anytime.AnytimeError, match=message):
            fit_policy(known, costs, **options)
    assert fit_policy(known, costs, np.float32(3)) == fit_policy(known, costs, 3)
    net = anytime.create_model("resann-1-4")
    with pytest.raises(anytime.AnytimeError, match="one of macs, seconds, fraction"):
        anytime.calibrate(net, [], budget=1, unit="hours")
    with pytest.raises(anytime.AnytimeError, match="no batches"):
        anytime.calibrate(net, [], budget=1)
    policy = fit_policy(known, costs, 3.0)
    with pytest.raises(anytime.AnytimeError, match="5 exits, not of 3"):
        policy.predict(net, torch.zeros(1, 3, 32, 32))
    with pytest.raises(anytime.AnytimeError, match="training mode"):
        fit_policy(outputs(0, exits=3), costs[:3], 3.0).predict(net, torch.zeros(1, 3, 32, 32))


def test_a_sample_that_is_nan_is_named():
    net = NETS["resann"]().eval()
    x, labels = torch.randn(24, 3, 32, 32), torch.randint(10, (24,))
    policy = anytime.calibrate(net, [(x, labels)], budget=0.6, unit="fraction")
    spoilt = x.clone()
    spoilt[2] = float("nan")
    with pytest.raises(anytime.AnytimeError, match="NaN for sample 2 of 24"):
        policy.predict(net, spoilt)
    with pytest.raises(anytime.AnytimeError, match="infinite or NaN for some"):
        anytime.calibrate(net, [(spoilt, labels)], budget=0.6, unit="fraction")
    with pytest.raises(anytime.AnytimeError, match="expected a tensor"):
        policy.predict(net, None)


def test_the_unit_of_a_budget_follows_from_its_size():
    net = NETS["resann"]().eval()
    batches = [(torch.randn(24, 3, 16, 16), torch.randint(10, (24,)))]
    policy = anytime.calibrate(net, batches, budget=0.6)
    assert policy == anytime.calibrate(net, batches, budget=0.6, unit="fraction")
    macs = policy.costs[0] * 1.5
    assert anytime.calibrate(net, batches, budget=macs) == anytime.calibrate(net, batches, budget=macs, unit="macs")


def test_wrong_validation_data():
    net, x = NETS["resann"]().eval(), torch.randn(8, 3, 16, 16)
    labels = torch.randint(10, (8,))
    for batches, message in [
        ((x, labels), "make a list"),
        ([(x, labels[:1])], "one class number for each of 8"),
        ([(x, labels.float())], "expected one class number"),
        ([(x, labels - 100)], "there are 10 classes"),
        ([(x[:0], labels[:0])], "no samples"),
    ]:
        with pytest.raises(anytime.AnytimeError, match=message):
            anytime.calibrate(net, batches, budget=0.6, unit="fraction")
    policy = anytime.calibrate(net, [(x[:0], labels[:0]), (x, labels)], budget=0.6, unit="fraction")
    assert policy.costs[-1] > 0
    with pytest.raises(anytime.AnytimeError, match=r"first exit takes 0\.2"):
        anytime.calibrate(net, [(x, labels)], budget=0.1, unit="fraction")
    with pytest.raises(anytime.AnytimeError, match="the last 1"):
        anytime.calibrate(net, [(x, labels)], budget=50, unit="fraction")


@pytest.mark.parametrize("unit", [None, "fraction", "macs", "seconds"])
@pytest.mark.parametrize("budget", [0.1, 60])
def test_a_budget_that_is_out_of_range_names_one_that_is_not(budget, unit):
    net, batches = NETS["resann"]().eval(), [(torch.randn(8, 3, 16, 16), torch.randint(10, (8,)))]
    if unit == "seconds":
        budget /= 1e9
    with pytest.raises(anytime.AnytimeError, match="choose a budget between") as error:
        anytime.calibrate(net, batches, budget, unit)
    least, most = map(float, re.search(r"between (\S+) and ([^\s;]+)", str(error.value)).groups())
    if unit != "seconds":  # these are measured anew each time
        assert anytime.calibrate(net, batches, least, unit).shares[0] > 0.99
        assert anytime.calibrate(net, batches, most, unit).shares[-1] > 0
        assert ("60 % of the cost is budget=0.6" in str(error.value)) == (budget == 60)
