"""Fig. 5a, b: ensembles of exponentially deepening anytime networks, their members, plain sequences and OPT."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch

import anytime
from anytime.cost import Costs
from anytime.ensemble import expected_inflation, sup_inflation
from anytime.ensemble.theory import simulate_inflation, sup_schedule
from anytime.plotting import plot_held
from experiments.claims import NEAR, PERCENT, Claim, judge, not_tried
from experiments.presets import DATA_NAMES, make
from experiments.records import Record, Records, Section, error_at, last_exit, spread
from experiments.runner import Run

Curve = dict[str, Any]
OPT = "OPT: the best plain network so far"
LINEAR = "linearly deeper plain networks"
FIGURE = "Fig. 5a, b"
UNTRIED = {
    "cifar100": "an EANN is near OPT, on average over budgets",
    "imagenet": "an EANN makes fewer errors than a linear ensemble, on average over budgets",
}
"""What the paper says of data sets that a preset may not have."""
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
    tried = {each.data for each in ENSEMBLES.get(preset, []) if section.records}
    for data, says in UNTRIED.items():
        if data not in tried:
            section.claims.append(not_tried(FIGURE, says, "plot", DATA_NAMES[data]))
    section.claims += _theory() if section.records else []
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
    claims, more = _claims(ensemble, curves, whole)
    section.claims += claims
    section.verdicts += [claim.sentence() for claim in more]
    figure = {name: [(c["macs"], c["errors"]) for c in seeds.values()] for name, seeds in curves.items()}
    title = f"EANN on {ensemble.data}: each prediction held until a better one"
    dashed = [name for name in figure if "alone" in name or "linear" in name]
    both = [name for name in figure if not name.endswith(("AdaLoss", "CONST"))]
    panels = {scheme: [name for name in figure if name.endswith(scheme)] + both for scheme in ("AdaLoss", "CONST")}
    draw = partial(plot_held, figure, title=title, dashed=dashed, points=[OPT], panels=panels)
    section.figures[ensemble.data] = (f"Test error against cost on {ensemble.data}", draw)


def _claims(ensemble: Ensemble, curves: dict[str, dict[int, Curve]], whole: float) -> tuple[list[Claim], list[Claim]]:
    """Errors averaged over the budgets from the first at which all answer; against a single network also early.

    The paper's claims, and what else can be asked.
    """
    ours, (*_, large) = "EANN with AdaLoss", ensemble.models
    single = f"{large} alone with AdaLoss"
    networks = ", ".join(ensemble.models)

    def by_seed(name: str, value: Callable[[Curve, Curve], float]) -> list[float]:
        both = sorted(curves.get(name, {}).keys() & curves[ours].keys())
        return [value(curves[ours][seed], curves[name][seed]) for seed in both]

    first = max(curve["macs"][0] for seeds in curves.values() for curve in seeds.values())
    budgets = [first + (whole - first) * i / 200 for i in range(201)]

    over = ", on average over budgets"
    where = f"{DATA_NAMES[ensemble.data]}, {networks}, from {first / whole:.0%} of the cost on"

    def mean(curve: Curve) -> float:
        return statistics.mean(_known([error_at(curve["macs"], curve["errors"], budget) for budget in budgets]))

    def fewer(mine: Curve, theirs: Curve) -> float:
        return mean(theirs) - mean(mine)

    def increase(mine: Curve, theirs: Curve) -> float:
        return mean(mine) / mean(theirs) - 1

    def at(share: float) -> Callable[[Curve, Curve], float]:
        def value(mine: Curve, theirs: Curve) -> float:
            first, second = _known([error_at(c["macs"], c["errors"], share * whole) for c in (mine, theirs)])
            return second - first

        return value

    return [
        judge(FIGURE, "an EANN makes fewer errors than its largest network early (at 20 % of the cost)", "plot", where,
              by_seed(single, at(0.2))),
        judge(FIGURE, f"an EANN makes fewer errors with AdaLoss than with CONST{over}", "plot", where,
              by_seed("EANN with CONST", fewer)),
        judge(FIGURE, f"an EANN is near OPT{over}", "plot", where, by_seed(OPT, increase), PERCENT, below=NEAR),
        judge(FIGURE, f"an EANN makes fewer errors than a linear ensemble{over}", "plot", where,
              by_seed(LINEAR, fewer)),
    ], [
        *(
            judge("Beyond the paper", f"an EANN makes fewer errors than {name}{over}", "–", where, by_seed(name, fewer))
            for name in curves
            if name not in (ours, OPT, "EANN with CONST", LINEAR)
        ),
        judge("Beyond the paper", "an EANN makes fewer errors than its largest network at 60 % of the cost", "–", where,
              by_seed(single, at(0.6))),
    ]  # fmt: skip


def _theory() -> list[Claim]:
    """The proposition on the cost of an EANN: derived in ``anytime.ensemble.theory``, played in its tests."""
    base, (largest, mean) = 2, simulate_inflation(2)
    formula = f"{sup_inflation(base):.2f} for b = {base}"
    where, derived = f"every budget played, b = {base}", "shown; derived"
    made = [Claim("Prop. 1", "sup C = 2 + 1/(b − 1)", formula, where, f"{largest:.2f}", derived)]
    formula, says = f"{expected_inflation(base):.2f} for b = {base}", "E C ≤ 1 − 1/(2b) + (1 + ln b)/(b − 1)"
    made.append(Claim("Prop. 1", says, formula, where, f"{mean:.2f}", derived))
    formula = ", ".join(f"{sup_inflation(base, workers):.2f} for M = {workers}" for workers in (2, 3))
    ours = ", ".join(f"{sup_schedule(base, workers):.2f}" for workers in (2, 3))
    says = "with M workers sup C = 2 + 1/(bᴹ − 1)"
    verdict = "shown; as a bound that is loose: the supremum is 1 + b/(bᴹ − 1)"
    return [*made, Claim("Sec. 4", says, formula, f"derived and played, b = {base}", ours, verdict)]


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
        (LINEAR, ensemble.linear),
    ):
        found = records.of(ensemble.plain(preset, model, seed) for model in chosen)
        if len(found) == len(chosen):
            curves[label] = sequence_curve(found)
    found = records.of(ensemble.plain(preset, model, seed) for model in ensemble.linear)
    if len(found) == len(ensemble.linear):
        curves[OPT] = {**sequence_curve(found), "macs": list(map(_cost_alone, found))}  # each for itself
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
