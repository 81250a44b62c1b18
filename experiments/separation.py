"""Beyond the paper: when to use which scheme, by how far apart the losses of the exits come to lie."""

import json
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import chain

from experiments import backbones, planned, table_weights, variants
from experiments.figures import Point, plot_separation
from experiments.intervals import Interval
from experiments.presets import DATA_NAMES
from experiments.records import Record, Records, Section, loss_left, spread
from experiments.runner import Run

TITLE = "When to use which scheme (beyond the paper)"
CLAIM = (
    "the larger the losses of the early exits against those of the late ones, the more AdaLoss moves weight to the "
    "late exits; nothing is said of when that helps."
)
SCHEMES = {"const": "CONST", "linear": "LINEAR", "adaloss": "AdaLoss"}
SOURCES = (table_weights, variants, backbones, planned)
"""The experiments whose settings are shown."""

Found = dict[str, dict[int, Record]]
"""By scheme and seed."""


def runs(preset: str) -> list[Run]:
    """All runs of the three schemes, of every data set, length and width; none of its own."""
    every = chain.from_iterable(source.runs(preset) for source in SOURCES)
    return list({run.name: run for run in every if run.scheme in SCHEMES}.values())


def show(preset: str, records: Records) -> Section:
    """One point for each setting, and the same as a table."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    points = [point for each in _settings(preset, records).values() if (point := _point(each)) is not None]
    points.sort(key=lambda point: point.separation)
    if not points:
        return section
    section.text.append(
        "One row for each setting (data set, network, length and recipe) that was trained with CONST and AdaLoss and "
        "at least two seeds of both. *Separation*: CONST's training loss at the last exit as a share of the first "
        "exit's, at the end of the training, mean ± standard deviation over seeds; the smaller, the further apart. "
        "Then how many points of test error CONST and LINEAR are above AdaLoss at the last exit, with 95 % intervals "
        "over seeds: above 0, AdaLoss is better. The numbers are those of the figure, whose points are moved apart a "
        "little where they would cover each other; intervals of two seeds may leave it."
    )
    rows = [
        [f"{number} {p.label}", p.shown, *(each.percent() if each else "–" for each in (p.const, p.linear)), p.const.n]
        for number, p in enumerate(points, start=1)
        if p.const
    ]
    section.table(["", "separation, %", "CONST − AdaLoss", "LINEAR − AdaLoss", "n"], rows)
    section.verdicts = [_verdict("CONST", [p.const for p in points]), _verdict("LINEAR", [p.linear for p in points])]
    caption = "What CONST and LINEAR lose against AdaLoss at the last exit, by the separation of the losses"
    section.figures["all"] = (caption, partial(plot_separation, points))
    return section


def _settings(preset: str, records: Records) -> dict[str, Found]:
    settings: dict[str, Found] = {}
    for run in runs(preset):
        if record := records.find(run):
            key = json.dumps([run.data, run.model, run.images, run.recipe, run.tag], sort_keys=True)
            settings.setdefault(key, {}).setdefault(run.scheme, {})[run.seed] = record
    return settings


def _point(found: Found) -> Point | None:
    const, adaloss = found.get("const", {}), found.get("adaloss", {})
    if len(const.keys() & adaloss.keys()) < 2:
        return None
    run = next(iter(const.values()))["run"]
    left = [loss_left(record) for record in const.values()]
    name, tag = DATA_NAMES[run["data"]], run.get("tag", "").replace("-", " ")
    model = run["model"].removesuffix("-patch2")
    return Point(
        label=f"{name}, {model}, {run['recipe']['epochs']} epochs" + f", {tag}" * bool(tag),
        data=name,
        separation=statistics.mean(left),
        shown=spread(left),
        const=_difference(found, "const"),
        linear=_difference(found, "linear"),
    )


def _difference(found: Found, scheme: str) -> Interval | None:
    theirs, ours = found.get(scheme, {}), found["adaloss"]
    both = sorted(theirs.keys() & ours.keys())
    errors = [[each[seed]["test"]["errors"][-1] for seed in both] for each in (theirs, ours)]
    return Interval.of([a - b for a, b in zip(*errors, strict=True)]) if len(both) > 1 else None


def _verdict(rival: str, intervals: Sequence[Interval | None]) -> str:
    known = [interval for interval in intervals if interval is not None]
    better, worse = (sum(interval.sign == sign for interval in known) for sign in ("positive", "negative"))
    return (
        f"AdaLoss against {rival} at the last exit, {len(known)} settings: better in {better}, worse in {worse}, "
        f"inconclusive in {len(known) - better - worse}."
    )
