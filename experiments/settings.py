"""What was tried to find a setting in which weight schemes differ and that two processor cores can afford."""

import statistics
from dataclasses import replace
from typing import Any

from experiments.records import Record, Records, Section, loss_left, spread
from experiments.runner import DATA_SETS, Run, make

TITLE = "What was tried to find the laptop's setting"
SCHEMES = ("const", "adaloss")


def runs(preset: str) -> list[Run]:
    """CONST, AdaLoss and, where it was worth knowing, OPT at the last exit, in every setting."""
    if preset != "laptop":
        return []
    tried = [make(preset, f"resann-{n}-32", "cifar10", scheme, few=True) for n in (1, 2, 4) for scheme in SCHEMES]
    for n in (1, 2, 4):
        opt = f"opt-{3 * n}"
        tried += [make(preset, f"resann-{n}-8", "cifar10", scheme, few=True) for scheme in (*SCHEMES, opt)]
    tried += [_changed("resann-3-16", scheme, 3000, 60) for scheme in (*SCHEMES, "opt-9")]
    tried += [_changed("resann-5-8", scheme, 15000, 12) for scheme in (*SCHEMES, "opt-15")]
    return tried + [make(preset, "resann-5-8", data, s) for data in DATA_SETS for s in (*SCHEMES, "opt-15")]


def _changed(model: str, scheme: str, images: int, epochs: int) -> Run:
    run = make("laptop", model, "svhn", scheme)
    return replace(run, images=images, recipe={**run.recipe, "epochs": epochs})


def show(preset: str, records: Records) -> Section:
    """One line a setting."""
    section = Section(TITLE, records=records.of(runs(preset)))
    settings: dict[str, dict[str, list[Record]]] = {}
    for record in section.records:
        run, recipe = record["run"], record["run"]["recipe"]
        what = f"{run['data']}, {run['images']:,} images, {recipe['epochs']} epochs of batch {recipe['batch_size']}"
        scheme = "opt" if run["scheme"].startswith("opt-") else run["scheme"]
        settings.setdefault(f"{what}, {run['model']}", {}).setdefault(scheme, []).append(record)
    rows: list[list[Any]] = []
    for what, schemes in settings.items():
        if set(SCHEMES) <= set(schemes):
            const, adaloss, opt = ([r["test"]["errors"][-1] for r in schemes.get(s, [])] for s in (*SCHEMES, "opt"))
            left = statistics.mean(map(loss_left, schemes["const"]))
            rows.append([what, f"{left:.2f}", spread(const), spread(adaloss), spread(opt)])
    if not rows:
        section.text.append("Nothing was tried for this preset.")
        return section
    section.text.append(
        "Test error in % at the last exit, one seed each, and beside it what part of the first exit's training loss is "
        "left at the last one under CONST: AdaLoss moves weight by that."
    )
    section.table(["", "loss, last / first", "CONST", "AdaLoss", "OPT"], rows)
    section.text.append(
        "What we make of it: a small last loss is not enough. On few images seen often, the images are what limits "
        "the network, and early exits even keep it from fitting them too closely: there is little between CONST and "
        "OPT. On many images a narrow network is limited by its capacity, and what early exits take of it is missing "
        "later."
    )
    return section
