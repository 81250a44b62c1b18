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
from experiments.records import Record, Records, Section, error_at, last_exit, spread
from experiments.runner import Run, make

Curve = dict[str, Any]
OPT = "OPT: the best plain network so far"
ILSVRC = ["resann26", "resann50", "resann101"]
TITLE = "EANN against its members, plain sequences and OPT (Fig. 5a, b)"


@dataclass(frozen=True)
class Ensemble:
    """Networks in a row, and what they are compared with.

    Args:
        data: what they are trained on.
        models: its networks, small to large.
        linear: the plain networks of a sequence that grows linearly.
        adaloss: the scheme.
        seeds: how many.
        few: on few images, often (see ``make``).
    """

    data: str
    models: list[str]
    linear: list[str]
    adaloss: str = "adaloss"
    seeds: int = 1
    few: bool = False

    def member(self, preset: str, model: str, scheme: str, seed: int) -> Run:
        """A network of the ensemble."""
        return make(preset, model, self.data, scheme, seed, self.few)

    def plain(self, preset: str, model: str, seed: int) -> Run:
        """The same trained for its last exit alone."""
        return self.member(preset, model, last_exit(model), seed)


ENSEMBLES = {
    "paper": [
        Ensemble("cifar100", [f"resann-{n}-32" for n in (7, 13, 25)], [f"resann-{n}-32" for n in (7, 13, 19, 25)]),
        Ensemble("imagenet", ILSVRC, ILSVRC, adaloss="adaloss:final_extra=1.0"),
    ],
    "laptop": [
        Ensemble("cifar10", [f"resann-{n}-8" for n in (1, 2, 4)], [f"resann-{n}-8" for n in (1, 2, 3, 4)], few=True),
    ],
}


def runs(preset: str) -> list[Run]:
    """Members with both schemes, then networks trained for their last exits alone."""
    made = []
    for each in ENSEMBLES[preset]:
        for seed in range(each.seeds):
            for model in reversed(each.models):  # the longest first
                made += [each.member(preset, model, scheme, seed) for scheme in (each.adaloss, "const")]
            made += [each.plain(preset, n, seed) for n in dict.fromkeys((*reversed(each.models), *each.linear))]
    return made


def show(preset: str, records: Records) -> Section:
    """Of each ensemble the plot and the table of errors at shares of its cost."""
    section = Section(TITLE, records=records.of(runs(preset)))
    for each in ENSEMBLES[preset]:
        curves: dict[str, list[Curve]] = {}
        for seed in range(each.seeds):
            for name, curve in _curves(preset, records, each, seed).items():
                curves.setdefault(name, []).append(curve)
        if "EANN, AdaLoss" in curves:
            _add(section, each, curves)
    if not section.figures:
        section.text.append("No ensemble is finished yet.")
    section.text.append(
        "The paper, on CIFAR-100 (a plot without numbers): EANNs are better than a single ANN in early computation,"
        " better with AdaLoss than with CONST since the last prediction of each network is kept for long, and near "
        "OPT because of saturation; on ILSVRC, better than linear ensembles of plain networks."
    )
    return section


