"""Fig. 5c: the weights that AdaLoss ends with, of one model on three data sets."""

import statistics
from functools import partial
from pathlib import Path

from anytime.plotting import plot_lines
from experiments.records import Records, Section, loss_left, spread
from experiments.runner import DATA_SETS, Run, make

TITLE = "Final AdaLoss weights by data set (Fig. 5c)"
MODEL = {"paper": "resann-25-32", "laptop": "resann-5-8"}
SEEDS = {"paper": 1, "laptop": 3}
FROM_EASY = ("svhn", "cifar10", "cifar100")


def runs(preset: str) -> list[Run]:
    """One model, AdaLoss, every data set."""
    return [make(preset, MODEL[preset], data, "adaloss", seed) for seed in range(SEEDS[preset]) for data in DATA_SETS]


def show(preset: str, records: Records) -> Section:
    """The weights against depth, and how far at the end they lie."""
    section = Section(TITLE, records=records.of(runs(preset)))
    weights = {
        data: [record["weights"] for record in records.of(run for run in runs(preset) if run.data == data)]
        for data in FROM_EASY
    }
    weights = {data: found for data, found in weights.items() if found}
    if not weights:
        section.text.append("No run is finished yet.")
        return section
    section.text.append(
        f"{MODEL[preset]}; a weight's place is its exit's number over the number of exits, and their mean place, each "
        "weighed by itself, says how far at the end they lie: 50 % and a little where all are alike, 100 % where the "
        "last exit has all."
    )
    places = {data: [concentration(each) for each in found] for data, found in weights.items()}
    section.table(
        ["data set", "mean place of the weights, %", "weight of the first exit / of the last, %", "n"],
        [
            [data, spread(found), spread([each[0] / each[-1] for each in weights[data]]), len(found)]
            for data, found in places.items()
        ],
    )
    if len(places) == len(FROM_EASY):
        order = sorted(places, key=lambda data: statistics.mean(places[data]))
        agrees = "as in the paper" if order == list(FROM_EASY) else f"the paper has {', '.join(FROM_EASY)}"
        section.text.append(f"From least to most concentrated at the end: {', '.join(order)} ({agrees}).")
        if order != list(FROM_EASY):
            losses = {
                data: [loss_left(record) for record in section.records if record["run"]["data"] == data]
                for data in FROM_EASY
            }
            left = ", ".join(f"{data} {spread(found, 0)} %" for data, found in losses.items())
            section.text.append(
                "Why not as in the paper: the weights follow the training losses, of which the last exit keeps this "
                f"part of the first's: {left}. In the paper's long trainings the last loss becomes small on every "
                "data set, and the first is what differs: it is larger the harder the data. In a short training the "
                "last loss differs more: it is still large on the hard data."
            )
    section.figures["weights"] = ("Final weights against depth", partial(_draw, weights))
    return section


def concentration(weights: list[float]) -> float:
    """The mean place of the weights, from 0 to 1."""
    return sum(weight * (i + 1) / len(weights) for i, weight in enumerate(weights)) / sum(weights)


def _draw(weights: dict[str, list[list[float]]], path: Path) -> Path:
    exits = len(next(iter(weights.values()))[0])
    return plot_lines(weights, list(range(1, exits + 1)), path, "exit", "final AdaLoss weight", bottom=0)
