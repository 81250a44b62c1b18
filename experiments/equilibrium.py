"""Gradient equilibrium: every stage receives the mean, not the sum, of the gradients of the exits above it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from anytime import Network
from anytime.errors import AnytimeError


def check_chained(net: Network) -> None:
    """Refuse an ensemble: a stage of one network has none of the exits of the next above it."""
    if not net.chained:
        raise AnytimeError(
            f"equilibrium is for the stages of one network, and an {type(net).__name__} has several: train each of "
            "eann.members by itself"
        )


@contextmanager
def equilibrium(net: Network, exits: list[int] | None = None) -> Iterator[None]:
    """A context in which backward passes divide each stage's gradients by the number of exits above it.

    In IMTA (Li et al., "Improved Techniques for Training Adaptive Deep Networks", ICCV 2019) a function stands after
    stage i of L, 0-based, that passes features on unchanged and scales their gradient: by 1/(L − i) for the head and
    the next stage, and by L − i − 1 for the next stage alone. With g_j the gradient of loss j at the features of
    stage i, those features then receive

        G_i = (g_i + (L − i − 1) · J^T G_{i+1}) / (L − i) = (1 / (L − i)) Σ_{j ≥ i} g_j ,

    the mean. Since backpropagation is linear, the same follows without such functions if the gradients of stage i's
    parameters are divided by L − i. That is what is done here: nothing is added to the network, so converted networks,
    ``torch.compile`` and in-place operations are no special cases. Gradients of the heads are as they were. Parameters
    that several stages share count for the first of them. ``with equilibrium(net): anytime.fit(net, data)`` trains so.

    Args:
        net: the network.
        exits: those that are trained, if not all.

    Examples:
        >>> import anytime, torch
        >>> net = anytime.create_model("resann-1-8")
        >>> first = next(net.stages[0].parameters())
        >>> def gradient():
        ...     net.zero_grad()
        ...     sum(logits.sum() for logits in net(torch.ones(1, 3, 8, 8))).backward()
        ...     return first.grad.clone()
        >>> alone = gradient()
        >>> with equilibrium(net):
        ...     print(torch.allclose(3 * gradient(), alone))
        True
    """
    check_chained(net)
    trained = range(net.exits) if exits is None else exits
    hooks, seen = [], set[int]()
    passed = 0
    for stage, head in net.trained_units:
        above = sum(exit >= passed for exit in trained)
        own = {id(p): p for p in stage.parameters() if p.requires_grad and id(p) not in seen}
        seen |= set(own)
        if above > 1:
            hooks += [parameter.register_hook(partial(torch.div, other=above)) for parameter in own.values()]
        passed += head is not None
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
