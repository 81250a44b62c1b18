"""Every stage gets the mean of the gradients of the exits above it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import anytime
from experiments.equilibrium import equilibrium


class Scaled(torch.autograd.Function):
    """IMTA's function: unchanged forward, the gradient scaled."""

    @staticmethod
    def forward(context, x, factor):
        context.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return context.factor * gradient, None


def losses(net, x, labels):
    return [cross_entropy(logits, labels) for logits in net(x)]


def gradients(net, objective):
    """By parameter."""
    net.zero_grad()
    objective.backward()
    return {id(p): torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()}


NETS = {
    "resann": lambda: anytime.create_model("resann-2-8"),
    "msdnet": lambda: anytime.create_model("msdnet-cifar", num_classes=10),
    "converted": lambda: anytime.convert(
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10)),
        torch.zeros(2, 3, 32, 32),
        exits=["2", "4"],
    ),
    "boosted": lambda: anytime.combine(anytime.create_model("resann-1-8"), "boosting"),
}


@pytest.mark.parametrize("name", NETS)
def test_each_stage_gets_the_mean_of_its_exits(name):
    torch.manual_seed(0)
    net = NETS[name]().double().train()
    x, labels = torch.randn(2, 3, 32, 32, dtype=torch.float64), torch.randint(10, (2,))
    of_exit = [gradients(net, losses(net, x, labels)[exit]) for exit in range(net.exits)]
    with equilibrium(net):
        balanced = gradients(net, sum(losses(net, x, labels)))
    after = gradients(net, sum(losses(net, x, labels)))
    for i, (stage, head) in enumerate(net.trained_units):
        for parameter in map(id, stage.parameters()):
            mean = sum(each[parameter] for each in of_exit[i:]) / (net.exits - i)
            torch.testing.assert_close(balanced[parameter], mean, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(after[parameter], mean * (net.exits - i), atol=1e-5, rtol=1e-5)
        for parameter in map(id, head.parameters()):
            torch.testing.assert_close(balanced[parameter], of_exit[i][parameter], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("members", [1, 2])
def test_an_ensemble_is_trained_member_by_member(members):
    eann = anytime.EANN([anytime.create_model(f"resann-{n + 1}-8", in_channels=1) for n in range(members)])
    with pytest.raises(anytime.AnytimeError, match="train each of eann\\.members"), equilibrium(eann):
        pass


def test_it_is_what_scaling_functions_between_the_stages_do():
    torch.manual_seed(0)
    net = anytime.create_model("resann-2-8").double().train()
    x, labels = torch.randn(2, 3, 32, 32, dtype=torch.float64), torch.randint(10, (2,))
    with equilibrium(net):
        ours = gradients(net, sum(losses(net, x, labels)))
    state, each = x, []
    for i, (stage, head) in enumerate(zip(net.stages, net.heads, strict=True)):
        state = Scaled.apply(stage(state), 1 / (net.exits - i))
        each.append(cross_entropy(head(state), labels))
        state = Scaled.apply(state, net.exits - i - 1)
    # IMTA scales what the heads pass down, not the gradients of the heads themselves.
    theirs = gradients(net, sum(each))
    for parameter, mine in ours.items():
        torch.testing.assert_close(mine, theirs[parameter], atol=1e-10, rtol=1e-8)
