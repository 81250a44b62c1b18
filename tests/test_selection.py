"""Exits that are worth having: the best of all choices, and a network like any other."""

from itertools import combinations

import laws
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import anytime
from anytime.selection import SelectedNetwork, best_exits, mean_error


@given(
    exits=st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=7),
    count=st.integers(1, 7),
    deadlines=st.none() | st.lists(st.floats(0.01, 8), min_size=1, max_size=9),
)
def test_no_other_choice_is_better(exits, count, deadlines):
    errors = [error for error, _ in exits]
    seconds = torch.tensor([pause for _, pause in exits]).cumsum(0).tolist()
    chosen = best_exits(errors, seconds, count, deadlines)
    assert chosen == sorted(set(chosen))
    assert 1 <= len(chosen) <= count
    every = (c for k in range(1, count + 1) for c in combinations(range(len(errors)), k))
    best = min(mean_error(errors, seconds, choice, deadlines) for choice in every)
    assert mean_error(errors, seconds, chosen, deadlines) == pytest.approx(best, abs=1e-9)


def nets():
    torch.manual_seed(0)
    yield anytime.create_model("resann-2-8").eval(), torch.randn(6, 3, 32, 32)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(5)]
    x = torch.randn(6, 8)
    yield anytime.convert(nn.Sequential(*blocks, nn.Linear(8, 3)), x[:1], exits=4).eval(), x


@pytest.mark.parametrize("which", [0, 1])
def test_laws_of_every_network(which):
    net, x = list(nets())[which]
    few = SelectedNetwork(net, [1, net.exits - 1]).eval()
    laws.prefix_law(few, x)
    laws.narrowing_law(few, x)
    laws.joining_law(few, x)
    whole = net(x)
    for answer, exit in zip(few(x), few.selected, strict=True):
        assert torch.equal(answer, whole[exit])
    assert anytime.costs(few, x[:1]).macs == sorted(anytime.costs(few, x[:1]).macs)
    assert anytime.costs(few, x[:1]).macs[-1] < anytime.costs(net, x[:1]).macs[-1], "fewer heads"


def test_saved_combined_and_exported_as_any_other(tmp_path):
    data = anytime.load_data("digits")
    net = anytime.create_model("resann-2-8", in_channels=1).eval()
    few = anytime.select_exits(net, data.batches(data.validation), exits=3)
    assert few.exits <= 3
    anytime.save(few, tmp_path / "few")
    again = anytime.load(tmp_path / "few")
    x = torch.randn(4, 1, 8, 8)
    assert all(torch.equal(a, b) for a, b in zip(again(x), few.eval()(x), strict=True))
    assert anytime.predict(again, x, exits=1).exit == 0
    together = anytime.combine(few, "product").eval()
    anytime.save(together, tmp_path / "together")
    assert len(anytime.load(tmp_path / "together")(x)) == few.exits


@pytest.mark.parametrize(
    ("options", "message"),
    [({"exits": 0}, "integer >= 1"), ({"seconds": [1.0]}, "give one for each"), ({"deadlines": []}, "is empty")],
)
def test_senseless_options(options, message):
    data = anytime.load_data("digits")
    net = anytime.create_model("resann-1-8", in_channels=1).eval()
    with pytest.raises(anytime.AnytimeError, match=message):
        anytime.select_exits(net, data.batches(data.validation), **options)
