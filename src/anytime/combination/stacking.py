"""Stacking: every exit answers with a linear function of what all exits so far say."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anytime.combination.rule import Rule
from anytime.evaluation import Outputs
from anytime.meta import keeps_input

PRIOR = 0.5
"""The standard deviation of the corrections before anything is seen: fewer samples, smaller corrections."""


class Stacking(Rule):
    """The exit's own logits plus a correction that is linear in the logits of all exits so far (Wolpert 1992).

    With f_i the logits of exit i, exit m answers with

        F_m = f_m + b_m + Σ_{i≤m} W_{m,i} f_i ,

    W_{m,i} a matrix of classes × classes and b_m a vector, the maximum a posteriori of a logistic regression: they
    minimize the sum of the cross-entropies plus ‖W_m‖² / (2 σ²), with the logits scaled to a standard deviation of 1
    and σ = 0.5. ``Ensemble`` has a number for each matrix.

    An exit's head is trained for a while and together with features that go on changing; this fits its last layer to
    the end, with the features as they are, and lets it see those of the exits before it. The many numbers need many
    samples: the training images, unless the network has learned them by heart.

    Args:
        exits: Number of exits.
        classes: Number of classes; ``fit`` finds it by itself.
        inputs: The exits that later ones take into account, see ``Rule``; the sum is over these and the exit itself.

    Examples:
        >>> logits = torch.tensor([[[1.0, 0.0], [0.0, 1.0]] * 50])       # one exit, which is always wrong
        >>> rule = Stacking(1)
        >>> rule.fit(Outputs(logits, torch.tensor([1, 0] * 50)))
        >>> rule(0, [logits[0, :2]]).argmax(-1)
        tensor([1, 0])
    """

    name = "stacking"
    weights: Tensor
    biases: Tensor

    def __init__(self, exits: int, classes: int = 0, inputs: Iterable[int] | None = None) -> None:
        super().__init__(exits, inputs)
        self._start(classes)

    def _start(self, classes: int) -> None:
        """Without corrections."""
        self.classes = classes
        self.register_buffer("weights", torch.zeros(self.exits, (len(self.inputs) + 1) * classes, classes))
        self.register_buffer("biases", torch.zeros(self.exits, classes))

    @keeps_input
    def forward(self, exit: int, own: Sequence[Tensor]) -> Tensor:
        """The corrected logits."""
        so_far, logits = torch.cat(tuple(own), -1), own[-1]
        dtype = torch.promote_types(logits.dtype, torch.float32)  # sums of many products: 16 bits are too few
        weights, bias = self.weights[exit, : so_far.shape[-1]].to(dtype), self.biases[exit].to(dtype)
        return logits.to(dtype) + F.linear(so_far.to(dtype), weights.T, bias)

    @torch.inference_mode(False)
    def fit(self, outputs: Outputs) -> None:
        """Set the matrices and biases of every exit to the maximum a posteriori.

        Args:
            outputs: of the exits themselves, before they are combined.
        """
        logits = outputs.logits.double()
        self._start(logits.shape[-1])
        for exit in range(len(logits)):
            so_far = torch.cat(list(logits[self.heard(exit)]), -1)
            weights, bias = _fitted(logits[exit], so_far, outputs.labels.clone())  # no tensor of inference mode
            self.weights[exit, : len(weights)], self.biases[exit] = weights, bias

    def options(self) -> dict[str, Any]:
        """The arguments that build it again."""
        return {"classes": self.classes, **super().options()}


def _fitted(own: Tensor, so_far: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The weights and the bias with which softmax(own + so_far · weights + bias) predicts the labels best."""
    mean, scale = so_far.mean(0), so_far.std(0, correction=0).clamp(min=1e-6)
    inputs = (so_far - mean) / scale
    weights = own.new_zeros(inputs.shape[-1], own.shape[-1]).requires_grad_()
    bias = own.new_zeros(own.shape[-1]).requires_grad_()
    search = torch.optim.LBFGS([weights, bias], max_iter=200, line_search_fn="strong_wolfe")

    def value() -> Tensor:
        search.zero_grad()
        error = F.cross_entropy(own + inputs @ weights + bias, labels)
        total = error + weights.square().sum() / (2 * PRIOR**2 * len(labels))
        total.backward()
        return total

    with torch.enable_grad():
        search.step(value)  # type: ignore[arg-type]
    weights, bias = weights.detach() / scale[:, None], bias.detach()
    return weights, bias - mean @ weights
