"""Rule: how the logits of several exits become one answer."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from anytime.errors import AnytimeError


class Rule(nn.Module):
    """How an exit's own logits and those of exits before it become its answer.

    Numbers that a rule needs are buffers, so that they are saved with the network.

    Args:
        exits: number of exits.
        inputs: the exits that later ones take into account. Their heads always run, all others only to answer.
            Default: all.
    """

    name: str
    """As ``combine`` takes it and ``config.json`` has it."""

    needs_classes: bool = True
    """Whether the rule is about probabilities of classes, and takes no other outputs."""

    def __init__(self, exits: int, inputs: Iterable[int] | None = None) -> None:
        super().__init__()
        self.exits = exits
        chosen = range(exits - 1) if inputs is None else sorted(set(inputs))
        if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < exits for i in chosen):
            raise AnytimeError(f"inputs={inputs} must be exits of the network, 0 to {exits - 1}, e.g. inputs=[0, 2]")
        self.inputs: tuple[int, ...] = tuple(i for i in chosen if i < exits - 1)

    def heard(self, exit: int) -> list[int]:
        """The exits whose logits an answer is made of: the inputs before it, and itself.

        Examples:
            >>> Rule(5, inputs=[0, 2]).heard(3), Rule(5, inputs=[0, 2]).heard(2), Rule(3).heard(2)
            ([0, 2, 3], [0, 2], [0, 1, 2])
        """
        return [*(i for i in self.inputs if i < exit), exit]

    def __call__(self, exit: int, own: Sequence[Tensor]) -> Any:
        """``forward``, for outputs that the rule is about."""
        if self.needs_classes and (own[-1].ndim != 2 or own[-1].shape[-1] < 2):
            raise AnytimeError(
                f"rule={self.name!r} combines logits, samples × classes, of at least two classes, and the exits answer "
                f'with shape {tuple(own[-1].shape)}: combine(net, "boosting") before training takes any outputs'
            )
        return super().__call__(exit, own)

    def forward(self, exit: int, own: Sequence[Tensor]) -> Tensor:
        """The answer of an exit.

        Args:
            exit: which; 0 is the shallowest.
            own: the exits' own logits, of those in ``heard(exit)``; its own are the last.
        """
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """The arguments that build it again, besides the number of exits."""
        return {} if self.inputs == tuple(range(self.exits - 1)) else {"inputs": list(self.inputs)}
