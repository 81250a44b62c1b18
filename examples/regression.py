"""The price of a diamond: from its weight at first, then from its size, its color and cut, and its clarity.

pip install -e ".[examples]"
python examples/regression.py                    # about a minute on one core

Each stage of the network reads what costs more to find out: a stone is weighed, measured, and graded twice. The data
are 53,940 diamonds that come with the package plotnine (ggplot2's `diamonds`), whose file is read here.
"""

import csv
import importlib.util
import sys
from pathlib import Path

import torch
from side_by_side import arguments, compare
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anytime
from anytime.errors import AnytimeError, MissingExtraError

ORDERS = {
    "color": list("JIHGFED"),
    "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
}
NUMBERS = ("carat", "x", "y", "z", "depth", "table")
STAGES = (slice(0, 1), slice(1, 6), slice(6, 8), slice(8, 9))
TEST, WIDTH = 4000, 32


def diamonds() -> tuple[torch.Tensor, torch.Tensor]:
    """Features of mean 0 and standard deviation 1, and the logarithms of the prices, likewise; in random order."""
    found = importlib.util.find_spec("plotnine")
    if found is None or found.origin is None:
        raise MissingExtraError(
            'No module named plotnine: this needs an extra; run: pip install "anytime-nets[examples]", or in a clone: '
            'pip install ".[examples]"'
        )
    with open(Path(found.origin).parent / "data" / "diamonds.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    x = torch.tensor(
        [[*(float(r[n]) for n in NUMBERS), *(order.index(r[name]) for name, order in ORDERS.items())] for r in rows]
    )
    y = torch.tensor([float(row["price"]) for row in rows]).log()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return ((x - x.mean(0)) / x.std(0))[order], ((y - y.mean()) / y.std())[order]


class Reads(nn.Module):
    """A stage: the features so far, and some more columns."""

    def __init__(self, columns: slice, width: int) -> None:
        super().__init__()
        self.columns, self.width = columns, width
        self.layer = nn.Linear(width + columns.stop - columns.start, WIDTH)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """All columns, followed by the new features."""
        known = state[:, 9:] if self.width else state[:, :0]
        new = torch.tanh(self.layer(torch.cat([state[:, self.columns], known], 1)))
        return torch.cat([state[:, :9], new], 1)


class Head(nn.Linear):
    """From the features to the price."""

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """N × 1."""
        return super().forward(state[:, 9:])


def build() -> anytime.AnytimeNetwork:
    stages = [Reads(columns, 0 if i == 0 else WIDTH) for i, columns in enumerate(STAGES)]
    return anytime.AnytimeNetwork(stages, [Head(WIDTH, 1) for _ in stages])


def main(given: list[str] | None = None) -> dict[str, dict[str, list[float]]]:
    asked = arguments(__doc__, given, epochs=8, samples=20_000)
    x, y = diamonds()
    test = DataLoader(TensorDataset(x[:TEST], y[:TEST]), batch_size=1000)
    rest = slice(TEST, TEST + asked.samples)
    train = DataLoader(TensorDataset(x[rest], y[rest]), batch_size=128, shuffle=True)
    measures = {"squared error of the log price (1 is the variance)": anytime.losses.squared}
    recipe = {"optimizer": "adamw", "lr": 0.01, "schedule": "linear", "clip": 1.0}
    return compare(build, train, test, measures, asked, loss=anytime.losses.squared, **recipe)


if __name__ == "__main__":
    try:
        main()
    except AnytimeError as error:
        sys.exit(str(error))
