"""The tables of guarantees.md, from what ``benchmarks/guarantees.py`` printed."""

from collections.abc import Callable
from typing import Any

Facts = dict[str, dict[str, Any]]
"""By the folder of a network, what was found."""

NETWORKS = {
    "cifar10-25000-resann-5-16-patch2": "ResANN(5, 16) with a patch stem, CIFAR-10, 60 epochs",
    "cifar10-resann-9-16": "ResANN(9, 16), CIFAR-10, 6 epochs",
    "svhn-15000-resann-5-8-patch2": "ResANN(5, 8) with a patch stem, 15,000 images of SVHN, 12 epochs",
}


def networks(found: Facts) -> Facts:
    """By a network's description, what was found."""
    return {
        next(text for key, text in NETWORKS.items() if name.startswith(key)): facts for name, facts in found.items()
    }


def percent(value: float, digits: int = 1) -> str:
    """A share as a percentage without its sign."""
    return f"{100 * value:.{digits}f}".replace("-", "−")


def guarantees(found: Facts) -> str:
    """What is lost, how often too much, and what is saved, for thresholds with and without a promise."""
    kinds = {
        "delta": "with probability 95 %",
        "mean": "on average",
        "budget": "plain, of the same cost as the first",
        "as it was": "as it was on the held-out samples",
    }
    lines = [
        "| network | ε, points | promised | lost, points | more than ε lost in | compute saved |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for network, facts in networks(found).items():
        shown = network
        for risk in ("0.005", "0.01", "0.02"):
            for kind, text in kinds.items():
                each = facts["risk"][f"{kind}, risk {risk}"]
                lines.append(
                    f"| {shown} | {percent(float(risk))} | {text} | {percent(each['mean'], 2)} | "
                    f"{percent(each['exceeded'])} % of splits | {percent(each['saved'], 0)} % |"
                )
                shown = ""
    return "\n" + "\n".join(lines) + "\n"


def coverage(found: Facts) -> str:
    """How often the sets contain the truth, and how large they are."""
    lines = [
        "| network | promised | coverage at the exits | at all exits at once | classes in the set, first exit | middle | last |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for network, facts in networks(found).items():
        for kind, text in {"each": "95 % at each exit", "together": "95 % at all exits at once"}.items():
            each = facts["sets"][kind]
            size = each["size"]
            low, high = (percent(end(each["coverage"])) for end in (min, max))
            sizes = " | ".join(f"{size[i]:.1f}" for i in (0, len(size) // 2, -1))
            lines.append(
                f"| {network if kind == 'each' else ''} | {text} | {low} to {high} % | {percent(each['at_once'])} % | {sizes} |"
            )
    return "\n" + "\n".join(lines) + "\n"


def combinations(found: Facts) -> str:
    """Errors of the exits and of their combinations, and how many samples get worse on the way."""
    lines = [
        "| network | answers | get worse | error at 1/4 of the cost | 1/2 | 3/4 | all | most lost at an exit, points |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for network, facts in networks(found).items():
        costs = facts["costs"]
        at = [
            max((i for i, cost in enumerate(costs) if cost <= part * costs[-1]), default=0)
            for part in (0.25, 0.5, 0.75, 1)
        ]
        own = facts["combinations"]["exits"]["errors"]
        for kind, each in facts["combinations"].items():
            errors = " | ".join(f"{percent(each['errors'][i])} %" for i in at)
            lost = percent(max(error - before for error, before in zip(each["errors"], own, strict=True)))
            first, shown = (network, "each exit's own") if kind == "exits" else ("", f"`{kind}`")
            lines.append(f"| {first} | {shown} | {percent(each['worse'])} % | {errors} | {lost} |")
    return "\n" + "\n".join(lines) + "\n"


def splits(found: Facts) -> str:
    """How many splits there were."""
    return f"{next(iter(found.values()))['splits']:,}"


TABLES: dict[str, Callable[[Facts], str]] = {
    "guarantees": guarantees,
    "guarantees_splits": splits,
    "coverage": coverage,
    "combinations": combinations,
}
