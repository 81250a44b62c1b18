"""Fig. 4a–c: a small network with AdaLoss against one of twice the cost with CONST."""

import statistics
from functools import partial
from typing import Any

from anytime.plotting import plot_held
from experiments.claims import judge, not_tried
from experiments.presets import DATA_NAMES, DATA_SETS, make
from experiments.records import Record, Records, Section, error_at, spread
from experiments.runner import Run

TITLE = "A small network with AdaLoss against a large one with CONST (Fig. 4a–c)"
CLAIM = "small networks with AdaLoss reach the same errors sooner than networks of twice the cost with CONST."
FIGURE = "Fig. 4a–e"
SAYS = "for its own cost a small network with AdaLoss makes fewer errors than one of twice the cost with CONST"
_PAPER = [(f"resann-{a}-{c}", f"resann-{b}-{c}") for c in (16, 32) for a, b in ((7, 13), (9, 17), (13, 25))]
PAIRS = {
    "paper": dict.fromkeys(DATA_SETS, _PAPER),
    "laptop": {
        "svhn": [("resann-3-8-patch2", "resann-6-8-patch2")],
        "cifar10": [("resann-3-16-patch2", "resann-6-16-patch2")],
    },
}
SEEDS = {"paper": 1, "laptop": 3}
SCHEMES = {"adaloss": "AdaLoss", "const": "CONST"}
"""Of the small one and of the large one."""
BUDGETS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


def runs(preset: str) -> list[Run]:
    """Both of each pair."""
    return [
        make(preset, model, data, scheme, seed)
        for data, pairs in PAIRS.get(preset, {}).items()
        for seed in range(SEEDS[preset])
        for pair in pairs
        for model, scheme in zip(pair, SCHEMES, strict=True)
    ]


def show(preset: str, records: Records) -> Section:
    """Errors at fractions of the small network's cost, and both curves."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    for data, pairs in PAIRS.get(preset, {}).items():
        rows: list[list[Any]] = []
        for pair in pairs:
            found = {
                f"{model} with {SCHEMES[scheme]}": records.seeds(preset, model, data, scheme, SEEDS[preset])
                for model, scheme in zip(pair, SCHEMES, strict=True)
            }
            if all(found.values()):
                _add(section, data, pair[0], found, rows)
        if rows:
            section.text.append(
                f"{data}: test error in % at budgets in units of the small network's cost, mean ± standard deviation "
                "over seeds; then each one's own cost in the same unit."
            )
            section.table(["", *(f"{budget:g}" for budget in BUDGETS), "cost", "n"], rows)
    others = [name for data, name in DATA_NAMES.items() if data not in PAIRS.get(preset, {})]
    section.claims += [not_tried(FIGURE, SAYS, "plots", name) for name in others]
    return section


def _add(section: Section, data: str, small: str, found: dict[str, dict[int, Record]], rows: list[list[Any]]) -> None:
    (ours, theirs), (our_label, their_label) = found.values(), found
    whole = next(iter(ours.values()))["macs"][-1]
    for label, seeds in found.items():
        records = list(seeds.values())
        at = [[error_at(r["macs"], r["test"]["errors"], budget * whole) for r in records] for budget in BUDGETS]
        cells = [spread([error for error in errors if error is not None]) for errors in at]
        rows.append([label, *cells, f"{records[0]['macs'][-1] / whole:.2f}", len(records)])
    both = sorted(ours.keys() & theirs.keys())
    if both:
        within = max(exit for exit, macs in enumerate(next(iter(theirs.values()))["macs"]) if macs <= whole)
        pairs = [(ours[seed]["test"]["errors"][-1], theirs[seed]["test"]["errors"][within]) for seed in both]
        where = f"{DATA_NAMES[data]}, {our_label}, {their_label}"
        values = [their - our for our, their in pairs]
        section.claims.append(judge(FIGURE, SAYS, "plots", where, values))
        section.verdicts.append(f"**{data}.** {_when(whole, ours, theirs, their_label)}")
    curves = {label: [(r["macs"], r["test"]["errors"]) for r in seeds.values()] for label, seeds in found.items()}
    draw = partial(plot_held, curves, title=f"{data}: each prediction held until the next", logarithmic=True)
    section.figures[f"{data}-{small}"] = (f"{our_label} and {their_label} on {data}", draw)


def _when(whole: float, ours: dict[int, Record], theirs: dict[int, Record], label: str) -> str:
    """What the large network needs to be as good as the small one at its end, in the mean over seeds."""
    end = statistics.mean(record["test"]["errors"][-1] for record in ours.values())
    errors = [statistics.mean(each) for each in zip(*(r["test"]["errors"] for r in theirs.values()), strict=True)]
    macs = next(iter(theirs.values()))["macs"]
    reached = [cost for cost, error in zip(macs, errors, strict=True) if error <= end]
    when = f"at {reached[0] / whole:.2f} times that cost" if reached else "nowhere"
    return f"{label} is as good {when}."
