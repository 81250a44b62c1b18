"""Feature partitioning (Deep Feature Surgery, ECCV 2024, arXiv 2407.13986): channels that learn from one exit alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anytime import Network
from anytime.errors import check_number
from experiments.equilibrium import check_chained

SHARE = 0.25
"""The share of the channels, where an experiment asks for it."""


class Partition(nn.Module):
    """A share of the channels learns from the exit before it alone: deeper exits see it and send it no gradient.

    So the features of an exit's own and the shared ones do not compete, and the backward pass gets cheaper. Nothing
    happens outside of training. Feature referencing, the paper's second part, is not here.

    Args:
        share: of the channels.

    Examples:
        >>> x = torch.ones(1, 4, 1, 1, requires_grad=True)
        >>> Partition(0.25)(x).sum().backward()
        >>> x.grad.flatten().tolist()
        [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = check_number("share", share, most=1)

    def forward(self, x: Tensor) -> Tensor:
        """The same features."""
        if not self.training:
            return x
        own = round(self.share * x.shape[1])
        return torch.cat([x[:, :-own], x[:, -own:].detach()], 1) if own else x


@contextmanager
def surgery(net: Network, share: float = SHARE) -> Iterator[None]:
    """A context in which every stage but the first gets its input through a ``Partition``.

    Args:
        net: a network whose stages take a tensor N × C × …, or a list of those.
        share: of the channels.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8")
        >>> with surgery(net):
        ...     result = anytime.fit(net, [(torch.ones(2, 3, 8, 8), torch.tensor([0, 1]))], epochs=1, show=False)
    """
    check_chained(net)
    partition = Partition(share)  # in training mode

    def part(stage: nn.Module, args: tuple[Any]) -> tuple[Any]:
        (x,) = args
        if not stage.training:
            return args
        return ([partition(each) for each in x] if isinstance(x, list) else partition(x),)

    hooks = [stage.register_forward_pre_hook(part) for stage, _ in net.trained_units[1:]]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
