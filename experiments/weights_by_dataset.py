"""Fig. 5c: the weights that AdaLoss ends with on three data sets."""

from functools import partial
from itertools import pairwise

from anytime.plotting import plot_lines
from experiments.claims import POINTS, Claim, all_of, judge
from experiments.presets import DATA_NAMES, DATA_SETS, make
from experiments.records import Record, Records, Section, loss_left, spread
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
        section.claims = [_claim(found, places)]
    lines = {data: [record["weights"] for record in each] for data, each in found.items()}
    exits = range(1, len(next(iter(lines.values()))[0]) + 1)
    draw = partial(plot_lines, lines, list(exits), x_name="exit", y_name="final AdaLoss weight", bottom=0)
    section.figures["weights"] = ("Final AdaLoss weights against depth", draw)
    return section


def _claim(found: dict[str, list[Record]], places: dict[str, list[float]]) -> Claim:
    """The mean place of the weights rises from each data set to the next; seed by seed."""
    placed = {
        data: {record["run"]["seed"]: place for record, place in zip(found[data], places[data], strict=True)}
        for data in DATA_SETS
    }
    parts = []
    for easy, hard in pairwise(DATA_SETS):
        both = sorted(placed[easy].keys() & placed[hard].keys())
        more = [placed[hard][seed] - placed[easy][seed] for seed in both]
        parts.append(judge("", f"{DATA_NAMES[hard]} − {DATA_NAMES[easy]}", "", "", more, POINTS))
    epochs = ", ".join(f"{DATA_NAMES[data]} {each[0]['run']['recipe']['epochs']}" for data, each in found.items())
    where = f"mean place of the weights in % of the depth ({epochs} epochs)"
    return all_of("Fig. 5c", "the harder the data, the more weight at the late exits", "plot", where, parts)


def concentration(weights: list[float]) -> float:
    """The mean place of the weights, from 0 to 1."""
    return sum(weight * (i + 1) / len(weights) for i, weight in enumerate(weights)) / sum(weights)
