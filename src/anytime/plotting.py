"""Pictures: error against cost, weights against depth."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from anytime.ensemble.theory import expected_inflation, inflation, sup_inflation
from anytime.errors import require
from anytime.evaluation import Curve
from anytime.inference.calibration import Budgeted

_COLOURS = ("#d1495b", "#00798c", "#edae49", "#30638e", "#6a4c93", "#4a7c59")  # told apart by most eyes


def plot_learning(history: Sequence[Mapping[str, Any]], path: str | Path, title: str = "") -> Path:
    """Draw the losses and errors of the first, middle and last exit against epochs.

    Args:
        history: what ``fit`` recorded, or the lines of ``log.jsonl``.
        path: where to write the picture; its ending says the format.
        title: above it.
    """
    plt = _pyplot()
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 5.4), sharex=True, layout="constrained")
    epochs = [record["epoch"] for record in history]
    known = [i for i, loss in enumerate(history[-1]["train"]["losses"]) if loss is not None]
    chosen = sorted({known[0], known[len(known) // 2], known[-1]})
    for exit, colour in zip(chosen, _COLOURS, strict=False):
        name = f"exit {exit + 1}"
        style = {"color": colour, "marker": "." if len(epochs) < 30 else None}
        top.plot(epochs, [r["train"]["losses"][exit] for r in history], label=name, **style)
        for split, line in (("train", ":"), ("validation", "-")):
            if all(split in record for record in history):
                errors = [100 * record[split]["errors"][exit] for record in history]
                bottom.plot(epochs, errors, line, label=f"{name}, {split}", **style)
    top.set_ylabel("training loss (cross-entropy)")
    bottom.set_ylabel("error (%)")
    bottom.set_xlabel("epoch")
    bottom.xaxis.get_major_locator().set_params(integer=True)
    if title:
        top.set_title(title, loc="left")
    for axis in (top, bottom):
        axis.set_ylim(0, 1.08 * axis.dataLim.y1)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize="small")
    return _written(plt, figure, path)


def _pyplot() -> Any:
    require("matplotlib", "plot").use("Agg")
    return require("matplotlib.pyplot", "plot")


def _written(plt: Any, figure: Any, path: str | Path) -> Path:
    path = Path(path)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def plot_curves(
    curves: Mapping[str, Curve],
    path: str | Path,
    title: str = "",
    weights: Mapping[str, list[float]] | None = None,
) -> Path:
    """Draw error against cost of one or more networks; with ``weights``, the loss weights of each exit below.

    Args:
        curves: by name, what ``evaluate`` gave.
        path: where to write the picture; its ending says the format.
        title: above it.
        weights: by the same names, a weight for each exit.
    """
    plt = _pyplot()
    weights = weights or {}
    rows = 2 if weights else 1
    figure, axes = plt.subplots(
        rows, 1, figsize=(7, 4.2 + 1.8 * (rows - 1)), sharex=True, squeeze=False, layout="constrained",
        height_ratios=[2.4, 1][:rows],
    )  # fmt: skip
    top = axes[0][0]
    for (name, curve), colour in zip(curves.items(), _COLOURS * len(curves), strict=False):
        points = [(m / 1e6, 100 * e) for m, e in zip(curve.costs.macs, curve.errors, strict=True) if e is not None]
        top.plot(*zip(*points, strict=True), marker="o", markersize=4, color=colour, label=name)
        if name in weights:
            costs = [m / 1e6 for m in curve.costs.macs]
            axes[1][0].plot(costs, weights[name], marker="o", markersize=4, color=colour, label=name)
    images = {curve.images for curve in curves.values()}
    of = f", {images.pop():,} images" if len(images) == 1 else ""
    top.set_ylabel(f"test error (%{of})")
    top.legend(frameon=False)
    if title:
        top.set_title(title, loc="left")
    if weights:
        axes[1][0].set_ylabel("loss weight")
        axes[1][0].set_ylim(0, 1.08)
    for (axis,) in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlim(left=0)
    top.set_ylim(0, 1.08 * top.dataLim.y1)
    axes[-1][0].set_xlabel("cost up to the exit (million multiply-accumulates)")
    return _written(plt, figure, path)


def plot_budgets(curve: Curve, budgeted: Mapping[str, Sequence[Budgeted]], path: str | Path, title: str = "") -> Path:
    """Draw both curves of the field, error against the cost of all samples alike and against the average cost.

    Below, the share of the samples that leave at each exit, for each budget of the first policy.

    Args:
        curve: what ``evaluate`` gave: every sample stops at the same exit.
        budgeted: by the policy's name, what ``sweep`` gave: each sample leaves when an exit is sure of it.
        path: where to write the picture; its ending says the format.
        title: above it.
    """
    plt = _pyplot()
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(7, 6.4), sharex=True, layout="constrained", height_ratios=[1.7, 1]
    )  # fmt: skip
    points = [(m / 1e6, 100 * e) for m, e in zip(curve.costs.macs, curve.errors, strict=True) if e is not None]
    top.plot(*zip(*points, strict=True), marker="o", markersize=4, color=_COLOURS[0], label="anytime: all stop alike")
    for (name, reached), colour in zip(budgeted.items(), _COLOURS[1:], strict=False):
        spent, errors = [p.cost / 1e6 for p in reached], [100 * p.error for p in reached]
        top.plot(spent, errors, marker="s", markersize=4, color=colour, label=f"budgeted batch: {name}")
    top.set_ylabel(f"test error (%, {curve.images:,} images)")
    top.set_ylim(0, 1.08 * top.dataLim.y1)
    top.legend(frameon=False)
    if title:
        top.set_title(title, loc="left")
    first = next(iter(budgeted.values()))
    exits, width = len(curve.errors), 0.7 * (first[-1].cost - first[0].cost) / 1e6 / max(1, len(first) - 1)
    colours = plt.get_cmap("viridis")
    for point in first:
        below = 0.0
        for exit, share in enumerate(point.shares):
            colour = colours(exit / max(1, exits - 1))
            bottom.bar(point.cost / 1e6, 100 * share, width, bottom=below, color=colour, linewidth=0)
            below += 100 * share
    scale = plt.cm.ScalarMappable(plt.Normalize(1, exits), colours)
    figure.colorbar(scale, ax=bottom, label="left at exit", pad=0.02).locator.set_params(integer=True)
    bottom.set_ylabel("share of samples (%)")
    bottom.set_xlabel("cost of a sample (million multiply-accumulates; budgeted: on average)")
    for axis in (top, bottom):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    top.set_xlim(left=0)
    return _written(plt, figure, path)


def plot_held(
    curves: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]],
    path: str | Path,
    title: str = "",
    dashed: Collection[str] = (),
    points: Collection[str] = (),
) -> Path:
    """Draw error against budget: each prediction is held until the next one.

    Args:
        curves: by name, costs and errors, once for each seed; of several seeds with the same costs, the mean and bars
            of one standard deviation.
        path: where to write the picture; its ending says the format.
        title: above it.
        dashed: names whose lines are thin and dashed.
        points: names that are drawn as points, without a line.
    """
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7.4, 4.8), layout="constrained")
    end = 1.02 * max(max(costs) for seeds in curves.values() for costs, _ in seeds) / 1e6
    for (name, seeds), colour in zip(curves.items(), _COLOURS * len(curves), strict=False):
        thin = name in dashed
        style = {"color": colour, "linewidth": 1.2 if thin else 1.9, "linestyle": "--" if thin else "-"}
        for i, (costs, means, deviations) in enumerate(_pooled(seeds)):
            x, y = [cost / 1e6 for cost in costs], [100 * error for error in means]
            label = name if i == 0 else None
            if name in points:
                axis.plot(x, y, "*", color="black", markersize=9, label=label, zorder=3)
                continue
            axis.step([*x, 1.02 * end], [*y, y[-1]], where="post", label=label, **style)
            bars = [100 * deviation for deviation in deviations] if any(deviations) else None
            axis.errorbar(x, y, bars, fmt="o", color=colour, markersize=3, capsize=2, linewidth=1)
    axis.set_ylabel("test error (%)")
    axis.set_xlabel("budget (million multiply-accumulates)")
    axis.set_xlim(0, end)
    _plain(axis)
    if title:
        axis.set_title(title, loc="left")
    return _written(plt, figure, path)


def plot_inflation(bases: Sequence[float], path: str | Path, networks: int = 7) -> Path:
    """Draw the cost inflation of EANNs, and of plain networks dotted, against the budget, for several bases.

    Args:
        bases: by how much the networks' costs grow.
        path: where to write the picture; its ending says the format.
        networks: how far the budget goes, for the smallest base in terms of doublings.
    """
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7.4, 4.4), layout="constrained")
    budgets = [2 ** (i * networks / 2000) for i in range(2001)]
    for base, colour in zip(bases, _COLOURS * len(bases), strict=False):
        axis.plot(budgets, [inflation(b, base, plain=True) for b in budgets], ":", color=colour, linewidth=1)
        label = f"b = {base:g}: sup {sup_inflation(base):.2f}, mean {expected_inflation(base):.2f}"
        axis.plot(budgets, [inflation(b, base) for b in budgets], color=colour, label=label)
    axis.plot([], [], ":", color="grey", label="plain networks")
    axis.set_xscale("log", base=2)
    axis.set_xlabel("budget (costs of the first network)")
    axis.set_ylabel("inflation C: budget / cost of the network it equals")
    axis.set_ylim(0.9, max(sup_inflation(base, plain=True) for base in bases if base <= 3) * 1.25)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=True, facecolor="white", edgecolor="none", framealpha=0.9, fontsize="small", ncols=2)
    return _written(plt, figure, path)


def plot_lines(
    lines: Mapping[str, Sequence[Sequence[float]]],
    x: Sequence[float],
    path: str | Path,
    x_name: str,
    y_name: str,
    bottom: float | None = None,
    linear_to: float | None = None,
) -> Path:
    """Draw a mean line for each name, with bars of one standard deviation where there are several seeds.

    Args:
        lines: by name, for each seed a value at every x.
        x: where.
        path: where to write the picture; its ending says the format.
        x_name: what x is, with its unit.
        y_name: what the values are, with their unit.
        bottom: where the vertical axis begins.
        linear_to: from here on, up and down, the vertical axis is logarithmic.
    """
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (name, seeds), colour in zip(lines.items(), _COLOURS * len(lines), strict=False):
        means, deviations = _mean_and_deviation(list(zip(*seeds, strict=True)))
        style = {"marker": "o", "markersize": 4, "color": colour, "capsize": 3}
        axis.errorbar(x, means, deviations if len(seeds) > 1 else None, label=f"{name} (n = {len(seeds)})", **style)
    axis.set_xlabel(x_name)
    axis.set_ylabel(y_name)
    axis.set_ylim(bottom=bottom)
    if linear_to is not None:
        axis.set_yscale("symlog", linthresh=linear_to, linscale=1.5)
        low, high = axis.get_ylim()
        ticks = [sign * digit * 10.0**power for sign in (1, -1) for power in range(7) for digit in (1, 2, 5)]
        axis.set_yticks([0, *(tick for tick in ticks if low <= tick <= high and abs(tick) >= linear_to / 2)])
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
    _plain(axis)
    return _written(plt, figure, path)


def plot_bars(
    groups: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    places: Sequence[str],
    path: str | Path,
    x_name: str,
    y_name: str,
) -> Path:
    """Draw bars of means with standard deviations, in percent: a panel a group, a colour a name.

    Args:
        groups: by panel and name, at each place the values of all seeds.
        places: what the places are.
        path: where to write the picture; its ending says the format.
        x_name: what the places are, all together.
        y_name: what the values are, with their unit.
    """
    plt = _pyplot()
    every = dict.fromkeys(name for named in groups.values() for name in named)
    names = dict(zip(every, _COLOURS * len(every), strict=False))
    shown: dict[str, Any] = {}
    size = (2.6 + 2.6 * len(groups), 4.0)
    figure, axes = plt.subplots(1, len(groups), figsize=size, squeeze=False, layout="constrained")
    for axis, (group, named) in zip(axes[0], groups.items(), strict=True):
        width = 0.8 / len(names)
        for i, (name, colour) in enumerate(names.items()):
            means, deviations = _mean_and_deviation(named.get(name, []))
            if not means:
                continue
            where = [place - 0.4 + width * (i + 0.5) for place in range(len(places))]
            scaled = [100 * mean for mean in means], [100 * deviation for deviation in deviations]
            axis.bar(where, scaled[0], width, yerr=scaled[1], color=colour, label=name, capsize=2)
        axis.set_xticks(range(len(places)), places)
        axis.set_xlabel(x_name)
        axis.set_title(group, loc="left")
        for bars in axis.containers:
            shown.setdefault(bars.get_label(), bars)
        _plain(axis)
        axis.get_legend().remove()
    axes[0][0].set_ylabel(y_name)
    named_bars = {name: shown[name] for name in names}
    figure.legend(named_bars.values(), named_bars, loc="outside lower center", ncols=len(names), frameon=False)
    return _written(plt, figure, path)


def _pooled(seeds: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[tuple[Any, list[float], list[float]]]:
    """Costs, mean errors and their deviations: of all seeds together if they have the same costs, or of each."""
    if len({tuple(costs) for costs, _ in seeds}) == 1:
        return [(seeds[0][0], *_mean_and_deviation(list(zip(*(errors for _, errors in seeds), strict=True))))]
    return [(costs, *_mean_and_deviation([[error] for error in errors])) for costs, errors in seeds]


def _mean_and_deviation(values: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    return [mean(each) for each in values], [stdev(each) if len(each) > 1 else 0.0 for each in values]


def _plain(axis: Any) -> None:
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize="small")
