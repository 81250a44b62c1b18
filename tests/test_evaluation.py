import pytest
import torch
from torch import nn

import anytime
from anytime.cost import Costs


class Says(nn.Module):
    """A head that always gives one answer."""

    def __init__(self, answer):
        super().__init__()
        self.logits = nn.Parameter(nn.functional.one_hot(torch.tensor(answer), 3).float())

    def forward(self, x):
        return self.logits.expand(len(x), -1)


def test_errors_and_losses_are_those_of_each_exit():
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 0])
    pixels = torch.zeros(7, 1, 2, 2, dtype=torch.uint8)
    data = anytime.Data(anytime.Images(pixels, labels), test=anytime.Images(pixels, labels))
    net = anytime.AnytimeNetwork([nn.Conv2d(1, 1, 1) for _ in range(3)], [Says(i) for i in range(3)]).train()
    curve = anytime.evaluate(net, data, batch_size=3)
    assert net.training
    assert curve.errors == pytest.approx([3 / 7, 5 / 7, 6 / 7])
    expected = nn.functional.cross_entropy(torch.eye(3)[[1] * 7], labels).item()
    assert curve.losses[1] == pytest.approx(expected, rel=1e-6)
    assert anytime.evaluate(net, data, only=[-1]).errors == [None, None, pytest.approx(6 / 7)]


def test_increase_over_opt():
    curve = anytime.Curve([0.4, 0.33, 0.22], [1.0, 1.0, 1.0], Costs([10, 50, 100], [1, 2, 3]), 100)
    assert curve.increase_over({1: 0.3, 2: 0.2}) == {1: pytest.approx(0.1), 2: pytest.approx(0.1)}
    assert curve.at(0.25) == (0, 0.4)
    assert curve.record()["fractions"]["0.5"] == {"exit": 2, "fraction_used": 0.5, "error": 0.33}
    with pytest.raises(ValueError, match="exits here are 1 to 3"):
        curve.increase_over({3: 0.2})
    with pytest.raises(ValueError, match="above 0"):
        curve.increase_over({0: 0.0})
