"""Pictures: error against cost, weights against depth."""

from collections.abc import Mapping
from pathlib import Path

from anytime.errors import require
from anytime.evaluate import Curve

_COLOURS = ("#d1495b", "#00798c", "#edae49", "#30638e", "#6a4c93", "#4a7c59")  # told apart by most eyes


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
    plt = require("matplotlib.pyplot", "plot")
    require("matplotlib", "plot").use("Agg")
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
    top.set_ylim(bottom=0)
    axes[-1][0].set_xlabel("cost up to the exit (million multiply-accumulates)")
    path = Path(path)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path
