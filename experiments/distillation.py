"""Self-distillation: the early exits learn from the last one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anytime.errors import AnytimeError, check_number
from anytime.network import Network

RAISE = 1.05
MOST = 100
"""The temperature is raised at most so many times."""


class Distilled(nn.Module):
    """A weight scheme that gets the losses mixed with the distillation of the last exit.

    Within ``with scheme.watching(net): anytime.fit(net, data, scheme)`` the logits are those of the network's latest
    forward pass, so there can be no passes between it and the scheme's call, nor parts of a batch (``accumulate``).

    Args:
        scheme: of the mixed losses.
        share: c, see ``distilled``.
    """

    def __init__(self, scheme: nn.Module, share: float) -> None:
        super().__init__()
        if getattr(scheme, "only", None) is not None:
            raise AnytimeError("distillation needs all exits: it is not for schemes that train some of them only")
        self.scheme, self.share = scheme, check_number("share", share, most=1)
        self.logits: list[Tensor] = []

    @contextmanager
    def watching(self, net: Network) -> Iterator[None]:
        """A context in which it sees the logits of the network's exits."""

        def note(_net: nn.Module, _args: Any, outputs: list[Tensor]) -> None:
            self.logits = outputs if net.training else []

        hook = net.register_forward_hook(note)
        try:
            yield
        finally:
            hook.remove()
            self.logits = []

    @property
    def weights(self) -> Tensor:
        """Those of the scheme."""
        return self.scheme.weights  # type: ignore[return-value]

    def forward(self, losses: Tensor) -> Tensor:
        """The scheme's objective of the mixed losses."""
        outputs, self.logits = self.logits, []
        if len(outputs) != len(losses):
            raise AnytimeError(f"{len(losses)} losses and the logits of {len(outputs)} exits; use watching(net)")
        return self.scheme(distilled(torch.stack([each.float() for each in outputs]), losses, self.share))


def distilled(logits: Tensor, losses: Tensor, share: float) -> Tensor:
    """The losses of the exits, mixed with how far the early ones are from the last (Phuong & Lampert, ICCV 2019).

    With p_i^T = softmax(logits_i / T), and the teacher p_L^T as a constant through which no gradient flows,

        (1 − c) ℓ_i + c T² KL(p_L^T ‖ p_i^T)    for i < L ,        (1 − c) ℓ_L    for the last exit.

    A teacher that is sure of everything tells no more than the labels do. So T starts at 1 and is raised by 5 % while
    the teacher's largest probability is on average over the batch nearer to 1 than to a guess among all classes. It is
    found anew for every batch: a training that is resumed needs no state of it.

    Args:
        logits: exits × samples × classes.
        losses: of the exits, shallow to deep.
        share: c, from 0 (losses alone) to 1.

    Examples:
        >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]])   # 3 exits, one sample, two classes
        >>> distilled(logits, torch.tensor([3.0, 2.0, 2.0]), share=0.5)[1:]     # exit 2 says what the teacher says
        tensor([1., 1.])
    """
    check_number("distill", share, most=1)
    temperature = teacher_temperature(logits[-1].detach())
    teacher = (logits[-1].detach() / temperature).log_softmax(-1)
    students = (logits[:-1] / temperature).log_softmax(-1)
    apart = (teacher.exp() * (teacher - students)).sum(-1).mean(-1) * temperature**2
    return (1 - share) * losses + share * torch.cat([apart, apart.new_zeros(1)])


def teacher_temperature(logits: Tensor) -> Tensor:
    """The least power of 1.05 at which the teacher is not too sure, by bisection; all of it stays on the device."""
    enough = (1 + 1 / logits.shape[-1]) / 2
    low, high = (torch.full((), float(power), device=logits.device) for power in (-1, MOST))
    for _ in range(MOST.bit_length()):
        middle = ((low + high) / 2).floor()
        unsure = (logits / RAISE**middle).softmax(-1).amax(-1).mean() <= enough
        low, high = torch.where(unsure, low, middle), torch.where(unsure, middle, high)
    return RAISE ** high.clamp(min=0)
