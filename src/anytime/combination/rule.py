"""Rule: how the answers of the exits so far become one."""

from typing import Any

from torch import Tensor, nn


class Rule(nn.Module):
    """How an exit's own logits and what is remembered of the exits before it become its answer.

    Numbers that a rule needs are buffers, so that they are saved with the network.
    """

    name: str
    """As ``combine`` takes it and ``config.json`` has it."""

    def forward(self, exit: int, logits: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """The answer of an exit, and what to remember for the next one.

        Args:
            exit: which; 0 is the shallowest.
            logits: its own, samples × classes.
            memory: what the call for the exit before returned; None at the first. Tensors with the samples along
                their first dimension, or containers of them.
        """
        raise NotImplementedError

    def options(self) -> dict[str, float]:
        """The arguments that build it again, besides the number of exits."""
        return {}
