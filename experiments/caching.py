"""Caching: the surest answer so far."""

from collections.abc import Sequence

import torch
from torch import Tensor

from anytime.combination.rule import Rule


class Caching(Rule):
    """Each sample keeps the answer of the exit that was surest of it so far (Jazbec et al., NeurIPS 2023).

    With p_i the probabilities of exit i, exit m answers with those of argmax_{i≤m} max_y p_i(y). The confidence of the
    answers never falls; that in the true class may.

    ``CombinedNetwork(net, Caching(net.exits))`` is a network that answers so; it cannot be loaded by its folder alone.

    Args:
        exits: Number of exits.

    Examples:
        >>> rule = Caching(2)
        >>> rule(1, [torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 2.0], [4.0, 0.0]])])
        tensor([[3., 0.],
                [4., 0.]])
    """

    name = "caching"

    def forward(self, exit: int, own: Sequence[Tensor]) -> Tensor:  # noqa: ARG002
        """The logits of the surest exit so far."""
        answer = own[0]
        for logits in own[1:]:
            surer = logits.float().softmax(-1).amax(-1, True) >= answer.float().softmax(-1).amax(-1, True)
            answer = torch.where(surer, logits, answer)
        return answer
