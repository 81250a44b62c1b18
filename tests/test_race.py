"""The race's networks, its measure, and that its trainings go on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shared_data import some_pixels, write_parquet
from torch import nn

import anytime
from anytime.cost import Costs
from anytime.evaluation import Outputs
from experiments import race
from experiments.controls import MixedRegime, UncertaintySO
from experiments.race_measure import BUDGETS, at_thresholds, judge, leave, per_exit, spending, threshold_for
from experiments.race_measure import race as race_at
from experiments.race_network import Partition, RaceNet, ScaledBias, Unit, whiten

SMALL = {"blocks": [(4, 1), (8, 1), (8, 1)], "stem": (4, 4), "exits": [1, 2, 3], "hidden": 4}
COSTS = Costs([40, 70, 100], [1, 2, 3], [10, 10, 10])


def said(seed, exits=3, samples=200, classes=4):
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=draw)
    noise = torch.randn(exits, samples, classes, generator=draw)
    right = nn.functional.one_hot(labels, classes) * torch.arange(1, exits + 1)[:, None, None]
    return Outputs(noise + right, labels)


EVERY = race.CANDIDATES | race.COMBINED


@pytest.mark.parametrize("name", EVERY)
def test_every_candidate_keeps_to_the_limit(name):
    with torch.device("meta"):
        net = RaceNet(**EVERY[name].net)
    assert anytime.costs(net, torch.empty(1, 3, 32, 32, device="meta")).macs[-1] <= BUDGETS[-1]


@given(seed=st.integers(0, 99), budget=st.floats(1, 120))
def test_the_threshold_is_the_largest_within_the_budget(seed, budget):
    outputs = said(seed)
    spent = spending(COSTS, [0, 1, 2])
    scores = outputs.logits.double().softmax(-1).amax(-1)
    threshold = threshold_for(scores, spent, budget)
    cost = spent[leave(scores, threshold)].mean()
    assert cost <= max(budget, spent[0])
    more = spent[leave(scores, threshold + 1e-6)].mean()
    assert more > budget or cost == more == spent[-1], "a larger one would have been within it too"


@given(seed=st.integers(0, 99), low=st.floats(0, 1), high=st.floats(0, 1))
def test_a_larger_threshold_costs_more(seed, low, high):
    low, high = sorted((low, high))
    cheap, dear = at_thresholds(said(seed), COSTS, [0, 1, 2], [low, high])
    assert cheap["macs"] <= dear["macs"]


def test_heads_that_are_left_out_cost_nothing():
    assert spending(COSTS, [0, 1, 2]).tolist() == COSTS.macs
    assert spending(COSTS, [1, 2]).tolist() == [60, 90]
    assert spending(COSTS, [2]).tolist() == [80]


def test_a_part_of_the_exits_is_judged_by_the_same_measure():
    outputs = said(0)
    found = judge(outputs, COSTS, parts=True)
    assert found["best_race"] == race_at(outputs, COSTS, found["best_exits"], BUDGETS)
    assert judge(outputs, COSTS, parts=False)["best_exits"] == [0, 1, 2]
    last = race_at(outputs, COSTS, [0, 1, 2], [1e9])[0]
    assert last["accuracy"] == pytest.approx(1 - outputs.wrong[-1].double().mean().item(), abs=1e-5)


def test_thresholds_of_their_own_keep_the_budget_of_the_images_they_were_fitted_on():
    outputs = said(0)
    at = per_exit(outputs, outputs, COSTS, [0, 1, 2], [50, 80])
    assert all(each["macs"] <= budget for each, budget in zip(at, [50, 80], strict=True))


def test_an_exits_own_channels_receive_no_gradient_from_deeper_ones():
    x = torch.ones(2, 8, 4, 4, requires_grad=True)
    part = Partition(0.25)
    assert torch.equal(part(x), x)
    part(x).sum().backward()
    assert x.grad[:, :6].eq(1).all()
    assert x.grad[:, 6:].eq(0).all()
    assert part.eval()(x) is x


def test_a_scaled_bias_takes_larger_steps_and_is_else_a_batch_norm():
    plain, scaled = nn.BatchNorm2d(3), ScaledBias(3, 8.0)
    for _ in range(3):
        x = torch.randn(5, 3, 4, 4)
        found = []
        for bn in (plain, scaled):
            bn.zero_grad()
            found.append(bn(x))
            found[-1].square().sum().backward()
            with torch.no_grad():
                bn.bias.copy_(torch.tensor([1.0, 2.0, 3.0]) / (8 if bn is scaled else 1))
        assert torch.allclose(*found, atol=1e-5)
        assert torch.allclose(scaled.bias.grad, 8 * plain.bias.grad, atol=1e-3)
        assert torch.allclose(plain.weight.grad, scaled.weight.grad, atol=1e-3)
    assert torch.allclose(plain.eval()(x), scaled.eval()(x), atol=1e-5)


def test_dirac_filters_hand_on_their_inputs():
    net = RaceNet(**SMALL, dirac=True)
    units = [module for module in net.modules() if isinstance(module, Unit)]
    x = torch.rand(1, 4, 8, 8)
    assert torch.equal(units[0].conv(x), x)
    assert torch.allclose(units[1].conv(x)[:, :4], x[:, :, ::2, ::2])


def test_a_whitened_stem_sees_patches_without_correlation():
    images = torch.randn(400, 3, 32, 32).cumsum(3).mul(0.1)
    net = RaceNet(**{**SMALL, "stem": (4, 4)})
    whiten(net, images)
    conv = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    seen = conv(images)[:, :, 1:-1, 1:-1].transpose(0, 1).flatten(1)[:2]  # without the border's zeros
    seen = seen @ seen.T / seen.shape[1]
    assert torch.allclose(seen, torch.eye(2), atol=0.2)
    assert torch.equal(conv.weight[:2], -conv.weight[2:])


def test_the_mixed_regime_trains_the_last_exit_first():
    scheme, adaloss = MixedRegime(2), anytime.AdaLoss(2)
    scheme.steps = 4
    for step in range(4):
        losses = torch.tensor([4.0, 1.0], requires_grad=True)
        scheme(losses), adaloss(losses)
        assert scheme.weights.tolist() == ([0.0, 1.0] if step < 1 else adaloss.weights.tolist())


def test_inverse_losses_of_the_best_exit_weigh_most():
    scheme = UncertaintySO(2)
    scheme(torch.tensor([2.0, 0.5], requires_grad=True))
    assert torch.allclose(scheme.weights, torch.tensor([torch.tensor(-1.5).exp(), 1.0]))


@pytest.fixture
def folder(tmp_path):
    for seed, part in enumerate(race.PARTS):
        classes = [str(i) for i in range(10)]
        pixels, labels = some_pixels(120, seed=seed, size=32), [i % 10 for i in range(120)]
        write_parquet(tmp_path / part / "train.parquet", pixels, labels, names=classes)
    write_parquet(tmp_path / race.PARTS[0] / "test.parquet", pixels, labels, names=classes)
    return tmp_path


def test_choices_are_made_before_the_test_images_are_seen(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(race, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(race, "CHOSEN", race.Entry(SMALL, whitened=True))
    monkeypatch.setattr(race, "FINAL", (None, 2))
    monkeypatch.setattr(race, "SEEDS", 1)
    monkeypatch.setattr(race, "RECIPE", {"batch_size": 60})
    runs = tmp_path / "runs"
    race.run(race.finals(), folder, runs, compiled=False)
    twin, entry = race.finals()
    records = {path.stem: race.read_json(path) for path in (tmp_path / "records").glob("*")}
    assert set(records) == {twin.full_name, entry.full_name}
    assert (records[twin.full_name]["trained_on"], records[entry.full_name]["trained_on"]) == (216, 240)
    race.test(folder, runs)
    path = tmp_path / "records" / f"test-{entry.full_name}.json"
    record = race.read_json(path)
    thresholds = [at["threshold"] for at in record["held_out_thresholds"]]
    kind, _ = race.choice(records[twin.full_name])
    assert record["answers"] == kind
    assert (tmp_path / "records" / f"test-{twin.full_name}.json").exists()
    assert thresholds == [at["threshold"] for at in records[twin.full_name]["held_out"][kind]["race"]] or record[
        "exits"
    ] != [0, 1, 2]
    before = path.read_bytes()
    race.test(folder, runs)
    assert path.read_bytes() == before, "looked at once"


def held_out(accuracy, best_accuracy):
    ways = {"race": accuracy, "best_race": best_accuracy}
    return {"accuracies": [0.1] * 3, "best_exits": [0, 2]} | {
        way: [{"accuracy": at}] * len(BUDGETS) for way, at in ways.items()
    }


def test_a_choice_within_noise_falls_to_the_simplest_way():
    found = {"plain": held_out(0.8990, 0.8995), "stacked": held_out(0.8993, 0.8993)}
    assert race.choice({"held_out": found}) == ("plain", [0, 1, 2])
    assert race.choice({"held_out": found | {"plain": held_out(0.88, 0.9)}}) == ("plain", [0, 2])
    assert race.choice({"held_out": found | {"stacked": held_out(0.91, 0.91)}}) == ("stacked", [0, 1, 2])


def test_gains_are_paired_by_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(race, "RECORDS", tmp_path)
    for name, seed, accuracy in (
        ("even", 0, 0.5),
        ("even", 1, 0.7),
        ("late", 0, 0.52),
        ("late", 1, 0.72),
        ("late", 2, 0.1),
    ):
        training = race.Training(name, race.EVEN, seed, *race.PROXY)
        found = {"accuracies": [accuracy], "best_exits": [0], "best_race": [{"accuracy": accuracy}] * len(BUDGETS)}
        record = {"name": training.full_name, "macs": [1e7], "cpu_seconds": 1.0, "held_out": {"plain": found}}
        race.write_json(tmp_path / f"{training.full_name}.json", record)
    race.show()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 6
    assert said[-1] == "late             − even: 2.00 [2.00, 2.00] (2 seeds)"


def test_the_test_images_wait_for_the_choices(tmp_path, monkeypatch):
    monkeypatch.setattr(race, "RECORDS", tmp_path)
    with pytest.raises(SystemExit, match=r"python -m experiments\.race train"):
        race.test(tmp_path, tmp_path)
