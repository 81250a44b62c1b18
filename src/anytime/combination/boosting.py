"""Boosted exits: each corrects what the exits before it say."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from anytime.combination.rule import Rule
from anytime.errors import check_number
from anytime.meta import keeps_input


class Boosting(Rule):
    """Exits that learn what the exits before them have not (Yu et al., "Boosted Dynamic Neural Networks", AAAI 2023).

    With f_n the logits of exit n's own head, exit n answers, and is trained, with

        F_n = f_n + t · sg(F_{n−1}) ,        F_0 = f_0 ,

    sg the stop of the gradient: the loss of exit n trains f_n alone, as in gradient boosting, and the early exits are
    trained by their own losses. Combine the network before it is trained: ``fit(combine(net, "boosting"), data)``.

    Args:
        exits: Number of exits.
        share: t, the share of the earlier answers that is kept.

    Examples:
        >>> import torch
        >>> rule = Boosting(2)
        >>> rule(1, [torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]])])
        tensor([[2., 1.]])
    """

    name = "boosting"
    needs_classes = False

    def __init__(self, exits: int, share: float = 0.5) -> None:
        super().__init__(exits)
        self.share = check_number("share", share)

    @keeps_input
    def forward(self, exit: int, own: Sequence[Tensor]) -> Tensor:  # noqa: ARG002
        """The sum."""
        answer = own[0]
        for logits in own[1:]:
            answer = logits + self.share * answer.detach()
        return answer

    def options(self) -> dict[str, Any]:
        """The arguments that build it again."""
        return {"share": self.share}
