"""How AdaLoss's weights, and those of its relatives, move to the late exits in the course of a training."""

import statistics
from functools import partial

from experiments import planned
from experiments.figures import plot_weights
from experiments.records import Record, Records, Section, spread
from experiments.runner import Run
from experiments.weights_by_dataset import concentration

TITLE = "The weights against training time and depth (beyond the paper)"
CLAIM = "nothing of the course of the training: Fig. 5c shows the weights at its end."
ADAPTIVE = ("adaloss", "power:p=0.5", "power:p=2")
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Of the training, in the table."""


def runs(preset: str) -> list[Run]:
    """The planned runs whose weights change; none of its own."""
    return [run for run in planned.runs(preset) if run.scheme in ADAPTIVE]


def show(preset: str, records: Records) -> Section:
    """The weights of each setting as a map, and their mean place against time."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    found = _found(preset, records)
    if not found:
        return section
    section.text.append(
        "The mean place of the weights, in % of the depth (53 % if 15 exits have equal weights, 100 % if the last has "
        "all), after parts of the training: mean ± standard deviation over seeds. Records made before they kept the "
        "weights of every epoch are not among them."
    )
    table = []
    for label, each in found.items():
        places = [[concentration(_at(record, share)) for record in each] for share in SHARES]
        table.append([label, *(spread(column) for column in places), len(each)])
    section.table(["", *(f"{share:.0%} of the training" for share in SHARES), "n"], table)
    maps = {label: _mean([record["epochs"]["weights"] for record in each]) for label, each in found.items()}
    section.figures["maps"] = (
        "The share of each exit in the sum of the weights, against training time and depth, mean over seeds",
        partial(plot_weights, maps),
    )
    section.verdicts = [
        f"**{label}.** Of the way that the mean place of the weights goes from equal weights to its end, "
        f"{_way(each, 0.25):.0%} is done after a quarter of the training, {_way(each, 0.5):.0%} after half."
        for label, each in found.items()
    ]
    return section


def _found(preset: str, records: Records) -> dict[str, list[Record]]:
    """The records with weights of every epoch, by arm and scheme; an arm that another one holds is left out."""
    found: dict[str, list[Record]] = {}
    seen: set[str] = set()
    for arm in planned.ARMS if preset == "laptop" else ():
        for scheme, label in arm.schemes.items():
            each = [records.find(arm.run(scheme, seed)) for seed in range(arm.seeds)]
            known = [record for record in each if record and "epochs" in record and record["name"] not in seen]
            if scheme in ADAPTIVE and known:
                seen |= {record["name"] for record in known}
                found[f"{arm.label}, {label}"] = known
    return found


def _way(records: list[Record], share: float) -> float:
    """How much of the way from equal weights to the last ones is done after a share of the training."""
    ways = []
    for record in records:
        equal = concentration([1.0] * len(record["macs"]))
        ways.append((concentration(_at(record, share)) - equal) / (concentration(_at(record, 1.0)) - equal))
    return statistics.mean(ways)


def _at(record: Record, share: float) -> list[float]:
    epochs = record["epochs"]["weights"]
    return epochs[max(0, round(share * len(epochs)) - 1)]


def _mean(seeds: list[list[list[float]]]) -> list[list[float]]:
    """By epoch and exit, the mean over seeds of each exit's share in the sum of the weights."""
    return [
        [statistics.mean(each) for each in zip(*([w / sum(row) for w in row] for row in rows), strict=True)]
        for rows in zip(*seeds, strict=True)
    ]
