"""Beyond the paper: what later work adds to the training of all exits, with AdaLoss and with CONST."""

from anytime.evaluation import FRACTIONS
from experiments.intervals import Interval, compare
from experiments.presets import MODELS, make
from experiments.records import Record, Records, Section, errors_at, opt_exits, spread
from experiments.runner import Run

TITLE = "Training extras (beyond the paper)"
CLAIM = (
    "nothing of this; each extra has a paper of its own. Gradient equilibrium (IMTA) reports CIFAR-100 MSDNet's last "
    "exit at 76.0 % instead of 73.9 %, boosted exits (BoostNet) 1 to 3 points more at the middle exits, "
    "self-distillation (Phuong & Lampert) most where data are few. The goal here: no more errors than OPT at 1/2, 3/4 "
    "and all of the cost, and at most 10 % more at 1/4."
)
BASES = {"adaloss": "AdaLoss", "const": "CONST"}
EXTRAS = {
    "adaloss+equilibrium": "AdaLoss, equilibrium",
    "adaloss+distill": "AdaLoss, distillation",
    "adaloss+boosting": "AdaLoss, boosted exits",
    "adaloss+anneal": "AdaLoss, γ annealed",
    "adaloss+anneal+boosting": "AdaLoss, γ annealed, boosted exits",
    "first-order": "first-order AdaLoss",
    "famo": "FAMO",
    "adaloss+equilibrium+distill": "AdaLoss, equilibrium and distillation",
    "const+equilibrium": "CONST, equilibrium",
    "const+distill": "CONST, distillation",
    "const+boosting": "CONST, boosted exits",
}
SETTINGS: dict[str, list[tuple[str, str, int]]] = {
    "minutes": [],  # the first look is at the paper's own table
    "laptop": [(MODELS["svhn"], "svhn", 3), ("msdnet-cifar-4-2-1", "svhn", 1), (MODELS["cifar10"], "cifar10", 3)],
    "paper": [("resann-9-16", "svhn", 1), ("resann-9-16", "cifar10", 1), ("msdnet-cifar", "cifar100", 1)],
}
"""Network, data set and number of seeds; with the paper's means IMTA's and BoostNet's own network on CIFAR-100."""
PLACES = [f"{fraction:g} of the cost" for fraction in FRACTIONS]


def runs(preset: str) -> list[Run]:
    """Seed by seed all extras, the schemes that they are compared with, and OPT."""
    made = []
    for model, data, seeds in SETTINGS[preset]:
        opts = [f"opt-{exit + 1}" for exit in opt_exits(model, FRACTIONS)]
        for seed in range(seeds):
            made += [make(preset, model, data, scheme, seed) for scheme in (*BASES, *EXTRAS, *opts)]
    return made


def show(preset: str, records: Records) -> Section:
    """Test errors at fractions of the cost, relative to OPT, and paired with AdaLoss's of the same seed."""
    section = Section(TITLE, CLAIM, records.of(runs(preset)), len(runs(preset)))
    for model, data, seeds in SETTINGS[preset]:
        found = {scheme: _first(records.seeds(preset, model, data, scheme), seeds) for scheme in BASES | EXTRAS}
        if any(found[scheme] for scheme in EXTRAS):
            where = f"{data} ({model})"
            _add_errors(section, where, found)
            _add_increases(section, where, found, _opt(preset, records, model, data))
            _add_differences(section, where, found)
    return section


def _first(found: dict[int, Record], seeds: int) -> dict[int, Record]:
    """Without the further seeds that other experiments have of a scheme."""
    return {seed: record for seed, record in found.items() if seed < seeds}


def _opt(preset: str, records: Records, model: str, data: str) -> dict[int, list[float]]:
    """By seed, OPT's errors at the fractions; only where all of its exits are done."""
    exits = [opt_exits(model, (fraction,))[0] for fraction in FRACTIONS]
    found = [records.seeds(preset, model, data, f"opt-{exit + 1}") for exit in exits]
    seeds = sorted(set.intersection(*map(set, found)))
    return {
        seed: [of_exit[seed]["test"]["errors"][exit] for of_exit, exit in zip(found, exits, strict=True)]
        for seed in seeds
    }


def _add_errors(section: Section, where: str, found: dict[str, dict[int, Record]]) -> None:
    section.text.append(f"Test error on {where} in % at fractions of the cost, mean ± standard deviation over seeds.")
    rows = []
    for scheme, label in (BASES | EXTRAS).items():
        errors = [errors_at(record, FRACTIONS) for record in found[scheme].values()]
        if errors:
            rows.append([label, *map(spread, zip(*errors, strict=True)), len(errors)])
    section.table(["", *PLACES, "n"], rows)


def _add_increases(
    section: Section, where: str, found: dict[str, dict[int, Record]], opt: dict[int, list[float]]
) -> None:
    rows = []
    for scheme, label in (BASES | EXTRAS).items():
        each = [
            [error / best - 1 for error, best in zip(errors_at(record, FRACTIONS), opt[seed], strict=True)]
            for seed, record in found[scheme].items()
            if seed in opt
        ]
        if each:
            rows.append([label, *map(spread, zip(*each, strict=True)), len(each)])
    if rows:
        section.text.append(f"Relative increase in test error over OPT on {where}, in %.")
        section.table(["", *PLACES, "n"], rows)


def _add_differences(section: Section, where: str, found: dict[str, dict[int, Record]]) -> None:
    """AdaLoss's error minus the extra's, seed by seed; above 0 the extra is better."""
    rows, ours = [], found["adaloss"]
    for scheme, label in EXTRAS.items():
        seeds = sorted(set(ours) & set(found[scheme]))
        if not seeds:
            continue
        pairs = [(errors_at(ours[seed], FRACTIONS), errors_at(found[scheme][seed], FRACTIONS)) for seed in seeds]
        gains = [Interval.of([one[i] - other[i] for one, other in pairs]) for i in range(len(FRACTIONS))]
        rows.append([label, *(gain.percent() for gain in gains), len(seeds)])
        section.verdicts.append(f"**{where}.** At all of the cost " + compare(label, "AdaLoss", gains[-1]))
    if rows:
        section.text.append(
            f"AdaLoss's test error minus that of each on {where}, in points: above 0 the extra is better."
        )
        section.table(["", *PLACES, "n"], rows)
