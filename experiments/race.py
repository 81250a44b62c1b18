"""The race of race.md: small networks with early exits on CIFAR-10, against published ones.

    python -m experiments.race search --data DIR --output RUNS     # short trainings, judged on held-out images
    python -m experiments.race combine --data DIR --output RUNS    # sums of the best, on more images
    python -m experiments.race train --data DIR --output RUNS      # the chosen recipe: held out, then all images
    python -m experiments.race test --data DIR --output RUNS       # the test images, once for each final network
    python -m experiments.embedded RUNS/entry-45000-60-seed0 --data DIR   # the one with held-out images ships

All of it continues where it was stopped: a training from its checkpoint, a list from the first record that is missing.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import anytime
from anytime.cost import Costs
from anytime.evaluation import Outputs, collect
from anytime.files import read_json, write_json
from anytime.memory import keep_freed_memory
from experiments.controls import create_scheme
from experiments.intervals import Interval
from experiments.race_measure import BUDGETS, JUDGED, at_thresholds, judge, per_exit, race
from experiments.race_network import RaceNet, whiten
from experiments.records import COMMITTED
from experiments.runner import commit

RECORDS = COMMITTED / "race"
PARTS = ("cifar10-30k", "cifar10-rest-20k")
"""Folders that hold the training set of CIFAR-10 between them."""
PROXY = (12_500, 8)
"""Images and epochs of the search."""
FINAL = (None, 60)
"""Of the entries: all images."""
PRECISION = "bfloat16"
"""Of the trainings whose records say so; those of the search were in float32."""


@dataclass(frozen=True)
class Entry:
    """One network and how it is trained.

    Args:
        net: arguments of ``RaceNet``, or of ``create_model``.
        scheme: a weight scheme or a control, by name.
        recipe: what differs from ``RECIPE``, without the epochs.
        whitened: whether the stem starts from the principal patches.
    """

    net: dict[str, Any]
    scheme: str = "adaloss"
    recipe: dict[str, Any] = field(default_factory=dict)
    whitened: bool = False


RECIPE: dict[str, Any] = {"batch_size": 125, "schedule": "linear", "warmup": 0.15, "pad": 4, "weight_decay": 5e-4}
EXITS = [2, 3, 4, 5, 6]
EVEN = Entry({"blocks": [(28, 1), (64, 3), (138, 2)], "stem": (28, 4), "exits": EXITS, "hidden": 64})
CANDIDATES = {
    "even": EVEN,
    "late": replace(EVEN, net={**EVEN.net, "blocks": [(24, 1), (56, 2), (148, 3)], "stem": (24, 4)}),
    "early": replace(EVEN, net={**EVEN.net, "blocks": [(32, 2), (64, 2), (120, 2)], "stem": (32, 4)}),
    "middle": replace(EVEN, net={**EVEN.net, "blocks": [(24, 1), (68, 4), (128, 1)], "stem": (24, 4)}),
    "earlier": replace(
        EVEN, net={**EVEN.net, "blocks": [(32, 3), (52, 2), (92, 2)], "stem": (32, 4), "exits": [2, *range(3, 8)]}
    ),
    "deep": replace(
        EVEN, net={**EVEN.net, "blocks": [(24, 4), (64, 2), (108, 2)], "stem": (24, 4), "exits": [2, *range(4, 9)]}
    ),
    "wide-start": replace(
        EVEN, net={**EVEN.net, "blocks": [(40, 1), (72, 2), (104, 2)], "stem": (40, 4), "exits": [1, 2, 3, 4, 5]}
    ),
    "shortcut": replace(
        EVEN, net={**EVEN.net, "blocks": [(32, 2), (64, 2), (120, 2)], "stem": (32, 4), "shortcut": True}
    ),
    "linear-heads": replace(EVEN, net={**EVEN.net, "hidden": 0}),
    "whitened": replace(EVEN, whitened=True),
    "dirac": replace(EVEN, net={**EVEN.net, "dirac": True}),
    "fast-bias": replace(EVEN, net={**EVEN.net, "bias_scale": 8.0}),
    "const": replace(EVEN, scheme="const"),
    "linear": replace(EVEN, scheme="linear"),
    "power-half": replace(EVEN, scheme="power:p=0.5"),
    "power-two": replace(EVEN, scheme="power:p=2"),
    "uw-so": replace(EVEN, scheme="uw-so"),
    "mixed": replace(EVEN, scheme="mixed"),
    "excite": replace(EVEN, net={**EVEN.net, "excite": 4, "blocks": [(28, 1), (64, 3), (136, 2)]}),
    "surgery-quarter": replace(EVEN, net={**EVEN.net, "share": 0.25}),
    "surgery-half": replace(EVEN, net={**EVEN.net, "share": 0.5}),
    "pad-2": replace(EVEN, recipe={"pad": 2}),
    "faster": replace(EVEN, recipe={"lr": 0.2}),
    "smoothed": replace(EVEN, recipe={"label_smoothing": 0.1}),
    "averaged": replace(EVEN, recipe={"ema": 0.998}),
}
"""What is tried, in this order: where the cost goes, airbench's starts, losses, features, recipe."""
EARLY = replace(CANDIDATES["early"], whitened=True)
MIDDLE = replace(CANDIDATES["middle"], whitened=True)
COMBINED = {
    "early-whitened": EARLY,
    "early-whitened-dirac": replace(EARLY, net={**EARLY.net, "dirac": True}),
    "early-whitened-shortcut": replace(EARLY, net={**EARLY.net, "shortcut": True}),
    "early-whitened-const": replace(EARLY, scheme="const"),
    "early-whitened-half": replace(EARLY, scheme="power:p=0.5"),
    "early-whitened-pad-2": replace(EARLY, recipe={"pad": 2}),
    "early-whitened-exit-1": replace(
        EARLY, net={**EARLY.net, "exits": [1, *EXITS]}, scheme="power:p=0.5", recipe={"pad": 2}
    ),
    "early-whitened-exit-1-shortcut": replace(
        EARLY, net={**EARLY.net, "exits": [1, *EXITS], "shortcut": True}, scheme="power:p=0.5", recipe={"pad": 2}
    ),
    "early-whitened-exit-1-faster": replace(
        EARLY, net={**EARLY.net, "exits": [1, *EXITS]}, scheme="power:p=0.5", recipe={"pad": 2, "lr": 0.2}
    ),
    "even-whitened-exit-1": replace(
        CANDIDATES["whitened"], net={**EVEN.net, "exits": [1, *EXITS]}, scheme="power:p=0.5", recipe={"pad": 2}
    ),
    "early-whitened-faster": replace(EARLY, recipe={"lr": 0.2}),
    "even-whitened": CANDIDATES["whitened"],
    "middle-whitened": MIDDLE,
    "middle-whitened-longer": replace(
        MIDDLE, net={**MIDDLE.net, "blocks": [(24, 1), (62, 4), (108, 2)], "exits": [2, 3, 4, 5, 6, 7]}
    ),
    "middle-whitened-shortcut": replace(MIDDLE, net={**MIDDLE.net, "shortcut": True}),
    "early-whitened-surgery": replace(EARLY, net={**EARLY.net, "share": 0.25}),
}
"""Sums of candidates, trained on more images: ``COMBINATION``."""
COMBINATION = (None, 10)
CHOSEN = replace(COMBINED["early-whitened-exit-1"], net={"name": "convann-32x2-64x2-120x2"})
"""The entry of the race: the candidate, or the sum of those, that the held-out images say is best."""
SEEDS = 3
INDIFFERENCE = 0.001
"""A difference of mean accuracies that 5,000 images do not tell: it goes to the simplest way."""


