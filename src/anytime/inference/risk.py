"""Risk control: thresholds with which samples that leave early lose at most so much accuracy."""

import warnings
from math import inf, log

import torch
from torch import Tensor

from anytime.errors import AnytimeError, check_number
from anytime.evaluation import Outputs
from anytime.inference.policy import SCORES, Policy, Scorer, shares
from anytime.inference.temperature import fit_temperatures

CANDIDATES = 100
"""How many thresholds are tried."""


def control_risk(
    outputs: Outputs, costs: list[float], risk: float, delta: float | None = None, score: str = "confidence"
) -> Policy:
    """The policy of least cost whose answers are provably hardly worse than the last exit's.

    With λ the threshold of all exits, ŷ_λ the answer of a sample that leaves by it and ŷ_L that of the last exit, the
    loss of a sample and the risk of a threshold are

        ℓ(λ) = 1[ŷ_λ ≠ y] − 1[ŷ_L ≠ y] ∈ {−1, 0, 1} ,        R(λ) = E ℓ(λ) ,

    the accuracy that leaving early costs. The thresholds λ_1 > λ_2 > … are tried in this order, and the last one before
    the first that fails is taken (Jazbec et al., "Fast yet Safe: Early-Exiting with Risk Control", NeurIPS 2024).
    λ_0 = ∞, with which no sample leaves early, has no risk and needs no test. All that is assumed is that future
    samples are drawn as the held-out ones were.

    - With ``delta``, P(R(λ) ≤ risk) ≥ 1 − δ over the draw of the held-out samples. A threshold passes if a gambler who
      bets against "its risk is above ε" multiplies the stake by 1/δ (Waudby-Smith & Ramdas 2024; Bates et al. 2021,
      Prop. 5): max_i K_i ≥ 1/δ with

          K_i = Π_{j≤i} (1 − ν_j (ℓ_j − ε)) ,    ν_j = min(1, √(2 ln(1/δ) / (n σ̂²_{j−1}))) ,

      σ̂²_j the variance of the first j losses. All larger thresholds have passed too, so that the chance to take a
      threshold of higher risk is that of one wrong test.
    - Without, E R(λ) ≤ risk, over held-out and future samples (conformal risk control, Angelopoulos et al. 2024). It
      needs losses that do not fall as λ falls, so the largest loss of a sample at λ or any larger threshold counts:
      a threshold passes if (Σ_i max_{λ' ≥ λ} ℓ_i(λ') + 1) / (n + 1) ≤ ε.

    Temperatures, and which thresholds are tried, come from a quarter of the samples; the risk from the others.

    Args:
        outputs: of held-out samples. If the labels are the answers of the last exit, the risk is the share of samples
            that are answered otherwise than there.
        costs: of one sample that leaves at each exit.
        risk: ε, the accuracy that may be lost: 0.02 is 2 points.
        delta: δ, the chance that more is lost.
        score: how sure an exit is of its prediction; see ``Policy``.

    Examples:
        >>> labels = torch.arange(4000) % 10
        >>> logits = torch.randn(3, 4000, 10, generator=torch.Generator().manual_seed(0))
        >>> logits += torch.tensor([2.0, 4.0, 6.0])[:, None, None] * torch.eye(10)[labels]  # better and better
        >>> policy = control_risk(Outputs(logits, labels), [1.0, 2.0, 3.0], risk=0.02, delta=0.05)
        >>> policy.budget < 2.3                                         # of 3: the average cost of a sample
        True
    """
    check_number("risk", risk, above=0, below=1)
    if delta is not None:
        check_number("delta", delta, above=0, below=1)
    if score not in SCORES:
        raise AnytimeError(f"score={score!r} must be one of {', '.join(SCORES)}")
    fitting, testing = _split(outputs)
    temperatures = fit_temperatures(fitting)
    thresholds = candidates(surest(fitting, score, temperatures))
    exits = exits_at(surest(testing, score, temperatures), thresholds)
    taken = last_safe(gap_losses(testing, exits), risk, delta)
    if taken < 0:
        warnings.warn(
            f"{len(outputs.labels)} held-out samples are too few for a risk of {risk:g}"
            + ("" if delta is None else f" and a delta of {delta:g}")
            + ": no sample will leave early; give more held-out samples, or a larger risk"
            + ("" if delta is None else " or delta"),
            stacklevel=3,
        )
        taken = 0
    threshold = thresholds[taken].item()
    left = exits[taken]
    each: list[float | None] = [None if threshold == inf else threshold] * (len(costs) - 1)
    spent = torch.tensor(costs, dtype=torch.float64)[left].mean().item()
    policy = Policy(score, each, temperatures, costs, shares(left, len(costs)), spent, "macs", risk, delta)
    return policy.remembering(testing.logits)


