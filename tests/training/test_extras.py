"""Extras of a training compose: fit with all of them at once, resumed and saved."""

import pytest
import torch

import anytime


def network():
    torch.manual_seed(0)
    return anytime.create_model("resann-1-4", in_channels=1)


def trained(folder=None, net=None, scheme="adaloss", **options):
    net = net or network()
    data = anytime.load_data("digits").subset(96)
    result = anytime.fit(net, data, scheme, epochs=2, batch_size=32, output=folder, resume=True, show=False, **options)
    return net, result


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_each_changes_the_training_and_all_are_repeatable(tmp_path):
    extras = [{}, {"equilibrium": True}, {"distill": 0.5}, {"equilibrium": True, "distill": 0.5}]
    nets = [trained(**extra)[0] for extra in extras]
    assert not any(same(nets[0], net) for net in nets[1:])
    boosted, result = trained(tmp_path / "run", anytime.combine(network(), "boosting"), **extras[-1])
    again, _ = trained(None, anytime.combine(network(), "boosting"), **extras[-1])
    assert same(boosted, again)
    loaded = anytime.load(tmp_path / "run")
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(loaded(x)[-1], boosted.eval()(x)[-1])
    assert result.curve is not None


def test_hooks_end_with_the_training():
    net, _ = trained(equilibrium=True)
    assert not any(parameter._backward_hooks for parameter in net.parameters())


def test_first_order_follows_the_gradients():
    _, result = trained(scheme="first-order")
    weights = result.history[-1]["weights"]
    assert max(weights) == 1
    assert min(weights) < 1


def test_what_does_not_go_together_is_refused():
    for options, message in [
        ({"distill": 0.5, "scheme": "opt-2"}, "all exits trained"),
        ({"distill": 2}, "distill=2 must be"),
        ({"scheme": "first-order", "compiled": True}, "compiled=True does not allow"),
    ]:
        with pytest.raises(anytime.AnytimeError, match=message):
            trained(**options)
