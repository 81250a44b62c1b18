"""Plots of one network or run, or of a few on the same axes: error against cost, budgets, learning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime.drawing import OTHER_COLORS, colors_of, exit_axes, finish, subplots, write
from anytime.errors import require
from anytime.evaluation import Curve
from anytime.inference.calibration import Budgeted
from anytime.metrics import SHARES


def plot_learning(history: Sequence[Mapping[str, Any]], path: str | Path, title: str = "") -> Path:
    """Draw the losses and errors of the first, middle and last exit against epochs.

    Args:
        history: what ``fit`` recorded, or the lines of ``log.jsonl``.
        path: the picture's file; its suffix determines the format.
        title: the title.
    """
    figure, (top, bottom) = subplots(2, 1, figsize=(7, 5.4), sharex=True)
    epochs = [record["epoch"] for record in history]
    known = [i for i, loss in enumerate(history[-1]["train"]["losses"]) if loss is not None]
    chosen = sorted({known[0], known[len(known) // 2], known[-1]})
    for exit, color in zip(chosen, OTHER_COLORS, strict=False):
        name = f"exit {exit + 1}"
        style = {"color": color, "marker": "." if len(epochs) < 30 else None}
        top.plot(epochs, [r["train"]["losses"][exit] for r in history], label=name, **style)
        for split, line in (("train", ":"), ("validation", "-")):
            if all(split in record for record in history):
                errors = [100 * record[split]["errors"][exit] for record in history]
                bottom.plot(epochs, errors, line, label=f"{name}, {split}", **style)
    top.set(ylabel="training loss (cross-entropy)", ylim=(0, None))
    bottom.set(ylabel="error (%)", xlabel="epoch", ylim=(0, None))
    bottom.xaxis.get_major_locator().set_params(integer=True)
    finish(top, title)
    finish(bottom)
    return write(figure, path)


def plot_curves(
    curves: Mapping[str, Curve],
    path: str | Path,
    title: str = "",
    weights: Mapping[str, list[float]] | None = None,
) -> Path:
    """Draw error against cost of one or more networks; with ``weights``, the loss weights of each exit below.

    Args:
        curves: by name, the results of ``evaluate``.
        path: the picture's file; its suffix determines the format.
        title: the title.
        weights: by the same names, a weight for each exit.
    """
    weights = weights or {}
    rows = 2 if weights else 1
    figure, axes = subplots(
        rows, 1, figsize=(7, 4.4 + 1.8 * (rows - 1)), sharex=True, squeeze=False,
        height_ratios=[2.4, 1][:rows],
    )  # fmt: skip
    top, last = axes[0][0], axes[-1][0]
    for (name, curve), color in zip(curves.items(), colors_of(curves), strict=True):
        curve.plot(top, label=name, color=color)
        if name in weights:
            last.plot(curve.spent, weights[name], "o-", markersize=4, color=color)
    images = {curve.images for curve in curves.values()}
    samples = f", {images.pop():,} images" if len(images) == 1 else ""
    first = next(iter(curves.values()))
    top.set_ylabel(
        f"test error (%{samples}, 95 % intervals)"
        if first.metric in SHARES
        else f"{first.metric}{samples.replace('images', 'samples')}"
    )
    if weights:
        last.set(ylabel="loss weight", ylim=(0, None))
    top.set_xlabel("")
    last.set_xlabel(f"cost up to the exit ({first.unit})")
    if len({tuple(curve.spent) for curve in curves.values()}) == 1:
        exit_axes(top, first.spent, [error is not None for error in first.errors])
    finish(top, title)
    if weights:
        finish(last, legend=False)
    return write(figure, path)


def plot_budgets(curve: Curve, budgeted: Mapping[str, Sequence[Budgeted]], path: str | Path, title: str = "") -> Path:
    """Draw error against the cost if all samples stop at the same exit, and against the average cost if they do not.

    Below, the share of the samples that leave at each exit, for each budget of the first policy, where it is known.

    Args:
        curve: the result of ``evaluate``: every sample stops at the same exit.
        budgeted: by the policy's name, the result of ``sweep``: each sample leaves at the first confident exit.
        path: the picture's file; its suffix determines the format.
        title: the title.
    """
    first = next(iter(budgeted.values()))
    rows = 2 if all(point.shares for point in first) else 1
    size = {"figsize": (7, 2.6 + 2 * rows), "height_ratios": [1.7, 1][:rows]}
    figure, axes = subplots(rows, 1, sharex=True, squeeze=False, **size)
    top, last = axes[0][0], axes[-1][0]
    curve.plot(top, label="all samples stop at the same exit", color="#222222").set_xlabel("")
    for (name, reached), color in zip(budgeted.items(), OTHER_COLORS, strict=False):
        spent, errors = [p.cost / 1e6 for p in reached], [100 * p.error for p in reached]
        top.plot(spent, errors, "s-", markersize=4, color=color, label=f"easy samples leave early ({name})")
    top.set_ylabel(f"test error (%, {curve.images:,} images)")
    if rows == 2:
        _draw_shares(figure, last, first)
    last.set_xlabel("cost of a sample, or its average (million multiply-accumulates)")
    exit_axes(top, [macs / 1e6 for macs in curve.costs.macs], [error is not None for error in curve.errors])
    finish(top, title)
    return write(figure, path)


def _draw_shares(figure: Any, axis: Any, points: Sequence[Budgeted]) -> None:
    """For each budget one bar: the shares of the samples that leave at exit 1, 2, …, on top of each other."""
    exits = len(points[0].shares)
    width = 0.7 * (points[-1].cost - points[0].cost) / 1e6 / max(1, len(points) - 1)
    matplotlib = require("matplotlib", "plot")
    colors = matplotlib.colormaps["viridis"]
    for point in points:
        below = 0.0
        for exit, share in enumerate(point.shares):
            color = colors(exit / max(1, exits - 1))
            axis.bar(point.cost / 1e6, 100 * share, width, bottom=below, color=color, linewidth=0)
            below += 100 * share
    scale = require("matplotlib.cm", "plot").ScalarMappable(matplotlib.colors.Normalize(1, exits), colors)
    figure.colorbar(scale, ax=axis, label="left at exit", pad=0.02).locator.set_params(integer=True)
    axis.set(ylabel="share of samples (%)", ylim=(0, 100))
    finish(axis)
