"""FirstOrderAdaLoss: AdaLoss by the size of gradients instead of losses."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anytime.errors import AnytimeError
from anytime.network import AnytimeNetwork, tensors_of
from anytime.weights.adaloss import AdaLoss


class FirstOrderAdaLoss(AdaLoss):
    """AdaLoss with ℓ̂_i the running average of ‖∂ℓ_i/∂x_i‖, the norm of the gradient at the exit's features x_i.

    The paper names it as future work, and its authors' code has it as an option. Adding a constant to a loss does not
    change the weights, so losses may be negative or have an unknown lower bound; scaling a loss scales its weight by
    the inverse. The gradients are those of the heads alone: one more backward pass through the heads, none through the
    stages.

    ``watch(net)`` makes the heads note the features that they are given; ``fit`` calls it. Calls whose losses do not
    come from a forward pass of that network in training mode leave the weights as they are.

    The arguments are those of ``AdaLoss``.

    Examples:
        >>> net = AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 1), nn.Linear(8, 1)])
        >>> balance = FirstOrderAdaLoss(2, gamma=0.0).watch(net)
        >>> first, second = net(torch.ones(4, 8))
        >>> loss = balance([4 * first.mean() - 7, second.mean() + 3])
        >>> sizes = 4 * net.heads[0].weight.norm(), net.heads[1].weight.norm()
        >>> torch.allclose(balance.weights[0] / balance.weights[1], sizes[1] / sizes[0])
        True
    """

    _features: dict[int, list[Tensor]] | None = None
    """By exit, what its head was last given; None: no network is watched."""

    def watch(self, net: AnytimeNetwork) -> "FirstOrderAdaLoss":
        """Note the features of every exit of this network from now on; returns the scheme."""
        if net.exits != self.exits:
            raise AnytimeError(f"FirstOrderAdaLoss was made for {self.exits} exits, the network has {net.exits}")
        self._features = {}
        for exit, head in enumerate(net.heads):
            head.register_forward_pre_hook(partial(self._note, exit), prepend=True)
        return self

    def _note(self, exit: int, _head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._features is None or not self._observing:
            return None
        # The head gets a view of its own, whose gradient is that of the head alone, not of the stages after it.
        own = tree_map(lambda leaf: leaf.view_as(leaf) if _trained(leaf) else leaf, args)
        self._features[exit] = [leaf for leaf in tensors_of(own) if _trained(leaf)]
        return own

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """Update the averages by the gradients' norms, and the weights when due; return the weighted sum."""
        losses = self._vector(losses)
        features = self._features or {}
        if self._observing and losses.requires_grad and len(features) == self.exits:
            self._observe(self._mean_over_ranks(self._norms(losses, features)))
            features.clear()
        return self._weighted_sum(losses)

    def _warn_if_negative(self, losses: Tensor) -> None:
        """Negative losses are allowed."""

    def _norms(self, losses: Tensor, features: dict[int, list[Tensor]]) -> Tensor:
        flat = [leaf for exit in range(self.exits) for leaf in features[exit]]
        gradients = iter(torch.autograd.grad(losses.sum(), flat, retain_graph=True, allow_unused=True))
        norms = []
        for exit in range(self.exits):
            squares = [g.detach().float().square().sum() for _ in features[exit] if (g := next(gradients)) is not None]
            norms.append(torch.stack(squares).sum().sqrt() if squares else losses.new_full((), torch.nan))
        return torch.stack(norms).to(losses.dtype)


def _trained(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad
