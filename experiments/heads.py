"""Beyond the paper: early exits with heads that have features of their own."""

from functools import cache, partial

import torch

import anytime
from anytime.evaluation import FRACTIONS
from anytime.models.layers import MLPHead
from experiments.comparison import (
    OPT,
    PLACES,
    Found,
    add_differences,
    add_errors,
    add_increases,
    differences,
    find,
    opt_errors,
    split,
)
from experiments.figures import plot_differences
from experiments.presets import NARROW, make
from experiments.records import Records, Section, opt_exits
from experiments.runner import Run

TITLE = "Heads with features of their own (beyond the paper)"
CLAIM = (
    "nothing of this; its heads are linear functions of globally pooled features. Here the exits of the first two "
    "blocks have heads with a hidden layer, which see the features on a grid of 4×4. The last block's heads are the "
    "paper's. The goal is the same as before: no more errors than OPT at 1/2, 3/4 and all of the cost, and at most "
    "10 % more at 1/4, with the paper's heads (OPT) and with these (OPT, MLP heads)."
)
MLP = "-mlpheads"
"""At the end of a network's name."""
BASE = "AdaLoss"
LINEAR = {"adaloss": BASE, "adaloss+stacking": "AdaLoss, stacked"}
SCHEMES = LINEAR | {
    "annealed": "annealed AdaLoss",
    "annealed+stacking": "annealed AdaLoss, stacked",
    "annealed+boosting": "annealed AdaLoss, boosted exits",
    "annealed+boosting+stacking": "annealed AdaLoss, boosted exits, stacked",
}
OPT_MLP = f"{OPT}, MLP heads"
SETTINGS: dict[str, list[tuple[str, str, int, dict[str, str]]]] = {
    "minutes": [],
    "laptop": [(NARROW, "svhn", 3, SCHEMES), (NARROW, "cifar10", 3, LINEAR)],
    "paper": [("resann-9-16", "svhn", 1, SCHEMES), ("resann-9-16", "cifar10", 1, SCHEMES)],
}
"""Network, data set, number of seeds, and the schemes that it is trained with if it has MLP heads."""


def runs(preset: str) -> list[Run]:
    """Seed by seed the schemes with both kinds of heads, and OPT."""
    made = {}
    for model, data, seeds, schemes in SETTINGS[preset]:
        alone = _alone(model) + _alone(model + MLP)
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
    """Test errors at fractions of the cost, relative to both OPTs, and paired with AdaLoss's with linear heads."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    panels = {}
    for model, data, seeds, schemes in SETTINGS[preset]:
        found = _found(preset, records, model, data, seeds, schemes)
        if not any(label.endswith("MLP heads") for label in found):
            continue
        where = f"{data} ({model}, heads, {seeds} seeds)" if seeds > 1 else f"{data} ({model}, heads)"
        add_errors(section, where, found)
        add_increases(section, where, {label: row for label, row in found.items() if label != OPT_MLP})
        if OPT_MLP in found:
            own = {label: row for label, row in found.items() if "MLP heads" in label and label != OPT_MLP}
            add_increases(section, f"{where}, OPT with MLP heads too", own | {OPT: found[OPT_MLP]})
        add_differences(section, where, {label: row for label, row in found.items() if label != OPT_MLP}, BASE)
        panels[f"{data}, {model}"] = {
            label: row for label, row in differences(found, BASE).items() if label not in (OPT, OPT_MLP)
        }
    if panels:
        section.figures["difference"] = (
            "Paired differences to AdaLoss with linear heads, with 95 % intervals",
            partial(
                plot_differences, panels, PLACES, x_name="fraction of the cost", y_name=f"error − {BASE}'s (points)"
            ),
        )
    return section


def _found(preset: str, records: Records, model: str, data: str, seeds: int, schemes: dict[str, str]) -> Found:
    """The errors with both kinds of heads, under the name of the network with linear heads, by which they are paired.

    The share of the cost is of each network's own.
    """
    found = find(preset, records, [model], data, LINEAR, seeds)
    for label, errors in find(preset, records, [model + MLP], data, schemes, seeds).items():
        found[f"{label}, MLP heads"] = {(model, seed): row for (_, seed), row in errors.items()}
    opt = opt_errors(preset, records, _alone(model + MLP), data, seeds)
    return found | ({OPT_MLP: {(model, seed): row for seed, row in opt.items()}} if opt else {})
