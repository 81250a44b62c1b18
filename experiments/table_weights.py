"""Table (a): relative increase in test error over OPT at 1/4, 1/2, 3/4 and all of the cost, by weight scheme."""

import statistics
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from anytime.evaluation import FRACTIONS
from anytime.plotting import plot_bars
from experiments import comparison
from experiments.claims import NEAR, PERCENT, Claim, Measure, judge
from experiments.comparison import (
    HEADER,
    OPT,
    PLACES,
    Errors,
    Found,
    cells,
    differences,
    draw_differences,
    find,
    increases,
    relative,
)
from experiments.intervals import Interval, compare
from experiments.presets import DATA_SETS, MODELS, NARROW, make
from experiments.records import Records, Section, loss_left, opt_exits, spread
from experiments.runner import Run

TITLE = "Weight schemes against OPT at fractions of the cost (Table a)"
CLAIM = (
    "at half of the cost and later, AdaLoss is closest to networks trained for one exit alone (OPT): at the end it "
    "makes 2.7 % more errors than OPT, LINEAR 12.7 %, CONST 18.9 % (mean of 12 ResANNs on CIFAR-10, CIFAR-100 and "
    "SVHN)."
)
SCHEMES = {"const": "CONST", "linear": "LINEAR", "adaloss": "AdaLoss"}
CONTROLS = {
    "scaled-const": "CONST with AdaLoss's gradient size",
    "random-const": "CONST as the authors' scripts ran it",
}
PAPER = {
    "CONST": (15.07, 16.40, 18.76, 18.90),
    "LINEAR": (25.67, 13.02, 12.97, 12.65),
    "AdaLoss": (32.99, 9.97, 3.96, 2.73),
}
PAPER_MODELS = [f"resann-{n}-{c}" for c in (16, 32) for n in (7, 9, 13, 17, 25)] + ["resann-9-64", "resann-9-128"]


class Setting(NamedTuple):
    """Networks that are trained on a data set, each with all schemes, OPT or the controls as well."""

    data: str
    models: Sequence[str]
    seeds: int
    opt: bool = True
    control_seeds: int = 0


NARROW_CIFAR = "cifar10 (narrow)"
SETTINGS: dict[str, dict[str, Setting]] = {
    "minutes": {"svhn": Setting("svhn", [MODELS["svhn"]], 1)},
    "laptop": {
        "svhn": Setting("svhn", [MODELS["svhn"]], 10, control_seeds=5),
        "cifar10": Setting("cifar10", [MODELS["cifar10"]], 5, opt=False),
        NARROW_CIFAR: Setting("cifar10", [NARROW], 5),
        "cifar100": Setting("cifar100", [MODELS["cifar100"]], 3),
    },
    "paper": {data: Setting(data, PAPER_MODELS, 1) for data in DATA_SETS},
}
"""By label."""
BOTH_CIFAR = "cifar10 (both)"
"""The two networks compared together, as the paper does with its twelve: their mean of each seed."""
NAMES = {
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    NARROW_CIFAR: "CIFAR-10, narrow",
    BOTH_CIFAR: "CIFAR-10, two networks",
    "cifar100": "CIFAR-100, no crops",
}
TABLE = "Table a"
WORDS = ("1/4 of the cost", "1/2 of the cost", "3/4 of the cost", "the end")


def runs(preset: str) -> list[Run]:
    """In each setting, seed by seed, all schemes and OPT at the exits within the fractions; then the controls."""
    made = []
    for setting in SETTINGS[preset].values():
        for seed in range(setting.seeds):
            for model in setting.models:
                opts = [f"opt-{exit + 1}" for exit in dict.fromkeys(reversed(opt_exits(model, FRACTIONS)))]
                made += [make(preset, model, setting.data, s, seed) for s in (*SCHEMES, *(opts if setting.opt else ()))]
        for seed in range(setting.control_seeds):
            made += [make(preset, setting.models[0], setting.data, scheme, seed) for scheme in CONTROLS]
    return made


