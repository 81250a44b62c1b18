"""The figure of paired differences; the others are ``anytime.plotting``'s."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime.plotting.style import colors_of, finish, legend_below, pyplot, write
from experiments.intervals import Interval


def plot_differences(
    panels: Mapping[str, Mapping[str, Sequence[Interval]]],
    places: Sequence[str],
    path: Path,
    x_name: str,
    y_name: str,
) -> Path:
    """Draw mean differences with their 95 % intervals, in points: one panel per data set, one color per scheme.

    Args:
        panels: By panel and scheme, the difference at each place.
        places: The labels of the places.
        path: The picture's file.
        x_name: The horizontal axis.
        y_name: The vertical axis, with its unit.
    """
    plt = pyplot()
    size = (2.6 + 2.6 * len(panels), 4.0)
    figure, axes = plt.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained")
    shown: dict[str, Any] = {}
    for axis, (panel, schemes) in zip(axes[0], panels.items(), strict=True):
        axis.axhline(0, color="#555555", linewidth=1)
        for i, ((scheme, intervals), color) in enumerate(zip(schemes.items(), colors_of(schemes), strict=True)):
            where = [place + 0.16 * (i - (len(schemes) - 1) / 2) for place in range(len(places))]
            means = [100 * each.mean for each in intervals]
            bars = [100 * (each.high - each.mean) for each in intervals] if intervals[0].n > 1 else None
            style = {"fmt": "o", "markersize": 5, "capsize": 3, "linewidth": 1.6, "color": color}
            shown.setdefault(scheme, axis.errorbar(where, means, bars, **style))
        axis.set_xticks(range(len(places)), places)
        axis.set_xlabel(x_name)
        # Linear within a point, logarithmic beyond: early exits differ by tens of points, late ones by tenths.
        axis.set_yscale("symlog", linthresh=1, linscale=1.5)
        ticks = [-30, -10, -3, -1, -0.5, 0, 0.5, 1, 3, 10, 30]
        axis.set_yticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks])
        axis.minorticks_off()
        finish(axis, panel, legend=False)
    axes[0][0].set_ylabel(y_name)
    legend_below(figure, shown)
    return write(plt, figure, path)
