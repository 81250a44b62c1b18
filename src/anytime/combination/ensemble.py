"""Exit ensembles: every exit answers with a weighted mean over all exits so far."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from anytime.combination.rule import Rule
from anytime.evaluation import Outputs
from anytime.meta import keeps_input


class Ensemble(Rule):
    """The geometric mean of the probabilities of all exits so far, with weights fitted on held-out data.

    With p_i the probabilities of exit i, exit m answers with

        p̄_m(y) ∝ exp Σ_{i≤m} w_{m,i} ln p_i(y) ,

    as in Zero Time Waste (Wołczyk et al., NeurIPS 2021) without its bias. Before ``fit`` the weights are the same for
    all of them. The exits of one network are an ensemble that costs nothing more than their heads.

    Args:
        exits: Number of exits.
        inputs: The exits that later ones take into account, see ``Rule``; the sum is over these and the exit itself.

    Examples:
        >>> rule = Ensemble(2)
        >>> rule(1, [torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])]).diff()       # halfway
        tensor([[-1.]])
    """

    name = "ensemble"
    weights: Tensor

    def __init__(self, exits: int, inputs: Iterable[int] | None = None) -> None:
        super().__init__(exits, inputs)
        weights = torch.zeros(exits, exits)
        for exit in range(exits):
            heard = self.heard(exit)
            weights[exit, : len(heard)] = 1 / len(heard)
        self.register_buffer("weights", weights)

    @keeps_input
    def forward(self, exit: int, own: Sequence[Tensor]) -> Tensor:
        """The weighted sum of the log-probabilities."""
        logp = torch.stack(tuple(own), -1).float().log_softmax(-2)
        return logp @ self.weights[exit, : len(own)].to(logp.dtype)

    def fit(self, outputs: Outputs) -> None:
        """Set the weights of every exit to those that minimize its cross-entropy on held-out samples.

        The cross-entropy is convex in the weights; Newton's method finds the minimum. A small pull towards the exit's
        own answer decides where exits say the same.

        Args:
            outputs: of the exits themselves, before they are combined.
        """
        logp = outputs.logits.double().log_softmax(-1)
        for exit in range(len(logp)):
            heard = self.heard(exit)
            self.weights[exit, : len(heard)] = _newton(logp[heard].movedim(0, -1), outputs.labels)


PULL = 1e-4


def _newton(logp: Tensor, labels: Tensor) -> Tensor:
    """The weights w that minimize the mean cross-entropy of softmax(logp · w); logp is samples × classes × exits."""
    own = torch.eye(logp.shape[-1], dtype=logp.dtype)[-1]
    truth = logp.gather(1, labels[:, None, None].expand(-1, 1, logp.shape[-1])).squeeze(1)

    def value(weights: Tensor) -> Tensor:
        log_total = (logp @ weights).logsumexp(-1)
        return (log_total - truth @ weights).mean() + PULL / 2 * (weights - own).square().sum()

    weights = own.clone()
    for _ in range(50):
        p = (logp @ weights).softmax(-1)
        mean = torch.einsum("nc,nce->ne", p, logp)
        slope = (mean - truth).mean(0) + PULL * (weights - own)
        second = torch.einsum("nc,nce,ncf->ef", p, logp, logp) / len(logp) - mean.T @ mean / len(logp)
        step = torch.linalg.solve(second + PULL * torch.eye(len(own), dtype=logp.dtype), slope)
        size, now = 1.0, value(weights)
        while size > 1e-6 and value(weights - size * step) > now:
            size /= 2
        weights = weights - size * step
        if (size * step).abs().amax() < 1e-6:
            break
    return weights
