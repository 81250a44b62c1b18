"""Fig. 5a, b: ensembles of exponentially deepening anytime networks, their members, plain sequences and OPT."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

import anytime
from anytime.plot import plot_held
from experiments.records import Record, Records, Section, error_at, percent, spread
from experiments.runner import Run, make

TITLE = "EANN against its members, plain sequences and OPT (Fig. 5a, b)"
SEEDS = {"paper": 1, "laptop": 1}
DATA = {"paper": "cifar100", "laptop": "cifar10"}
EXPONENTIAL = {"paper": (7, 13, 25), "laptop": (1, 2, 4)}
LINEAR = {"paper": (7, 13, 19, 25), "laptop": (1, 2, 3, 4)}
WIDTHS = {"paper": (32,), "laptop": (8, 32)}
"""Of the first block. On few small images networks of width 32 gain little from depth, those of width 8 much."""


def runs(preset: str) -> list[Run]:
    """Members with both schemes, then networks trained for their last exits alone."""
    made = []
    for width in WIDTHS[preset]:
        for seed in range(SEEDS[preset]):
            for n in reversed(EXPONENTIAL[preset]):  # the longest first
                made += [_member(preset, n, width, scheme, seed) for scheme in ("adaloss", "const")]
            depths = dict.fromkeys((*reversed(EXPONENTIAL[preset]), *LINEAR[preset]))
            made += [_plain(preset, n, width, seed) for n in depths]
    if preset == "paper":
        for model, exits in (("resann26", 4), ("resann50", 8), ("resann101", 11)):
            made += [make(preset, model, "imagenet", scheme) for scheme in ("adaloss", f"opt-{exits}")]
    return made


def _member(preset: str, n: int, width: int, scheme: str, seed: int) -> Run:
    return make(preset, f"resann-{n}-{width}", DATA[preset], scheme, seed)


def _plain(preset: str, n: int, width: int, seed: int) -> Run:
    return _member(preset, n, width, f"opt-{3 * n if n < 25 else n}", seed)


def show(preset: str, records: Records) -> Section:
    """For each width the plot and the table of errors at shares of the ensemble's cost."""
    section = Section(TITLE, records=records.of(runs(preset)))
    for width in WIDTHS[preset]:
        curves: dict[str, list[dict[str, Any]]] = {}
        for seed in range(SEEDS[preset]):
            for name, curve in _curves(preset, records, width, seed).items():
                curves.setdefault(name, []).append(curve)
        if "EANN, AdaLoss" in curves:
            _add(section, preset, width, curves)
    if not section.figures:
        section.text.append("No ensemble is finished yet.")
    section.text.append(
        "The paper, on CIFAR-100 (a plot without numbers): EANNs are better than a single ANN in early computation, "
        "better with AdaLoss than with CONST since the last prediction of each network is kept for long, and near OPT "
        "because of saturation; on ILSVRC, better than linear ensembles of plain networks."
    )
    return section


def _add(section: Section, preset: str, width: int, curves: dict[str, list[dict[str, Any]]]) -> None:
    whole = max(curve["macs"][-1] for name, seeds in curves.items() if name.startswith("EANN") for curve in seeds)
    shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    rows = []
    for name, seeds in curves.items():
        at = [[error_at(curve["macs"], curve["errors"], share * whole) for curve in seeds] for share in shares]
        cells = [spread([error for error in errors if error is not None]) for errors in at]
        rows.append([name, *cells, f"{seeds[0]['macs'][-1] / 1e6:.2f}"])
    members = ", ".join(f"ResANN({n}, {width})" for n in EXPONENTIAL[preset])
    section.text.append(
        f"**Width {width}**: members {members} on {DATA[preset]}. Test error in % at shares of the cost of the dearer "
        f"ensemble up to its last offered exit ({whole / 1e6:.2f} million multiply-accumulates); the last column is "
        "each one's own whole cost, in millions. Which exits an ensemble offers was decided on 5,000 held-out images."
    )
    if "plain networks, exponential" not in curves:
        section.text.append("The plain networks of this width have not been trained yet.")
    section.table(["", *(f"{share:.0%}" for share in shares), "cost"], rows)
    section.text.append(_compared(curves, whole))
    figure = {name: [(c["macs"], c["errors"]) for c in seeds] for name, seeds in curves.items()}
    title = f"EANN of width {width} on {DATA[preset]}: each prediction held until a better one"
    section.figures.append((f"Test error against cost, width {width}", partial(_draw, figure, title)))


