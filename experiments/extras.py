"""Beyond the paper: what later work adds to the training of all exits, with AdaLoss and with CONST."""

from anytime.evaluation import FRACTIONS
from experiments.comparison import (
    add_differences,
    add_errors,
    add_increases,
    differences,
    draw_differences,
    find,
    split,
)
from experiments.presets import NARROW, make
from experiments.records import Records, Section, opt_exits
from experiments.runner import Run

TITLE = "Training extras (beyond the paper)"
CLAIM = (
    "nothing of this; each extra has a paper of its own. Gradient equilibrium (IMTA) reports CIFAR-100 MSDNet's last "
    "exit at 76.0 % instead of 73.9 %, boosted exits (BoostNet) 1 to 3 points more at the middle exits, "
    "self-distillation (Phuong & Lampert) most where data are few, feature partitioning (Deep Feature Surgery, with "
    "feature referencing) 5 to 8 points on CIFAR-100. The goal here: no more errors than OPT at 1/2, 3/4 "
    "and all of the cost, and at most 10 % more at 1/4."
)
BASES = {"adaloss": "AdaLoss", "const": "CONST"}
BEST = {
    "annealed+boosting": "annealed AdaLoss, boosted exits",
    "annealed+boosting+ensemble": "annealed AdaLoss, boosted exits, ensemble",
    "annealed+boosting+stacking": "annealed AdaLoss, boosted exits, stacked",
}
EXTRAS = {
    "adaloss+equilibrium": "AdaLoss, equilibrium",
    "adaloss+distill": "AdaLoss, distillation",
    "adaloss+boosting": "AdaLoss, boosted exits",
    "annealed": "annealed AdaLoss",
    **BEST,
    "adaloss+stacking": "AdaLoss, stacked",
    "const+stacking": "CONST, stacked",
    "first-order": "first-order AdaLoss",
    "famo": "FAMO",
    "power:p=0.5": "AdaLoss, square roots of the losses",
    "uw-so": "UW-SO",
    "mixed": "mixed regime",
    "adaloss+surgery": "AdaLoss, feature partitioning",
    "adaloss+equilibrium+distill": "AdaLoss, equilibrium and distillation",
    "const+equilibrium": "CONST, equilibrium",
    "const+distill": "CONST, distillation",
    "const+boosting": "CONST, boosted exits",
}
MORE = ("const+equilibrium", "const+distill", "const+boosting", "adaloss+equilibrium+distill")
LATER = ("power:p=0.5", "uw-so", "mixed", "adaloss+surgery")
"""Added once MSDNet had been trained with all others."""
BEFORE = {scheme: label for scheme, label in EXTRAS.items() if scheme not in LATER}
ONCE = {scheme: label for scheme, label in EXTRAS.items() if scheme not in MORE}
"""One training of each extra: with CIFAR-10's 60 epochs there is no time for all."""
FINALISTS = {"adaloss+boosting": EXTRAS["adaloss+boosting"], **BEST}
"""The best with three seeds: ten seeds tell small differences."""
SHOWN = (BASES["const"], *FINALISTS.values())
"""What the figure has."""
SETTINGS: dict[str, list[tuple[str, str, int, dict[str, str]]]] = {
    "minutes": [],  # the first look is at the paper's own table
    "laptop": [
        (NARROW, "svhn", 3, EXTRAS),
        (NARROW, "svhn", 10, FINALISTS),
        ("msdnet-cifar-4-2-1-patch2", "svhn", 1, BEFORE),
        (NARROW, "cifar10", 3, ONCE),
    ],
    "paper": [
        ("resann-9-16", "svhn", 1, EXTRAS),
        ("resann-9-16", "cifar10", 1, EXTRAS),
        ("msdnet-cifar", "cifar100", 1, EXTRAS),
    ],
}
"""Network, data set, number of seeds and extras; with the paper's means IMTA's and BoostNet's own network too."""


def runs(preset: str) -> list[Run]:
    """Seed by seed all extras, the schemes that they are compared with, and OPT."""
    made = {}
    for model, data, seeds, extras in SETTINGS[preset]:
        opts = [f"opt-{exit + 1}" for exit in opt_exits(model, FRACTIONS)]
        for seed in range(seeds):
            each = [make(preset, model, data, split(scheme)[0], seed) for scheme in (*BASES, *extras, *opts)]
            made |= {run.name: run for run in each}
    return list(made.values())


def show(preset: str, records: Records) -> Section:
    """Test errors at fractions of the cost, relative to OPT, and paired with AdaLoss's of the same seed."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    base, panels = BASES["adaloss"], {}
    for model, data, seeds, extras in SETTINGS[preset]:
        found = find(preset, records, [model], data, BASES | extras, seeds)
        if set(found) & set(extras.values()):
            where = f"{data} ({model}, {seeds} seeds)" if seeds > 1 else f"{data} ({model})"
            add_errors(section, where, found)
            add_increases(section, where, found)
            add_differences(section, where, found, base)
            shown = {label: row for label, row in differences(found, base).items() if label in SHOWN}
            panels[f"{data}, {model}"] = shown  # of settings that share a network the one with more seeds
    draw_differences(section, panels, base)
    return section
