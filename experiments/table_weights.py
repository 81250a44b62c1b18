"""Table (a): relative increase in test error over OPT at 1/4, 1/2, 3/4 and all of the cost, by weight scheme."""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from anytime.plot import plot_bars
from experiments.records import Records, Section, increases, opt_exits, spread
from experiments.runner import DATA_SETS, Run, make

TITLE = "Weight schemes against OPT at fractions of the cost (Table a)"
SCHEMES = {"const": "CONST", "linear": "LINEAR", "adaloss": "AdaLoss"}
FRACTIONS = (0.25, 0.5, 0.75, 1.0)
PAPER = {
    "CONST": (15.07, 16.40, 18.76, 18.90),
    "LINEAR": (25.67, 13.02, 12.97, 12.65),
    "AdaLoss": (32.99, 9.97, 3.96, 2.73),
}
MODELS = {
    "paper": [f"resann-{n}-{c}" for c in (16, 32) for n in (7, 9, 13, 17, 25)] + ["resann-9-64", "resann-9-128"],
    "laptop": ["resann-3-32"],
}
SEEDS = {"paper": 1, "laptop": 3}


def runs(preset: str) -> list[Run]:
    """All schemes, then OPT at the exits within each fraction; seed after seed, so that whole rows come first."""
    made = []
    for seed in range(SEEDS[preset]):
        for data in DATA_SETS:
            for model in MODELS[preset]:
                opts = [f"opt-{exit + 1}" for exit in opt_exits(preset, model, FRACTIONS)]
                made += [make(preset, model, data, scheme, seed) for scheme in (*SCHEMES, *opts)]
    return made


def show(preset: str, records: Records) -> Section:
    """Tables, ours and the paper's, and what agrees."""
    section = Section(TITLE, records=records.of(runs(preset)))
    by_data: dict[str, dict[str, list[list[float]]]] = {}
    for data in DATA_SETS:
        for scheme, label in SCHEMES.items():
            found = increases(preset, records, MODELS[preset], data, scheme, SEEDS[preset], FRACTIONS)
            if found:
                by_data.setdefault(data, {})[label] = found
    section.text.append(
        "Relative increase in test error over a network trained for that exit alone (OPT), in %, mean ± standard "
        f"deviation over seeds (and models): lower is better. Model: {', '.join(MODELS[preset])}."
    )
    if not by_data:
        section.text.append("No scheme has all its OPT runs yet.")
        return section
    header = ["", *(f"{fraction:g} of the cost" for fraction in FRACTIONS), "n"]
    rows: list[list[Any]] = []
    for data, schemes in by_data.items():
        for label, found in schemes.items():
            rows.append([f"{data}, {label}", *(spread(column) for column in zip(*found, strict=True)), len(found)])
    rows += [[f"the paper, {label}", *(f"{value:.1f}" for value in values), 36] for label, values in PAPER.items()]
    section.table(header, rows)
    section.text += [_verdict(data, schemes) for data, schemes in by_data.items()]
    section.figures.append(("Relative increase over OPT", partial(_draw, by_data)))
    return section


def _verdict(data: str, schemes: dict[str, list[list[float]]]) -> str:
    """Whether AdaLoss is best in the later half, by more than the spread, as in the paper."""
    if set(schemes) != set(SCHEMES.values()):
        return f"**{data}**: not all schemes are done."
    said = []
    for i, fraction in list(enumerate(FRACTIONS))[2:]:
        ours = [row[i] for row in schemes["AdaLoss"]]
        for other in ("CONST", "LINEAR"):
            theirs = [row[i] for row in schemes[other]]
            less = statistics.mean(theirs) - statistics.mean(ours)
            spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in (ours, theirs)]
            clear = "by more than the spread" if less > max(spreads) else "within the spread"
            how = "below" if less > 0 else "above"
            said.append(f"at {fraction:g} AdaLoss is {abs(100 * less):.1f} points {how} {other}, {clear}")
    return f"**{data}**: " + "; ".join(said) + "."


def _draw(by_data: dict[str, dict[str, list[list[float]]]], path: Path) -> Path:
    groups = {
        f"{data}": {label: list(zip(*found, strict=True)) for label, found in schemes.items()}
        for data, schemes in by_data.items()
    }
    return plot_bars(
        groups, [f"{fraction:g}" for fraction in FRACTIONS], path, "fraction of the cost", "more errors than OPT (%)"
    )
