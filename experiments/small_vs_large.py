"""Fig. 4a–c: a small network with AdaLoss against one of about twice the cost with CONST."""

import statistics
from functools import partial
from typing import Any

from anytime.plotting import plot_held
from experiments.records import Record, Records, Section, error_at, percent, spread
from experiments.runner import DATA_SETS, Run, make

TITLE = "A small network with AdaLoss against a large one with CONST (Fig. 4a–c)"
PAIRS = {
    "paper": [(f"resann-{a}-{c}", f"resann-{b}-{c}") for c in (16, 32) for a, b in ((7, 13), (9, 17), (13, 25))],
    "laptop": [("resann-3-8", "resann-5-8")],
}
DATA = {"paper": DATA_SETS, "laptop": ("svhn",)}
SEEDS = {"paper": 1, "laptop": 3}
SCHEMES = {"adaloss": "AdaLoss", "const": "CONST"}
"""Of the small one and of the large one."""


def runs(preset: str) -> list[Run]:
    """Both of each pair."""
    return [
        make(preset, model, data, scheme, seed)
        for data in DATA[preset]
        for seed in range(SEEDS[preset])
        for small, large in PAIRS[preset]
        for model, scheme in zip((small, large), SCHEMES, strict=True)
    ]


def show(preset: str, records: Records) -> Section:
    """Errors at fractions of the small network's cost, and both curves."""
    section = Section(TITLE, records=records.of(runs(preset)))
    budgets = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    for data in DATA[preset]:
        rows: list[list[Any]] = []
        said: list[str] = []
        for pair in PAIRS[preset]:
            found = {
                f"{model}, {SCHEMES[scheme]}": records.of(
                    make(preset, model, data, scheme, seed) for seed in range(SEEDS[preset])
                )
                for model, scheme in zip(pair, SCHEMES, strict=True)
            }
            if not all(found.values()):
                continue
            whole = next(iter(found.values()))[0]["macs"][-1]
            for label, seeds in found.items():
                cells = []
                for budget in budgets:
                    at = [error_at(record["macs"], record["test"]["errors"], budget * whole) for record in seeds]
                    cells.append(spread([error for error in at if error is not None]))
                rows.append([label, *cells, f"{seeds[0]['macs'][-1] / whole:.2f}", len(seeds)])
            curves = {
                label: [(record["macs"], record["test"]["errors"]) for record in seeds]
                for label, seeds in found.items()
            }
            draw = partial(plot_held, curves, title=f"{data}: each prediction held until the next")
            section.figures[f"{data}-{pair[0]}"] = (f"{pair[0]} and {pair[1]} on {data}", draw)
            said.append(_verdict(data, whole, found))
        if rows:
            section.text.append(
                f"{data}: test error in % at budgets in units of the small network's cost, mean ± standard deviation "
                "over seeds."
            )
            section.table(["", *(f"{budget:g}" for budget in budgets), "own cost", "n"], rows)
            section.text += said
    if not section.figures:
        section.text.append("No pair is finished yet.")
    section.text.append(
        "The paper: the small networks with AdaLoss reach the same error levels sooner than those of twice the cost "
        "with CONST."
    )
    return section


def _verdict(data: str, whole: float, found: dict[str, list[Record]]) -> str:
    """Who is ahead where the small network ends, and what the large one needs to be as good."""
    (small, ours), (large, theirs) = found.items()
    end = statistics.mean(record["test"]["errors"][-1] for record in ours)
    errors = [statistics.mean(of_seeds) for of_seeds in zip(*(r["test"]["errors"] for r in theirs), strict=True)]
    then = error_at(theirs[0]["macs"], errors, whole)
    reached = [macs for macs, error in zip(theirs[0]["macs"], errors, strict=True) if error <= end]
    when = f"reaches that at {reached[0] / whole:.2f} times that cost" if reached else "never reaches that"
    same = f"for the same cost {large} is at {percent(then)} %"
    return f"On {data}, {small} ends at {percent(end)} %; {same}, and it {when}."
