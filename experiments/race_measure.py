"""Accuracy at a budget of the average cost, when each image leaves at the first exit that is sure enough of it.

The race's measure: how sure an exit is, is its largest probability, and all exits have one threshold, the largest with
which the average cost is within the budget. Nothing is fitted: temperatures would be thresholds of each exit's own.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from anytime.cost import Costs
from anytime.evaluation import Outputs
from anytime.inference.calibration import fit_policy

BUDGETS = (6e6, 7e6, 8e6, 9e6, 10e6, 11e6, 12.5e6)
"""Average multiply-accumulates of an image, as the published networks were measured at."""
JUDGED = (6e6, 8e6, 10e6, 12.5e6)
"""The budgets that have goals."""


def judge(outputs: Outputs, costs: Costs, parts: bool) -> dict[str, Any]:
    """Accuracies of all exits, and those at the budgets with all exits and with the best part of them.

    Args:
        outputs: of all exits.
        costs: of the network.
        parts: whether an exit's answer is the same without the exits before it. Stacked ones are not.
    """
    last = len(costs.macs) - 1
    smaller = [[*part, last] for size in range(last) for part in combinations(range(last), size)] if parts else []
    every = [list(range(last + 1)), *(part for part in smaller if spending(costs, part)[0] <= min(BUDGETS))]
    best = max(every, key=lambda part: sum(at["accuracy"] for at in race(outputs, costs, part, JUDGED)))
    return {
        "images": len(outputs.labels),
        "accuracies": [round(1 - wrong, 5) for wrong in outputs.wrong.double().mean(1).tolist()],
        "race": race(outputs, costs, every[0], BUDGETS),
        "best_exits": best,
        "best_race": race(outputs, costs, best, BUDGETS),
    }


def race(outputs: Outputs, costs: Costs, exits: Sequence[int], budgets: Sequence[float]) -> list[dict[str, float]]:
    """Threshold, accuracy and average cost at each budget; the heads of other exits are left out."""
    scores, spent = surety(outputs, exits), spending(costs, exits)
    return at_thresholds(outputs, costs, exits, [threshold_for(scores, spent, budget) for budget in budgets])


def at_thresholds(
    outputs: Outputs, costs: Costs, exits: Sequence[int], thresholds: Sequence[float]
) -> list[dict[str, float]]:
    """Accuracy and average cost with each of these thresholds."""
    scores, spent = surety(outputs, exits), spending(costs, exits)
    right = ~outputs.wrong[list(exits)]
    found = []
    for threshold in thresholds:
        left = leave(scores, threshold)
        accuracy = right.gather(0, left[None]).double().mean().item()
        cost = round(spent[left].mean().item())
        found.append({"threshold": threshold, "accuracy": round(accuracy, 5), "macs": cost})
    return found


def per_exit(
    known: Outputs, outputs: Outputs, costs: Costs, exits: Sequence[int], budgets: Sequence[float]
) -> list[dict[str, float]]:
    """The same with thresholds of each exit's own: its temperature, fitted on held-out images like the threshold."""
    known, mine = (Outputs(each.logits[list(exits)], each.labels) for each in (known, outputs))
    spent = spending(costs, exits)
    found = []
    for budget in budgets:
        policy = fit_policy(known, spent.tolist(), budget)
        left = policy.choose_exits(mine.logits)
        accuracy = 1 - mine.wrong.gather(0, left[None]).double().mean().item()
        found.append({"accuracy": round(accuracy, 5), "macs": round(spent[left].mean().item())})
    return found


def surety(outputs: Outputs, exits: Sequence[int]) -> Tensor:
    """The largest probability of each of these exits for each image."""
    return outputs.logits[list(exits)].double().softmax(-1).amax(-1)


def spending(costs: Costs, exits: Sequence[int]) -> Tensor:
    """The cost of an image that leaves at each of these exits, when the heads of the others do not run."""
    heads = torch.tensor([costs.heads[exit] for exit in exits], dtype=torch.float64)
    alone = torch.tensor([costs.alone[exit] for exit in exits], dtype=torch.float64)
    return alone + heads.cumsum(0) - heads


def leave(scores: Tensor, threshold: float) -> Tensor:
    """The first exit whose score reaches the threshold, for each image; the last one for those that never do."""
    sure = scores >= threshold
    sure[-1] = True
    return sure.int().argmax(0)


def threshold_for(scores: Tensor, spent: Tensor, budget: float) -> float:
    """The largest threshold, by bisection, with which images cost at most the budget on average.

    The cost rises with the threshold. Where even the first exit alone costs more, the threshold is 0.
    """
    low, high = 0.0, 1.0 + 1e-9
    if spent[leave(scores, high)].mean() <= budget:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        within = bool(spent[leave(scores, middle)].mean() <= budget)
        low, high = (middle, high) if within else (low, middle)
    return low
