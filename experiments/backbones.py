"""Fig. 4f and Table (b): ResANN, DenseANN and MSDNet at like cost, with CONST and with AdaLoss."""

import statistics
from functools import partial
from typing import Any

from anytime.cost import Costs
from anytime.evaluation import FRACTIONS
from anytime.plotting import plot_held
from experiments.records import Records, Section, percent, spread
from experiments.runner import Run, make

TITLE = "Backbones at like cost (Fig. 4f, Table b)"
SEEDS = {
    "paper": {"resann50": 1, "denseann169": 1, "msdnet38": 1},
    "laptop": {"resann-5-8": 3, "denseann-46-5": 1, "msdnet-cifar-4-2-1": 1},
}
"""Of each model, how many."""
DATA = {"paper": "imagenet", "laptop": "svhn"}
PAPER = {
    "ResANN50, CONST": (54.34, 35.61, 27.23, 25.14),
    "ResANN50, AdaLoss": (54.98, 34.92, 26.59, 24.42),
    "DenseANN169, CONST": (48.15, 45.00, 29.09, 25.60),
    "DenseANN169, AdaLoss": (47.17, 44.64, 28.22, 24.07),
    "MSDNet38, CONST": (33.9, 28.0, 25.7, 24.3),
    "MSDNet38, AdaLoss": (35.75, 28.04, 25.82, 23.99),
}


def runs(preset: str) -> list[Run]:
    """Both schemes of each."""
    scheme = {"paper": "adaloss:final_extra=1.0", "laptop": "adaloss"}[preset]
    return [
        make(preset, model, DATA[preset], each, seed)
        for model, seeds in SEEDS[preset].items()
        for seed in range(seeds)
        for each in ("const", scheme)
    ]


def show(preset: str, records: Records) -> Section:
    """Errors at fractions of each one's cost, the paper's below."""
    section = Section(TITLE, records=records.of(runs(preset)))
    rows: list[list[Any]] = []
    curves: dict[str, Any] = {}
    for record in section.records:
        label = f"{record['run']['model']}, {'CONST' if record['run']['scheme'] == 'const' else 'AdaLoss'}"
        curves.setdefault(label, []).append((record["macs"], record["test"]["errors"]))
    for label, seeds in curves.items():
        macs = seeds[0][0]
        exits = [Costs(macs, macs).exit_at(fraction) for fraction in FRACTIONS]
        cells = [f"{label} ({DATA[preset]})", *(spread([errors[exit] for _, errors in seeds]) for exit in exits)]
        rows.append([*cells, f"{macs[-1] / 1e6:.1f}", len(seeds)])
    if not rows:
        section.text.append("No run is finished yet.")
        return section
    section.text.append(
        "Test error in % at fractions of each network's own cost (before the first exit: that of the first), mean ± "
        "standard deviation over seeds, and that cost in million multiply-accumulates."
    )
    rows += [[f"the paper, {label} (ILSVRC)", *values, "", 1] for label, values in PAPER.items()]
    section.table(["", *(f"{fraction:g}" for fraction in FRACTIONS), "cost", "n"], rows)
    section.text += _verdicts(curves)
    title = f"Backbones on {DATA[preset]}: each prediction held until the next"
    panels = {model: [label for label in curves if label.startswith(f"{model}, ")] for model in SEEDS[preset]}
    panels = {model: labels for model, labels in panels.items() if labels}
    section.figures["curves"] = ("Test error against cost", partial(plot_held, curves, title=title, panels=panels))
    return section


def _verdicts(curves: dict[str, Any]) -> list[str]:
    """Whether each backbone ends better with AdaLoss, as in the paper."""
    said = []
    for label in curves:
        model = label.removesuffix(", AdaLoss")
        if model != label and f"{model}, CONST" in curves:
            last = [statistics.mean(errors[-1] for _, errors in curves[f"{model}, {s}"]) for s in ("CONST", "AdaLoss")]
            said.append(f"{model} {percent(last[0])} with CONST and {percent(last[1])} with AdaLoss")
    return [f"At the last exit: {'; '.join(said)}. The paper's three all end better with AdaLoss."] if said else []
