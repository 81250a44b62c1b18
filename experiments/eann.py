"""Fig. 5a, b: ensembles of exponentially deepening anytime networks, their members, plain sequences and OPT."""

import statistics
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch

import anytime
from anytime.cost import Costs
from anytime.plotting import plot_held
from experiments.intervals import Interval, compare
from experiments.presets import make
from experiments.records import Record, Records, Section, error_at, last_exit, spread
from experiments.runner import Run

Curve = dict[str, Any]
OPT = "OPT: the best plain network so far"
ILSVRC = ["resann26", "resann50", "resann101"]
TITLE = "EANN against its members, plain sequences and OPT (Fig. 5a, b)"
CLAIM = (
    "on CIFAR-100, EANNs are better than a single ANN in early computation, better with AdaLoss than with CONST since "
    "the last prediction of each network is kept for long, and near OPT; on ILSVRC, better than linear ensembles of "
    "plain networks (plots without numbers)."
)


@dataclass(frozen=True)
class Ensemble:
    """An ensemble of networks, and what it is compared with.

    Args:
        data: what they are trained on.
        models: its networks, small to large.
        linear: the plain networks of a sequence whose depths grow linearly.
        adaloss: the scheme.
        seeds: how many.
    """

    data: str
    models: list[str]
    linear: list[str]
    adaloss: str = "adaloss"
    seeds: int = 1

    def plain(self, preset: str, model: str, seed: int) -> Run:
        """A network trained for its last exit alone."""
        return make(preset, model, self.data, last_exit(model), seed)


ENSEMBLES = {
    "paper": [
        Ensemble("cifar100", [f"resann-{n}-32" for n in (7, 13, 25)], [f"resann-{n}-32" for n in (7, 13, 19, 25)]),
        Ensemble("imagenet", ILSVRC, ILSVRC, adaloss="adaloss:final_extra=1.0"),
    ],
    "laptop": [
        Ensemble(
            "svhn",
            [f"resann-{n}-8-patch2" for n in (1, 2, 4)],
            [f"resann-{n}-8-patch2" for n in (1, 2, 3, 4)],
            seeds=3,
        )
    ],
}


def runs(preset: str) -> list[Run]:
    """Members with both schemes, then networks trained for their last exits alone."""
    made = []
    for each in ENSEMBLES.get(preset, []):
        for seed in range(each.seeds):
            for model in reversed(each.models):  # the longest first
                made += [make(preset, model, each.data, scheme, seed) for scheme in (each.adaloss, "const")]
            made += [each.plain(preset, n, seed) for n in dict.fromkeys((*reversed(each.models), *each.linear))]
    return made


