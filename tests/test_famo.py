"""FAMO, a weight scheme of the experiments."""

import laws
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anytime
from experiments.famo import FAMO

loss = st.floats(0, 1e6, allow_subnormal=False) | st.just(0.0)


def test_it_obeys_the_laws_of_weight_schemes():
    losses = torch.tensor([3.0, 2.0, 1.0])
    laws.evaluation_law(FAMO(3), losses)
    laws.precision_law(FAMO(3), losses)
    laws.gradient_law(anytime.create_model("resann-1-4"), FAMO(3), torch.randn(2, 3, 8, 8))


few = st.integers(1, 4).flatmap(
    lambda exits: st.lists(st.lists(loss, min_size=exits, max_size=exits), min_size=1, max_size=3)
)


@settings(max_examples=1000)
@given(few, st.floats(1e-3, 1e3))
def test_famo_with_equal_shares_is_adaloss_without_averages(sequence, scale):
    sequence = torch.tensor(sequence) + 1e-3
    famo, adaloss = FAMO(sequence.shape[1], lr=0), anytime.AdaLoss(sequence.shape[1], momentum=0, gamma=0)
    for losses in sequence:
        famo(scale * losses)
        adaloss(losses)
        assert torch.allclose(famo.weights, adaloss.weights, atol=1e-5)


@settings(max_examples=1000)
@given(few, st.floats(1e-3, 1e3), st.floats(0, 1))
def test_famo_follows_its_definition(sequence, scale, lr):
    sequence = torch.tensor(sequence, dtype=torch.float64) + 1e-3
    famo, scores = FAMO(sequence.shape[1], lr, decay=0.1).double(), torch.zeros(sequence.shape[1], dtype=torch.float64)
    for call, losses in enumerate(sequence):
        famo(scale * losses)
        if call:
            share = scores.softmax(0)
            fell = (sequence[call - 1] / losses).log()
            scores = (1 - 0.1 * lr) * scores - lr * (share.diag() - share.outer(share)) @ fell
        expected = scores.softmax(0) / losses
        assert torch.allclose(famo.weights.double(), expected / expected.max(), atol=1e-3)
