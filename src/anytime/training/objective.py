"""From the outputs of the exits to the number that a training minimizes."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.evaluation import sums
from anytime.losses import Function, MultiTask, by_exit, check_function, stacked, tasks_of
from anytime.metrics import metric_for
from anytime.network import Network
from anytime.weights.scheme import WeightScheme
from anytime.weights.trained import trained_exits


class Outcome(NamedTuple):
    """What a batch gives."""

    objective: Tensor
    losses: Tensor
    """Mean loss of each exit, over its tasks too; without a graph."""
    errors: Tensor
    """Sum of the metric over the samples, for each exit; without a graph."""


class Objective:
    """The losses of all exits, and their weighted sum.

    Args:
        net: the network.
        scheme: from the vector of losses to a scalar.
        loss: of an exit, per sample.
        metric: of an exit, per sample; None: the one that belongs to the loss.
        label_smoothing: for losses that take it.
        device: where the losses are.
    """

    def __init__(
        self,
        net: Network,
        scheme: Callable[[Tensor], Tensor],
        loss: Function,
        metric: Function | None = None,
        label_smoothing: float = 0.0,
        device: torch.device | None = None,
    ) -> None:
        check_function("loss", loss)
        if metric is not None:
            check_function("metric", metric)
        self.exits, self.scheme, self.loss, self.metric = net.exits, scheme, loss, metric or metric_for(loss)
        self.tasks = tasks_of(loss)
        self.training_loss = smoothed(loss, label_smoothing) if label_smoothing else loss
        only = getattr(scheme, "only", None)
        self.only: list[int] | None = None if only is None else sorted(net.exit_indices(only))
        self.where = None if self.only is None else torch.tensor(self.only, device=device)
        if isinstance(scheme, WeightScheme) and scheme.exits == net.exits * self.tasks:  # else the first call tells
            scheme.restrict([trained for trained in trained_exits(net) for _ in range(self.tasks)])

    def __call__(self, outputs: Sequence[Any], targets: Any, share: float = 1.0) -> Outcome:
        """Compute everything from the outputs of the exits that are trained.

        Args:
            outputs: of the exits, shallow to deep.
            targets: of the samples.
            share: what the losses are multiplied by for the scheme: how much this part counts in its batch.
        """
        outputs = stacked([output.float() if isinstance(output, Tensor) else output for output in outputs])
        losses = self.losses(outputs, targets)
        objective = self.weigh(losses, share)
        with torch.no_grad():
            errors = sums(self.metric, outputs, targets)
        return Outcome(objective, losses.detach().mean(1), errors)

    def losses(self, outputs: Sequence[Any], targets: Any) -> Tensor:
        """The vector of losses: exits × tasks, means over the samples."""
        each = by_exit(self.training_loss, outputs, targets)
        return each.mean(1).view(len(each), self.tasks)

    def weigh(self, losses: Tensor, share: float = 1.0) -> Tensor:
        """The scheme's objective of these losses."""
        # If one loss is not finite all become NaN, so that no average of the scheme moves.
        weighed = torch.where(losses.isfinite().all(), losses * share, torch.nan)
        if self.where is not None:  # a scheme gets one loss per exit; those left out are zeros without a graph
            weighed = losses.new_zeros(self.exits, self.tasks).index_copy(0, self.where, weighed)
        objective = self.scheme(weighed.flatten())
        if not isinstance(objective, Tensor) or objective.ndim or objective.requires_grad < losses.requires_grad:
            raise AnytimeError(
                "the scheme must return a scalar tensor made from the losses, e.g. lambda losses: losses.sum()"
            )
        return objective


def smoothed(loss: Any, label_smoothing: float) -> Function:
    """The loss with label smoothing, if it has such an option."""
    if isinstance(loss, MultiTask) or "label_smoothing" not in inspect.signature(loss).parameters:
        raise AnytimeError(
            f"label_smoothing={label_smoothing}: the loss has no such option; anytime.losses.cross_entropy, "
            "pixel_cross_entropy, token_cross_entropy and next_token have it, or build it into the loss yourself"
        )
    result = partial(loss, label_smoothing=label_smoothing)
    result.rowwise = getattr(loss, "rowwise", False)  # type: ignore[attr-defined]
    return result
