"""Temperature scaling: what the logits of each exit are divided by, so that its probabilities are calibrated."""

from math import exp

import torch

from anytime.evaluation import Outputs


def fit_temperatures(outputs: Outputs) -> list[float]:
    """The temperature of each exit that minimizes its cross-entropy, by bisection: it is convex in 1/temperature."""
    logits = outputs.logits.double()
    right = logits.gather(-1, outputs.labels.expand(len(logits), -1)[..., None]).squeeze(-1)
    low, high = (torch.full((len(logits),), bound, dtype=torch.float64) for bound in (-5.0, 5.0))
    for _ in range(40):
        middle = (low + high) / 2
        expected = ((logits * middle.exp()[:, None, None]).softmax(-1) * logits).sum(-1)
        too_cold = (expected - right).mean(-1) > 0  # the slope of the cross-entropy in 1/temperature
        low, high = torch.where(too_cold, low, middle), torch.where(too_cold, middle, high)
    return [exp(-log_inverse) for log_inverse in low.tolist()]
