"""Plots that compare several runs: held predictions, lines, bars, and the inflation of EANNs."""

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from anytime.drawing import OTHER_COLORS, colors_of, finish, legend_below, subplots, write
from anytime.ensemble.theory import expected_inflation, inflation, sup_inflation


def plot_held(
    curves: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]],
    path: str | Path,
    title: str = "",
    dashed: Collection[str] = (),
    points: Collection[str] = (),
    panels: Mapping[str, Collection[str]] | None = None,
    shared: bool = True,
    logarithmic: bool | None = None,
) -> Path:
    """Draw error against budget: each prediction is held until the next one.

    Args:
        curves: by name, costs and errors, once for each seed; of several seeds the mean, with bars of one standard
            deviation, or a band if their costs differ: then from where all of them have answered.
        path: the picture's file; its suffix determines the format.
        title: the title.
        dashed: names whose lines are thin and dashed.
        points: names that are drawn as points, without a line.
        panels: by title, the names of the curves in a panel; panels stand side by side with the same scales.
            Default: one panel with all of them. A name "title: rest" is shown as "rest".
        shared: whether all panels have the same scales.
        logarithmic: the vertical axis; None: if the largest error is more than four times the smallest one.
    """
    panels = panels or {"": list(curves)}
    size = (3.0 + 3.9 * len(panels), 4.8)
    figure, axes = subplots(1, len(panels), figsize=size, sharex=shared, sharey=shared, squeeze=False)
    for axis, (panel, names) in zip(axes[0], panels.items(), strict=True):
        shown = [name for name in curves if name in names]
        scaled = list(curves) if shared else shown
        costs = [cost / 1e6 for name in scaled for each, _ in curves[name] for cost in each]
        begin, end = 0.0 if shared else 0.9 * min(costs), 1.02 * max(costs)
        for name, color in zip(shown, colors_of(shown), strict=True):
            label = name.removeprefix(f"{panel}: ")
            _held(axis, label, curves[name], color, end, name in dashed, name in points)
        axis.set(xlabel="budget (million multiply-accumulates)", xlim=(begin, end))
        finish(axis, panel)
        errors = [100 * error for name in scaled for _, each in curves[name] for error in each]
        wide = max(errors) > 4 * min(errors) if logarithmic is None else logarithmic
        if min(errors) > 0 and wide:
            _logarithmic(axis, min(errors), max(errors))
        if axis is axes[0][0] or not shared:
            axis.set_ylabel("test error (%, logarithmic)" if min(errors) > 0 and wide else "test error (%)")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize="large")
    return write(figure, path)


