import pytest
import torch
from torch import nn

import anytime
from anytime.cost import Costs
from anytime.evaluation import Curve, collect


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


def test_an_exit_that_is_not_there_is_refused():
    images = anytime.Images(torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1]))
    net = anytime.AnytimeNetwork([nn.Conv2d(1, 1, 1)] * 2, [Says(0), Says(1)])
    for exit in (2, -3):
        with pytest.raises(IndexError, match=f"no exit {exit}: this network has 2"):
            anytime.evaluate(net, anytime.Data(images, test=images), only=[exit])


def test_every_module_keeps_its_own_mode():
    """A part that is frozen in eval mode stays so, whatever runs the network in eval mode for a while."""
    images = anytime.Images(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]))
    data = anytime.Data(images, test=images)
    net = anytime.create_model("resann-1-4", num_classes=2, in_channels=1).train()
    net.stages[0].eval()
    modes = [module.training for module in net.modules()]
    x = torch.zeros(1, 1, 8, 8)
    for use in (
        lambda: anytime.evaluate(net, data),
        lambda: collect(net, data.batches(data.test)),
        lambda: anytime.costs(net, x),
        lambda: anytime.profile(net, x, repeats=1, warmup=0),
    ):
        use()
        assert [module.training for module in net.modules()] == modes


def test_increase_over_opt():
    curve = anytime.Curve([0.4, 0.33, 0.22], [1.0, 1.0, 1.0], Costs([10, 50, 100], [1, 2, 3]), 100)
    assert curve.increase_over({1: 0.3, 2: 0.2}) == {1: pytest.approx(0.1), 2: pytest.approx(0.1)}
    assert curve.at(0.25) == (0, 0.4)
    for fraction in (50, 0, -0.5, "0.5", None, float("nan")):
        with pytest.raises(anytime.AnytimeError, match=r"fraction=.* must be a number > 0 and <= 1"):
            curve.at(fraction)
    assert curve.record()["fractions"]["0.5"] == {"exit": 1, "fraction_used": 0.5, "error": 0.33}
    with pytest.raises(ValueError, match="exits here are 1 to 3"):
        curve.increase_over({3: 0.2})
    with pytest.raises(ValueError, match="above 0"):
        curve.increase_over({0: 0.0})


def test_targets_of_minus_100_are_no_errors():
    outputs, targets = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1, -100])
    assert anytime.metrics.error(outputs, targets).tolist() == [0, 1, 0]


def test_no_exit_to_evaluate():
    net = anytime.AnytimeNetwork([nn.Linear(2, 2)], [nn.Linear(2, 3)])
    with pytest.raises(anytime.AnytimeError, match="leaves no exit"):
        anytime.evaluate(net, [(torch.zeros(1, 2), torch.zeros(1).long())], only=[])


def test_a_network_without_parameters():
    class Pixels(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :3]

    pixels, labels = torch.zeros(7, 1, 2, 2, dtype=torch.uint8), torch.zeros(7, dtype=torch.int64)
    pixels[:, 0, 0, 0] = 255
    data = anytime.Data(anytime.Images(pixels, labels), test=anytime.Images(pixels, labels))
    net = anytime.AnytimeNetwork([nn.Identity()], [Pixels()])
    assert anytime.evaluate(net, data).images == 7


def test_seconds_as_the_cost():
    """Measured now, and used wherever the cost stands: in the table, in the picture, and to choose an exit."""
    net = anytime.AnytimeNetwork([nn.Linear(2, 2) for _ in range(3)], [nn.Linear(2, 3) for _ in range(3)])
    curve = anytime.evaluate(net, [(torch.zeros(5, 2), torch.zeros(5).long())], cost="seconds")
    assert len(curve.seconds) == 3
    assert min(curve.seconds) > 0
    assert curve.record()["seconds"] == curve.seconds
    curve = Curve([0.3, 0.2, 0.1], [None] * 3, Costs([10, 20, 30], [1, 2, 3]), 5, seconds=[0.001, 0.002, 0.010])
    assert (curve.at(0.5), curve.at(1.0), curve.at(0.01)) == ((1, 0.2), (2, 0.1), (0, 0.3))
    assert curve.record()["fractions"]["0.5"] == {"exit": 1, "fraction_used": 0.2, "error": 0.2}
    assert str(curve).splitlines()[2].split() == ["2", "2.00", "66.7%", "20.00%"]
    assert "milliseconds" in curve.plot().get_xlabel()
    with pytest.raises(anytime.AnytimeError, match='"macs" or "seconds"'):
        anytime.evaluate(net, [], cost="ms")
