"""Fig. 5c: the weights that AdaLoss ends with on three data sets."""

import statistics
from functools import partial

from anytime.plotting import plot_lines
from experiments.presets import DATA_SETS, make
from experiments.records import Records, Section, loss_left, spread
from experiments.runner import Run

TITLE = "Final AdaLoss weights by data set (Fig. 5c)"
CLAIM = "the harder the data, the more weight is at the late exits: least on SVHN, more on CIFAR-10, most on CIFAR-100."
MODEL = {"paper": "resann-25-32", "laptop": "resann-5-16-patch2"}
SEEDS = {"paper": 1, "laptop": 3}


def runs(preset: str) -> list[Run]:
    """AdaLoss on every data set."""
    return [
        make(preset, MODEL[preset], data, "adaloss", seed) for seed in range(SEEDS.get(preset, 0)) for data in DATA_SETS
    ]


def show(preset: str, records: Records) -> Section:
    """The weights against depth, and their mean place."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    found = {data: records.of(run for run in runs(preset) if run.data == data) for data in DATA_SETS}
    found = {data: each for data, each in found.items() if each}
    if not found:
        return section
    section.text.append(
        "The mean place of the weights is Σ B_i · i/L divided by Σ B_i, where i is an exit's number and L that of the "
        "last: 53 % if 15 exits have equal weights, 100 % if the last exit has all of the weight. The weights follow "
        "the training losses, so the table also has the last exit's loss as a share of the first exit's."
    )
    places = {data: [concentration(record["weights"]) for record in each] for data, each in found.items()}
    section.table(
        ["", "mean place of the weights, %", "weight, first / last, %", "loss, last / first, %", "n"],
        [
            [
                f"{data}, {MODEL[preset]}",
                spread(places[data]),
                spread([record["weights"][0] / record["weights"][-1] for record in each]),
                spread(list(map(loss_left, each))),
                len(each),
            ]
            for data, each in found.items()
        ],
    )
    if len(found) == len(DATA_SETS):
        order = sorted(places, key=lambda data: statistics.mean(places[data]))
        agrees = "as in the paper" if order == list(DATA_SETS) else f"the paper has {', '.join(DATA_SETS)}"
        section.verdicts.append(f"From least to most weight at the end: {', '.join(order)} ({agrees}).")
    lines = {data: [record["weights"] for record in each] for data, each in found.items()}
    exits = range(1, len(next(iter(lines.values()))[0]) + 1)
    draw = partial(plot_lines, lines, list(exits), x_name="exit", y_name="final AdaLoss weight", bottom=0)
    section.figures["weights"] = ("Final AdaLoss weights against depth", draw)
    return section


def concentration(weights: list[float]) -> float:
    """The mean place of the weights, from 0 to 1."""
    return sum(weight * (i + 1) / len(weights) for i, weight in enumerate(weights)) / sum(weights)
