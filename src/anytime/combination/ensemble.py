"""Exit ensembles: every exit answers with a weighted mean over all exits so far."""

import torch
from torch import Tensor

from anytime.combination.rule import Memory, Rule
from anytime.evaluation import Outputs


class Ensemble(Rule):
    """The geometric mean of the probabilities of all exits so far, with weights fitted on held-out data.

    With p_i the probabilities of exit i, exit m answers with

        p̄_m(y) ∝ exp Σ_{i≤m} w_{m,i} ln p_i(y) ,

    as in Zero Time Waste (Wołczyk et al., NeurIPS 2021) without its bias. Before ``fit`` the weights are the same for
    all exits so far, 1/m. The exits of one network are an ensemble that costs nothing more than their heads.

    Args:
        exits: Number of exits.

    Examples:
        >>> rule = Ensemble(2)
        >>> first = rule(0, torch.tensor([[2.0, 0.0]]), ())
        >>> rule(1, torch.tensor([[0.0, 0.0]]), first)[0].diff()       # halfway
        tensor([[-1.]])
    """

    name = "ensemble"
    weights: Tensor

    def __init__(self, exits: int) -> None:
        super().__init__()
        equal = torch.ones(exits, exits).tril() / torch.arange(1, exits + 1)[:, None]
        self.register_buffer("weights", equal)

    def forward(self, exit: int, logits: Tensor, memory: Memory) -> Memory:
        """The weighted sum of the log-probabilities, and these."""
        so_far = (*memory[1:], logits.float().log_softmax(-1))
        return ((self.weights[exit, : exit + 1, None, None] * torch.stack(so_far)).sum(0), *so_far)

    def fit(self, outputs: Outputs) -> None:
        """Set the weights of every exit to those that minimize its cross-entropy on held-out samples.

        The cross-entropy is convex in the weights; Newton's method finds the minimum. A small pull towards the exit's
        own answer decides where exits say the same.

        Args:
            outputs: of the exits themselves, before they are combined.
        """
        logp = outputs.logits.double().log_softmax(-1)
        for exit in range(len(logp)):
            self.weights[exit, : exit + 1] = _newton(logp[: exit + 1].movedim(0, -1), outputs.labels)


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
