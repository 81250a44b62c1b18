"""A network, a weight scheme and a mean loss as one module, which training loops of other libraries hold."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anytime.network import Network
from anytime.weights import WeightScheme, create_scheme
from anytime.weights.first_order import watching
from anytime.weights.trained import trained_exits

IGNORED = -100
"""Labels with this value count neither in the loss nor in the metrics, as in PyTorch and Hugging Face."""


class ExitLosses(NamedTuple):
    """What a batch gives."""

    objective: Tensor
    """The scalar to minimize."""
    losses: Tensor
    """The loss of each exit, without a graph."""
    logits: list[Tensor]
    """The logits of each exit that was computed."""


class MeanObjective(nn.Module):
    """The objective of all exits. The scheme is a submodule, so its state is saved and moved with the network's.

    Args:
        net: The network to train.
        scheme: A weight scheme's name (see ``create_scheme``) or a :class:`WeightScheme`.
        loss: From the logits of one exit and the labels to a mean loss. Default: cross-entropy of logits
            ``[..., classes]`` and labels ``[...]``, without labels of -100.
    """

    def __init__(
        self,
        net: Network,
        scheme: str | WeightScheme = "adaloss",
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.net = net
        self.scheme = create_scheme(scheme, net.exits) if isinstance(scheme, str) else scheme
        self.loss = loss or cross_entropy

    def forward(self, x: Any, labels: Tensor) -> ExitLosses:
        """Compute the exits."""
        exits = self.exits
        if self.training and self.scheme.exits == self.net.exits:
            self.scheme.restrict(trained_exits(self.net))
        with watching(self.scheme, self.net):
            logits = self.net(x, exits)
            losses = torch.stack([self.loss(each, labels) for each in logits])
            if len(exits) < self.net.exits:  # schemes take one loss per exit; those left out are zeros without a graph
                where = torch.tensor(exits, device=losses.device)
                losses = losses.new_zeros(self.net.exits).index_copy(0, where, losses)
            return ExitLosses(self.scheme(losses), losses.detach(), logits)

    @property
    def exits(self) -> list[int]:
        """Those that are computed: in training, if the scheme has the attribute ``only``, these alone."""
        return sorted(self.net.exit_indices(getattr(self.scheme, "only", None) if self.training else None))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy over the labels that count; 0 if there are none."""
    total = F.cross_entropy(logits.flatten(0, -2), labels.flatten().long(), ignore_index=IGNORED, reduction="sum")
    return total / count_labels(labels).clamp(min=1)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """The share of correct predictions among the labels that count."""
    return (logits.argmax(-1) == labels).sum() / count_labels(labels).clamp(min=1)


def count_labels(labels: Tensor) -> Tensor:
    """How many labels count."""
    return (labels != IGNORED).sum()
