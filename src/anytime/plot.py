"""Pictures: error against cost, weights against depth."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytime.errors import require
from anytime.evaluate import Curve
from anytime.policy import Budgeted

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