def _draw(curves: dict[str, Any], title: str, path: Path) -> Path:
    return plot_held(curves, path, title)


def _compared(curves: dict[str, list[dict[str, Any]]], whole: float) -> str:
    """The mean error over all budgets from the ensembles' first answer to their end, of each."""
    first = curves["EANN, AdaLoss"][0]["macs"][0]
    budgets = [first + (whole - first) * i / 200 for i in range(201)]
    means = {}
    for name, seeds in curves.items():
        each = [error_at(seeds[0]["macs"], seeds[0]["errors"], budget) for budget in budgets]
        if None not in each:
            means[name] = sum(error or 0 for error in each) / len(each)
    listed = ", ".join(f"{name} {percent(mean, 2)}" for name, mean in sorted(means.items(), key=lambda item: item[1]))
    return f"Mean error over budgets drawn evenly from the ensembles' first answer to their end, in %: {listed}."


def _curves(preset: str, records: Records, width: int, seed: int) -> dict[str, dict[str, Any]]:
    """Costs and test errors of everything that is compared."""
    curves: dict[str, dict[str, Any]] = {}
    depths = EXPONENTIAL[preset]
    for scheme, label in (("adaloss", "AdaLoss"), ("const", "CONST")):
        found = records.of(_member(preset, n, width, scheme, seed) for n in depths)
        if len(found) == len(depths):
            curves[f"EANN, {label}"] = ensemble_curve(found)
            alone = {"macs": found[-1]["macs"], "errors": found[-1]["test"]["errors"]}
            curves[f"ResANN({depths[-1]}, {width}) alone, {label}"] = alone
    for label, chosen in (("plain networks, exponential", depths), ("plain networks, linear", LINEAR[preset])):
        found = records.of(_plain(preset, n, width, seed) for n in chosen)
        if len(found) == len(chosen):
            curves[label] = ensemble_curve(found)
    found = records.of(_plain(preset, n, width, seed) for n in LINEAR[preset])
    if len(found) > 1:
        plain = [_plain_cost(record) for record in found]
        curves["OPT: one plain network"] = {"macs": plain, "errors": [_last(r["test"]["errors"]) for r in found]}
    return curves


def ensemble_curve(members: list[Record]) -> dict[str, Any]:
    """Costs and test errors of the exits that an ensemble of these networks offers."""
    with torch.device("meta"):
        nets = [_network(record) for record in members]
    example = torch.empty(1, 3, members[0]["run"]["size"] or 32, members[0]["run"]["size"] or 32, device="meta")
    eann = anytime.EANN(nets, example)
    validation, test = ([_known(record[split]["errors"]) for record in members] for split in ("validation", "test"))
    eann.offer({(member, exit): validation[member][exit] for member, exit in eann.offered})
    errors = [test[member][exit] for member, exit in eann.offered]
    return {"macs": anytime.costs(eann, example).macs, "errors": errors, "offered": eann.offered}


def _known(errors: list[float | None]) -> list[float]:
    return [error for error in errors if error is not None]


def _last(errors: list[float | None]) -> float:
    return _known(errors)[-1]


def _network(record: Record) -> anytime.AnytimeNetwork:
    """As it was trained; a network trained for one exit has that alone."""
    run = record["run"]
    classes = 100 if run["data"] == "cifar100" else 10
    net = anytime.create_model(run["model"], num_classes=classes)
    if not run["scheme"].startswith("opt-"):
        return net
    exit = int(run["scheme"].removeprefix("opt-"))
    stages = torch.nn.Sequential(*list(net.stages)[:exit])
    plain = anytime.AnytimeNetwork([stages], [net.heads[exit - 1]])
    plain.image_size = net.image_size
    return plain


def _plain_cost(record: Record) -> int:
    exit = int(record["run"]["scheme"].removeprefix("opt-"))
    return record["macs"][exit - 1] - sum(record["head_macs"][: exit - 1])