def load(folder: Path, images: int | None, held_out: bool = True) -> anytime.Data:
    """CIFAR-10, all of it or the first training images; ``held_out=False``: the held-out ones are trained on too."""
    data = anytime.load_data([folder / part for part in PARTS], show=False)
    assert isinstance(data.train, anytime.Images)
    if images is not None:
        return replace(data, train=data.train[torch.arange(images)])
    if held_out:
        return data
    both = [data.train, data.validation]
    pixels, labels = (torch.cat([getattr(part, name) for part in both]) for name in ("pixels", "labels"))
    return replace(data, train=anytime.Images(pixels, labels), validation=None)


@dataclass(frozen=True)
class Training:
    """An entry trained once; ``held_out``: without the images that choices are made on."""

    name: str
    entry: Entry
    seed: int
    images: int | None
    epochs: int
    held_out: bool = True

    @property
    def full_name(self) -> str:
        """Of its folder and record."""
        images = self.images or ("45000" if self.held_out else "all")
        return f"{self.name}-{images}-{self.epochs}-seed{self.seed}"

    def network(self) -> anytime.AnytimeNetwork:
        """With its first weights; the chosen one is a model of the library."""
        torch.manual_seed(self.seed)
        return anytime.create_model(**self.entry.net) if "name" in self.entry.net else RaceNet(**self.entry.net)

    def train(self, folder: Path, output: Path, compiled: bool) -> tuple[anytime.AnytimeNetwork, anytime.Data]:
        """Train, go on training, or find it trained. The processor's seconds of each epoch are in ``cpu.jsonl``."""
        data, place = load(folder, self.images, self.held_out), output / self.full_name
        net = self.network()
        if self.entry.whitened:
            assert isinstance(data.train, anytime.Images)
            whiten(net, data.normalize(data.train.pixels[:2000]))
        recipe = anytime.Recipe(**{**RECIPE, **self.entry.recipe, "epochs": self.epochs})
        began = [time.process_time()]

        def note(_: dict[str, Any]) -> None:
            began.append(time.process_time())
            with (place / "cpu.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(round(began[-1] - began[-2], 2)) + "\n")

        bare = replace(data, validation=None, test=None)
        scheme = create_scheme(self.entry.scheme, net)
        options = {"recipe": recipe, "compiled": compiled, "precision": PRECISION, "on_epoch": note}
        anytime.fit(net, bare, scheme, seed=self.seed, output=place, resume=True, show=False, **options)
        return net, data

    def trained(self, output: Path) -> anytime.AnytimeNetwork:
        """The network at the end of its training."""
        net = self.network()
        anytime.load(output / self.full_name, net=net)
        return net

    def record(self, net: anytime.AnytimeNetwork, data: anytime.Data, place: Path) -> dict[str, Any]:
        """What it was and cost, and what it reaches on held-out images: each exit, and the race."""
        costs = anytime.costs(net, torch.empty(1, *data.shape, device="meta"))
        seconds = [json.loads(line) for line in (place / "cpu.jsonl").read_text(encoding="utf-8").splitlines()]
        about = {
            "name": self.full_name,
            "commit": commit(),
            "entry": json.loads(json.dumps(asdict(self.entry))),
            "seed": self.seed,
            "epochs": self.epochs,
            "trained_on": len(data.train),
            "precision": PRECISION,
            "versions": {"anytime": anytime.__version__, **read_json(place / "run.json")["versions"]},
            "cpu_seconds": round(min(seconds) * self.epochs, 1),
            "macs": costs.macs,
            "head_macs": costs.heads,
            "params": costs.params[-1],
        }
        if data.validation is None:
            return about
        held_out = {
            kind: judge(*answers(kind_of(kind, net, data), data, data.validation), parts=kind == "plain")
            for kind in ("plain", "stacked")
        }
        return about | {"held_out": held_out}


def kind_of(kind: str, net: anytime.Network, data: anytime.Data) -> anytime.Network:
    """The network as it is (``plain``), or ``stacked`` on its training images."""
    return net if kind == "plain" else anytime.combine(net, "stacking", data.batches(data.train))


def answers(net: anytime.Network, data: anytime.Data, images: Any) -> tuple[Outputs, Costs]:
    """What the exits say to these images, and what they cost."""
    return collect(net, data.batches(images)), anytime.costs(net, torch.empty(1, *data.shape, device="meta"))


def proxies(only: Sequence[str], seeds: int) -> list[Training]:
    """The short trainings, seed by seed."""
    names = [name for name in CANDIDATES if not only or name in only]
    return [Training(name, CANDIDATES[name], seed, *PROXY) for seed in range(seeds) for name in names]


def combinations() -> list[Training]:
    """The sums of candidates, with one seed."""
    return [Training(name, entry, 0, *COMBINATION) for name, entry in COMBINED.items()]


def finals() -> list[Training]:
    """The twin that thresholds are chosen with, then the entries themselves."""
    twin = Training("entry", CHOSEN, 0, *FINAL)
    return [twin, *(replace(twin, seed=seed, held_out=False) for seed in range(SEEDS))]


def run(trainings: Sequence[Training], data: Path, output: Path, compiled: bool) -> None:
    """Train what has no record yet, and write its record."""
    for training in trainings:
        path = RECORDS / f"{training.full_name}.json"
        if path.exists():
            continue
        net, images = training.train(data, output, compiled)
        record = training.record(net, images, output / training.full_name)
        write_json(path, record)
        print(summary(record), flush=True)


def test(folder: Path, output: Path) -> None:
    """Look at the test images, once for each finished network; the twin's held-out images have made all choices."""
    twin = finals()[0]
    chosen = RECORDS / f"{twin.full_name}.json"
    if not chosen.exists():
        raise SystemExit(f"there is no {chosen.name}: python -m experiments.race train makes it, and the entries")
    kind, exits = choice(read_json(chosen))
    data = load(folder, None)
    known, _ = answers(kind_of(kind, twin.trained(output), data), data, data.validation)
    for entry in finals():
        path, trained = RECORDS / f"test-{entry.full_name}.json", RECORDS / f"{entry.full_name}.json"
        if path.exists() or not trained.exists():
            continue
        images = load(folder, None, held_out=entry.held_out)
        outputs, costs = answers(kind_of(kind, entry.trained(output), images), images, images.test)
        save_file(
            {"logits": outputs.logits.half(), "labels": outputs.labels}, output / entry.full_name / "test.safetensors"
        )
        budgets = [at["threshold"] for at in race(known, costs, exits, BUDGETS)]
        record = {
            **read_json(trained),
            "commit": commit(),
            "answers": kind,
            "exits": exits,
            "images": len(outputs.labels),
            "accuracies": [1 - wrong for wrong in outputs.wrong.double().mean(1).tolist()],
            "held_out_thresholds": at_thresholds(outputs, costs, exits, budgets),
            "as_published": race(outputs, costs, exits, BUDGETS),
            "per_exit": per_exit(known, outputs, costs, exits, BUDGETS),
        }
        write_json(path, record)
        print(json.dumps(record["held_out_thresholds"]), flush=True)


def choice(record: dict[str, Any]) -> tuple[str, list[int]]:
    """Whether exits answer plainly or stacked, and which of them: the simplest of the best ways on held-out images."""
    found = record["held_out"]
    goals = [BUDGETS.index(budget) for budget in JUDGED]
    ways = {
        (kind, way): sum(found[kind][way][i]["accuracy"] for i in goals) / len(goals)
        for kind in ("plain", "stacked")
        for way in ("race", "best_race")
    }
    kind, way = next(way for way, score in ways.items() if score >= max(ways.values()) - INDIFFERENCE)
    every = list(range(len(found[kind]["accuracies"])))
    return kind, found[kind]["best_exits"] if way == "best_race" else every


def summary(record: dict[str, Any]) -> str:
    """One line: cost, accuracies of the exits, and the race."""
    line = f"{record['name']:28} {record['macs'][-1] / 1e6:5.2f} M {record['cpu_seconds']:6.0f} s"
    for name, found in record.get("held_out", {}).items():
        ends = " ".join(f"{100 * accuracy:.1f}" for accuracy in found["accuracies"])
        points = {budget: at["accuracy"] for budget, at in zip(BUDGETS, found["best_race"], strict=True)}
        at = " ".join(f"{100 * points[budget]:.2f}" for budget in JUDGED)
        line += f" | {name} {ends} | {at} with {found['best_exits']}"
    return line


def score(record: dict[str, Any]) -> float:
    """What candidates are judged by: the mean accuracy at the budgets that have goals, plain or stacked."""
    goals = [BUDGETS.index(budget) for budget in JUDGED]
    return max(
        sum(found["best_race"][i]["accuracy"] for i in goals) / len(goals) for found in record["held_out"].values()
    )


def show() -> None:
    """All records, then each candidate's score minus that of ``even``, seed by seed, in points."""
    records = {path.stem: read_json(path) for path in sorted(RECORDS.glob("*.json"))}
    for record in records.values():
        print(summary(record))
    for name in CANDIDATES:
        gains = []
        for seed in range(SEEDS):
            mine, base = (records.get(Training(n, EVEN, seed, *PROXY).full_name) for n in (name, "even"))
            gains += [score(mine) - score(base)] if mine and base else []
        if gains and name != "even":
            print(f"{name:16} − even: {Interval.of(gains).percent()} ({len(gains)} seeds)")


def main() -> None:
    """Search, train or test."""
    parser = argparse.ArgumentParser("python -m experiments.race", description=__doc__)
    parser.add_argument("what", choices=("search", "combine", "train", "test", "show"))
    parser.add_argument("--data", type=Path, help="the folder with the data sets")
    parser.add_argument("--output", type=Path, help="the folder of the runs")
    parser.add_argument("--only", default="", help="candidates or trainings, separated by commas")
    parser.add_argument("--seeds", type=int, default=1, help="of the search")
    parser.add_argument("--compile", action="store_true")
    asked = parser.parse_args()
    if asked.what == "show":
        show()
        return
    if asked.data is None or asked.output is None:
        parser.error(f"{asked.what} needs --data, the folder with the data sets, and --output, that of the runs")
    if asked.what == "test":
        test(asked.data, asked.output)
        return
    keep_freed_memory()
    only = list(filter(None, asked.only.split(",")))
    if asked.what == "search":
        trainings = proxies(only, asked.seeds)
    else:
        trainings = combinations() if asked.what == "combine" else finals()
        trainings = [training for training in trainings if not only or {training.name, training.full_name} & set(only)]
    run(trainings, asked.data, asked.output, asked.compile)


if __name__ == "__main__":
    main()
