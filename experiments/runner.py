"""A training run of an experiment: what it is, how it is trained, the record that it leaves.

``python -m experiments run`` starts this file once for each run that has no record yet, several at a time:

python -P experiments/runner.py '{"model": "resann-3-32", "data": "cifar10", …}' DATA OUTPUT RECORDS COMPILED PRECISION
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import anytime
from anytime.evaluation import Curve
from anytime.files import read_json, write_json
from anytime.memory import keep_freed_memory
from anytime.training.jobs import stop_with_parent

DISTILL = 0.5
"""The share of self-distillation in the losses, where an experiment asks for it."""
ALONE = ("scaled-const", "first-order")
"""Schemes that compute two gradients of one forward pass, which compiled networks do not allow."""


@dataclass(frozen=True)
class Run:
    """One network, trained once.

    Args:
        model: a name that ``create_model`` knows.
        data: a data set's name.
        scheme: the name of a weight scheme or of a control; extras may follow: ``adaloss+equilibrium+distill``,
            ``annealed+boosting``.
        seed: of the first weights, the images' order and the choice of a part of them.
        images: how many to train on; all if None.
        recipe: what ``Recipe`` takes, where it differs from its defaults.
        tag: names a recipe that differs from its data set's usual one; part of the name.
    """

    model: str
    data: str
    scheme: str
    seed: int = 0
    images: int | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    tag: str = ""

    @property
    def name(self) -> str:
        """Of its folder and record."""
        words = [self.data, self.images or "all", self.model, self.scheme, self.recipe["epochs"], self.tag]
        return "-".join(map(str, filter(None, [*words, f"seed{self.seed}"]))).replace(":", "-")

    def as_json(self) -> dict[str, Any]:
        """As a record has it; an empty tag is left out."""
        return {key: value for key, value in json.loads(json.dumps(asdict(self))).items() if key != "tag" or value}

    def load_data(self, folder: Path | None) -> anytime.Data:
        """The images, from a folder that has the data sets in it or from the Hub; normalized by all of them."""
        source = self.data if folder is None else str(find_data(folder, self.data))
        extra = self.data == "svhn" and self.images is None  # all of the paper's 600,000
        data = anytime.load_data(source, extra=extra, show=False)
        return data if self.images is None else data.subset(self.images)

    def network(self, data: anytime.Data) -> anytime.Network:
        """With its first weights, where it is to be trained: on a GPU if there is one."""
        torch.manual_seed(self.seed)
        net = anytime.create_model(self.model, num_classes=len(data.classes), in_channels=data.shape[0])
        return net.to(torch.accelerator.current_accelerator(check_available=True) or "cpu")

    def fit(
        self, net: anytime.Network, data: anytime.Data, compiled: bool, precision: str, **options: Any
    ) -> tuple[anytime.Network, nn.Module, anytime.FitResult]:
        """Train a network as the scheme says; gives the network as it answers, the scheme's module and the result."""
        from experiments.controls import create_scheme
        from experiments.distillation import Distilled
        from experiments.equilibrium import equilibrium
        from experiments.surgery import surgery

        name, *extras = self.scheme.split("+")
        if "boosting" in extras:
            net = anytime.combine(net, "boosting")
        scheme = create_scheme(name, net)
        compiled = compiled and name not in ALONE and not {"distill", "surgery"} & set(extras)
        # Held-out images are evaluated at the end only: after each epoch they would cost more than the training.
        bare = replace(data, validation=None, test=None)
        options |= {"recipe": anytime.Recipe(**self.recipe), "compiled": compiled, "precision": precision}
        with ExitStack() as during:
            if "equilibrium" in extras:
                during.enter_context(equilibrium(net))
            if "surgery" in extras:
                during.enter_context(surgery(net))
            if "distill" in extras:
                scheme = Distilled(scheme, DISTILL)
                during.enter_context(scheme.watching(net))
            return net, scheme, anytime.fit(net, bare, scheme, seed=self.seed, **options)

    def train(
        self,
        data_folder: Path | None,
        output: Path,
        records: Path,
        compiled: bool = False,
        precision: str = "float32",
    ) -> dict[str, Any]:
        """Train, or go on training, or find it trained; measure; write the record."""
        data, folder = self.load_data(data_folder), output / self.name
        net, scheme, _ = self.fit(self.network(data), data, compiled, precision, output=folder, resume=True)
        record = self.record(net, data, folder, getattr(scheme, "only", None))
        write_json(records / f"{self.name}.json", record)
        return record

    def record(self, net: anytime.Network, data: anytime.Data, folder: Path, only: list[int] | None) -> dict[str, Any]:
        """What the run was and what it reached; errors are shares, losses mean cross-entropies, one an exit.

        ``ensemble`` and ``stacking`` are the test set again, all exits so far answering together: fitted on the
        validation images, and on the training images.
        """
        test = anytime.evaluate(net, data, only=only)
        validation = anytime.evaluate(net, data, data.validation, only=only)
        measured = {"validation": _measured(validation), "test": _measured(test)}
        stacked = anytime.combine(net, "stacking", data.batches(data.train))
        measured["stacking"] = _measured(anytime.evaluate(stacked, data, only=only))
        if only is None and data.validation:
            together = anytime.combine(net, "ensemble", data.batches(data.validation))
            measured["ensemble"] = _measured(anytime.evaluate(together, data))
        log = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        about = read_json(folder / "run.json")
        return {
            "name": self.name,
            "commit": commit(),
            "run": self.as_json(),
            "data": {"name": data.name, "classes": len(data.classes), "shape": list(data.shape)},
            "versions": {"anytime": anytime.__version__, **about["versions"]}
            | {"compiled": about["compiled"], "precision": about["precision"]},
            "device": next(net.parameters()).device.type,
            # The fastest epoch, so that what else the machine did meanwhile does not count.
            "seconds": round(min(epoch["seconds"] for epoch in log) * len(log), 1),
            "trained_on": len(data.train),
            "macs": test.costs.macs,
            "head_macs": test.costs.heads,
            "params": test.costs.params[-1],
            "weights": log[-1]["weights"],
            "train": log[-1]["train"],
            # How the losses and weights came about: one row an epoch, one number an exit.
            "epochs": {
                "losses": [_rounded(epoch["train"]["losses"]) for epoch in log],
                "weights": [_rounded(epoch["weights"]) for epoch in log],
            },
            **measured,
        }


