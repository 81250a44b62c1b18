"""Fig. 2a: relative increase in training loss over OPT, by depth, of four weight schemes; 15 units."""

import math
from functools import partial
from pathlib import Path

from anytime.plotting import plot_lines
from experiments.claims import Claim, Measure, judge
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
DATA, DATA_NAME = "cifar100", "CIFAR-100, no crops"
FIGURE = "Fig. 2a"
OF_OPT = Measure("% of OPT's loss", digits=0)
LEAST = 0.01
"""Increases below 1 % count as 1 %: there, ratios say nothing."""
EVEN = 1.0
"""Doublings: the paper's even increases are within a factor of 2 of each other."""
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
    section.claims = _claims(found, depths, DATA_NAME)
    draw = partial(_draw, rows, depths)
    section.figures["increase"] = ("Training loss over OPT by depth", draw)
    return section


def _claims(found: dict[str, dict[int, list[float]]], depths: tuple[int, ...], where: str) -> list[Claim]:
    """The increase of AdaLoss is even if the largest, over the depths, is at most twice the smallest."""
    const, half_end, adaloss = (found.get(label, {}) for label in ("CONST", "Half-End", "AdaLoss"))
    both, ends = sorted(const.keys() & adaloss.keys()), sorted(const.keys() & half_end.keys())
    uneven = [math.log2(max(*row, LEAST) / max(min(row), LEAST)) for row in adaloss.values()]
    times = Measure("doublings from the smallest to the largest increase", 1, 1)
    made = [judge(FIGURE, "AdaLoss's increases are even over depth", "plot", where, uneven, times, below=EVEN)]
    for i in (len(depths) - 1, len(depths) - 2):
        says = f"AdaLoss's increase is below CONST's at exit {depths[i]}"
        made.append(judge(FIGURE, says, "plot", where, [const[s][i] - adaloss[s][i] for s in both], OF_OPT))
    says = "CONST's increase at the last exit is above that at the first"
    made.append(judge(FIGURE, says, "plot", where, [row[-1] - row[0] for row in const.values()], OF_OPT))
    says = "Half-End's increase is below CONST's at the last exit"
    made.append(judge(FIGURE, says, "plot", where, [const[s][-1] - half_end[s][-1] for s in ends], OF_OPT))
    says = "Half-End's increase is above CONST's at the first exit"
    made.append(judge(FIGURE, says, "plot", where, [half_end[s][0] - const[s][0] for s in ends], OF_OPT))
    return made


def _draw(found: dict[str, list[list[float]]], depths: tuple[int, ...], path: Path) -> None:
    shown = {label: [[100 * value for value in row] for row in rows] for label, rows in found.items()}
    plot_lines(shown, depths, path, "exit", "more training loss than OPT (%)", linear_to=20)
