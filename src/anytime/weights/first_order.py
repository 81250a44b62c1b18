"""FirstOrderAdaLoss: AdaLoss by the size of gradients instead of losses."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anytime.errors import AnytimeError
from anytime.network import Network, tensors_of
from anytime.weights.adaloss import AdaLoss


class FirstOrderAdaLoss(AdaLoss):
    """AdaLoss with ℓ̂_i the running average of ‖∂ℓ_i/∂x_i‖, the norm of the gradient at the exit's features x_i.

    The paper names it as future work, and its authors' code has it as an option. Adding a constant to a loss does not
    change the weights, so losses may be negative or have an unknown lower bound; scaling a loss scales its weight by
    the inverse. The gradients are those of the heads alone: one more backward pass through its head for each loss, none
    through the stages. The last exit of a converted model is the model's own, and its features are its logits.

    Within ``with scheme.watch(net):`` the heads note the features that they are given; ``fit`` and the integrations see
    to it. Each call in training mode takes the losses of one forward pass of all exits. Losses without gradients leave
    the weights as they are.

    The arguments are those of ``AdaLoss``.

    Examples:
        >>> import anytime
        >>> net = anytime.AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 1), nn.Linear(8, 1)])
        >>> with FirstOrderAdaLoss(2, gamma=0.0).watch(net) as balance:
        ...     first, second = net(torch.ones(4, 8))
        ...     loss = balance([4 * first.mean() - 7, second.mean() + 3])
        >>> sizes = 4 * net.heads[0].weight.norm(), net.heads[1].weight.norm()
        >>> torch.allclose(balance.weights[0] / balance.weights[1], sizes[1] / sizes[0])
        True
    """

    _features: Sequence[list[Tensor]] = ()
    """For each exit of the network that is watched, what its head was last given."""

    @contextmanager
    def watch(self, net: Network, tasks: int = 1) -> Iterator[Self]:
        """A context in which the features of every exit of this network are noted; it gives the scheme.

        Args:
            net: the network.
            tasks: how many losses each exit has; those of an exit follow one another.
        """
        if net.exits * tasks != self.exits:
            many = f" with {tasks} tasks each" if tasks > 1 else ""
            raise AnytimeError(f"FirstOrderAdaLoss was made for {self.exits} exits, the network has {net.exits}{many}")
        heads = [head for _, head in net.trained_units if head is not None]
        self._features = [[] for _ in heads]
        hooks = [h.register_forward_pre_hook(partial(self._note, i), prepend=True) for i, h in enumerate(heads)]
        try:
            yield self
        finally:
            self._features = ()
            for hook in hooks:
                hook.remove()

    def _note(self, exit: int, _head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not self._features or not self._observing:
            return None
        own = tree_map(_own, args[0])  # without what may follow them, a mask
        self._features[exit][:] = [leaf for leaf in tensors_of(own) if leaf.requires_grad]
        return own, *args[1:]

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """Update the averages by the gradients' norms, and the weights when due; return the weighted sum."""
        losses = self._vector(losses)
        if self._observing and losses.requires_grad:
            if not self._features or not all(self._features):
                raise AnytimeError(
                    "FirstOrderAdaLoss has not seen the features that these losses come from: call it once after each "
                    "forward pass of all exits, both within `with scheme.watch(net):`, or after scheme.eval()"
                )
            tasks = len(losses) // len(self._features)
            norms = torch.stack([_norm(loss, self._features[i // tasks]) for i, loss in enumerate(losses)])
            self._observe(self._mean_over_ranks(norms.to(losses.dtype)))
            for noted in self._features:
                noted.clear()
        return self._weighted_sum(losses)

    def _warn_if_negative(self, losses: Tensor) -> None:
        """Negative losses are allowed."""


def watchers(scheme: Any) -> list[FirstOrderAdaLoss]:
    """The scheme, or the schemes in it, that must watch the network."""
    parts = scheme.modules() if isinstance(scheme, nn.Module) else ()
    return [part for part in parts if isinstance(part, FirstOrderAdaLoss)]


@contextmanager
def watching(scheme: Any, net: Network, tasks: int = 1) -> Iterator[None]:
    """A context in which a scheme watches the network, if it must; see ``FirstOrderAdaLoss.watch``."""
    with ExitStack() as stack:
        for part in watchers(scheme):
            stack.enter_context(part.watch(net, tasks))
        yield


def _own(leaf: Any) -> Any:
    """Features for a head of its own: their gradient is that of the head alone, not of the stages after it."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    # Of stages that are not trained, the features have no gradient by themselves.
    return leaf.view_as(leaf) if leaf.requires_grad else leaf.detach().requires_grad_().clone()


def _norm(loss: Tensor, features: list[Tensor]) -> Tensor:
    """The norm of the gradient of a loss at the features of its exit; NaN where there is none.

    One loss at a time: exits that answer together have losses that reach the features of the exits before them too.
    """
    gradients = torch.autograd.grad(loss, features, retain_graph=True, allow_unused=True)
    squares = [gradient.detach().float().square().sum() for gradient in gradients if gradient is not None]
    return torch.stack(squares).sum().sqrt() if squares else loss.new_full((), torch.nan)
