"""WeightScheme: the weighted sum of the losses. AdaptiveScheme: weights that follow the losses."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn

from anytime import distributed
from anytime.errors import AnytimeError


@cache
def widest_float(device_type: str) -> torch.dtype:
    """float64 where the device has it, float32 elsewhere (MPS)."""
    try:
        torch.zeros((), dtype=torch.float64, device=device_type)
    except (TypeError, RuntimeError):
        return torch.float32
    return torch.float64


class WeightScheme(nn.Module):
    """Σ_i B_i ℓ_i with constant weights B. Adaptive schemes update B first.

    ``.to(device)`` moves a scheme; ``.half()``, ``.bfloat16()`` and ``.to(dtype)`` leave its few numbers in the
    precision they have, since averages that are rounded to 16 bits stop moving.

    Args:
        weights: The weights B, one for each exit.
    """

    weights: Tensor
    trained: Tensor | None
    """Which losses depend on trained parameters, where not all do; see ``restrict``."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights.float())  # whatever torch's default precision is
        self.register_buffer("trained", None, persistent=False)

    @property
    def exits(self) -> int:
        """Number of losses."""
        return len(self.weights)

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of the losses, a scalar to call ``backward()`` on."""
        return self._weighted_sum(self._vector(losses))

    def restrict(self, trained: Sequence[bool] | None) -> None:
        """Weigh only losses that depend on trained parameters: the others have weight 0 and influence nothing.

        Args:
            trained: for each loss, whether it depends on trained parameters, as ``trained_exits(net)`` says for each
                exit; None or all of them: weigh all.

        Examples:
            >>> from anytime import AdaLoss
            >>> balance = AdaLoss(exits=3)
            >>> balance.restrict([True, True, False])
            >>> loss = balance(torch.tensor([4.0, 2.0, 0.1]))
            >>> balance.weights
            tensor([0.5250, 1.0000, 0.0000])
        """
        if trained is not None and len(trained) != len(self.weights):
            raise AnytimeError(f"got {len(trained)} values; expected one for each of {len(self.weights)} losses")
        some = trained is not None and not all(trained)
        self.trained = torch.tensor(trained, device=self.weights.device) if some else None

    @property
    def effective(self) -> Tensor:
        """The weights, with 0 for losses that do not depend on trained parameters."""
        return self._of_trained(self.weights, 0.0)

    def _of_trained(self, values: Tensor, otherwise: Any) -> Tensor:
        """These values where losses depend on trained parameters, the other value elsewhere."""
        return values if self.trained is None else torch.where(self.trained, values, otherwise)

    def _weighted_sum(self, losses: Tensor) -> Tensor:
        # where: an exit of weight 0 contributes nothing, even if its loss is infinite.
        weights = self.effective
        return torch.where(weights > 0, weights * losses, 0).sum()

    def _vector(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """The losses as one floating-point vector of at least 32 bits, or an error that says what is wrong."""
        name = type(self).__name__
        if isinstance(losses, list | tuple) and all(isinstance(loss, Tensor) and loss.ndim == 0 for loss in losses):
            losses = torch.stack(losses) if losses else torch.empty(0)
        if not isinstance(losses, Tensor):
            raise AnytimeError(f"{name} expects a tensor of {self.exits} losses or a list of scalar tensors")
        if losses.shape != self.weights.shape:
            raise AnytimeError(
                f"{name} was made for {self.exits} exits and got losses of shape {tuple(losses.shape)}; "
                "pass one loss per exit, e.g. [cross_entropy(logits, labels) for logits in net(x)]"
            )
        if not losses.is_floating_point():
            raise AnytimeError(f"{name} got losses of {losses.dtype}; losses must be floating-point numbers")
        if losses.device != self.weights.device:
            raise AnytimeError(
                f"the losses are on {losses.device} and {name} is on {self.weights.device}; "
                f"move it first: scheme.to({str(losses.device)!r})"
            )
        return losses.to(torch.promote_types(losses.dtype, torch.float32))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return super()._apply(lambda tensor: _keep_precision(fn, tensor), recurse)

    def extra_repr(self) -> str:
        """Return what ``print(scheme)`` shows in parentheses."""
        return f"exits={self.exits}"


def _keep_precision(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """What ``fn`` makes of a tensor (``.to(device)``, ``.half()``, …), except for a change of its precision."""
    before = torch.empty(0, dtype=torch.float32, device=tensor.device)
    after = fn(before)
    if (after.dtype, after.device) == (before.dtype, before.device):
        return fn(tensor)
    dtype = widest_float(after.device.type) if tensor.dtype == torch.float64 else tensor.dtype
    if tensor.is_meta:  # to_empty: there are no values to copy
        return torch.empty_like(tensor, dtype=dtype, device=after.device)
    return tensor.to(after.device, dtype)


class AdaptiveScheme(WeightScheme):
    """A scheme whose weights follow the losses; the base of AdaLoss, GeometricMean and LogBarrier.

    It observes losses only in training mode (``scheme.train()``, the default) and with gradients enabled. In eval mode,
    under ``torch.no_grad()`` and under ``torch.inference_mode()`` it returns the objective and observes nothing, so
    validation does not influence training.

    Under ``torch.distributed`` it observes the mean over all processes of the default group, so that weights and
    averages are the same everywhere. All processes must therefore make the training calls together; a call that does
    not observe does not communicate, so one process may make it alone.
    """

    _if_negative: str
    """What happens to a negative loss."""

    def __init__(self, exits: int) -> None:
        super().__init__(torch.ones(exits))
        self._seen, self._warned = 0, False

    @property
    def _observing(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """Observe the losses, which may change the weights; return the weighted sum."""
        losses = self._vector(losses)
        if self._observing:
            self._observe(self._mean_over_ranks(losses))
        return self._weighted_sum(losses)

    def _observe(self, losses: Tensor) -> None:
        """Update the weights, given the losses averaged over all processes."""
        raise NotImplementedError

    def _mean_over_ranks(self, losses: Tensor) -> Tensor:
        """The losses without their graph, averaged over all processes if this call observes."""
        losses = losses.detach().clone()
        if self._observing:
            distributed.average([losses])
            self._warn_if_negative(losses)
        return losses

    def _warn_if_negative(self, losses: Tensor) -> None:
        if self._warned or torch.compiler.is_compiling():
            return
        self._seen += 1
        # Reading a value makes the host wait for the device, so an accelerator is asked only now and then.
        if (losses.device.type != "cpu" and self._seen % 50 != 1) or losses.is_meta or not (losses < 0).any():
            return
        self._warned = True
        warnings.warn(
            f"{type(self).__name__} got a negative loss ({losses.min().item():.4g}): {self._if_negative}. Losses must "
            "be >= 0: subtract a lower bound from each before passing them, or use the scheme 'const' or 'linear'",
            stacklevel=6,  # the line that calls the scheme
        )
