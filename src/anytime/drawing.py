"""What all pictures share: one palette for color-blind readers, the axes, the file."""

from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from anytime.errors import require

SCHEME_COLORS = {
    "adaloss": "#d55e00",
    "const": "#0072b2",
    "linear": "#e69f00",
    "half-end": "#cc79a7",
    "opt": "#222222",
    "geometric-mean": "#009e73",
    "log-barrier": "#56b4e9",
}
"""The color of each weight scheme, the same in all plots: Okabe and Ito's, which color-blind readers tell apart."""

OTHER_COLORS = ("#0077bb", "#ee7733", "#009988", "#cc3311", "#a9a9a9", "#aa4499")
"""For everything that is not a scheme: Tol's, chosen likewise."""


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, as ``plt.subplots`` makes them, without pyplot: its backend and figures are the user's."""
    figure = require("matplotlib.figure", "plot").Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def new_axes() -> Any:
    """Axes of a new figure of pyplot, which shows it, in a notebook too; the backend is the one that it has."""
    return require("matplotlib.pyplot", "plot").subplots(layout="constrained")[1]


def write(figure: Any, path: str | Path) -> Path:
    """Save a figure."""
    figure.savefig(path, dpi=150)
    return Path(path)


def colors_of(names: Collection[str]) -> list[str]:
    """For "adaloss" and "resann-5-8, AdaLoss" the scheme's own color, unless it is taken; another one for the rest.

    Beside schemes the rest has those of the schemes that are not there, which can be told from them.
    """
    own = dict[str, str]()
    for name in names:
        last = name.lower().rpartition(", ")[2]
        color = next((color for scheme, color in SCHEME_COLORS.items() if last.startswith(scheme)), None)
        if color and color not in own.values():
            own[name] = color
    left = [color for color in reversed(SCHEME_COLORS.values()) if color not in own.values()] if own else OTHER_COLORS
    others = cycle(left or OTHER_COLORS)
    return [own[name] if name in own else next(others) for name in names]


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


def exit_axes(axis: Any, spent: Sequence[float], known: Sequence[bool]) -> None:
    """Above, the cost in percent; along the lower edge, the numbers of the exits that are known."""
    total = max(spent[-1], 1e-6)
    share = axis.secondary_xaxis("top", functions=(lambda cost: 100 * cost / total, lambda part: part * total / 100))
    share.set_xlabel("% of the cost")
    low, high = axis.get_ylim()
    axis.set_ylim(low - 0.06 * (high - low), high)  # room for the numbers
    numbered = [i for i, each in enumerate(known) if each]
    every = -(-len(numbered) // 15)
    for i in numbered[::every]:
        name = f"exit {i + 1}" if i == numbered[0] else str(i + 1)
        place = {"xycoords": ("data", "axes fraction"), "ha": "center", "fontsize": "x-small"}
        axis.annotate(name, (spent[i], 0.015), **place)


def legend_below(figure: Any, shown: Mapping[str, Any]) -> None:
    """One legend for all panels, below them, in as many columns as fit; none if there is only one name."""
    if len(shown) > 1:
        widest = 0.5 + 0.09 * max(map(len, shown))  # inches of a column, about
        columns = max(1, min(len(shown), int(figure.get_figwidth() / widest)))
        figure.legend(shown.values(), shown, loc="outside lower center", ncols=columns, frameon=False)
