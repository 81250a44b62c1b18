"""AnnealedAdaLoss: from constant weights to AdaLoss's in the course of a training."""

from torch import Tensor, nn

from anytime.errors import AnytimeError, check_integer
from anytime.weights.adaloss import AdaLoss


class AnnealedAdaLoss(AdaLoss):
    """AdaLoss whose γ falls linearly from 1 to ``gamma`` over the training: it starts as CONST and ends as AdaLoss.

    The paper suggests it as future work. With t the number of calls so far and T the number in the whole training,

        γ_t = 1 − (1 − γ) · min(t / T, 1) .

    The other arguments are those of ``AdaLoss``.

    Args:
        steps: Number of calls over which γ falls, T. If it is 0, each ``fit`` sets it to those of the whole training
            and counts the calls anew.

    Examples:
        >>> import anytime, torch
        >>> balance = anytime.create_scheme("annealed:steps=10", exits=2)
        >>> for _ in range(10):
        ...     loss = balance(torch.tensor([4.0, 1.0]))
        ...     if balance.calls in (1, 5, 10):
        ...         print(balance.weights)
        tensor([0.9287, 1.0000])
        tensor([0.6438, 1.0000])
        tensor([0.2875, 1.0000])
    """

    def __init__(
        self,
        exits: int,
        momentum: float = 0.9,
        gamma: float = 0.05,
        final_extra: float = 0.0,
        update_every: int = 1,
        steps: int = 0,
    ) -> None:
        super().__init__(exits, momentum, gamma, final_extra, update_every)
        self.steps = check_integer("steps", steps, least=0)
        self.steps_given = self.steps > 0

    def _gamma(self) -> Tensor:
        if not self.steps:
            raise AnytimeError(
                "AnnealedAdaLoss must know how many steps the training has: "
                'anytime.create_scheme("annealed:steps=5000", exits=3). anytime.fit tells it by itself'
            )
        done = (self.calls.to(self.average.dtype) / self.steps).clamp(max=1)
        return 1 - (1 - self.gamma) * done

    def extra_repr(self) -> str:
        """Return what ``print(scheme)`` shows in parentheses."""
        return f"{super().extra_repr()}, steps={self.steps}"


def set_steps(scheme: nn.Module, steps: int | None) -> None:
    """Tell a scheme, or the schemes in it, that a training begins and how many calls it has.

    A training that is resumed then restores the number of calls from its checkpoint.
    """
    for part in scheme.modules():
        if isinstance(part, AnnealedAdaLoss) and not part.steps_given:
            if steps is None:
                raise AnytimeError(
                    "the scheme annealed must know how many steps the training has, and these batches have no length: "
                    "say how many, e.g. annealed:steps=5000"
                )
            part.steps = steps
            part.calls.zero_()
