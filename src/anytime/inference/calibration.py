"""Thresholds of a policy from held-out data, for a budget of the average cost."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp, inf
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.cost import costs
from anytime.errors import AnytimeError
from anytime.evaluation import Outputs, collect
from anytime.inference.latency import profile
from anytime.inference.policy import SCORES, UNITS, Judge, Policy
from anytime.network import AnytimeNetwork, tensors_of


def calibrate(
    net: AnytimeNetwork,
    validation: Iterable[tuple[Any, Tensor]],
    budget: float,
    unit: str = "macs",
    score: str = "confidence",
    rule: str = "common",
) -> Policy:
    """Find per-exit thresholds on held-out data so that the average cost of a sample meets a budget.

    First each exit gets the temperature that minimizes its cross-entropy (Guo et al. 2017), so that scores of
    different exits can be compared. Then the thresholds are set by one of two rules. Each has one parameter, found by
    bisection so that the average cost meets the budget:

    - ``common``: the same threshold at every exit.
    - ``geometric``: as in MSDNet's budgeted batch classification (Huang et al. 2018), the shares of samples that leave
      at exits 1 … L are a series q, qr, qr², …; the threshold of an exit is the score that lets its share of all
      samples leave, the surest of those that remain. An exit gets its share even if it is a bad one.

    Args:
        net: the network.
        validation: batches of inputs and labels that it was not trained on, as for ``collect``.
        budget: the average cost of a sample, including all heads up to its exit.
        unit: ``macs``; ``seconds``, as measured on the first batch; or ``fraction`` of the MACs of the whole network.
        score: how sure an exit is of its prediction; see ``Policy``.
        rule: how the thresholds are set, as above.

    Examples:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> policy = anytime.calibrate(net, data.batches(data.validation), budget=0.7, unit="fraction")
        >>> len(policy.thresholds)              # all remaining samples leave at the third exit
        2
        >>> policy.predict(net.eval(), torch.zeros(4, 1, 8, 8)).logits.shape
        torch.Size([4, 10])
    """
    if unit not in UNITS:
        raise AnytimeError(f"unit={unit!r} must be one of {', '.join(UNITS)}")
    some: list[Any] = []

    def batches() -> Iterator[Any]:
        for batch in validation:
            if not some and isinstance(batch, tuple | list) and batch and any(map(len, tensors_of(batch[0]))):
                some.append(batch[0])
            yield batch

    outputs = collect(net, batches())
    if not some:
        raise AnytimeError("there are no samples to calibrate with")
    return fit_policy(outputs, _costs(net, some[0], unit), budget, unit, score, rule)


def _costs(net: AnytimeNetwork, batch: Any, unit: str) -> list[float]:
    """The cost of one sample that leaves at each exit."""
    if unit == "seconds":
        size = len(tensors_of(batch)[0])
        return [seconds / size for seconds in profile(net, batch, repeats=10, warmup=2).through]
    one = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) else leaf, batch)
    return [float(macs) for macs in costs(net, one).macs]


def fit_policy(
    outputs: Outputs,
    costs: list[float],
    budget: float,
    unit: str = "macs",
    score: str = "confidence",
    rule: str = "common",
) -> Policy:
    """The policy for the outputs of a network; see ``calibrate``."""
    if score not in SCORES:
        raise AnytimeError(f"score={score!r} must be one of {', '.join(SCORES)}")
    if rule not in RULES:
        raise AnytimeError(f"rule={rule!r} must be one of {', '.join(RULES)}")
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise AnytimeError(f"budget={budget!r} must be a number")
    if outputs.logits.shape[-1] < 2:
        raise AnytimeError("the network has one class; a policy needs at least two")
    whole = costs[-1] if unit == "fraction" else 1.0
    least, most = costs[0] / whole, costs[-1] / whole
    if not least <= budget <= (most if unit == "fraction" else inf) or budget == inf:
        raise AnytimeError(
            f"budget={budget:.4g} ({unit} per sample): the first exit takes {least:.4g}, the last {most:.4g}"
        )
    budget, unit = budget * whole, "macs" if unit == "fraction" else unit
    temperatures = _temperatures(outputs)
    judge = Judge(score, temperatures)
    scores = torch.stack([judge.score(exit, logits) for exit, logits in enumerate(outputs.logits)])
    each = torch.tensor(costs, dtype=torch.float64)
    thresholds_by = RULES[rule]
    # The parameter of the rule: a threshold, or the logarithm of the ratio of the series. At its lower end all samples
    # leave at the first exit, at its upper end at the last.
    low, high = (scores.min().item(), scores.max().item() + 1) if rule == "common" else (-30.0, 30.0)
    for _ in range(60):
        middle = (low + high) / 2
        _, left = thresholds_by(scores, middle)
        low, high = (middle, high) if each[left].mean() <= budget else (low, middle)
    thresholds, left = thresholds_by(scores, low)
    shares = (left.bincount(minlength=len(costs)) / len(left)).tolist()
    return Policy(score, thresholds, temperatures, costs, shares, budget, unit)


@dataclass(frozen=True)
class Budgeted:
    """Cost and error of a policy on samples that it was not calibrated with."""

    budget: float
    cost: float
    error: float
    shares: list[float]


def sweep(
    validation: Outputs,
    test: Outputs,
    costs: list[float],
    points: int = 12,
    score: str = "confidence",
    rule: str = "common",
) -> list[Budgeted]:
    """Error against average cost, for budgets from the first exit's cost to the last's."""
    reached = []
    for i in range(points):
        budget = costs[0] + (costs[-1] - costs[0]) * i / (points - 1)
        policy = fit_policy(validation, costs, budget, score=score, rule=rule)
        exits = policy.choose_exits(test.logits)
        error = test.wrong[exits, torch.arange(len(exits))].double().mean().item()
        shares = (exits.bincount(minlength=len(costs)) / len(exits)).tolist()
        reached.append(Budgeted(budget, policy.cost(exits), error, shares))
    return reached


def _common(scores: Tensor, threshold: float) -> tuple[list[float | None], Tensor]:
    """The same threshold at every exit but the last, and the exit at which each sample then leaves."""
    sure = scores >= threshold
    sure[-1] = True
    left = sure.int().argmax(0)
    exit = torch.arange(len(scores))[:, None]
    before_last = exit < len(scores) - 1
    threshold = _between(scores[(exit == left) & before_last], scores[exit < left], threshold)
    return [threshold] * (len(scores) - 1), left


def _between(leaving: Tensor, staying: Tensor, threshold: float) -> float:
    """A threshold halfway between those that leave and those that stay, so that rounding errors do not matter."""
    if not len(leaving) or not len(staying):
        return threshold
    return (leaving.min().item() + staying.max().item()) / 2


def _geometric(scores: Tensor, log_ratio: float) -> tuple[list[float | None], Tensor]:
    """Thresholds that make the shares of the exits a geometric series, and the exit at which each sample leaves."""
    exits, samples = scores.shape
    series = torch.tensor([log_ratio * exit for exit in range(exits)], dtype=torch.float64).softmax(0)
    left = torch.full((samples,), exits - 1)
    inside = torch.arange(samples)
    thresholds: list[float | None] = []
    for exit in range(exits - 1):
        wanted = min(round(series[: exit + 1].sum().item() * samples) - (samples - len(inside)), len(inside))
        if wanted <= 0:
            thresholds.append(None)
            continue
        mine = scores[exit, inside]
        leaves = mine >= mine.kthvalue(len(inside) - wanted + 1).values
        thresholds.append(_between(mine[leaves], mine[~leaves], mine[leaves].min().item()))
        left[inside[leaves]] = exit
        inside = inside[~leaves]
    return thresholds, left


RULES = {"common": _common, "geometric": _geometric}


def _temperatures(outputs: Outputs) -> list[float]:
    """The temperature of each exit that minimizes its cross-entropy, by bisection: it is convex in 1/temperature."""
    logits = outputs.logits.double()
    right = logits.gather(-1, outputs.labels.expand(len(logits), -1)[..., None]).squeeze(-1)
    low, high = (torch.full((len(logits),), bound, dtype=torch.float64) for bound in (-5.0, 5.0))
    for _ in range(40):
        middle = (low + high) / 2
        expected = ((logits * middle.exp()[:, None, None]).softmax(-1) * logits).sum(-1)
        too_cold = (expected - right).mean(-1) > 0  # the slope of the cross-entropy in 1/temperature
        low, high = torch.where(too_cold, low, middle), torch.where(too_cold, middle, high)
    return [exp(-log_inverse) for log_inverse in low.tolist()]
