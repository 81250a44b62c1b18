"""Fig. 2a: relative increase in training loss over OPT, by depth, of four weight schemes; 15 units."""

from functools import partial
from pathlib import Path

from anytime.plotting import plot_lines
from experiments.intervals import Interval, compare
from experiments.presets import MODELS, make
from experiments.records import Records, Section, spread
from experiments.runner import Run

TITLE = "Training loss over OPT by depth (Fig. 2a)"
CLAIM = (
    "CONST has high relative losses in late layers; Half-End improves the final loss at the cost of significant "
    "increases early; AdaLoss has roughly even increases and is much better than CONST in late layers (a plot without "
    "numbers)."
)
SCHEMES = {"const": "CONST", "half-end": "Half-End", "linear": "LINEAR", "adaloss": "AdaLoss"}
DATA = "cifar100"
MODEL = {"paper": "resann-5-16", "laptop": MODELS[DATA]}
DEPTHS = {"paper": tuple(range(1, 16)), "laptop": (1, 3, 7, 11, 15)}
SEEDS = {"paper": 1, "laptop": 3}


def runs(preset: str) -> list[Run]:
    """The schemes, then OPT at a spread of depths."""
    if preset not in SEEDS:
        return []
    schemes = [*SCHEMES, *(f"opt-{depth}" for depth in DEPTHS[preset])]
    return [make(preset, MODEL[preset], DATA, scheme, seed) for seed in range(SEEDS[preset]) for scheme in schemes]


def show(preset: str, records: Records) -> Section:
    """The increases as a table and a plot."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    if preset not in SEEDS:
        return section
    depths, kind = DEPTHS[preset], (preset, MODEL[preset], DATA)
    opts = {depth: records.seeds(*kind, f"opt-{depth}", SEEDS[preset]) for depth in depths}
    found: dict[str, dict[int, list[float]]] = {}
    for scheme, label in SCHEMES.items():
        for seed, record in records.seeds(*kind, scheme, SEEDS[preset]).items():
            if all(seed in opt for opt in opts.values()):
                losses = record["train"]["losses"]
                row = [losses[d - 1] / opts[d][seed]["train"]["losses"][d - 1] - 1 for d in depths]
                found.setdefault(label, {})[seed] = row
    if not found:
        return section
    section.text.append(
        f"{MODEL[preset]}, 15 units with an exit each, on {DATA}. Increase of the training loss in the last epoch over "
        "that of a network trained for that exit alone, in %, mean ± standard deviation over seeds."
    )
    rows = {label: list(seeds.values()) for label, seeds in found.items()}
    table = [[label, *(spread(c, 0) for c in zip(*each, strict=True)), len(each)] for label, each in rows.items()]
    section.table(["exit", *map(str, depths), "n"], table)
    both = found.get("CONST", {}).keys() & found.get("AdaLoss", {}).keys()
    for i in (len(depths) - 2, len(depths) - 1) if both else ():
        difference = Interval.of([found["CONST"][seed][i] - found["AdaLoss"][seed][i] for seed in sorted(both)])
        what = "increase of the training loss"
        section.verdicts.append(f"At exit {depths[i]} " + compare("AdaLoss", "CONST", difference, what) + ".")
    draw = partial(_draw, rows, depths)
    section.figures["increase"] = ("Training loss over OPT by depth", draw)
    return section


def _draw(found: dict[str, list[list[float]]], depths: tuple[int, ...], path: Path) -> None:
    shown = {label: [[100 * value for value in row] for row in rows] for label, rows in found.items()}
    plot_lines(shown, depths, path, "exit", "more training loss than OPT (%)", linear_to=20)
