"""Product anytime: answers that rarely get worse."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from anytime.combination.rule import Rule
from anytime.errors import check_number
from anytime.evaluation import Outputs
from anytime.meta import keeps_input


class Product(Rule):
    """The product of what all exits so far say (Jazbec et al., "Towards Anytime Classification in Early-Exit
    Architectures by Enforcing Conditional Monotonicity", NeurIPS 2023).

    With f_i the logits of exit i of L, exit m answers with

        p_m(y) ∝ Π_{i≤m} [f_i(y)]_+^{w_i} ,        w_i = (i/L)^k .

    A class to which an exit gives a low logit is all but ruled out, and stays so. So the probability of the true class
    rarely falls once it is high, which matters to a robot that acts while it still computes. Later exits count more,
    and early answers are less confident than the exits' own. [f]_+ is the softplus ln(1 + e^f); the paper mostly uses
    max(f, 0), which leaves no answer where all logits are negative, as weak early exits have them.

    Args:
        exits: Number of exits, L.
        power: k. The paper's is 1, with which bad early exits spoil the later ones; a larger one keeps more of each
            exit's accuracy and makes early answers less sure.

    Examples:
        >>> import torch
        >>> rule = Product(2, power=1)
        >>> own = [torch.tensor([[4.0, 4.0, -4.0]]), torch.tensor([[4.0, -4.0, 4.0]])]
        >>> rule(0, own[:1]).softmax(-1).round(decimals=2)
        tensor([[0.4800, 0.4800, 0.0300]])
        >>> rule(1, own).softmax(-1).round(decimals=2)
        tensor([[0.9300, 0.0000, 0.0600]])
    """

    name = "product"

    def __init__(self, exits: int, power: float = 4.0) -> None:
        super().__init__(exits)
        self.power = check_number("power", power)

    @keeps_input
    def forward(self, exit: int, own: Sequence[Tensor]) -> Tensor:
        """The logarithm of the product, up to a constant."""
        powers = [((i + 1) / self.exits) ** self.power for i in self.heard(exit)]
        return torch.stack([power * log_softplus(each.float()) for power, each in zip(powers, own, strict=True)]).sum(0)

    def options(self) -> dict[str, Any]:
        """The arguments that build it again."""
        return {"power": self.power}


def log_softplus(x: Tensor) -> Tensor:
    """Logarithm of softplus, ln ln(1 + e^x), which is x itself where e^x is too small to be added to 1."""
    return softplus(x.clamp(min=-15)).log() + x.clamp(max=-15) + 15


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
    truth = Outputs(logits, labels).of_truth(logits.softmax(-1))
    fall = (truth.cummax(0).values - truth).amax(0)
    return (fall > by).double().mean().item()