def _logarithmic(axis: Any, low: float, high: float) -> None:
    """A vertical axis with round numbers."""
    axis.set(yscale="log", ylim=(0.9 * low, 1.1 * high))
    digits = (1, 2, 3, 5, 7) if high > 8 * low else (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    ticks = {digit * 10.0**power for power in range(-2, 3) for digit in digits}
    axis.set_yticks(sorted(tick for tick in ticks if 0.9 * low <= tick <= 1.1 * high))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()


def _held(axis: Any, name: str, seeds: Any, color: str, end: float, dashed: bool, points: bool) -> None:
    """One network's predictions as steps."""
    style = {"color": color, "linewidth": 1.2 if dashed else 1.9, "linestyle": "--" if dashed else "-"}
    if points:
        for i, (costs, errors) in enumerate(seeds):
            x, y = [cost / 1e6 for cost in costs], [100 * error for error in errors]
            axis.plot(x, y, "*", color="black", markersize=9, label=name if i == 0 else None, zorder=3)
        return
    costs, means, deviations = _pooled(seeds)
    x, y = [cost / 1e6 for cost in costs], [100 * error for error in means]
    axis.step([*x, 1.02 * end], [*y, y[-1]], where="post", label=name, **style)
    bars = [100 * deviation for deviation in deviations] if any(deviations) else None
    if len({tuple(costs) for costs, _ in seeds}) == 1:
        axis.errorbar(x, y, bars, fmt="o", color=color, markersize=3, capsize=2, linewidth=1)
    elif bars:
        low, high = ([*(a + sign * b for a, b in zip(y, bars, strict=True))] for sign in (-1, 1))
        band = {"step": "post", "color": color, "alpha": 0.2, "linewidth": 0}
        axis.fill_between([*x, 1.02 * end], [*low, low[-1]], [*high, high[-1]], **band)


def plot_inflation(bases: Sequence[float], path: str | Path, networks: int = 7) -> Path:
    """Draw the cost inflation of EANNs and of plain networks against the budget, a panel for each base.

    Args:
        bases: by how much the networks' costs grow.
        path: the picture's file; its suffix determines the format.
        networks: the largest budget, as a power of 2 of the first network's cost.
    """
    columns = min(2, len(bases))
    rows = -(-len(bases) // columns)
    figure, axes = subplots(
        rows, columns, figsize=(7.4, 2.5 * rows + 0.6), sharex=True, sharey=True, squeeze=False
    )  # fmt: skip
    budgets = [2 ** (i * networks / 2000) for i in range(2001)]
    for axis, base in zip(axes.flat, bases, strict=False):
        for plain, color, name in ((True, "#999999", "plain networks"), (False, OTHER_COLORS[0], "EANN")):
            axis.plot(budgets, [inflation(b, base, plain=plain) for b in budgets], color=color, label=name)
        axis.axhline(sup_inflation(base), color=OTHER_COLORS[0], linewidth=1, linestyle=":", label="EANN, upper bound")
        axis.set_xscale("log", base=2)
        title = f"b = {base:g}: EANN at most {sup_inflation(base):.2f}, mean {expected_inflation(base):.2f}"
        finish(axis, title, legend=False)
    axes[0][0].set_ylim(0.8, max(sup_inflation(base, plain=True) for base in bases if base <= 3) * 1.1)
    for axis in axes[-1]:
        axis.set_xlabel("budget (costs of the first network)")
    figure.supylabel("inflation: budget / cost of the equal network", fontsize="medium")
    handles, names = axes[0][0].get_legend_handles_labels()
    legend_below(figure, dict(zip(names, handles, strict=True)))
    return write(figure, path)


def plot_lines(
    lines: Mapping[str, Sequence[Sequence[float]]],
    x: Sequence[float],
    path: str | Path,
    x_name: str,
    y_name: str,
    bottom: float | None = None,
    linear_to: float | None = None,
) -> Path:
    """Draw a mean line for each name, with bars of one standard deviation if there are several seeds.

    Args:
        lines: by name, for each seed a value at every x.
        x: the positions.
        path: the picture's file; its suffix determines the format.
        x_name: the horizontal axis, with its unit.
        y_name: the vertical axis, with its unit.
        bottom: where the vertical axis begins.
        linear_to: beyond this value, up and down, the vertical axis is logarithmic; lines mark it and 0.
    """
    figure, axis = subplots(figsize=(7, 4.4))
    if linear_to is not None:
        axis.set_yscale("symlog", linthresh=linear_to, linscale=1.5)
        axis.axhline(0, color="#555555", linewidth=1)
        axis.axhline(linear_to, color="#555555", linewidth=1, linestyle=":")
        y_name += f"\n(linear up to {linear_to:g}, logarithmic beyond)"
    gap = 0.012 * (max(x) - min(x))  # so that the bars of different lines stand beside each other
    for i, ((name, seeds), color) in enumerate(zip(lines.items(), colors_of(lines), strict=True)):
        means, deviations = _mean_and_deviation(list(zip(*seeds, strict=True)))
        where = [each + gap * (i - (len(lines) - 1) / 2) for each in x]
        style = {"marker": "o", "markersize": 4, "color": color, "capsize": 3, "elinewidth": 1}
        axis.errorbar(where, means, deviations if len(seeds) > 1 else None, label=f"{name} (n = {len(seeds)})", **style)
    axis.set(xlabel=x_name, ylabel=y_name, ylim=(bottom, None))
    if len(x) <= 16:
        axis.set_xticks(x)
    if linear_to is not None:
        low, high = axis.get_ylim()
        ticks = [sign * digit * 10.0**power for sign in (1, -1) for power in range(7) for digit in (1, 2, 5)]
        axis.set_yticks([0, *(tick for tick in ticks if low <= tick <= high and abs(tick) >= linear_to / 2)])
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
    finish(axis)
    return write(figure, path)


def plot_bars(
    groups: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    places: Sequence[str],
    path: str | Path,
    x_name: str,
    y_name: str,
) -> Path:
    """Draw bars of means with standard deviations, in percent: one panel per group, one color per name.

    Args:
        groups: by panel and name, at each place the values of all seeds.
        places: the labels of the places.
        path: the picture's file; its suffix determines the format.
        x_name: the horizontal axis.
        y_name: the vertical axis, with its unit.
    """
    every = list(dict.fromkeys(name for named in groups.values() for name in named))
    size = (2.6 + 2.6 * len(groups), 4.0)
    figure, axes = subplots(1, len(groups), figsize=size, sharey=True, squeeze=False)
    shown: dict[str, Any] = {}
    width = 0.8 / len(every)
    for axis, (group, named) in zip(axes[0], groups.items(), strict=True):
        for i, (name, color) in enumerate(zip(every, colors_of(every), strict=True)):
            means, deviations = _mean_and_deviation(named.get(name, []))
            where = [place - 0.4 + width * (i + 0.5) for place in range(len(means))]
            scaled = [100 * mean for mean in means], [100 * deviation for deviation in deviations]
            if means:
                bars = scaled[1] if any(deviations) else None  # of one seed there is no deviation
                shown[name] = axis.bar(where, scaled[0], width, yerr=bars, color=color, capsize=2)
        axis.set_xticks(range(len(places)), places)
        axis.set_xlabel(x_name)
        finish(axis, group, legend=False)
    axes[0][0].set_ylabel(y_name)
    legend_below(figure, shown)
    return write(figure, path)


def _pooled(seeds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[list[float], list[float], list[float]]:
    """Costs, mean errors and their deviations; each seed's error is held until its next one."""
    begin = max(costs[0] for costs, _ in seeds)
    costs = sorted({cost for each, _ in seeds for cost in each if cost >= begin})
    held = [[_error_at(each, errors, cost) for each, errors in seeds] for cost in costs]
    return costs, *_mean_and_deviation(held)


def _error_at(costs: Sequence[float], errors: Sequence[float], budget: float) -> float:
    """The error of the last prediction within a budget."""
    return errors[bisect_right(costs, budget) - 1]


def _mean_and_deviation(values: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [mean(each) for each in values], [stdev(each) if len(each) > 1 else 0.0 for each in values]
