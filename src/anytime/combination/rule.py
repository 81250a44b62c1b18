"""Rule: how the answers of the exits so far become one."""

from typing import Any

from torch import Tensor, nn

from anytime.errors import AnytimeError

Memory = tuple[Tensor, ...]
"""The answer of an exit, and what else is remembered; the samples are along the first dimension of each."""


class Rule(nn.Module):
    """How an exit's own logits and what is remembered of the exits before it become its answer.

    Numbers that a rule needs are buffers, so that they are saved with the network.
    """

    name: str
    """As ``combine`` takes it and ``config.json`` has it."""

    needs_classes: bool = True
    """Whether the rule is about probabilities of classes, and takes no other outputs."""

    def __call__(self, exit: int, logits: Tensor, memory: Memory) -> Any:
        """``forward``, for outputs that the rule is about."""
        if self.needs_classes and (logits.ndim != 2 or logits.shape[-1] < 2):
            raise AnytimeError(
                f"rule={self.name!r} combines logits, samples × classes, of at least two classes, and the exits answer "
                f'with shape {tuple(logits.shape)}: combine(net, "boosting") before training takes any outputs'
            )
        return super().__call__(exit, logits, memory)

    def forward(self, exit: int, logits: Tensor, memory: Memory) -> Memory:
        """The answer of an exit, then whatever else the next one needs.

        Args:
            exit: which; 0 is the shallowest.
            logits: its own, samples × classes.
            memory: what the call for the exit before returned; empty at the first.
        """
        raise NotImplementedError

    def options(self) -> dict[str, float]:
        """The arguments that build it again, besides the number of exits."""
        return {}
