"""GeometricMean: the objective that AdaLoss approximates."""

from collections.abc import Sequence

import torch
from torch import Tensor

from anytime.errors import check_integer, check_number
from anytime.weights.scheme import AdaptiveScheme


class GeometricMean(AdaptiveScheme):
    """Σ_i ln ℓ_i of the batch (Sec. 3, Eq. 4), which AdaLoss minimizes if its averages are exact.

    The gradient is Σ_i ∇ℓ_i / ℓ_i. Its weights 1/ℓ_i come from a single noisy batch and have no fixed scale, whereas
    AdaLoss uses running averages and scales the largest weight to 1. Expect to need a smaller learning rate.

    Args:
        exits: Number of losses.
        floor: Lower bound of the losses, so that a zero loss gives a finite value and no gradient.
    """

    _if_negative = "its logarithm is undefined, so that exit gets no gradient"

    def __init__(self, exits: int, floor: float = 1e-8) -> None:
        super().__init__(check_integer("exits", exits))
        self.floor = check_number("floor", floor, above=0)

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """Return Σ ln ℓ of the mean losses over all processes, with the gradient of this process's share."""
        losses = self._vector(losses)
        mean = self._mean_over_ranks(losses)
        mean = self._of_trained(mean, 1.0)
        known = self._of_trained(mean.isfinite() & (mean > self.floor), False)
        weights = torch.where(known, 1 / mean.clamp(min=self.floor), 0.0)
        if self._observing:
            self.weights.copy_(weights)
        # The value is Σ ln ℓ; the second term is zero and carries the gradient Σ ∇ℓ / ℓ.
        gradient = (weights * (losses - losses.detach()).nan_to_num()).sum()
        return mean.clamp(min=self.floor).log().sum() + gradient

    def extra_repr(self) -> str:
        """Return what ``print(scheme)`` shows in parentheses."""
        return f"exits={self.exits}, floor={self.floor}"
