"""Fig. 4f and Table (b): ResANN, DenseANN and MSDNet of similar cost, with CONST and with AdaLoss."""

from functools import partial
from typing import Any

from anytime.evaluation import FRACTIONS
from anytime.plotting import plot_held
from experiments.claims import Claim, all_of, judge, not_tried
from experiments.presets import DATA_NAMES, make
from experiments.records import Records, Section, errors_at, spread
from experiments.runner import Run

TITLE = "Backbones of similar cost (Fig. 4f, Table b)"
CLAIM = "ResANN50, DenseANN169 and MSDNet38 all end better with AdaLoss than with CONST (ILSVRC)."
MODELS = {
    "paper": ("resann50", "denseann169", "msdnet38"),
    "laptop": ("resann-5-8-patch2", "denseann-46-5-patch2", "msdnet-cifar-4-2-1-patch2"),
}
DATA = {"paper": "imagenet", "laptop": "svhn"}
ADALOSS = {"paper": "adaloss:final_extra=1.0", "laptop": "adaloss"}
SEEDS = {"paper": 1, "laptop": 3}
PAPER = {
    "ResANN50, CONST": (54.34, 35.61, 27.23, 25.14),
    "ResANN50, AdaLoss": (54.98, 34.92, 26.59, 24.42),
    "DenseANN169, CONST": (48.15, 45.00, 29.09, 25.60),
    "DenseANN169, AdaLoss": (47.17, 44.64, 28.22, 24.07),
    "MSDNet38, CONST": (33.9, 28.0, 25.7, 24.3),
    "MSDNet38, AdaLoss": (35.75, 28.04, 25.82, 23.99),
}


TABLE = "Table b, Fig. 4f"
ENDS = "AdaLoss makes fewer errors than CONST at the end, whatever the backbone"


def _claims(model: str, data: str, better: list[list[float]]) -> list[Claim]:
    """AdaLoss at the end, and, of a DenseANN, everywhere; ``better``: by fraction the differences of the seeds."""
    where = f"{DATA_NAMES[data]}, {model}"
    made = [judge(TABLE, ENDS, "25.14 to 24.42, 25.60 to 24.07, 24.3 to 23.99 %", where, better[-1])]
    if model.startswith("denseann"):
        parts = [judge("", f"{f:g}", "", "", values) for f, values in zip(FRACTIONS, better, strict=True)]
        says = "DenseANN makes fewer errors with AdaLoss than with CONST at every fraction of the cost"
        made.append(all_of(TABLE, says, "0.98, 0.36, 0.87, 1.53 points", where, parts))
    return made


def runs(preset: str) -> list[Run]:
    """Both schemes of each."""
    return [
        make(preset, model, DATA[preset], scheme, seed)
        for seed in range(SEEDS.get(preset, 0))
        for model in MODELS[preset]
        for scheme in ("const", ADALOSS[preset])
    ]


def show(preset: str, records: Records) -> Section:
    """Errors at fractions of each one's cost, the paper's below."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    rows: list[list[Any]] = []
    curves: dict[str, Any] = {}
    for model in MODELS.get(preset, ()):
        found = {
            label: records.seeds(preset, model, DATA[preset], scheme, SEEDS[preset])
            for label, scheme in (("CONST", "const"), ("AdaLoss", ADALOSS[preset]))
        }
        for label, seeds in found.items():
            if seeds:
                each = list(seeds.values())
                at = zip(*(errors_at(record, FRACTIONS) for record in each), strict=True)
                cost = each[0]["macs"][-1] / 1e6
                name = f"{model}, {label}"
                rows.append([f"{name} ({DATA[preset]})", *map(spread, at), f"{cost:.1f}", len(each)])
                curves[name] = [(record["macs"], record["test"]["errors"]) for record in each]
        both = sorted(set.intersection(*map(set, found.values())))
        if both:
            at = {label: {seed: errors_at(found[label][seed], FRACTIONS) for seed in both} for label in found}
            better = [[at["CONST"][seed][i] - at["AdaLoss"][seed][i] for seed in both] for i in range(len(FRACTIONS))]
            section.claims += _claims(model, DATA[preset], better)
    if not rows:
        return section
    if "imagenet" not in DATA[preset]:
        section.claims.append(not_tried(TABLE, ENDS, "25.14 to 24.42, 25.60 to 24.07, 24.3 to 23.99 %", "ILSVRC"))
    section.text.append(
        "Test error in % at fractions of each network's own cost (before the first exit: that of the first), mean ± "
        "standard deviation over seeds, and that cost in million multiply-accumulates."
    )
    rows += [[f"the paper, {label} (ILSVRC)", *values, "", 1] for label, values in PAPER.items()]
    section.table(["", *(f"{fraction:g}" for fraction in FRACTIONS), "cost", "n"], rows)
    title = f"Backbones on {DATA[preset]}: each prediction held until the next"
    panels = {model: [label for label in curves if label.startswith(f"{model}, ")] for model in MODELS[preset]}
    panels = {model: labels for model, labels in panels.items() if labels}
    section.figures["curves"] = (
        "Test error against cost",
        partial(plot_held, curves, title=title, panels=panels, shared=False),
    )
    return section
