"""The early exits learn from the last, and the last from the labels alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, kl_div

import anytime
from experiments.distillation import Distilled, distilled, teacher_temperature
from experiments.runner import Run


def losses_of(logits, labels):
    return torch.stack([cross_entropy(each, labels) for each in logits])


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(2, 12), st.floats(0, 1))
def test_it_follows_its_definition(seed, exits, classes, share):
    draw = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(exits, 7, classes, generator=draw, dtype=torch.float64)
    labels = torch.randint(classes, (7,), generator=draw)
    temperature = teacher_temperature(logits[-1])
    teacher = (logits[-1] / temperature).softmax(-1)
    for i, loss in enumerate(distilled(logits, losses_of(logits, labels), share)):
        student = (logits[i] / temperature).log_softmax(-1)
        apart = kl_div(student, teacher, reduction="batchmean") if i + 1 < exits else 0
        expected = (1 - share) * cross_entropy(logits[i], labels) + share * temperature**2 * apart
        torch.testing.assert_close(loss, torch.as_tensor(expected))


@given(st.integers(0, 10**6))
def test_no_gradient_reaches_the_teacher(seed):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(4, 7, 5, generator=draw, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(5, (7,), generator=draw)
    own = losses_of(logits, labels)
    (gradient,) = torch.autograd.grad(distilled(logits, own, 0.3)[:-1].sum(), logits, retain_graph=True)
    assert (gradient[-1] == 0).all()
    (last,) = torch.autograd.grad(distilled(logits, own, 0.3)[-1], logits, retain_graph=True)
    (plain,) = torch.autograd.grad(own[-1], logits)
    torch.testing.assert_close(last, 0.7 * plain)


@given(st.integers(0, 10**6), st.floats(0.01, 50), st.integers(2, 30))
def test_the_temperature_is_the_least_at_which_the_teacher_is_unsure(seed, scale, classes):
    logits = scale * torch.randn(9, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    enough = (1 + 1 / classes) / 2

    def sureness(temperature):
        return (logits / temperature).softmax(-1).amax(-1).mean()

    expected = 1.0
    while sureness(expected) > enough and expected < 1.05**99.5:
        expected *= 1.05
    assert abs(teacher_temperature(logits).item() / expected - 1) < 1e-4


def trained(scheme):
    run = Run("resann-1-4", "digits", scheme, 0, 96, {"epochs": 2, "batch_size": 32, "pad": 1, "flip": False})
    data = run.load_data(None)
    net, _, result = run.fit(run.network(data), data, compiled=False, precision="float32", show=False)
    return net, result


def test_the_extras_of_an_experiment_compose_and_are_repeatable():
    """Each changes the training, and leaves nothing behind on the network."""
    names = ["adaloss", "famo", "adaloss+distill", "adaloss+equilibrium", "adaloss+equilibrium+distill"]
    nets = {name: trained(name)[0] for name in names}
    again, result = trained(names[-1])
    assert len(result.history[-1]["weights"]) == 3
    states = {name: torch.cat([p.flatten() for p in net.parameters()]) for name, net in nets.items()}
    for name in names:
        same = [other for other in names if torch.equal(states[name], states[other])]
        assert same == [name]
        assert not any(p._backward_hooks for p in nets[name].parameters())
        assert not nets[name]._forward_hooks
    assert torch.equal(torch.cat([p.flatten() for p in again.parameters()]), states[names[-1]])
    boosted, _ = trained("const+boosting+distill")
    assert boosted.config["rule"] == "boosting"


def test_a_training_with_it_minimizes_the_mixed_losses():
    torch.manual_seed(0)
    net = anytime.AnytimeNetwork([torch.nn.Linear(8, 8), torch.nn.Tanh()], [torch.nn.Linear(8, 3) for _ in range(2)])
    x, labels, seen = torch.randn(5, 8), torch.randint(3, (5,)), []
    scheme = Distilled(anytime.weights.Const(2), 0.3)
    scheme.scheme.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    expected = distilled(torch.stack(net(x)).detach(), losses_of(net(x), labels).detach(), 0.3)
    with scheme.watching(net):
        anytime.fit(net, [(x, labels)], scheme, epochs=1, show=False)
    torch.testing.assert_close(seen[0], expected)


def test_what_cannot_be_distilled_is_refused():
    net = anytime.create_model("resann-1-4", in_channels=1)
    with pytest.raises(anytime.AnytimeError, match="all exits"):
        Distilled(anytime.create_scheme("opt-2", 3), 0.5)
    with pytest.raises(anytime.AnytimeError, match="share=2 must be"):
        Distilled(anytime.weights.Const(3), 2)
    with pytest.raises(anytime.AnytimeError, match=r"use watching\(net\)"):
        anytime.fit(net, anytime.load_data("digits"), Distilled(anytime.weights.Const(3), 0.5), epochs=1, show=False)
