"""AdaLoss: the paper's weight scheme."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from anytime.errors import check_integer, check_number
from anytime.weights.scheme import AdaptiveScheme, widest_float


class AdaLoss(AdaptiveScheme):
    """AdaLoss: weights inversely proportional to the running average of each loss (Sec. 3, App. B).

    With ℓ̂_i the exponential moving average of loss i,

        B_i = (1 - γ) · (min_j ℓ̂_j / ℓ̂_i)^p + γ ,

    so the exit with the smallest average has weight 1 and no exit has less than γ. The weights are not normalized
    by their sum, because learning-rate schedules assume B_L = 1. Scaling all losses by one factor does not change them.
    In the paper p = 1.

    The averages start at the first losses and are updated by every call in training mode with gradients enabled; other
    calls use the weights as they are. If an average is zero, its exit has weight 1 and every exit with a positive
    average has γ, the limit of the formula. An infinite, NaN or negative loss does not change its average; an exit that
    has had no other loss yet has weight 1.

    Args:
        exits: Number of losses, L in the paper.
        momentum: Momentum of the averages: ℓ̂ ← momentum · ℓ̂ + (1 − momentum) · ℓ.
        gamma: γ, the share of constant weights, which prevents tiny ones. The paper chose 0.05 on validation data.
        final_extra: Extra weight of the last exit. It is added to the last ratio, then all ratios are divided by the
            largest: 1.0, the paper's "double the final weight" on ILSVRC, halves the others. 0 on CIFAR and SVHN.
        update_every: Update the weights on every n-th call only. They are 1 before the first update.
        power: p. Between 0 (CONST) and 1 early exits have more of the weight; above 1 late ones have.

    Examples:
        >>> balance = AdaLoss(exits=3)
        >>> loss = balance(torch.tensor([4.0, 2.0, 1.0]))
        >>> balance.weights
        tensor([0.2875, 0.5250, 1.0000])
        >>> balance = AdaLoss(exits=3, power=0.5)
        >>> loss = balance(torch.tensor([4.0, 2.0, 1.0]))
        >>> balance.weights
        tensor([0.5250, 0.7218, 1.0000])
    """

    average: Tensor
    calls: Tensor
    _if_negative = "it weighs by 1 / loss, so the average of that exit does not change and its weight does not adapt"

    def __init__(
        self,
        exits: int,
        momentum: float = 0.9,
        gamma: float = 0.05,
        final_extra: float = 0.0,
        update_every: int = 1,
        power: float = 1.0,
    ) -> None:
        super().__init__(check_integer("exits", exits))
        self.momentum = check_number("momentum", momentum, below=1)
        self.gamma = check_number("gamma", gamma, most=1)
        self.final_extra = check_number("final_extra", final_extra)
        self.update_every = check_integer("update_every", update_every)
        self.power = check_number("power", power)
        # NaN: no loss seen yet.
        self.register_buffer("average", torch.full_like(self.weights, torch.nan))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self._widen()

    @torch.no_grad()
    def _observe(self, losses: Tensor) -> None:
        losses = losses.to(self.average.dtype)
        moved = losses.lerp(self.average, self.momentum)
        moved = torch.where(self.average.isnan(), losses, moved)
        valid = self._of_trained(losses.isfinite() & (losses >= 0), False)
        self.average.copy_(torch.where(valid, moved, self.average))
        self.calls += valid.any()  # a call without any valid loss does not count
        due = self.calls % self.update_every == 0  # stays on the device: the host does not wait for it
        self.weights.copy_(torch.where(due, self._balanced(), self.weights))

    def _balanced(self) -> Tensor:
        seen = self._of_trained(~self.average.isnan(), False)
        smallest = torch.where(seen, self.average, torch.inf).amin()
        ratio = torch.where(seen & (self.average > smallest), smallest / self.average, 1.0) ** self.power
        ratio[-1] += self.final_extra
        ratio = self._of_trained(ratio, 0.0)
        ratio = ratio / ratio.amax()
        return self._of_trained(torch.lerp(ratio, torch.ones_like(ratio), self._gamma()), 0.0)

    def _gamma(self) -> Tensor:
        return self.average.new_tensor(self.gamma)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        return self._widen()

    def _widen(self) -> Self:
        """Keep the averages in float64 where the device has it: over many calls float32 drifts."""
        self.average = self.average.to(widest_float(self.average.device.type))
        return self

    def extra_repr(self) -> str:
        """Return what ``print(scheme)`` shows in parentheses."""
        return (
            f"exits={self.exits}, momentum={self.momentum}, gamma={self.gamma}, final_extra={self.final_extra}, "
            f"update_every={self.update_every}" + (f", power={self.power}" if self.power != 1 else "")
        )
