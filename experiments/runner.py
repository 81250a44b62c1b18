"""A training run of an experiment: what it is, how it is trained, the record that it leaves.

``anytime reproduce`` starts this file once for each run that has no record yet, several at a time:

python experiments/runner.py '{"model": "resann-3-32", "data": "cifar10", "scheme": "adaloss", …}' DATA OUTPUT RECORDS
"""

import json
import statistics
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import anytime
from anytime.evaluate import Curve
from anytime.files import read_json, write_json
from anytime.memory import keep_freed_memory
from anytime.recipe import RECIPES

DATA_SETS = ("cifar10", "cifar100", "svhn")


@dataclass(frozen=True)
class Run:
    """One network, trained once.

    Args:
        model: a name that ``create_model`` knows.
        data: a data set's name.
        scheme: a weight scheme's name.
        seed: of the first weights, the images' order and the choice of a part of them.
        images: how many to train on; all if None.
        size: height and width that images are averaged down to; as they are if None.
        recipe: what ``Recipe`` takes.
        options: of the model, besides its name.
    """

    model: str
    data: str
    scheme: str
    seed: int = 0
    images: int | None = None
    size: int | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its folder and record."""
        options = [f"{key}{value}" for key, value in self.options.items()]
        size = self.size or "full"
        images = self.images or "all"
        words = [self.data, images, size, self.model, *options, self.scheme, self.recipe["epochs"], f"seed{self.seed}"]
        return "-".join(map(str, words)).replace(":", "-")

    def load_data(self, folder: Path | None) -> anytime.Data:
        """The images, from a folder that has the data sets in it or from the Hub; normalised by all of them."""
        source = self.data if folder is None else str(find_data(folder, self.data))
        data = anytime.load_data(source, size=self.size, show=False)
        return data if self.images is None else data.subset(self.images, self.seed)

    def network(self, data: anytime.Data) -> anytime.AnytimeNetwork:
        """With its first weights."""
        torch.manual_seed(self.seed)
        return anytime.create_model(
            self.model, num_classes=len(data.classes), in_channels=data.shape[0], **self.options
        )

    def train(self, data_folder: Path | None, output: Path, records: Path, command: str) -> dict[str, Any]:
        """Train, or go on training, or find it trained; measure; write the record."""
        data, folder = self.load_data(data_folder), output / self.name
        if (folder / "model.safetensors").is_file():
            net = anytime.load(folder)
        else:
            net = self.network(data)
            # Held-out images are looked at in the end only: after each epoch they would cost more than the training.
            bare, recipe = replace(data, validation=None), anytime.Recipe(**self.recipe)
            anytime.fit(net, bare, self.scheme, recipe=recipe, seed=self.seed, output=folder, resume=True)
        record = self.record(net, data, folder, command)
        write_json(records / f"{self.name}.json", record)
        return record

    def record(self, net: anytime.AnytimeNetwork, data: anytime.Data, folder: Path, command: str) -> dict[str, Any]:
        """What the run was and what it reached; errors are shares, losses mean cross-entropies, one an exit."""
        only = getattr(anytime.create_scheme(self.scheme, net.exits), "only", None)
        test = anytime.evaluate(net, data, only=only)
        validation = anytime.evaluate(net, data, data.validation, only=only)
        log = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        about = read_json(folder / "run.json")
        return {
            "name": self.name,
            "command": command,
            "run": asdict(self),
            "versions": {"anytime": _version(), **about["versions"]},
            # What it takes undisturbed: an epoch during which the machine was paused would count for hours.
            "seconds": round(statistics.median(epoch["seconds"] for epoch in log) * len(log), 1),
            "trained_on": len(data.train),
            "macs": test.costs.macs,
            "head_macs": test.costs.heads,
            "params": test.costs.params[-1],
            "weights": log[-1]["weights"],
            "train": log[-1]["train"],
            "validation": _measured(validation),
            "test": _measured(test),
        }


def make(preset: str, model: str, data: str, scheme: str, seed: int = 0, **options: Any) -> Run:
    """A run in the paper's setting, for GPUs, or in one that two processor cores finish in a night."""
    natural = {"cifar10", "cifar100", "imagenet"}
    if preset == "laptop":
        # Few small images and many epochs: the late exits' losses become small against the early ones', as they do on
        # all images in 300 epochs of GPUs. That is where weight schemes differ.
        recipe = {"epochs": 150, "batch_size": 128, "pad": 2, "flip": data in natural}
        return Run(model, data, scheme, seed, 3000, 16, recipe, options)
    paper = {"cifar10": "cifar", "cifar100": "cifar", "svhn": "svhn", "imagenet": "imagenet"}
    return Run(model, data, scheme, seed, None, None, asdict(RECIPES[paper[data]]), options)


def _measured(curve: Curve) -> dict[str, Any]:
    return {"images": curve.images, "errors": curve.errors, "losses": curve.losses}


def _version() -> str:
    from importlib.metadata import version

    return version("anytime")


def find_data(folder: Path, name: str) -> Path:
    """The folder of a data set among others: named as it, or beginning so (cifar10-30k)."""
    found = [path for path in sorted(folder.iterdir()) if path.name == name or path.name.startswith(f"{name}-")]
    if not found:
        raise anytime.AnytimeError(f"{folder} has no folder {name} or {name}-…; leave --data out to use the Hub")
    return found[0]


def main() -> None:
    """Train one run."""
    from anytime.jobs import stop_with_parent

    stop_with_parent()
    keep_freed_memory()
    spec, data, output, records, command = sys.argv[1:]
    try:
        Run(**json.loads(spec)).train(Path(data) if data else None, Path(output), Path(records), command)
    except KeyboardInterrupt:
        sys.exit(130)
    except anytime.AnytimeError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
