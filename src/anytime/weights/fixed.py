"""Constant weights: CONST, LINEAR, Half-End and OPT."""

from collections.abc import Sequence

import torch
from torch import Tensor

from anytime.errors import AnytimeError, check_integer, check_number
from anytime.weights.scheme import WeightScheme


class Const(WeightScheme):
    """CONST: B_i = 1 (Sec. 3), as in MSDNet and deeply supervised nets.

    Args:
        exits: Number of losses.

    Examples:
        >>> Const(3)(torch.tensor([3.0, 2.0, 1.0]))
        tensor(6.)
    """

    def __init__(self, exits: int) -> None:
        super().__init__(torch.ones(check_integer("exits", exits)))


class LinearWeights(WeightScheme):
    """LINEAR: B_i increases linearly from 0.25 at the first exit to 1 at the last (Sec. 3).

    Args:
        exits: Number of losses.
        first: Weight of the first exit.
        last: Weight of the last exit.

    Examples:
        >>> LinearWeights(4).weights
        tensor([0.2500, 0.5000, 0.7500, 1.0000])
    """

    def __init__(self, exits: int, first: float = 0.25, last: float = 1.0) -> None:
        first, last = check_number("first", first), check_number("last", last)
        weights = torch.linspace(first, last, check_integer("exits", exits))
        super().__init__(weights if exits > 1 else torch.tensor([last]))


class HalfEnd(WeightScheme):
    """Half-End: half of the total weight on the last exit, the rest spread evenly (Sec. 3, Fig. 2a).

    The weights are scaled so that the last exit has weight 1, which learning-rate schedules assume.

    Args:
        exits: Number of losses.

    Examples:
        >>> HalfEnd(5).weights
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 1.0000])
    """

    def __init__(self, exits: int) -> None:
        weights = torch.full((check_integer("exits", exits),), 1 / max(exits - 1, 1))
        weights[-1] = 1.0
        super().__init__(weights)


class OnlyExit(WeightScheme):
    """OPT_i: all weight on one exit (Sec. 3). It shows what exit i can reach when trained alone.

    Training loops read the attribute ``only``: with ``net(x, only=scheme.only)`` the other heads and the deeper stages
    do not run, so the gradients of their parameters are ``None``, not zero. The optimizer then skips them: they get no
    update, no momentum and no weight decay.

    Args:
        exits: Number of losses.
        exit: The exit to train, counted as in ``net(x)[exit]``: 0 is the shallowest and -1 the last.

    Examples:
        >>> OnlyExit(3, exit=1)(torch.tensor([3.0, 2.0, 1.0]))
        tensor(2.)
    """

    def __init__(self, exits: int, exit: int = -1) -> None:
        if not -check_integer("exits", exits) <= exit < exits:
            raise AnytimeError(f"exit={exit} must be between 0 and {exits - 1}, or -1 for the last of {exits} exits")
        exit %= exits
        super().__init__(torch.eye(exits)[exit])
        self.only = [exit]

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the loss of that exit. The others are ignored, even if infinite."""
        return self._vector(losses)[self.only[0]]

    def extra_repr(self) -> str:
        """Return what ``print(scheme)`` shows in parentheses."""
        return f"exits={self.exits}, exit={self.only[0]}"
