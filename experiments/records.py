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
from experiments.claims import Claim
from experiments.intervals import number
from experiments.presets import make
from experiments.runner import Run

COMMITTED = Path(__file__).parent / "records"
"""The records of the project's own runs."""

Record = dict[str, Any]
NEEDED = {"run", "data", "device", "macs", "train", "test", "validation", "weights", "seconds", "versions"}


class Records(dict[str, Record]):
    """The records of finished runs, by name."""

    @staticmethod
    def read(folder: Path = COMMITTED) -> "Records":
        """Read all records in a folder."""
        records = Records({path.stem: read_json(path) for path in sorted(folder.glob("*.json"))})
        for name, record in records.items():
            if record.get("name") != name or not set(record) >= NEEDED:
                raise AnytimeError(f"{folder / name}.json is not a record of that run: delete it and run it again")
        return records

    def of(self, runs: Iterable[Run]) -> list[Record]:
        """The records of the given runs; runs without a record are left out."""
        return [record for run in runs if (record := self.find(run))]

    def find(self, run: Run) -> Record | None:
        """The record of a run; None if it has not ended."""
        record = self.get(run.name)
        if record and record["run"] != run.as_json():
            raise AnytimeError(
                f"the record {run.name} is of a run with other settings than now: delete it, and its run folder"
            )
        return record

    def seeds(self, preset: str, model: str, data: str, scheme: str, seeds: int) -> dict[int, Record]:
        """The records of one kind of run, by seed, of the first seeds."""
        found = {seed: self.find(make(preset, model, data, scheme, seed)) for seed in range(seeds)}
        return {seed: record for seed, record in found.items() if record}


@dataclass
class Section:
    """An experiment's part of the report."""

    title: str
    claim: str
    """What the paper says."""
    records: list[Record]
    wanted: int
    """How many records it will have."""
    verdicts: list[str] = field(default_factory=list)
    """What was found, a sentence each; none before there are enough records."""
    text: list[str] = field(default_factory=list)
    """Paragraphs and tables, in Markdown."""
    claims: list[Claim] = field(default_factory=list)
    """What the paper claims of it, judged."""
    figures: dict[str, tuple[str, Callable[[Path], Any]]] = field(default_factory=dict)
    """By a word for the file's name: what each shows, and what draws it to a file."""

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Add a table."""
        self.text.append(as_table(header, rows))

    def as_markdown(self) -> str:
        """Claim, verdicts, tables."""
        found = [claim.sentence() for claim in self.claims if claim.status != "not tried"] + self.verdicts
        found = found or ["Not enough runs have ended to say anything."]
        verdicts = "\n".join(f"- {verdict}" for verdict in found)
        return "\n\n".join([f"**The paper:** {self.claim}", "**Here:**", verdicts, *self.text])


def as_table(header: Sequence[str], rows: Iterable[Sequence[object]], words: bool = False) -> str:
    """A table in Markdown, the first column to the left and the others to the right, or all to the left for words."""
    lines = ["| " + " | ".join(header) + " |", "|---" + ("|---" if words else "|---:") * (len(header) - 1) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def last_exit(model: str) -> str:
    """The scheme that trains a model for its last exit alone."""
    return f"opt-{_exits(model)}"


@cache
def _exits(model: str) -> int:
    with torch.device("meta"):
        return anytime.create_model(model).exits


@cache
def opt_exits(model: str, fractions: tuple[float, ...]) -> list[int]:
    """The last exit within each of these fractions of a model's cost, for 32×32 images."""
    with torch.device("meta"):
        net = anytime.create_model(model)
    cost = anytime.costs(net, torch.empty(1, 3, 32, 32, device="meta"))
    return [cost.exit_at(fraction) for fraction in fractions]


def errors_at(record: Record, fractions: Sequence[float], of: str = "test") -> list[float]:
    """Test errors of the last exits within fractions of the network's cost; ``of``: the record's word for them."""
    cost = Costs(record["macs"], record["macs"])
    return [record[of]["errors"][cost.exit_at(fraction)] for fraction in fractions]


def loss_left(record: Record) -> float:
    """The last exit's training loss divided by the first's: AdaLoss weights exits by this ratio."""
    losses = record["train"]["losses"]
    return losses[-1] / losses[0]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± standard deviation of shares, in percent; of one value, it alone."""
    if not values:
        return "–"
    mean = number(100 * statistics.mean(values), digits)
    return mean if len(values) == 1 else f"{mean} ± {number(100 * statistics.stdev(values), digits)}"


def error_at(macs: Sequence[float], errors: Sequence[float], budget: float) -> float | None:
    """The error of the last prediction within a budget; None before the first."""
    within = [error for cost, error in zip(macs, errors, strict=True) if cost <= budget * (1 + 1e-9)]
    return within[-1] if within else None
