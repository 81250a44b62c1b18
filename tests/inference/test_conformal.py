"""The truth is in the set as often as promised."""

import json
from math import ceil

import pytest
import torch
from forge import forge_json
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import outputs

import anytime
from anytime.evaluation import Outputs
from anytime.inference.conformal import ConformalSets, conformal_sets, fit_sets


def covered(sets, logits, labels):
    """Exits × samples."""
    each = torch.stack([sets.of(logits[exit], exit) for exit in range(len(logits))])
    return each.gather(-1, labels.expand(len(logits), -1)[..., None]).squeeze(-1)


def split(seed, samples=600):
    known = outputs(seed, samples=samples)
    half = samples // 2
    return Outputs(known.logits[:, :half], known.labels[:half]), Outputs(known.logits[:, half:], known.labels[half:])


@pytest.mark.parametrize("together", [False, True])
def test_coverage_over_many_draws(together):
    at_exits, at_all = [], []
    for seed in range(80):
        held_out, new = split(seed)
        inside = covered(fit_sets(held_out, 0.9, together), *new)
        at_exits.append(inside.double().mean(1))
        at_all.append(inside.all(0).double().mean())
    mean, all_at_once = torch.stack(at_exits).mean(0), torch.stack(at_all).mean()
    assert (mean > 0.895).all()
    assert (all_at_once > 0.89) == together
    if not together:
        assert (mean < 0.93).all(), "sets are larger than needed"


@settings(max_examples=50)
@given(st.integers(0, 1000), st.floats(0.5, 0.99))
def test_held_out_samples_are_covered(seed, coverage):
    held_out, _ = split(seed)
    for together in (False, True):
        inside = covered(fit_sets(held_out, coverage, together), *held_out)
        assert (inside.double().mean(1) >= coverage - 0.05).all()


@settings(max_examples=50)
@given(st.integers(0, 1000), st.floats(0.5, 0.95))
def test_cutoffs_for_all_exits_are_the_largest_that_cover(seed, coverage):
    """One half of the samples ranks them; of the other ⌈(n + 1) · coverage⌉ are covered, and fewer by the next rank."""
    known = outputs(seed, samples=200)
    sets = fit_sets(known, coverage, together=True)
    truth = known.of_truth(known.logits.double().softmax(-1))
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    ranked, new = truth[:, order[:100]].sort(-1).values, truth[:, order[100:]]
    cutoffs = torch.tensor(sets.cutoffs, dtype=torch.float64)[:, None]
    (rank,) = {int((row < cutoff).sum()) for row, cutoff in zip(ranked, cutoffs, strict=True)}  # one for all exits
    wanted = ceil(101 * coverage)
    assert int((new >= cutoffs).all(0).sum()) >= wanted
    assert int((new >= ranked[:, rank + 1 : rank + 2]).all(0).sum()) < wanted


def test_better_exits_have_smaller_sets():
    held_out, new = split(0, 4000)
    sets = fit_sets(held_out, 0.9)
    sizes = [sets.of(logits, exit).sum(-1).double().mean().item() for exit, logits in enumerate(new.logits)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0] - 0.5


def test_predictions_and_answers(tmp_path):
    net = anytime.create_model("resann-1-8", in_channels=1).eval()
    x, labels = torch.randn(60, 1, 8, 8), torch.randint(10, (60,))
    sets = conformal_sets(net, [(x, labels)], together=True)
    assert torch.equal(sets(anytime.predict(net, x, exits=2)), sets.of(net(x)[1], 1))
    policy = anytime.calibrate(net, [(x, labels)], budget=0.7, unit="fraction")
    answers = policy.predict(net, x)
    for i, exit in enumerate(answers.exits.tolist()):
        assert torch.equal(sets(answers)[i], sets.of(answers.logits[i : i + 1], exit)[0])
    sets.save(tmp_path)
    assert ConformalSets.load(tmp_path) == sets
    content = json.loads((tmp_path / "sets.json").read_text())
    for damage in ({"coverage": 2}, {"cutoffs": ["a"]}, {"colour": "red"}):
        forge_json(tmp_path / "sets.json", content | damage)
        with pytest.raises(anytime.AnytimeError, match="is damaged"):
            ConformalSets.load(tmp_path)
    anytime.save(net, tmp_path)  # another model: its sets would be others
    with pytest.raises(anytime.AnytimeError, match=r"has no sets\.json"):
        ConformalSets.load(tmp_path)


def test_few_samples_give_large_sets():
    known = outputs(0, samples=5)
    for together in (False, True):
        sets = fit_sets(known, 0.95, together)
        assert sets.of(known.logits[0], 0).all(), "5 samples say nothing about 95 %"
    with pytest.raises(anytime.AnytimeError, match="coverage=1 must be"):
        fit_sets(known, 1)
    with pytest.raises(anytime.AnytimeError, match="samples × classes"):
        sets.of(known.logits, 0)
    with pytest.raises(anytime.AnytimeError, match="of a later one"):
        sets.of(known.logits[0], 99)
    assert sets.of(known.logits[0, :0], torch.zeros(0, dtype=torch.int64)).shape == (0, known.logits.shape[-1])
