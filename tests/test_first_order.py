"""First-order AdaLoss: the sizes of the heads' gradients, on every kind of network."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anytime
from anytime.weights import FirstOrderAdaLoss


class Probe(torch.nn.Module):
    """A head: what it says is a factor of its features."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x.sum()


numbers = st.floats(-1e3, 1e3, allow_subnormal=False)
factors = st.floats(1e-2, 1e2)


@settings(max_examples=1000)
@given(st.lists(st.tuples(factors, factors, numbers), min_size=1, max_size=3))
def test_first_order_does_not_see_offsets_and_undoes_scales(exits):
    gradients = []
    for scaled in (False, True):
        heads = [Probe(factor) for factor, _, _ in exits]
        net = anytime.AnytimeNetwork([torch.nn.Identity() for _ in exits], heads)
        x = torch.ones(3, dtype=torch.float64, requires_grad=True)
        with FirstOrderAdaLoss(len(exits), gamma=0.0).watch(net) as balance, warnings.catch_warnings():
            warnings.simplefilter("error")  # negative losses are welcome
            losses = net(x)
            if scaled:  # each loss by its own factor and offset: the balance between the exits is the same
                losses = [scale * loss + offset for loss, (_, scale, offset) in zip(losses, exits, strict=True)]
            balance(losses)
        scales = torch.tensor([scale if scaled else 1.0 for _, scale, _ in exits])
        effective = balance.weights * scales * torch.tensor([factor for factor, _, _ in exits])
        gradients.append(effective / effective.max())
    assert torch.allclose(*gradients, atol=1e-4)
    assert torch.allclose(gradients[0], torch.ones(len(exits)), atol=1e-4), "all exits pull equally"


def mean_losses(answers, labels):
    return [torch.nn.functional.cross_entropy(logits, labels) for logits in answers]


def plain():
    torch.manual_seed(0)
    return anytime.create_model("resann-1-8")


def converted():
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(3072, 8), torch.nn.ReLU()), torch.nn.Linear(8, 10)]
    return anytime.convert(torch.nn.Sequential(torch.nn.Flatten(), *layers), torch.zeros(2, 3, 32, 32), exits=["1"])


