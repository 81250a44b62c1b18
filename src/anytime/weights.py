"""Weight schemes: from the vector of the exits' losses to the one number that training minimises.

Each is a module that is called with the losses (a tensor of L, shallow to deep) and returns a scalar. Each keeps
what it learns in buffers or parameters, so ``state_dict`` holds all of it, and shows the weights of the last call
as ``.weights``. None knows about networks, data or optimisers: any callable from a loss vector to a scalar will do
in their place.

Under ``torch.distributed`` the adaptive schemes weigh by the mean loss over all ranks, so that weights and averages
are the same everywhere whatever each rank saw.
"""

import inspect
import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from anytime import distributed
from anytime.errors import AnytimeError, check_integer, check_number


def _mean_over_ranks(losses: Tensor) -> Tensor:
    """The losses without their graph, averaged over all processes of the default group."""
    losses = losses.detach().clone()
    distributed.average([losses])
    return losses


class WeightScheme(nn.Module):
    """Σ_i B_i ℓ_i with weights B that stay as they are; the adaptive schemes refresh B first.

    Args:
        weights: the weights B, one for each exit.
    """

    weights: Tensor

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    @property
    def exits(self) -> int:
        """The number of losses it weighs."""
        return len(self.weights)

    def forward(self, losses: Tensor) -> Tensor:
        """The weighted sum of the losses, a scalar to call ``backward()`` on."""
        self._check(losses)
        weights = self.weights.to(losses.dtype)
        return torch.where(weights > 0, weights * losses, 0).sum()  # no weight, no say: even an infinite loss

    def _check(self, losses: Tensor) -> None:
        if not losses.is_floating_point():
            raise AnytimeError(f"{type(self).__name__} got losses of {losses.dtype}; they are floating-point numbers")
        if losses.shape != self.weights.shape:
            raise AnytimeError(
                f"{type(self).__name__} was made for {self.exits} exits and got losses of shape "
                f"{tuple(losses.shape)}: pass one loss an exit, e.g. torch.stack([cross_entropy(z, y) for z in net(x)])"
            )

    def extra_repr(self) -> str:
        """What ``print(scheme)`` shows between the brackets."""
        return f"exits={self.exits}"


class Const(WeightScheme):
    """CONST: B_i = 1 (Sec. 3), as MSDNet and deeply supervised nets do.

    Example:
        >>> Const(3)(torch.tensor([3.0, 2.0, 1.0]))
        tensor(6.)
    """

    def __init__(self, exits: int) -> None:
        super().__init__(torch.ones(check_integer("exits", exits)))


class LinearWeights(WeightScheme):
    """LINEAR: B_i rises evenly from 0.25 at the first exit to 1 at the last (Sec. 3).

    Example:
        >>> LinearWeights(4).weights
        tensor([0.2500, 0.5000, 0.7500, 1.0000])
    """

    def __init__(self, exits: int, first: float = 0.25, last: float = 1.0) -> None:
        first, last = check_number("first", first), check_number("last", last)
        even = torch.linspace(first, last, check_integer("exits", exits))
        super().__init__(even if exits > 1 else torch.tensor([last]))


class HalfEnd(WeightScheme):
    """Half-End: half of the total weight on the last exit, the rest spread evenly (Sec. 3, Fig. 2a).

    Scaled, as all schemes here, so that the last exit has weight 1, which learning-rate schedules assume.

    Example:
        >>> HalfEnd(5).weights
        tensor([0.2500, 0.2500, 0.2500, 0.2500, 1.0000])
    """

    def __init__(self, exits: int) -> None:
        weights = torch.full((check_integer("exits", exits),), 1 / max(exits - 1, 1))
        weights[-1] = 1.0
        super().__init__(weights)


class OnlyExit(WeightScheme):
    """OPT_i: all weight on one exit (Sec. 3): the yardstick that shows what exit i can reach when trained alone.

    ``only`` names that exit to training loops: with ``net(x, only=scheme.only)`` the other heads and the deeper
    stages do not run, so their parameters have no gradient at all (``None``, not zero). An optimiser then skips
    them: no update, no momentum and no weight decay; they stay as they were initialized.

    Args:
        exits: the number of exits.
        exit: which one, 0 for the shallowest or -1 for the last, as in ``net(x)[exit]``.

    Example:
        >>> OnlyExit(3, exit=1)(torch.tensor([3.0, 2.0, 1.0]))
        tensor(2.)
    """

    def __init__(self, exits: int, exit: int = -1) -> None:
        if not -check_integer("exits", exits) <= exit < exits:
            raise AnytimeError(f"exit={exit}: with {exits} exits it is 0 to {exits - 1}, or -1 for the last")
        exit %= exits
        super().__init__(torch.eye(exits)[exit])
        self.only = [exit]

    def extra_repr(self) -> str:
        """What ``print(scheme)`` shows between the brackets."""
        return f"exits={self.exits}, exit={self.only[0]}"

    def forward(self, losses: Tensor) -> Tensor:
        """The loss of that exit; the others may be anything, even infinite."""
        self._check(losses)
        return losses[self.only[0]]


