"""Frozen networks: their heads alone are trained, on features that are computed once."""

import random
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import anytime
from anytime.training import features
from anytime.training.features import FeatureStore, unchanging


def network(heads="auto"):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(c, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for c in (1, 8, 8, 8)]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).eval()
    return anytime.convert(model, torch.zeros(1, 1, 8, 8), exits=3, head=heads).freeze()


def loader(n=60, **options):
    draw = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (n,), generator=draw)
    images = torch.randn(n, 1, 8, 8, generator=draw) + labels[:, None, None, None]
    return DataLoader(TensorDataset(images, labels), **{"batch_size": 20, "shuffle": True, **options})


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def fit(net, data, **options):
    return anytime.fit(net, data, **{"epochs": 2, "least_steps": 40, "show": False, **options})


class Noisy(Dataset):
    """Samples that change at random, in one of the ways in which augmentations do."""

    def __init__(self, how):
        self.how = how
        self.own = np.random.default_rng(0)

    def __len__(self):
        return 40

    def __getitem__(self, i):
        draws = {"torch": torch.rand(1).item, "numpy": np.random.rand, "python": random.random, "own": self.own.random}
        x = torch.full((1, 8, 8), float(i))
        flipped = self.how in draws and draws[self.how]() < 0.5
        return (x.cumsum(2).flip(2) if flipped else x.cumsum(2)), i % 3


def test_the_features_are_computed_once():
    net, samples = network(), []
    net.stages[0].register_forward_hook(lambda _stage, inputs, _state: samples.append(len(inputs[0])))
    result = fit(net, loader(), epochs=4)
    assert sum(samples) == 60
    assert [record["epoch"] for record in result.history] == [1, 2, 3, 4]


def test_the_heads_learn_and_the_model_stays():
    net = network()
    before = {name: value.clone() for name, value in net.model.state_dict().items()}
    data = loader()
    worst = anytime.evaluate(net, data).errors
    result = fit(net, data, epochs=3, least_steps=300)
    errors = anytime.evaluate(net, data).errors
    assert all(now < then - 0.2 for now, then in zip(errors[:-1], worst[:-1], strict=True))
    assert errors[-1] == worst[-1]
    assert all(torch.equal(value, before[name]) for name, value in net.model.state_dict().items())
    assert result.history[-1]["weights"][-1] == 0
    assert max(result.history[-1]["weights"]) == 1


def test_exits_that_are_not_trained_do_not_set_the_scale():
    """With the last exit's loss the others' weights would be its share of theirs."""
    net = network()
    with torch.no_grad():
        net.model[-1].weight *= 0.001
    weights = fit(net, loader()).history[-1]["weights"]
    assert max(weights[:-1]) == 1


@pytest.mark.parametrize("gigabytes", [1.0, 1e-9])
def test_features_in_memory_and_on_disk_are_the_same(gigabytes, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    one, other = network(), network()
    fit(one, loader(), features_gb=1.0)
    fit(other, loader(), features_gb=gigabytes)
    assert same(one, other)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left on the disk"


def test_a_full_disk_is_explained(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(features.Column, "_write", full)
    with pytest.raises(anytime.AnytimeError, match="TMPDIR"):
        fit(network(), loader(), features_gb=1e-9)


class Stop(Exception):
    """A training is stopped from outside."""


@pytest.mark.parametrize("stop_at", [1, 7, 20, 33])
def test_resuming_ends_bit_for_bit_as_if_uninterrupted(tmp_path, stop_at):
    whole, begun, resumed = network(), network(), network()
    options = {"checkpoint_seconds": 0, "accumulate": 2}
    fit(whole, loader(), **options)
    steps = []

    def interrupt(step):
        steps.append(step)
        if len(steps) == stop_at:
            raise Stop

    with pytest.raises(Stop):
        fit(begun, loader(), output=tmp_path, on_step=interrupt, **options)
    fit(resumed, loader(), output=tmp_path, resume=True, **options)
    assert same(whole, resumed)


def test_the_order_of_the_loader_does_not_matter():
    one, other = network(), network()
    fit(one, loader(generator=torch.Generator().manual_seed(3)))
    fit(other, loader(shuffle=False))
    assert same(one, other)


@pytest.mark.parametrize("how", ["torch", "numpy", "python", "own", "never"])
def test_samples_that_change_at_random_are_not_kept(how):
    noisy = DataLoader(Noisy(how), batch_size=8)
    kept = unchanging(noisy)
    assert (kept is not None) == (how == "never")
    if kept is not None:
        assert torch.cat([labels for _, labels in kept]).tolist() == [i % 3 for i in range(40)]
    result = fit(network(), noisy)
    assert len(result.history) == 2


def test_collators_samplers_and_streams_that_change_are_not_kept():
    data = loader().dataset
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 60, 60)
    batches = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(data), 7, drop_last=False)
    for changing in (
        DataLoader(data, batch_size=8, sampler=weighted),
        DataLoader(data, batch_sampler=batches),
        DataLoader(data, batch_size=8, collate_fn=lambda items: (torch.randn(len(items), 1, 8, 8), torch.zeros(1))),
        (batch for batch in loader()),
    ):
        assert unchanging(changing) is None
    assert unchanging(list(loader())) is not None


