"""Beyond the paper: what exits that answer together add to each exit alone, after any training."""

from collections.abc import Iterator
from itertools import chain

from anytime.evaluation import FRACTIONS
from experiments import extras, heads, table_weights
from experiments.intervals import Interval
from experiments.presets import DATA_NAMES
from experiments.records import Record, Records, Section, errors_at
from experiments.runner import Run

TITLE = "Exits that answer together (beyond the paper)"
CLAIM = (
    "nothing of this. `ensemble` is a weighted mean of all exits so far, fitted on held-out images; `stacking` a "
    "linear function of the logits of all exits so far, fitted on the training images, both after the training."
)
SCHEMES = {
    "adaloss": "AdaLoss",
    "const": "CONST",
    "linear": "LINEAR",
    "annealed": "annealed AdaLoss",
    "adaloss+boosting": "AdaLoss, boosted exits",
    "annealed+boosting": "annealed AdaLoss, boosted exits",
}
RULES = ("ensemble", "stacking")
PLACES = {"1/4": FRACTIONS.index(0.25), "the end": FRACTIONS.index(1)}


def runs(preset: str) -> list[Run]:
    """The runs of other experiments whose exits are combined; none of its own."""
    every = chain(table_weights.runs(preset), extras.runs(preset), heads.runs(preset))
    return list({run.name: run for run in every if run.scheme in SCHEMES}.values())


def show(preset: str, records: Records) -> Section:
    """For each network and scheme how many points of test error each rule takes away, at 1/4 and at the end."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    settings: dict[str, list[Record]] = {}
    for run, label in _labeled(preset):
        record = records.find(run)
        if record and set(record) >= set(RULES):
            settings.setdefault(label, []).append(record)
    rows, ends = [], {rule: dict[str, Interval]() for rule in RULES}
    for label, each in settings.items():
        cells = []
        for rule in RULES:
            gains = [_gains(record, rule) for record in each]
            intervals = [Interval.of([gain[place] for gain in gains]) for place in PLACES.values()]
            cells += [interval.percent() for interval in intervals]
            ends[rule][label] = intervals[-1]
        rows.append([label, *cells, len(each)])
    if not rows:
        return section
    for rule, found in ends.items():
        sure = [interval.sign for interval in found.values() if interval.n > 1]
        best = max(found, key=lambda label: found[label].mean)
        section.verdicts.append(
            f"`{rule}` at the last exit, {len(sure)} settings with several seeds: fewer errors in "
            f"{sure.count('positive')}, more in {sure.count('negative')}, inconclusive in {sure.count('open')}; the "
            f"most points are {found[best].percent()} ({best})."
        )
    section.text.append(
        "Points of test error that each rule takes away from the exit alone, same network and seed, with the 95 % "
        "interval of the mean over seeds: above 0, the rule helps."
    )
    section.table(["", *(f"{rule}, {place}" for rule in RULES for place in PLACES), "n"], rows)
    return section


def _labeled(preset: str) -> Iterator[tuple[Run, str]]:
    for run in runs(preset):
        yield run, f"{DATA_NAMES[run.data]}, {run.model}, {SCHEMES[run.scheme]}"


def _gains(record: Record, rule: str) -> list[float]:
    alone, together = (errors_at(record, FRACTIONS, of) for of in ("test", rule))
    return [a - b for a, b in zip(alone, together, strict=True)]