def show(preset: str, records: Records) -> Section:
    """Test errors, increases over OPT beside the paper's, paired differences, and what they say."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    errors = {
        label: find(preset, records, setting.models, setting.data, SCHEMES | CONTROLS, setting.seeds)
        for label, setting in SETTINGS[preset].items()
    }
    errors = {label: found for label, found in errors.items() if "AdaLoss" in found and len(found) > 1}
    if not errors:
        _add_increases(section, {})
        return section
    paired = {label: differences(found, "AdaLoss") for label, found in _with_both(errors).items()}
    section.claims = _claims(_with_both(errors))
    section.text.append(
        "Test error in % at fractions of the cost, mean ± standard deviation over seeds (and models, if several)."
    )
    section.table(
        HEADER,
        [
            [f"{label}, {scheme}", *cells(found.values()), len(found)]
            for label, schemes in errors.items()
            for scheme, found in schemes.items()
        ],
    )
    if NARROW_CIFAR in errors:
        section.text.append(
            f"{NARROW_CIFAR} is {NARROW}, of a quarter of {MODELS['cifar10']}'s cost. It was added when five seeds of "
            "the larger one were inconclusive; its seed 0 was a pilot, after which four more were fixed. OPT is "
            f"trained for the narrow one only. {BOTH_CIFAR}: the mean of both networks' differences of each seed."
        )
    _add_increases(section, errors)
    _add_differences(section, paired)
    _add_controls(section, errors)
    _add_losses(section, preset, records)
    return section


def _with_both(errors: dict[str, Found]) -> dict[str, Found]:
    """The settings, and after the two networks on CIFAR-10 both as one, with the seeds that both have of a scheme."""
    result: dict[str, Found] = {}
    for label, found in errors.items():
        result[label] = found
        if label == NARROW_CIFAR and "cifar10" in errors:
            result[BOTH_CIFAR] = {
                scheme: both
                for scheme in SCHEMES.values()
                if (both := _shared(errors["cifar10"].get(scheme, {}), found.get(scheme, {})))
            }
    return result


def _shared(*networks: Errors) -> Errors:
    """The errors of several networks, of the seeds that all of them have."""
    seeds = set.intersection(*({seed for _, seed in errors} for errors in networks))
    return {key: row for errors in networks for key, row in errors.items() if key[1] in seeds}


def _add_increases(section: Section, errors: dict[str, Found]) -> None:
    shown = {
        data: {label: labels[label] for label in (*SCHEMES.values(), OPT) if label in labels}
        for data, labels in errors.items()
    }
    found = {data: rows for data, labels in shown.items() if (rows := increases(labels))}
    section.text.append(
        "The paper's measure: relative increase in test error over a network trained for that exit alone, in %, mean ± "
        "standard deviation."
    )
    rows = [
        [f"{data}, {label}", *cells(each), len(each)]
        for data, labels in found.items()
        for label, each in labels.items()
    ]
    rows += [[f"the paper, {label}", *(f"{value:.1f}" for value in values), 36] for label, values in PAPER.items()]
    section.table(HEADER, rows)
    regularized = [data for data, labels in found.items() if all(_mean_last(each) < 0 for each in labels.values())]
    if regularized:
        section.text.append(
            f"On {' and '.join(regularized)} a network trained for its last exit alone makes more test errors than all "
            "networks with every exit, though its training loss is lower: the images, not the network's capacity, are "
            "the limit, and the early exits' losses regularize."
        )
    # Without the first place, where tens of percent would hide the others.
    panels = {
        data: {label: list(zip(*each, strict=True))[1:] for label, each in labels.items()}
        for data, labels in found.items()
    }
    if panels:
        panels["the paper"] = {label: [(value / 100,) for value in values[1:]] for label, values in PAPER.items()}
        draw = partial(plot_bars, panels, PLACES[1:], x_name="fraction of the cost", y_name="more errors than OPT (%)")
        section.figures["increase"] = ("Relative increase of the test error over OPT (± standard deviation)", draw)


def _mean_last(rows: list[list[float]]) -> float:
    return statistics.mean(row[-1] for row in rows)


def over_opt(scheme: str, where: str, more: Sequence[float]) -> Claim:
    """How many more errors than OPT a scheme makes at the end; ``more``: by seed, as shares."""
    near = NEAR if scheme == "AdaLoss" else None
    says = f"{scheme} makes more errors than OPT at the end" if near is None else f"{scheme} is near OPT at the end"
    return judge(TABLE, says, f"{PAPER[scheme][-1]} %", where, more, PERCENT, below=near)


def compared(better: str, worse: str, place: int, where: str, values: Sequence[float]) -> Claim:
    """That a scheme makes fewer errors than another at one of the fractions; ``values``: by seed, how many fewer."""
    numbers = f"{PAPER[better][place]} against {PAPER[worse][place]} % over OPT"
    return judge(TABLE, f"{better} makes fewer errors than {worse} at {WORDS[place]}", numbers, where, values)


def _claims(errors: dict[str, Found]) -> list[Claim]:
    """What the paper's table says, for each data set: of CIFAR-10 both networks, over OPT the narrow one."""
    made, (quarter, half, late, end) = [], range(len(FRACTIONS))
    for label, found in errors.items():
        if OPT in found:
            over, where = {scheme: relative(found, scheme) for scheme in PAPER}, NAMES.get(label, label)
            made += [over_opt(scheme, where, [row[end] for row in rows.values()]) for scheme, rows in over.items()]
            grows = [row[end] - row[quarter] for row in over["CONST"].values()]
            says = "CONST's increase over OPT grows from 1/4 to the end"
            made.append(judge(TABLE, says, "15.07 to 18.90 %", where, grows, Measure("% of OPT's error", digits=1)))
    ahead = [("AdaLoss", rival, place) for place in (end, late, half) for rival in ("CONST", "LINEAR")]
    for label, found in errors.items():
        if label in ("cifar10", NARROW_CIFAR) and BOTH_CIFAR in errors:
            continue
        for better, worse, place in (*ahead, ("CONST", "AdaLoss", quarter), ("LINEAR", "AdaLoss", quarter)):
            values = [row[place] for row in comparison.paired(found, worse, better).values()]
            made.append(compared(better, worse, place, NAMES.get(label, label), values))
    return made


