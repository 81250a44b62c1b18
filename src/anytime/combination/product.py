"""Product anytime: answers that hardly ever get worse."""

from typing import Any

from torch import Tensor

from anytime.combination.rule import Rule
from anytime.errors import check_number


class Product(Rule):
    """The product of what all exits so far leave possible (Jazbec et al., "Towards Anytime Classification in
    Early-Exit Architectures by Enforcing Conditional Monotonicity", NeurIPS 2023).

    With f_i the logits of exit i of L, exit m answers with

        p_m(y) ∝ Π_{i≤m} max(f_i(y), ε)^{i/L} .

    An exit rules a class out if its logit is not positive, and what is ruled out stays so. So the probability of the
    true class rarely falls once it is high, as a robot that acts while it thinks needs. Later exits count more. ε is a
    small number in place of the paper's 0, so that there is an answer even if all classes are ruled out.

    Args:
        exits: Number of exits, L.
        floor: ε.

    Examples:
        >>> import torch
        >>> rule = Product(2)
        >>> first, memory = rule(0, torch.tensor([[2.0, 2.0, -1.0]]), None)
        >>> first.softmax(-1).round(decimals=3)
        tensor([[0.5000, 0.5000, 0.0000]])
        >>> rule(1, torch.tensor([[3.0, -1.0, 3.0]]), memory)[0].softmax(-1).round(decimals=3)
        tensor([[0.9990, 0.0000, 0.0010]])
    """

    name = "product"

    def __init__(self, exits: int, floor: float = 1e-6) -> None:
        super().__init__()
        self.exits, self.floor = exits, check_number("floor", floor, above=0)

    def forward(self, exit: int, logits: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """The logarithm of the product, up to a constant."""
        factor = (exit + 1) / self.exits * logits.float().clamp(min=self.floor).log()
        product = factor if memory is None else memory + factor
        return product, product

    def options(self) -> dict[str, float]:
        """The arguments that build it again."""
        return {"floor": self.floor}


def share_getting_worse(logits: Tensor, labels: Tensor, by: float = 0.1) -> float:
    """The share of samples whose probability of the truth falls by more than ``by`` between any two exits.

    Args:
        logits: exits × samples × classes.
        labels: the true classes.
        by: τ of Jazbec et al.: how much is a fall.

    Examples:
        >>> import torch
        >>> logits = torch.tensor([[[4.0, 0.0], [4.0, 0.0]], [[0.0, 4.0], [5.0, 0.0]]])
        >>> share_getting_worse(logits, torch.tensor([0, 0]))
        0.5
    """
    truth = logits.softmax(-1).gather(-1, labels.expand(len(logits), -1)[..., None]).squeeze(-1)
    fall = (truth.cummax(0).values - truth).amax(0)
    return (fall > by).double().mean().item()
