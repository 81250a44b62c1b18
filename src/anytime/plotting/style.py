"""What all plots share: the colors of the schemes, the axes, the file."""

from collections.abc import Collection, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from anytime.errors import require

SCHEME_COLORS = {
    "adaloss": "#d1495b",
    "const": "#00798c",
    "linear": "#edae49",
    "half-end": "#6a4c93",
    "opt": "#222222",
    "geometric-mean": "#4a7c59",
    "log-barrier": "#8d6a4f",
}
"""The color of each weight scheme, the same in all plots."""

OTHER_COLORS = ("#30638e", "#e07a3f", "#5c946e", "#b05a9c", "#7f7f7f", "#9c8b2f")
"""For everything that is not a scheme."""


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, as ``plt.subplots`` makes them, without pyplot: its backend and figures are the user's."""
    figure = require("matplotlib.figure", "plot").Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def write(figure: Any, path: str | Path) -> Path:
    """Save a figure."""
    figure.savefig(path, dpi=150)
    return Path(path)


def colors_of(names: Collection[str]) -> list[str]:
    """For "adaloss" and "resann-5-8, AdaLoss" the scheme's own color, unless it is taken; another one for the rest."""
    others, colors = cycle(OTHER_COLORS), list[str]()
    for name in names:
        last = name.lower().rpartition(", ")[2]
        own = next((color for scheme, color in SCHEME_COLORS.items() if last.startswith(scheme)), None)
        colors.append(own if own and own not in colors else next(others))
    return colors


def finish(axis: Any, title: str = "", legend: bool = True) -> None:
    """Grid, frame, title, and a legend if there is more than one name in it; a single name is the title if none is."""
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    names = axis.get_legend_handles_labels()[1] if legend else []
    title = title or (names[0] if len(names) == 1 else "")
    if title:
        axis.set_title(title, loc="left", fontsize="medium")
    if len(names) > 1:
        axis.legend(frameon=False, fontsize="small")


def legend_below(figure: Any, shown: Mapping[str, Any]) -> None:
    """One legend for all panels, below them, in as many columns as fit; none if there is only one name."""
    if len(shown) > 1:
        widest = 0.5 + 0.09 * max(map(len, shown))  # inches of a column, about
        columns = max(1, min(len(shown), int(figure.get_figwidth() / widest)))
        figure.legend(shown.values(), shown, loc="outside lower center", ncols=columns, frameon=False)
