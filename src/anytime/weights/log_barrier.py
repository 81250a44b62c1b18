"""LogBarrier: weights that are learned together with the network."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anytime.errors import check_integer, check_number
from anytime.weights.scheme import AdaptiveScheme


class LogBarrier(AdaptiveScheme):
    """Σ_i (B_i ℓ_i − λ ln B_i), minimized over the network and the weights B together (Sec. 3, Eq. 3).

    At the optimum B_i = λ / ℓ_i. The parameters are ln B, so that B stays positive. Pass them to the optimizer beside
    those of the network, without weight decay. λ sets the scale of the weights, and so of the update.

    Args:
        exits: Number of losses.
        strength: λ.
    """

    _if_negative = "the objective has no minimum, so its weight grows without bound"

    def __init__(self, exits: int, strength: float = 1.0) -> None:
        super().__init__(check_integer("exits", exits))
        self.strength = check_number("strength", strength, above=0)
        self.log_weights = nn.Parameter(torch.zeros(exits, dtype=torch.float32))

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the objective; its gradient reaches the network through the losses, and the weights B."""
        losses = self._vector(losses)
        weights = self.log_weights.exp()
        self.weights.copy_(weights.detach())
        # The gradient of the weights comes from the mean loss over all processes, that of the network from this
        # process's losses; the term is zero in value.
        mean = self._of_trained(self._mean_over_ranks(losses).nan_to_num(), 0.0)
        weight_gradient = ((weights - weights.detach()) * mean).sum()
        barrier = self.strength * self._of_trained(self.log_weights, 0.0).sum()
        return self._weighted_sum(losses) + weight_gradient - barrier

    def extra_repr(self) -> str:
        """Return what ``print(scheme)`` shows in parentheses."""
        return f"exits={self.exits}, strength={self.strength}"
