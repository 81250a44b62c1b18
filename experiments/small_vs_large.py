"""Fig. 4a–c: a small network with AdaLoss against one of twice the cost with CONST."""

from functools import partial
from pathlib import Path
from typing import Any

from anytime.plot import plot_held
from experiments.records import Records, Section, error_at, spread
from experiments.runner import DATA_SETS, Run, make

TITLE = "A small network with AdaLoss against a large one with CONST (Fig. 4a–c)"
PAIRS = {
    "paper": [(f"resann-{a}-{c}", f"resann-{b}-{c}") for c in (16, 32) for a, b in ((7, 13), (9, 17), (13, 25))],
    "laptop": [("resann-2-32", "resann-4-32")],
}
DATA = {"paper": DATA_SETS, "laptop": ("cifar10",)}


def runs(preset: str) -> list[Run]:
    """Both of each pair."""
    return [
        make(preset, model, data, scheme)
        for data in DATA[preset]
        for small, large in PAIRS[preset]
        for model, scheme in ((small, "adaloss"), (large, "const"))
    ]


def show(preset: str, records: Records) -> Section:
    """Errors at fractions of the small network's cost, and both curves."""
    section = Section(TITLE, records=records.of(runs(preset)))
    budgets = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    for data in DATA[preset]:
        rows: list[list[Any]] = []
        for pair in PAIRS[preset]:
            found = [records.of([make(preset, m, data, s)]) for m, s in zip(pair, ("adaloss", "const"), strict=True)]
            if not all(found):
                continue
            small, large = (each[0] for each in found)
            for record, label in ((small, f"{pair[0]}, AdaLoss"), (large, f"{pair[1]}, CONST")):
                at = [error_at(record["macs"], record["test"]["errors"], b * small["macs"][-1]) for b in budgets]
                rows.append([label, *(spread([] if error is None else [error]) for error in at)])
            curves = {
                f"{pair[0]}, AdaLoss": [(small["macs"], small["test"]["errors"])],
                f"{pair[1]}, CONST": [(large["macs"], large["test"]["errors"])],
            }
            section.figures.append((f"{pair[0]} and {pair[1]} on {data}", partial(_draw, curves, data)))
        if rows:
            section.text.append(f"{data}: test error in % at budgets in units of the small network's cost.")
            section.table(["", *(f"{budget:g}" for budget in budgets)], rows)
    if not section.figures:
        section.text.append("No pair is finished yet.")
    section.text.append(
        "The paper: the small networks with AdaLoss reach the same error levels sooner than those of twice the cost "
        "with CONST."
    )
    return section


def _draw(curves: dict[str, Any], data: str, path: Path) -> Path:
    return plot_held(curves, path, f"{data}: each prediction held until the next")
