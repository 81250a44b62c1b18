"""Temperature scaling: what the logits of each exit are divided by, so that its probabilities are calibrated."""

from math import exp

import torch

from anytime.evaluation import Outputs


def fit_temperatures(outputs: Outputs) -> list[float]:
    """The temperature of each exit that minimizes its cross-entropy.

    That is convex in 1/temperature. Newton's method finds the minimum; where its step would leave the interval that
    must contain it, bisection takes one instead.
    """
    logits = outputs.logits.double()
    right = outputs.of_truth(logits)
    low, high = (torch.full((len(logits),), exp(bound), dtype=torch.float64) for bound in (-5.0, 5.0))
    inverse = torch.ones(len(logits), dtype=torch.float64)
    for _ in range(30):
        p = (logits * inverse[:, None, None]).softmax(-1)
        expected = (p * logits).sum(-1)
        slope = (expected - right).mean(-1)
        curvature = ((p * logits.square()).sum(-1) - expected.square()).mean(-1)
        low, high = torch.where(slope > 0, low, inverse), torch.where(slope > 0, inverse, high)
        step = inverse - slope / curvature
        before, inverse = inverse, torch.where((step > low) & (step < high), step, (low * high).sqrt())
        if ((inverse - before).abs() <= 1e-9 * inverse).all():
            break
    return (1 / inverse).tolist()
