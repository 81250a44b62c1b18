"""The figure of paired differences; the others are ``anytime.plotting``'s."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime.plotting.style import colors_of, finish, legend_below, subplots, write
from experiments.intervals import Interval


def plot_differences(
    panels: Mapping[str, Mapping[str, Sequence[Interval]]],
    places: Sequence[str],
    path: Path,
    x_name: str,
    y_name: str,
) -> Path:
    """Draw mean differences with their 95 % intervals, in points: one panel per data set, one color per scheme.

    The first place is left out: there, early exits differ by tens of points, elsewhere by tenths.

    Args:
        panels: By panel and scheme, the difference at each place.
        places: The labels of the places.
        path: The picture's file.
        x_name: The horizontal axis.
        y_name: The vertical axis, with its unit.
    """
    labels = list(dict.fromkeys(scheme for schemes in panels.values() for scheme in schemes))
    colors = dict(zip(labels, colors_of(labels), strict=True))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    size = (2.0 + 2.6 * columns, 0.8 + 2.8 * lines)
    figure, axes = subplots(lines, columns, figsize=size, sharey=True, squeeze=False)
    shown: dict[str, Any] = {}
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (panel, schemes) in zip(axes.flat, panels.items(), strict=False):
        axis.axhline(0, color="#555555", linewidth=1)
        for i, (scheme, intervals) in enumerate(schemes.items()):
            color, intervals = colors[scheme], intervals[1:]
            where = [place + 0.14 * (i - (len(schemes) - 1) / 2) for place in range(len(intervals))]
            means = [100 * each.mean for each in intervals]
            bars = [100 * (each.high - each.mean) for each in intervals] if intervals[0].n > 1 else None
            style = {"fmt": "o", "markersize": 5, "capsize": 3, "linewidth": 1.6, "color": color}
            shown.setdefault(scheme, axis.errorbar(where, means, bars, **style))
        axis.set_xticks(range(len(places) - 1), places[1:])
        axis.set_xlabel(x_name)
        finish(axis, panel, legend=False)
    for line in axes:
        line[0].set_ylabel(y_name)
    legend_below(figure, shown)
    return write(figure, path)
