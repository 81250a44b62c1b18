"""Table (a): relative increase in test error over OPT at 1/4, 1/2, 3/4 and all of the cost, by weight scheme."""

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from anytime.evaluation import FRACTIONS
from anytime.plotting import plot_bars
from experiments.records import Records, Section, increases, opt_exits, spread
from experiments.runner import DATA_SETS, Run, make

TITLE = "Weight schemes against OPT at fractions of the cost (Table a)"
SCHEMES = {"const": "CONST", "linear": "LINEAR", "adaloss": "AdaLoss"}
PAPER = {
    "CONST": (15.07, 16.40, 18.76, 18.90),
    "LINEAR": (25.67, 13.02, 12.97, 12.65),
    "AdaLoss": (32.99, 9.97, 3.96, 2.73),
}
MODELS = {
    "paper": [f"resann-{n}-{c}" for c in (16, 32) for n in (7, 9, 13, 17, 25)] + ["resann-9-64", "resann-9-128"],
    "laptop": ["resann-5-8"],
}
SEEDS = {"paper": 1, "laptop": 3}


def runs(preset: str) -> list[Run]:
    """All schemes, then OPT at the exits within each fraction."""
    made = []
    for data in reversed(DATA_SETS):
        for seed in range(SEEDS[preset]):
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
    _explain(section, preset, records)
    section.figures["increase"] = ("Relative increase over OPT", partial(_draw, by_data))
    return section


def _explain(section: Section, preset: str, records: Records) -> None:
    """How far the losses lie apart: that is what AdaLoss goes by."""
    model, rows = MODELS[preset][0], []
    for data in DATA_SETS:
        const, adaloss = (
            records.of(make(preset, model, data, scheme, seed) for seed in range(SEEDS[preset]))
            for scheme in ("const", "adaloss")
        )
        if const and adaloss:
            first, last = (statistics.mean(r["train"]["losses"][exit] for r in const) for exit in (0, -1))
            weight = statistics.mean(r["weights"][0] / r["weights"][-1] for r in adaloss)
            rows.append([data, *(f"{value:.2f}" for value in (first, last, last / first, weight))])
    if rows:
        section.text.append(
            "AdaLoss moves weight to the late exits as far as their losses fall below the early ones'. How far that "
            f"was, for {model} at the end of its training, in the mean over seeds: CONST's training losses, AdaLoss's "
            "weights. In the paper's 300 epochs the last losses fall to nearly nothing on all three."
        )
        section.table(["", "loss, exit 1", "loss, last exit", "last / first", "weight, first / last"], rows)


def _verdict(data: str, schemes: dict[str, list[list[float]]]) -> str:
    """Whether AdaLoss is best in the later half, by more than the spread of its lead over seeds, as in the paper."""
    if set(schemes) != set(SCHEMES.values()) or len({len(found) for found in schemes.values()}) > 1:
        return f"**{data}**: not all schemes are done."
    said = []
    for i, fraction in list(enumerate(FRACTIONS))[2:]:
        for other in ("CONST", "LINEAR"):
            leads = [
                theirs[i] - ours[i] for ours, theirs in zip(schemes["AdaLoss"], schemes[other], strict=True)
            ]  # against the same OPT
            lead = statistics.mean(leads)
            if len(leads) < 2:
                clear = "one seed"
            else:
                spread = statistics.stdev(leads)
                clear = f"{'more than' if abs(lead) > spread else 'within'} the spread of {100 * spread:.1f}"
            how = "below" if lead > 0 else "above"
            said.append(f"at {fraction:g} AdaLoss is {abs(100 * lead):.1f} points {how} {other} ({clear})")
    return f"**{data}**: " + "; ".join(said) + "."


def _draw(by_data: dict[str, dict[str, list[list[float]]]], path: Path) -> Path:
    groups = {
        data: {label: list(zip(*found, strict=True)) for label, found in schemes.items()}
        for data, schemes in by_data.items()
    }
    return plot_bars(
        groups, [f"{fraction:g}" for fraction in FRACTIONS], path, "fraction of the cost", "more errors than OPT (%)"
    )
