"""Fig. 2a: relative increase in training loss over OPT, by depth, of four weight schemes; 15 units."""

import statistics
from functools import partial
from pathlib import Path

from anytime.plotting import plot_lines
from experiments.records import Records, Section, percent, spread
from experiments.runner import Run, make

TITLE = "Training loss over OPT by depth (Fig. 2a)"
SCHEMES = {"const": "CONST", "half-end": "Half-End", "linear": "LINEAR", "adaloss": "AdaLoss"}
MODEL = {"paper": "resann-5-16", "laptop": "resann-5-8"}
DATA = {"paper": "cifar100", "laptop": "svhn"}
DEPTHS = {"paper": tuple(range(1, 16)), "laptop": (1, 3, 7, 11, 15)}
SEEDS = {"paper": 1, "laptop": 3}


def runs(preset: str) -> list[Run]:
    """The schemes, then OPT at a spread of depths."""
    schemes = [*SCHEMES, *(f"opt-{depth}" for depth in DEPTHS[preset])]
    return [
        make(preset, MODEL[preset], DATA[preset], scheme, seed) for seed in range(SEEDS[preset]) for scheme in schemes
    ]


def show(preset: str, records: Records) -> Section:
    """The increases as a table and a plot."""
    section = Section(TITLE, records=records.of(runs(preset)))
    section.text.append(
        f"{MODEL[preset]}, 15 units with an exit each, on {DATA[preset]}. Increase of the training loss in the last "
        "epoch over that of a network trained for that exit alone, in %."
    )
    lines: dict[str, list[list[float]]] = {}
    for seed in range(SEEDS[preset]):
        opt = {
            depth: found[0]["train"]["losses"][depth - 1]
            for depth in DEPTHS[preset]
            if (found := records.of([make(preset, MODEL[preset], DATA[preset], f"opt-{depth}", seed)]))
        }
        for scheme, label in SCHEMES.items():
            found = records.of([make(preset, MODEL[preset], DATA[preset], scheme, seed)])
            if found and len(opt) == len(DEPTHS[preset]):
                losses = found[0]["train"]["losses"]
                lines.setdefault(label, []).append([losses[depth - 1] / opt[depth] - 1 for depth in opt])
    if not lines:
        section.text.append("Not all of the runs are finished yet.")
        return section
    header = ["exit", *map(str, DEPTHS[preset])]
    section.table(header, [[k, *(spread(c, 0) for c in zip(*found, strict=True))] for k, found in lines.items()])
    section.text.append(_verdict(lines, DEPTHS[preset]))
    section.text.append(
        "The paper (a plot without numbers): CONST has high relative losses in late layers; Half-End improves the "
        "final loss at the cost of significant increases early; AdaLoss has roughly even increases and is much "
        "better than CONST in late layers."
    )
    section.figures["increase"] = ("Training loss over OPT by depth", partial(_draw, lines, DEPTHS[preset]))
    return section


def _verdict(lines: dict[str, list[list[float]]], depths: tuple[int, ...]) -> str:
    """What each scheme costs at its worst and at the last exit."""
    said = []
    for label, found in lines.items():
        means = [statistics.mean(column) for column in zip(*found, strict=True)]
        worst = max(range(len(depths)), key=means.__getitem__)
        said.append(f"{label} {percent(means[-1], 0)} % (at worst {percent(means[worst], 0)} %, exit {depths[worst]})")
    return f"At the last exit: {'; '.join(said)}."


def _draw(lines: dict[str, list[list[float]]], depths: tuple[int, ...], path: Path) -> Path:
    shown = {label: [[100 * value for value in each] for each in found] for label, found in lines.items()}
    return plot_lines(shown, list(depths), path, "exit", "more training loss than OPT (%)", linear_to=20)