def _add(section: Section, ensemble: Ensemble, curves: dict[str, list[Curve]]) -> None:
    whole = max(curve["macs"][-1] for name, seeds in curves.items() if name.startswith("EANN") for curve in seeds)
    shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    rows = []
    for name, seeds in curves.items():
        at = [[error_at(curve["macs"], curve["errors"], share * whole) for curve in seeds] for share in shares]
        cells = [spread([error for error in errors if error is not None]) for errors in at]
        cost = statistics.mean(curve["macs"][-1] for curve in seeds)
        rows.append([name, *cells, f"{cost / 1e6:.2f}", len(seeds)])
    images = " (few images, often)" if ensemble.few else ""
    section.text.append(
        f"**{ensemble.data}**{images}: {', '.join(ensemble.models)}. Test error in % at shares of the cost of the "
        f"dearest ensemble up to its last offered exit ({whole / 1e6:.2f} million multiply-accumulates), mean ± "
        "standard deviation over seeds; then each one's own whole cost, in millions. Which exits an ensemble offers "
        "was decided on held-out images, for each seed anew."
    )
    section.table(["", *(f"{share:.0%}" for share in shares), "cost", "n"], rows)
    section.text += _compared(curves, whole)
    figure = {name: [(c["macs"], c["errors"]) for c in seeds] for name, seeds in curves.items()}
    title = f"EANN on {ensemble.data}: each prediction held until a better one"
    dashed = [name for name in figure if "alone" in name or "linear" in name]
    both = [name for name in figure if not name.endswith(("AdaLoss", "CONST"))]
    panels = {scheme: [name for name in figure if name.endswith(scheme)] + both for scheme in ("AdaLoss", "CONST")}
    draw = partial(plot_held, figure, title=title, dashed=dashed, points=[OPT], panels=panels)
    section.figures[ensemble.data] = (f"Test error against cost on {ensemble.data}", draw)


def _compared(curves: dict[str, list[Curve]], whole: float) -> list[str]:
    """The mean error over all budgets, first of what answers as early as the ensembles, then of everything."""
    said = []
    for since, names in {
        "the ensembles' first answer": [name for name in curves if name.startswith(("EANN", "ResANN"))],
        "the first answer of all": list(curves),
    }.items():
        first = max(curve["macs"][0] for name in names for curve in curves[name])
        budgets = [first + (whole - first) * i / 200 for i in range(201)]
        means = {
            name: [
                statistics.mean(error_at(curve["macs"], curve["errors"], budget) or 0.0 for budget in budgets)
                for curve in curves[name]
            ]
            for name in names
        }
        ordered = sorted(means.items(), key=lambda item: statistics.mean(item[1]))
        listed = ", ".join(f"{name} {spread(values, 2)}" for name, values in ordered)
        said.append(f"Mean error over budgets drawn evenly from {since} to the ensembles' end, in %: {listed}.")
    return said


def _curves(preset: str, records: Records, ensemble: Ensemble, seed: int) -> dict[str, Curve]:
    """Costs and test errors of everything that is compared."""
    curves: dict[str, Curve] = {}
    models = ensemble.models
    for scheme, label in ((ensemble.adaloss, "AdaLoss"), ("const", "CONST")):
        found = records.of(ensemble.member(preset, model, scheme, seed) for model in models)
        if len(found) == len(models):
            curves[f"EANN, {label}"] = ensemble_curve(found)
            alone = {"macs": found[-1]["macs"], "errors": found[-1]["test"]["errors"]}
            curves[f"{models[-1]} alone, {label}"] = alone
    for label, chosen in (("plain networks, exponential", models), ("plain networks, linear", ensemble.linear)):
        found = records.of(ensemble.plain(preset, model, seed) for model in chosen)
        if len(found) == len(chosen):
            curves[label] = ensemble_curve(found)
    found = records.of(ensemble.plain(preset, model, seed) for model in ensemble.linear)
    if len(found) == len(ensemble.linear):
        macs = [Costs(r["macs"], r["macs"], r["head_macs"]).alone[-1] for r in found]
        best = accumulate((_known(r["test"]["errors"])[-1] for r in found), min)
        curves[OPT] = {"macs": macs, "errors": list(best)}
    return curves


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


def _network(record: Record) -> anytime.AnytimeNetwork:
    """As it was trained; a network trained for one exit has that alone."""
    run, data = record["run"], record["data"]
    net = anytime.create_model(run["model"], num_classes=data["classes"], in_channels=data["shape"][0])
    if not run["scheme"].startswith("opt-"):
        return net
    exit = int(run["scheme"].removeprefix("opt-"))
    stages = torch.nn.Sequential(*list(net.stages)[:exit])
    plain = anytime.AnytimeNetwork([stages], [net.heads[exit - 1]])
    plain.image_size = net.image_size
    return plain
