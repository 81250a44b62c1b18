"""Beyond the paper: early exits with heads that have features of their own."""

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import torch

import anytime
from anytime.evaluation import FRACTIONS
from anytime.models.layers import MLPHead
from anytime.plotting import plot_held
from experiments.comparison import (
    OPT,
    Found,
    add_differences,
    add_errors,
    add_increases,
    find,
    opt_errors,
    split,
)
from experiments.presets import MODELS, NARROW, make
from experiments.records import Records, Section, opt_exits
from experiments.runner import Run

Curve = tuple[Sequence[float], Sequence[float]]
"""Costs and errors."""
TITLE = "Heads with features of their own (beyond the paper)"
CLAIM = (
    "nothing of this; its heads are linear functions of globally pooled features. Here the exits of the first two "
    "blocks have heads with a hidden layer, which see the features on a grid of 4×4. The last block's heads are the "
    "paper's. The goal is the same as before: no more errors than OPT at 1/2, 3/4 and all of the cost, and at most "
    "10 % more at 1/4, with the paper's heads (OPT) and with these (OPT, MLP heads)."
)
MLP = "-mlpheads"
"""At the end of a network's name."""
LINEAR = {"adaloss": "AdaLoss", "adaloss+stacking": "AdaLoss, stacked"}
SCHEMES = LINEAR | {
    "annealed+boosting": "annealed AdaLoss, boosted exits",
    "annealed+boosting+stacking": "annealed AdaLoss, boosted exits, stacked",
}
HEADS = "MLP heads"
"""At the end of a row's label."""
OPT_MLP = f"{OPT}, {HEADS}"


class Setting(NamedTuple):
    """A network with linear heads, and what is trained to compare it with the same network with MLP heads."""

    model: str
    data: str
    seeds: int
    schemes: dict[str, str]
    """Of the network with MLP heads."""
    alone: bool = True
    """Whether networks for one exit alone are trained."""


SETTINGS = {
    "minutes": [],
    "laptop": [
        Setting(NARROW, "svhn", 3, SCHEMES),
        Setting(NARROW, "cifar10", 3, LINEAR),
        Setting(MODELS["cifar10"], "cifar10", 3, LINEAR, alone=False),
    ],
    "paper": [Setting("resann-9-16", data, 1, SCHEMES) for data in ("svhn", "cifar10")],
}


def runs(preset: str) -> list[Run]:
    """Seed by seed the schemes with both kinds of heads, and OPT."""
    made = {}
    for model, data, seeds, schemes, with_opt in SETTINGS[preset]:
        alone = _alone(model) + _alone(model + MLP) if with_opt else []
        for seed in range(seeds):
            each = [make(preset, model + MLP, data, split(scheme)[0], seed) for scheme in schemes]
            each += [make(preset, model, data, split(scheme)[0], seed) for scheme in LINEAR]
            each += [make(preset, name, data, f"opt-{exit + 1}", seed) for exit, name in alone]
            made |= {run.name: run for run in each}
    return list(made.values())


@cache
def _alone(model: str) -> list[tuple[int, str]]:
    """An exit at each fraction, and the network to train for it: one with linear heads where that exit's is linear."""
    with torch.device("meta"):
        net = anytime.create_model(model)
    plain = model.removesuffix(MLP)
    return [(i, model if isinstance(net.heads[i], MLPHead) else plain) for i in opt_exits(model, FRACTIONS)]


def show(preset: str, records: Records) -> Section:
    """Test errors with both kinds of heads, and their differences to OPT's, or to AdaLoss's where there is no OPT."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    panels = {}
    for model, data, seeds, schemes, with_opt in SETTINGS[preset]:
        found = _found(preset, records, model, data, seeds, schemes)
        if not any(label.endswith(f", {HEADS}") for label in found):
            continue
        where = f"{data} ({model}, heads, {seeds} seeds)" if seeds > 1 else f"{data} ({model}, heads)"
        add_errors(section, where, found)
        rivals = {where: found}
        if OPT_MLP in found:
            own = {label: row for label, row in found.items() if label.endswith(HEADS)}
            rivals[f"{where}, with MLP heads too"] = own | {OPT: found[OPT_MLP]}
        for against, rows in rivals.items():
            add_increases(section, against, rows)
            add_differences(section, against, rows, OPT if OPT in rows else LINEAR["adaloss"])
        if with_opt:
            panels[data] = _curves(preset, records, model, data, seeds)
    if panels:
        curves = {name: curve for panel in panels.values() for name, curve in panel.items()}
        points = [name for name in curves if name.endswith(OPT)]
        section.figures["curves"] = (
            "Test error against cost: AdaLoss with both kinds of heads, each prediction held until the next; stars: "
            "networks with linear heads, trained for one exit alone",
            partial(plot_held, curves, points=points, panels=panels),
        )
    return section


def _curves(preset: str, records: Records, model: str, data: str, seeds: int) -> dict[str, list[Curve]]:
    """Costs and errors of AdaLoss with both kinds of heads, by seed, and of OPT with linear heads."""
    linear, mlp = (records.seeds(preset, name, data, "adaloss", seeds).values() for name in (model, model + MLP))
    alone = [
        ([done[seed]["macs"][exit]], [done[seed]["test"]["errors"][exit]])
        for exit, name in _alone(model)
        for done in [records.seeds(preset, name, data, f"opt-{exit + 1}", seeds)]
        for seed in done
    ]
    curves = {
        "linear heads, AdaLoss": [(record["macs"], record["test"]["errors"]) for record in linear],
        HEADS: [(record["macs"], record["test"]["errors"]) for record in mlp],
        f"{HEADS}, stacked": [(record["macs"], record["stacking"]["errors"]) for record in mlp],
        OPT: alone,
    }
    return {f"{data}: {name}": curve for name, curve in curves.items() if curve}


def _found(preset: str, records: Records, model: str, data: str, seeds: int, schemes: dict[str, str]) -> Found:
    """The errors with both kinds of heads, under the name of the network with linear heads, by which they are paired.

    The share of the cost is of each network's own.
    """
    found = find(preset, records, [model], data, LINEAR, seeds)
    for label, errors in find(preset, records, [model + MLP], data, schemes, seeds).items():
        found[f"{label}, {HEADS}"] = {(model, seed): row for (_, seed), row in errors.items()}
    opt = opt_errors(preset, records, _alone(model + MLP), data, seeds)
    return found | ({OPT_MLP: {(model, seed): row for seed, row in opt.items()}} if opt else {})