def _add_differences(section: Section, paired: dict[str, dict[str, list[Interval]]]) -> None:
    section.text.append(
        "Paired differences: test error minus AdaLoss's of the same seed, in points, with the 95 % interval of the "
        "mean (Student's t over seeds). Above 0, AdaLoss is better."
    )
    section.table(
        HEADER,
        [
            [f"{data}, {label} − AdaLoss", *(each.percent() for each in found), found[0].n]
            for data, labels in paired.items()
            for label, found in labels.items()
        ],
    )
    panels = {
        data: {label: found for label, found in labels.items() if label in SCHEMES.values()}
        for data, labels in paired.items()
    }
    draw_differences(section, {data: labels for data, labels in panels.items() if labels}, "AdaLoss")


def _add_controls(section: Section, errors: dict[str, Found]) -> None:
    """The last exit's errors with each control, between CONST's and AdaLoss's."""
    for data, labels in errors.items():
        for control in CONTROLS.values():
            parts = [labels.get(label, {}) for label in ("CONST", control, "AdaLoss")]
            seeds = set.intersection(*map(set, parts))
            if not seeds:
                continue
            const, middle, adaloss = ([part[key][-1] for key in sorted(seeds)] for part in parts)
            gain = Interval.of([a - b for a, b in zip(const, middle, strict=True)])
            section.text.append(
                f"Control on {data}: {control}. At the last exit CONST is at {spread(const)} %, the control at "
                f"{spread(middle)} %, AdaLoss at {spread(adaloss)} %; " + compare("the control", "CONST", gain) + "."
            )


def _add_losses(section: Section, preset: str, records: Records) -> None:
    """How far apart the losses are, which determines AdaLoss's weights."""
    rows = []
    for setting in SETTINGS[preset].values():
        data, model = setting.data, setting.models[0]
        const, adaloss = (
            list(records.seeds(preset, model, data, scheme, setting.seeds).values()) for scheme in ("const", "adaloss")
        )
        if const and adaloss:
            first, last = (statistics.mean(r["train"]["losses"][exit] for r in const) for exit in (0, -1))
            left = statistics.mean(map(loss_left, const))
            weight = statistics.mean(r["weights"][0] / r["weights"][-1] for r in adaloss)
            rows.append([f"{data}, {model}", *(f"{value:.2f}" for value in (first, last, left, weight))])
    if rows:
        section.text.append(
            "AdaLoss moves weight to the late exits as far as their losses fall below the early ones'. How far that "
            "was at the end of training, mean over seeds: CONST's training losses, and AdaLoss's weights."
        )
        header = ["", "loss, exit 1", "loss, last exit", "last / first", "weight, first / last"]
        section.table(header, rows)