class AdaLoss(WeightScheme):
    """AdaLoss: weights inversely proportional to each loss's running average (Sec. 3, App. B).

    With ℓ̂_i the exponential moving average of loss i,

        B_i = (1 - γ) · (min_j ℓ̂_j / ℓ̂_i) + γ ,

    so the exit with the smallest average has weight 1 and none has less than γ. The weights are not normalized
    by their sum: learning-rate schedules assume B_L = 1. They do not change when all losses are scaled alike.

    The averages start at the first loss seen and every call moves them. An exit whose average is zero has weight 1
    and, in the limit of the formula, every exit above zero has γ. An infinite, NaN or negative loss leaves its average
    as it was; an exit that has shown no other yet has weight 1.

    Args:
        exits: the number of losses, L in the paper.
        momentum: of the averages: ℓ̂ ← momentum · ℓ̂ + (1 − momentum) · ℓ.
        gamma: γ, the share of constant weights mixed in to prevent tiny ones. The paper chose 0.05 on validation.
        final_extra: extra weight for the last exit: it is added to the last ratio, then all are divided by the
            greatest. (So 1.0, the paper's "double the final weight" on ILSVRC, halves the others.) 0 on CIFAR and SVHN.
        update_every: refresh the weights on every such call; before the first refresh they are 1.
        anneal: if above 0, γ falls evenly from 1 to ``gamma`` over this many calls (the paper's suggestion for
            future work): training starts with constant weights and becomes AdaLoss.

    Example:
        >>> balance = AdaLoss(exits=3)
        >>> loss = balance(torch.tensor([4.0, 2.0, 1.0]))
        >>> balance.weights
        tensor([0.2875, 0.5250, 1.0000])
    """

    average: Tensor
    calls: Tensor

    def __init__(
        self,
        exits: int,
        momentum: float = 0.9,
        gamma: float = 0.05,
        final_extra: float = 0.0,
        update_every: int = 1,
        anneal: int = 0,
    ) -> None:
        super().__init__(torch.ones(check_integer("exits", exits)))
        self.momentum = check_number("momentum", momentum, below=1)
        self.gamma = check_number("gamma", gamma, most=1)
        self.final_extra = check_number("final_extra", final_extra)
        self.update_every = check_integer("update_every", update_every)
        self.anneal = check_integer("anneal", anneal, least=0)
        # NaN: no loss seen yet. Double precision, or long averages drift by more than a float's last digits.
        self.register_buffer("average", torch.full((exits,), torch.nan, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, losses: Tensor) -> Tensor:
        """Move the averages, refresh the weights when due, and return the weighted sum."""
        self._check(losses)
        with torch.no_grad():
            self._observe(_mean_over_ranks(losses))
        return super().forward(losses)

    def _observe(self, losses: Tensor) -> None:
        losses = losses.to(self.average.dtype)
        moved = losses.lerp(self.average, self.momentum)
        moved = torch.where(self.average.isnan(), losses, moved)
        sound = losses.isfinite() & (losses >= 0)
        self.average.copy_(torch.where(sound, moved, self.average))
        self.calls += sound.any()  # a call without a single sound loss does not count
        due = self.calls % self.update_every == 0  # a tensor: no device is asked to wait
        self.weights.copy_(torch.where(due, self._balanced(), self.weights))

    def _balanced(self) -> Tensor:
        seen = ~self.average.isnan()
        smallest = torch.where(seen, self.average, torch.inf).amin()
        ratio = torch.where(seen & (self.average > smallest), smallest / self.average, 1.0)
        ratio[-1] += self.final_extra
        ratio = ratio / ratio.amax()
        return torch.lerp(ratio, torch.ones_like(ratio), self._gamma())

    def _gamma(self) -> Tensor:
        progress = (self.calls.to(self.average.dtype) / self.anneal).clamp(max=1) if self.anneal else 1.0
        return torch.as_tensor(1 - (1 - self.gamma) * progress, dtype=self.average.dtype, device=self.average.device)

    def extra_repr(self) -> str:
        """What ``print(scheme)`` shows between the brackets."""
        return (
            f"exits={self.exits}, momentum={self.momentum}, gamma={self.gamma}, final_extra={self.final_extra}, "
            f"update_every={self.update_every}, anneal={self.anneal}"
        )


class GeometricMean(WeightScheme):
    """Σ_i ln ℓ_i of the batch (Sec. 3, Eq. 4): what AdaLoss descends when its averages are exact.

    Its gradient is Σ_i ∇ℓ_i / ℓ_i: the weights 1/ℓ_i of one noisy batch and of no fixed scale, where AdaLoss
    takes those of a running average and scales the greatest to 1. Expect to need a smaller learning rate.

    Args:
        exits: the number of losses.
        floor: losses are not taken below this, so a zero loss gives a finite value and no gradient.
    """

    def __init__(self, exits: int, floor: float = 1e-8) -> None:
        super().__init__(torch.ones(check_integer("exits", exits)))
        self.floor = check_number("floor", floor, above=0)

    def extra_repr(self) -> str:
        """What ``print(scheme)`` shows between the brackets."""
        return f"exits={self.exits}, floor={self.floor}"

    def forward(self, losses: Tensor) -> Tensor:
        """Σ ln ℓ over all ranks' mean losses, with the gradient of this rank's share."""
        self._check(losses)
        mean = _mean_over_ranks(losses)
        weights = torch.where(mean.isfinite() & (mean > self.floor), 1 / mean.clamp(min=self.floor), 0.0)
        self.weights.copy_(weights)
        # The value is Σ ln ℓ; the term after it is zero and carries the gradient Σ ∇ℓ / ℓ.
        gradient = (weights * (losses - losses.detach()).nan_to_num()).sum()
        return mean.clamp(min=self.floor).log().sum() + gradient


class LogBarrier(WeightScheme):
    """Σ_i (B_i ℓ_i − λ ln B_i), minimised over the network and the weights B together (Sec. 3, Eq. 3).

    At the optimum B_i = λ / ℓ_i. The weights are parameters, ln B, so they stay positive: give them to
    the optimiser beside the network's, without weight decay. λ sets the scale of the weights, and so of the step.

    Args:
        exits: the number of losses.
        strength: λ.
    """

    def __init__(self, exits: int, strength: float = 1.0) -> None:
        super().__init__(torch.ones(check_integer("exits", exits)))
        self.strength = check_number("strength", strength, above=0)
        self.log_weights = nn.Parameter(torch.zeros(exits))

    def extra_repr(self) -> str:
        """What ``print(scheme)`` shows between the brackets."""
        return f"exits={self.exits}, strength={self.strength}"

    def forward(self, losses: Tensor) -> Tensor:
        """The objective: its gradient reaches the network through the losses and the weights B themselves."""
        self._check(losses)
        weights = self.log_weights.exp()
        self.weights.copy_(weights.detach())
        # The weights follow the mean loss over all ranks, the network this rank's; on one rank that is B · ℓ.
        mean = _mean_over_ranks(losses).nan_to_num()
        pull = (weights - weights.detach()) @ mean.to(weights.dtype)
        return super().forward(losses) + pull - self.strength * self.log_weights.sum()


_SCHEMES = {
    "const": Const,
    "linear": LinearWeights,
    "half-end": HalfEnd,
    "opt": OnlyExit,
    "adaloss": AdaLoss,
    "geometric-mean": GeometricMean,
    "log-barrier": LogBarrier,
}


def create_scheme(name: str, exits: int) -> WeightScheme:
    """A weight scheme by name, as the command line takes it.

    Args:
        name: ``const``, ``linear``, ``half-end``, ``adaloss``, ``geometric-mean``, ``log-barrier``, or ``opt-I`` for
            all weight on the I-th exit as tables number them (1 is the shallowest; ``opt`` is the last). Options
            may follow: ``adaloss:gamma=0.1,final_extra=1``.
        exits: the number of exits.

    Example:
        >>> create_scheme("adaloss:gamma=0.1", exits=9)
        AdaLoss(exits=9, momentum=0.9, gamma=0.1, final_extra=0.0, update_every=1, anneal=0)
        >>> create_scheme("opt-3", exits=9).only
        [2]
    """
    kind, _, options = name.partition(":")
    arguments: dict[str, Any] = {}
    if opt := re.fullmatch(r"opt-(\d+)", kind):
        number = int(opt[1])
        if not 1 <= number <= exits:
            raise AnytimeError(f"scheme {name!r}: this network has exits 1 to {exits}; try opt-{exits}")
        kind, arguments = "opt", {"exit": number - 1}
    if kind not in _SCHEMES:
        known = ", ".join(n if n != "opt" else "opt-I" for n in _SCHEMES)
        raise AnytimeError(f"unknown scheme {name!r}; there are: {known}")
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        try:
            arguments[key] = int(value) if re.fullmatch(r"[+-]?\d+", value) else float(value)
            if kind == "opt" or not math.isfinite(arguments[key]):
                raise ValueError
        except ValueError:
            takes = (
                "opt takes none: opt-3 is the third exit" if kind == "opt" else "expected key=number, as in gamma=0.1"
            )
            raise AnytimeError(f"scheme {name!r}: the option {option!r} is wrong; {takes}") from None
    try:
        return _SCHEMES[kind](exits, **arguments)
    except TypeError:
        takes = [p for p in inspect.signature(_SCHEMES[kind]).parameters if p != "exits"]
        raise AnytimeError(f"scheme {name!r}: {kind} takes {', '.join(takes) or 'no options'}") from None