def _split(outputs: Outputs) -> tuple[Outputs, Outputs]:
    """A quarter of the samples, drawn at random, and the others; always the same ones, in the same order."""
    order = torch.randperm(len(outputs.labels), generator=torch.Generator().manual_seed(0))
    parts = order.split([len(order) // 4, len(order) - len(order) // 4])
    fitting, testing = (Outputs(outputs.logits[:, part], outputs.labels[part]) for part in parts)
    return fitting, testing


def surest(outputs: Outputs, score: str, temperatures: list[float]) -> Tensor:
    """The highest score of each sample up to each exit but the last, samples × exits: it leaves where that is λ."""
    scorer = Scorer(score, temperatures)
    scores = [scorer.score(exit, logits) for exit, logits in enumerate(outputs.logits[:-1])]
    if not scores:
        return torch.empty(len(outputs.labels), 0, dtype=torch.float64)
    return torch.stack(scores, 1).nan_to_num(-inf).cummax(1).values


def candidates(scores: Tensor) -> Tensor:
    """Thresholds from infinity down, so that about the same share of the samples leaves earlier at each."""
    ordered = scores.flatten().sort(descending=True).values
    places = torch.linspace(0, max(len(ordered) - 1, 0), min(CANDIDATES, len(ordered))).long()
    return torch.cat([torch.tensor([inf], dtype=torch.float64), ordered[places].unique().flip(0)])


def exits_at(scores: Tensor, thresholds: Tensor) -> Tensor:
    """The exit at which each sample leaves by each threshold, thresholds × samples; of the scores by ``surest``."""
    wanted = thresholds.expand(len(scores), -1).contiguous()
    return torch.searchsorted(scores.contiguous(), wanted).T


def gap_losses(outputs: Outputs, exits: Tensor) -> Tensor:
    """What each sample loses at these exits against the last one: −1, 0 or 1, of the shape of ``exits``."""
    wrong = outputs.wrong.double()
    return wrong.gather(0, exits) - wrong[-1]


def last_safe(losses: Tensor, risk: float, delta: float | None) -> int:
    """The last row of losses, thresholds from infinity down, before the first whose risk may be too high.

    0 is the threshold with which no sample leaves early: its losses are all 0. −1 if there are too few samples for even
    that one to pass.
    """
    passed = expected(losses, risk) if delta is None else bounded(losses, risk, delta)
    return int(passed.int().cumprod(0).sum()) - 1


def bounded(losses: Tensor, risk: float, delta: float) -> Tensor:
    """For each row of losses (at most 1 each), whether its mean is below the risk with confidence 1 − δ."""
    counts = torch.arange(2, losses.shape[-1] + 2, dtype=losses.dtype)
    means = losses.cumsum(-1) / counts
    variances = (0.25 + (losses - means).square().cumsum(-1)) / counts
    known = variances.roll(1, -1)  # a bet is made before the loss is seen
    known[..., :1] = 0.25
    bets = (2 * log(1 / delta) / (losses.shape[-1] * known)).sqrt().clamp(max=1.0)
    capital = torch.log1p(-bets * (losses - risk)).cumsum(-1)
    return capital.amax(-1) >= log(1 / delta)


def expected(losses: Tensor, risk: float) -> Tensor:
    """For each row of losses, thresholds from the largest down, whether conformal risk control lets it pass."""
    worst = losses.cummax(0).values
    return (worst.sum(-1) + 1) / (losses.shape[-1] + 1) <= risk
