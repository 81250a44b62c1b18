"""Records of finished runs, and what several of them say together."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

import anytime
from anytime.cost import Costs
from anytime.errors import AnytimeError
from anytime.files import read_json
from experiments.runner import LAPTOP_SIZE, Run, make

HERE = Path(__file__).parent / "records"
"""Where the project keeps the records of its own runs."""

Record = dict[str, Any]
NEEDED = {"run", "data", "device", "macs", "train", "test", "validation", "weights", "seconds", "versions"}


class Records(dict[str, Record]):
    """Of all runs that were made, by name."""

    @staticmethod
    def read(folder: Path = HERE) -> "Records":
        """Those in a folder."""
        records = Records({path.stem: read_json(path) for path in sorted(folder.glob("*.json"))})
        for name, record in records.items():
            if record.get("name") != name or not set(record) >= NEEDED:
                raise AnytimeError(f"{folder / name}.json is no record of that run: delete it and reproduce it again")
        return records

    def of(self, runs: Iterable[Run]) -> list[Record]:
        """Those of the given runs that there are."""
        found = []
        for run in runs:
            if run.name in self:
                if self[run.name]["run"] != run.as_json():
                    raise AnytimeError(
                        f"the record {run.name} is of a run with other settings than now: delete it, and its run folder"
                    )
                found.append(self[run.name])
        return found


@dataclass
class Section:
    """An experiment's part of the report."""

    title: str
    text: list[str] = field(default_factory=list)
    """Paragraphs and tables, in Markdown."""
    figures: dict[str, tuple[str, Callable[[Path], Any]]] = field(default_factory=dict)
    """By a word for the file's name: what each shows, and what draws it to a file."""
    records: list[Record] = field(default_factory=list)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table; the first column is to the left."""
        lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
        lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
        self.text.append("\n".join(lines))


def last_exit(model: str) -> str:
    """The scheme that trains a model for its last exit alone."""
    return f"opt-{_exits(model)}"


@cache
def _exits(model: str) -> int:
    with torch.device("meta"):
        return anytime.create_model(model).exits


def loss_left(record: Record) -> float:
    """The last exit's training loss as a part of the first's: AdaLoss moves weight by that."""
    losses = record["train"]["losses"]
    return losses[-1] / losses[0]


def percent(value: float | None, digits: int = 1) -> str:
    """A share, for a table."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation of shares, in percent; of one value, it alone."""
    if not values:
        return "–"
    mean = percent(statistics.mean(values), digits)
    return mean if len(values) == 1 else f"{mean} ± {percent(statistics.stdev(values), digits)}"


def error_at(macs: Sequence[float], errors: Sequence[float], budget: float) -> float | None:
    """The error of the last prediction within a budget; None before the first."""
    within = [error for cost, error in zip(macs, errors, strict=True) if cost <= budget * (1 + 1e-9)]
    return within[-1] if within else None


@cache
def opt_exits(preset: str, model: str, fractions: tuple[float, ...]) -> list[int]:
    """The exits that the paper's fractions of a model's cost stand for, each once."""
    with torch.device("meta"):
        net = anytime.create_model(model)
    size = LAPTOP_SIZE if preset == "laptop" else 32
    cost = anytime.costs(net, torch.empty(1, 3, size, size, device="meta"))
    return list(dict.fromkeys(cost.exit_at(fraction) for fraction in fractions))


def increases(
    preset: str,
    records: Records,
    models: Sequence[str],
    data: str,
    scheme: str,
    seeds: int,
    fractions: Sequence[float],
) -> list[list[float]]:
    """For each model and seed that is whole, the relative increase in test error over OPT at the fractions."""
    found = []
    for model in models:
        for seed in range(seeds):
            ours = records.of([make(preset, model, data, scheme, seed)])
            if not ours:
                continue
            macs, errors = ours[0]["macs"], ours[0]["test"]["errors"]
            exits = [Costs(macs, macs).exit_at(fraction) for fraction in fractions]
            opts = [records.of([make(preset, model, data, f"opt-{exit + 1}", seed)]) for exit in exits]
            if all(opts):
                row = [errors[e] / opt[0]["test"]["errors"][e] - 1 for e, opt in zip(exits, opts, strict=True)]
                found.append(row)
    return found
