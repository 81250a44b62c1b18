"""Figures of differences, separations and weights; the others are ``anytime.plotting``'s."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from anytime.drawing import colors_of, finish, legend_below, subplots, write
from experiments.intervals import Interval

MARKS = "osD^vP"


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
            style = {
                "fmt": MARKS[labels.index(scheme) % len(MARKS)],
                "markersize": 5,
                "capsize": 3,
                "linewidth": 1.6,
                "color": color,
            }
            shown.setdefault(scheme, axis.errorbar(where, means, bars, **style))
        axis.set_xticks(range(len(places) - 1), places[1:])
        axis.set_xlabel(x_name)
        alone = all(each.n == 1 for intervals in schemes.values() for each in intervals)
        finish(axis, f"{panel} (one seed)" if alone else panel, legend=False)
    for line in axes:
        line[0].set_ylabel(y_name)
    legend_below(figure, shown)
    return write(figure, path)


class Point(NamedTuple):
    """A setting in the figure of separations."""

    label: str
    data: str
    separation: float
    """The last exit's training loss as a share of the first's."""
    shown: str
    const: Interval | None
    linear: Interval | None


MARKERS = {"SVHN": ("o", "#0072B2"), "CIFAR-10": ("s", "#B04A00"), "CIFAR-100": ("D", "#007A5A")}
"""Shape and color of each data set, after Okabe and Ito, dark enough for a white number."""


def plot_separation(points: Sequence[Point], path: Path) -> Path:
    """Draw what CONST and LINEAR lose against AdaLoss at the last exit, against the separation of the losses.

    The points are numbered, and listed beside the panels. Intervals of two seeds may leave the panel.

    Args:
        points: one for each setting, those furthest apart first.
        path: The picture's file.
    """
    figure, axes = subplots(1, 3, figsize=(14, 5.2), width_ratios=(1, 1, 0.72))
    places = _apart([math.log10(100 * point.separation) for point in points], 0.055)
    sure = [each for point in points for each in (point.const, point.linear) if each and each.n > 2]
    highest = 110 * max((max(abs(each.low), abs(each.high)) for each in sure), default=0.02)
    for axis, pick, rival in zip(axes, (_const, _linear), ("CONST", "LINEAR"), strict=False):
        axis.axhline(0, color="#555555", linewidth=1)
        for number, (point, place) in enumerate(zip(points, places, strict=True), start=1):
            interval, (marker, color) = pick(point), MARKERS[point.data]
            if interval is None:
                continue
            mean, ends = (
                100 * interval.mean,
                [[100 * (interval.mean - interval.low)], [100 * (interval.high - interval.mean)]],
            )
            style = {"fmt": marker, "markersize": 13, "capsize": 3, "linewidth": 1.4, "color": color}
            axis.errorbar([10**place], [mean], ends, **style)
            words = {"ha": "center", "va": "center", "fontsize": 7.5, "color": "white", "zorder": 5}
            axis.text(10**place, mean, str(number), clip_on=True, **words)
        axis.set(xscale="log", xlim=(10 ** (max(places) + 0.08), 10 ** (min(places) - 0.08)), ylim=(-highest, highest))
        ticks = [
            tick
            for tick in (0.5, 1, 2, 5, 10, 20, 50, 100)
            if min(places) - 0.08 <= math.log10(tick) <= max(places) + 0.08
        ]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("CONST's training loss, last exit / first exit (%)\nlosses further apart →")
        finish(axis, f"{rival} − AdaLoss: above 0, AdaLoss is better", legend=False)
    axes[0].set_ylabel("difference of the test errors at the last exit (points)")
    axes[2].axis("off")
    for number, point in enumerate(points, start=1):
        color, height = MARKERS[point.data][1], 1 - (number - 0.5) / max(len(points), 14)
        axes[2].text(0, height, f"{number}  {point.label}", color=color, fontsize="small", va="center")
    return write(figure, path)


def _const(point: Point) -> Interval | None:
    return point.const


def _linear(point: Point) -> Interval | None:
    return point.linear


def _apart(places: Sequence[float], least: float) -> list[float]:
    """Ascending places, moved as little as it takes for neighbors to be so far from each other."""
    moved = list(places)
    for _ in range(200):
        for i, (low, high) in enumerate(pairwise(list(moved))):
            if (short := least - (high - low)) > 1e-9:
                moved[i] -= short / 2
                moved[i + 1] += short / 2
    return moved


def plot_weights(maps: Mapping[str, Sequence[Sequence[float]]], path: Path) -> Path:
    """Draw the share of each exit in the sum of the weights: training time to the right, depth upward.

    Args:
        maps: By setting, the shares of all exits by epoch.
        path: The picture's file.
    """
    columns = min(3, len(maps))
    lines = -(-len(maps) // columns)
    size = (1.6 + 3.0 * columns, 0.6 + 2.5 * lines)
    figure, axes = subplots(lines, columns, figsize=size, sharex=True, squeeze=False)
    highest = max(max(row) for rows in maps.values() for row in rows)
    for axis in axes.flat[len(maps) :]:
        axis.remove()
    colored: Any = None
    for axis, (label, rows) in zip(axes.flat, maps.items(), strict=False):
        edges = [100 * i / len(rows) for i in range(len(rows) + 1)]
        exits = [i + 0.5 for i in range(len(rows[0]) + 1)]
        shares = [[100 * share for share in column] for column in zip(*rows, strict=True)]
        colored = axis.pcolormesh(edges, exits, shares, cmap="cividis", vmin=0, vmax=100 * highest)
        axis.set_title(label, loc="left", fontsize="small")
        axis.set_yticks([1, 5, 10, 15][: 1 + len(rows[0]) // 5])
    for axis in axes[-1]:
        axis.set_xlabel("part of the training (%)")
    for line in axes:
        line[0].set_ylabel("exit")
    figure.colorbar(colored, ax=axes, label="share of the weight (%)", shrink=0.8)
    return write(figure, path)