NETWORKS = {
    "plain": plain,
    "converted": converted,
    "boosted": lambda: anytime.combine(plain(), "boosting"),
    "boosted and converted": lambda: anytime.combine(converted(), "boosting"),
    "ensemble": lambda: anytime.EANN([anytime.combine(plain(), "boosting")]),
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_first_order_sees_each_head_alone(name, frozen):
    """Whatever the head is inside of, and whether the stages are trained or not."""
    net = NETWORKS[name]().train()
    x, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    heads = [head for _, head in net.trained_units]
    inputs = {}
    noting = [h.register_forward_pre_hook(lambda head, args: inputs.setdefault(head, args[0].detach())) for h in heads]
    answers = net(x)
    for hook in noting:
        hook.remove()
    norms, before = [], 0
    for head, answer in zip(heads, answers, strict=True):
        features = inputs[head].requires_grad_()
        loss = torch.nn.functional.cross_entropy(head(features) + before, labels)
        norms.append(torch.autograd.grad(loss, features)[0].norm())
        before = 0.5 * answer.detach() if "boosted" in name or name == "ensemble" else 0
    for stage, _ in net.trained_units:
        for parameter in stage.parameters():
            parameter.requires_grad_(not frozen)
    with FirstOrderAdaLoss(net.exits, gamma=0.0).watch(net) as balance:
        balance(mean_losses(net(x), labels)).backward()
    assert torch.allclose(balance.weights, min(norms) / torch.stack(norms), rtol=1e-3)


RULES = ["boosting", "product", "ensemble", "stacking"]


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_first_order_measures_each_loss_alone(rule, tasks):
    """A later exit's answer also depends on the earlier heads; scaling one loss scales its own average alone."""
    torch.manual_seed(0)
    net = anytime.AnytimeNetwork([torch.nn.Linear(8, 8) for _ in range(3)], [torch.nn.Linear(8, 4) for _ in range(3)])
    x, labels = torch.randn(6, 8), torch.randint(4, (6,))
    net = anytime.combine(net, rule, [(x, labels)] if rule == "stacking" else None).train()

    def averages(scales):
        with FirstOrderAdaLoss(3 * tasks).watch(net, tasks) as balance:
            losses = [loss for loss in mean_losses(net(x), labels) for _ in range(tasks)]
            balance([scale * loss for scale, loss in zip(scales, losses, strict=True)])
        return balance.average

    once = averages([1.0] * 3 * tasks)
    for i in range(3 * tasks):
        scales = [100.0 if j == i else 1.0 for j in range(3 * tasks)]
        torch.testing.assert_close(
            averages(scales), once * torch.tensor(scales), rtol=1e-4, atol=0.0, check_dtype=False
        )


def test_first_order_has_one_norm_for_each_exit_and_task():
    net, x = plain(), torch.randn(4, 3, 32, 32)
    with FirstOrderAdaLoss(6, gamma=0.0).watch(net, tasks=2) as balance:
        balance([scale * logits.sum() for logits in net(x) for scale in (1, 4)])
    of_task = balance.weights.view(3, 2)
    assert torch.allclose(of_task[:, 0], 4 * of_task[:, 1])
    assert len(set(of_task[:, 0].tolist())) == 3


def test_first_order_does_not_train_without_features():
    net, x = plain(), torch.randn(4, 3, 32, 32)
    balance = FirstOrderAdaLoss(3)
    for losses in ([logits.sum() for logits in net(x)], list(torch.ones(3, requires_grad=True))):
        with pytest.raises(anytime.AnytimeError, match="has not seen the features"):
            balance(losses)
    with balance.watch(net):
        losses = [logits.sum() for logits in net(x)]
        balance(losses)
        before = balance.weights.clone()
        with pytest.raises(anytime.AnytimeError, match="once after each forward pass"):
            balance(losses)
    balance(torch.tensor([3.0, 2.0, 1.0]))
    balance.eval()(losses)
    assert torch.equal(balance.weights, before)
    with (
        pytest.raises(anytime.AnytimeError, match="made for 2 exits, the network has 3"),
        FirstOrderAdaLoss(2).watch(net),
    ):
        pass


def test_first_order_leaves_the_network_as_it_was():
    net, x = plain(), torch.randn(4, 3, 32, 32)
    with FirstOrderAdaLoss(3).watch(net):
        net(x)
        anytime.costs(net, x)
    assert not any(module._forward_pre_hooks for module in net.modules())
    assert not any(head._changes_input_in_training for head in net.heads)
    net(x)
    copy.deepcopy(net)


class Indexed(torch.nn.Module):
    """Features beside integers and a word that say what to do with them."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, state):
        features, columns, how = state
        return self.linear(features), columns, how


class Chooser(torch.nn.Module):
    def forward(self, state):
        features, columns, how = state
        assert how == "columns"
        return features[:, columns]


@pytest.mark.parametrize("frozen", [False, True])
def test_first_order_sees_features_only_not_the_integers_beside_them(frozen):
    net = anytime.AnytimeNetwork([Indexed() for _ in range(3)], [Chooser() for _ in range(3)]).requires_grad_(
        not frozen
    )
    state = (torch.randn(4, 6), torch.tensor([0, 2, 5]), "columns")
    labels = torch.randint(3, (4,))
    with FirstOrderAdaLoss(3, gamma=0.0).watch(net) as balance:
        balance(mean_losses(net(state), labels))
    norms = []
    for answer in net(state):  # each column is a feature itself
        own = answer.detach().requires_grad_()
        norms.append(torch.autograd.grad(torch.nn.functional.cross_entropy(own, labels), own)[0].norm())
    assert torch.allclose(balance.weights, min(norms) / torch.stack(norms), rtol=1e-3)