def show(preset: str, records: Records) -> Section:
    """Of each ensemble the plot and the table of errors at shares of its cost."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    for each in ENSEMBLES.get(preset, []):
        curves: dict[str, dict[int, Curve]] = {}
        for seed in range(each.seeds):
            for name, curve in _curves(preset, records, each, seed).items():
                curves.setdefault(name, {})[seed] = curve
        if "EANN with AdaLoss" in curves:
            _add(section, each, curves)
    return section


def _add(section: Section, ensemble: Ensemble, curves: dict[str, dict[int, Curve]]) -> None:
    eanns = [curve for name, seeds in curves.items() if name.startswith("EANN") for curve in seeds.values()]
    whole = max(curve["macs"][-1] for curve in eanns)
    shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    rows = []
    for name, seeds in curves.items():
        each = list(seeds.values())
        at = [[error_at(curve["macs"], curve["errors"], share * whole) for curve in each] for share in shares]
        cells = [spread([error for error in errors if error is not None]) for errors in at]
        cost = statistics.mean(curve["macs"][-1] for curve in each)
        rows.append([name, *cells, f"{cost / 1e6:.2f}", len(each)])
    section.text.append(
        f"**{ensemble.data}**: {', '.join(ensemble.models)}. Test error in % at shares of the cost of the most "
        f"expensive ensemble up to its last offered exit ({whole / 1e6:.2f} million multiply-accumulates), mean ± "
        "standard deviation over seeds; then each one's own whole cost, in millions. The exits that an ensemble offers "
        "were chosen on validation images, for each seed separately. A plain sequence runs all of its networks one "
        "after the other and answers with the one so far that was best on validation images."
    )
    section.table(["", *(f"{share:.0%}" for share in shares), "cost", "n"], rows)
    section.verdicts += _compared(curves, whole)
    figure = {name: [(c["macs"], c["errors"]) for c in seeds.values()] for name, seeds in curves.items()}
    title = f"EANN on {ensemble.data}: each prediction held until a better one"
    dashed = [name for name in figure if "alone" in name or "linear" in name]
    both = [name for name in figure if not name.endswith(("AdaLoss", "CONST"))]
    panels = {scheme: [name for name in figure if name.endswith(scheme)] + both for scheme in ("AdaLoss", "CONST")}
    draw = partial(plot_held, figure, title=title, dashed=dashed, points=[OPT], panels=panels)
    section.figures[ensemble.data] = (f"Test error against cost on {ensemble.data}", draw)


def _compared(curves: dict[str, dict[int, Curve]], whole: float) -> list[str]:
    """Mean errors over all budgets from the first at which all answer, the ensemble with AdaLoss against the others.

    Against its largest member alone also early and late, where they differ most.
    """
    first = max(curve["macs"][0] for seeds in curves.values() for curve in seeds.values())
    budgets = [first + (whole - first) * i / 200 for i in range(201)]
    means = {
        name: {
            seed: statistics.mean(_known([error_at(curve["macs"], curve["errors"], budget) for budget in budgets]))
            for seed, curve in seeds.items()
        }
        for name, seeds in curves.items()
    }
    said = []
    ours = curves["EANN with AdaLoss"]
    for name, theirs in curves.items():
        both = sorted(theirs.keys() & ours.keys())
        if name in ("EANN with AdaLoss", OPT) or not both:
            continue
        difference = Interval.of([means[name][seed] - means["EANN with AdaLoss"][seed] for seed in both])
        said.append(f"Averaged over budgets, {compare('EANN with AdaLoss', name, difference)}.")
        for share in (0.2, 0.6) if name.endswith("alone with AdaLoss") else ():
            at = {seed: _known([error_at(c[seed]["macs"], c[seed]["errors"], share * whole) for c in (theirs, ours)])
                  for seed in both}  # fmt: skip
            difference = Interval.of([single - together for single, together in at.values()])
            said.append(f"At {share:.0%} of the cost {compare('EANN with AdaLoss', name, difference)}.")
    return said


def _curves(preset: str, records: Records, ensemble: Ensemble, seed: int) -> dict[str, Curve]:
    """Costs and test errors of everything that is compared."""
    curves: dict[str, Curve] = {}
    models = ensemble.models
    for scheme, label in ((ensemble.adaloss, "AdaLoss"), ("const", "CONST")):
        found = records.of(make(preset, model, ensemble.data, scheme, seed) for model in models)
        if len(found) == len(models):
            curves[f"EANN with {label}"] = ensemble_curve(found)
            alone = {"macs": found[-1]["macs"], "errors": found[-1]["test"]["errors"]}
            curves[f"{models[-1]} alone with {label}"] = alone
    for label, chosen in (
        ("exponentially deeper plain networks", models),
        ("linearly deeper plain networks", ensemble.linear),
    ):
        found = records.of(ensemble.plain(preset, model, seed) for model in chosen)
        if len(found) == len(chosen):
            curves[label] = sequence_curve(found)
    found = records.of(ensemble.plain(preset, model, seed) for model in ensemble.linear)
    if len(found) == len(ensemble.linear):
        best = accumulate((_known(record["test"]["errors"])[-1] for record in found), min)
        curves[OPT] = {"macs": list(map(_cost_alone, found)), "errors": list(best)}
    return curves


def sequence_curve(members: list[Record]) -> Curve:
    """Plain networks one after the other, all of them run; each time the one so far that was best on validation."""
    errors: list[float] = []
    best = 1.0
    for record in members:
        validation, test = (_known(record[split]["errors"])[-1] for split in ("validation", "test"))
        errors.append(test if validation < best or not errors else errors[-1])
        best = min(best, validation)
    return {"macs": list(accumulate(map(_cost_alone, members))), "errors": errors}


def _cost_alone(record: Record) -> int:
    """Up to the last exit, without the heads before it."""
    return Costs(record["macs"], record["macs"], record["head_macs"]).alone[-1]


def ensemble_curve(members: list[Record]) -> Curve:
    """Costs and test errors of the exits that an ensemble of these networks offers."""
    with torch.device("meta"):
        nets = [_network(record) for record in members]
    example = torch.empty(1, *members[0]["data"]["shape"], device="meta")
    eann = anytime.EANN(nets, example)
    validation, test = ([_known(record[split]["errors"]) for record in members] for split in ("validation", "test"))
    eann.offer({(member, exit): validation[member][exit] for member, exit in eann.offered})
    errors = [test[member][exit] for member, exit in eann.offered]
    return {"macs": anytime.costs(eann, example).macs, "errors": errors, "offered": eann.offered}


def _known(errors: list[float | None]) -> list[float]:
    return [error for error in errors if error is not None]


def _network(record: Record) -> anytime.Network:
    """As it was trained."""
    run, data = record["run"], record["data"]
    return anytime.create_model(run["model"], num_classes=data["classes"], in_channels=data["shape"][0])