def test_a_data_set_is_trained_on_as_it_is():
    data = anytime.load_data("digits").subset(80)
    net = network()
    result = anytime.fit(net, data, epochs=3, show=False)
    assert result.history[-1]["train"]["errors"][0] < 0.3
    augmented = anytime.fit(network(), data, epochs=1, flip=True, show=False)
    assert augmented.history[0]["train"]["errors"][0] > result.history[-1]["train"]["errors"][0]


def test_nothing_to_train_is_said():
    net = network()
    net.requires_grad_(False)
    with pytest.raises(anytime.AnytimeError, match="no parameter of this network is trained"):
        fit(net, loader())


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=6),
    st.booleans(),
)
def test_features_of_several_shapes_are_all_there(batches, disk):
    """Each sample comes back as it was, whatever batches it was in."""
    store, expected, number = FeatureStore(0 if disk else 1), {}, 0
    for n, width in batches:
        rows = torch.arange(number, number + n, dtype=torch.float32)[:, None].expand(n, width).contiguous()
        store.add([(rows, (4, 4)), (rows[:, :1] * 2,)], rows[:, 0].long())
        expected |= dict.fromkeys(range(number, number + n), width)
        number += n
    found = {}
    for group in store.seal():
        whole = group.rows(torch.arange(len(group)))
        (wide, size), (doubled,) = whole.inputs
        assert size == (4, 4)
        assert torch.equal(doubled[:, 0], 2 * wide[:, 0])
        assert torch.equal(whole.targets, wide[:, 0].long())
        found |= {int(row[0]): len(row) for row in wide}
    assert found == expected


def test_padded_texts_of_different_lengths_are_kept():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3))
            self.fc = nn.Linear(8, 2)

        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return self.fc(x.mean(1))

    torch.manual_seed(0)
    net = anytime.convert(Words().eval(), torch.zeros(1, 6, dtype=torch.int64), exits=["blocks.0", "blocks.1"]).freeze()
    batches = [(torch.randint(20, (5, length)), torch.randint(2, (5,))) for length in (4, 6, 9)]
    result = fit(net, batches)
    assert len(result.history) == 2


def test_annealing_lasts_as_long_as_the_steps_on_kept_features(tmp_path):
    """And a run that is resumed by the same scheme is the same run."""
    balance = anytime.weights.AnnealedAdaLoss(3)
    fit(network(), loader(), scheme=balance)
    assert balance.steps == balance.calls == 40
    steps = []

    def interrupt(step):
        steps.append(step)
        if len(steps) == 7:
            raise Stop

    whole, resumed, balance = network(), network(), anytime.weights.AnnealedAdaLoss(3)
    fit(whole, loader(), scheme="annealed")
    with pytest.raises(Stop):
        fit(network(), loader(), scheme=balance, output=tmp_path, on_step=interrupt, checkpoint_seconds=0)
    fit(resumed, loader(), scheme=balance, output=tmp_path, resume=True)
    assert same(whole, resumed)
