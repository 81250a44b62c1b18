"""Fig. 4f and Table (b): ResANN, DenseANN and MSDNet at like cost, with CONST and with AdaLoss."""

from functools import partial
from pathlib import Path
from typing import Any

from anytime.plot import plot_held
from experiments.records import Records, Section, error_at, spread
from experiments.runner import Run, make

TITLE = "Backbones at like cost (Fig. 4f, Table b)"
FRACTIONS = (0.25, 0.5, 0.75, 1.0)
MODELS = {
    "paper": ("resann50", "denseann169", "msdnet38"),
    "laptop": ("resann-2-32", "denseann-52-12", "msdnet-cifar"),
}
DATA = {"paper": "imagenet", "laptop": "cifar10"}
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
    return [make(preset, model, DATA[preset], each) for model in MODELS[preset] for each in ("const", scheme)]


def show(preset: str, records: Records) -> Section:
    """Errors at fractions of each one's cost, the paper's below."""
    section = Section(TITLE, records=records.of(runs(preset)))
    rows: list[list[Any]] = []
    curves: dict[str, Any] = {}
    for record in section.records:
        label = f"{record['run']['model']}, {'CONST' if record['run']['scheme'] == 'const' else 'AdaLoss'}"
        macs, errors = record["macs"], record["test"]["errors"]
        at = [error_at(macs, errors, fraction * macs[-1]) or errors[0] for fraction in FRACTIONS]
        rows.append([f"{label} ({DATA[preset]})", *(spread([error]) for error in at), f"{macs[-1] / 1e6:.0f}"])
        curves[label] = [(macs, errors)]
    if not rows:
        section.text.append("No run is finished yet.")
        return section
    section.text.append("Test error in % at fractions of each network's own cost, and that cost in million MACs.")
    rows += [[f"the paper, {label} (ILSVRC)", *values, ""] for label, values in PAPER.items()]
    section.table(["", *(f"{fraction:g}" for fraction in FRACTIONS), "cost"], rows)
    section.figures.append(("Test error against cost", partial(_draw, curves, DATA[preset])))
    return section


def _draw(curves: dict[str, Any], data: str, path: Path) -> Path:
    return plot_held(curves, path, f"Backbones on {data}: each prediction held until the next")
