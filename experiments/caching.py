"""Caching: the surest answer so far."""

import torch
from torch import Tensor

from anytime.combination.rule import Memory, Rule


class Caching(Rule):
    """Each sample keeps the answer of the exit that was surest of it so far (Jazbec et al., NeurIPS 2023).

    With p_i the probabilities of exit i, exit m answers with those of argmax_{i≤m} max_y p_i(y). The confidence of the
    answers never falls; that in the true class may.

    ``CombinedNetwork(net, Caching(net.exits))`` is a network that answers so; it cannot be loaded by its folder alone.

    Args:
        exits: Number of exits.

    Examples:
        >>> rule = Caching(2)
        >>> first = rule(0, torch.tensor([[3.0, 0.0], [0.0, 1.0]]), ())
        >>> rule(1, torch.tensor([[0.0, 2.0], [4.0, 0.0]]), first)[0]
        tensor([[3., 0.],
                [4., 0.]])
    """

    name = "caching"

    def __init__(self, exits: int) -> None:
        super().__init__()
        self.exits = exits

    def forward(self, exit: int, logits: Tensor, memory: Memory) -> Memory:  # noqa: ARG002
        """The logits of the surest exit so far."""
        if not memory:
            return (logits,)
        surer = logits.float().softmax(-1).amax(-1, True) >= memory[0].float().softmax(-1).amax(-1, True)
        return (torch.where(surer, logits, memory[0]),)
