"""The early exits learn from the last, and the last from the labels alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, kl_div

from anytime.training.distillation import distilled, teacher_temperature


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