def commit() -> str:
    """The commit of the code that runs, with a plus if files were changed since; empty outside a clone."""
    command = ["git", "describe", "--always", "--abbrev=9", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip()


def _rounded(values: Sequence[float | None] | None) -> list[float | None] | None:
    if values is None:  # a scheme of one's own need not have weights
        return None
    return [None if value is None else float(f"{value:.4g}") for value in values]


def _measured(curve: Curve) -> dict[str, Any]:
    return {"images": curve.images, "errors": curve.errors, "losses": curve.losses}


def find_data(folder: Path, name: str) -> Path:
    """The folder of a data set among others: named as it, or beginning so (cifar10-30k)."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    found = [path for path in folders if path.name == name or path.name.startswith(f"{name}-")]
    if not found:
        has = f"it has {', '.join(path.name for path in folders)}" if folders else "there is no folder in it"
        raise anytime.AnytimeError(
            f"--data {folder} has no folder {name} or {name}-…: {has}. Leave --data out to use the Hub"
        )
    return found[0]


def main() -> None:
    """Train one run."""
    stop_with_parent()
    keep_freed_memory()
    spec, data, output, records, compiled, precision = sys.argv[1:]
    try:
        folder = Path(data) if data else None
        Run(**json.loads(spec)).train(folder, Path(output), Path(records), compiled == "True", precision)
    except KeyboardInterrupt:
        sys.exit(130)
    except anytime.AnytimeError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # -P leaves it out, with the current folder
    main()
