"""FAMO: weights that make all losses fall at the same relative speed."""

import torch
from torch import Tensor

from anytime.errors import check_integer, check_number
from anytime.weights import AdaptiveScheme


class FAMO(AdaptiveScheme):
    """Fast adaptive multitask optimization (Liu, Feng, Stone, Liu; NeurIPS 2023): weights z_i / ℓ_i with learned z.

    The weights of loss ℓ_i at step t are, scaled so that the largest is 1 as in AdaLoss,

        B_i ∝ z_i / ℓ_i ,        z = softmax(ξ) .

    The logits ξ follow how much each log loss fell since the call before, so that those that lag behind get more:

        ξ ← (1 − η κ) ξ − η J (ln ℓ^{t−1} − ln ℓ^t) ,        J = diag(z) − z zᵀ  the Jacobian of the softmax.

    With uniform z (before the second call, or with η = 0) these are AdaLoss's weights without averaging and with γ = 0.
    The paper computes ℓ^t a second time on the same batch after the update; here it is the next batch's. What makes a
    batch harder for all exits alike does not change z.

    Args:
        exits: Number of losses.
        lr: η, the step size of ξ.
        decay: κ, which pulls z back to uniform weights.
        floor: Lower bound of the losses, so that a zero loss gives a finite weight.

    Examples:
        >>> balance = FAMO(exits=3, lr=1.0)
        >>> loss = balance(torch.tensor([4.0, 2.0, 1.0]))
        >>> balance.weights
        tensor([0.2500, 0.5000, 1.0000])
        >>> loss = balance(torch.tensor([4.0, 1.0, 1.0]))       # the second fell: the others get more
        >>> balance.weights
        tensor([0.2500, 0.7937, 1.0000])
    """

    scores: Tensor
    before: Tensor
    _if_negative = "its logarithm is undefined, so that exit gets the weight of a loss of 0"

    def __init__(self, exits: int, lr: float = 0.025, decay: float = 0.01, floor: float = 1e-8) -> None:
        super().__init__(check_integer("exits", exits))
        self.lr = check_number("lr", lr)
        self.decay = check_number("decay", decay)
        self.floor = check_number("floor", floor, above=0)
        self.register_buffer("scores", torch.zeros_like(self.weights))
        self.register_buffer("before", torch.full_like(self.weights, torch.nan))  # NaN: no loss seen yet

    @torch.no_grad()
    def _observe(self, losses: Tensor) -> None:
        valid = self._of_trained(losses.isfinite(), True)
        now = torch.where(losses.isfinite(), losses.clamp(min=self.floor).log(), self.before)
        fell = torch.where(self.before.isnan() | now.isnan(), 0.0, self.before - now)
        scores = self._of_trained(self.scores, -torch.inf)
        share = scores.softmax(0)
        pull = share * (fell - (share * fell).sum())
        # All losses are valid or the step will be skipped: then nothing moves.
        moved = (1 - self.lr * self.decay) * self.scores - self.lr * pull
        self.scores.copy_(torch.where(valid.all(), moved, self.scores))
        self.before.copy_(torch.where(valid.all(), now, self.before))
        log_weights = self._of_trained(self.scores, -torch.inf).log_softmax(0) - now
        weights = (log_weights - log_weights.amax()).exp()
        self.weights.copy_(torch.where(valid.all(), weights, self.weights))

    def extra_repr(self) -> str:
        """Return what ``print(scheme)`` shows in parentheses."""
        return f"exits={self.exits}, lr={self.lr}, decay={self.decay}, floor={self.floor}"
