"""Pictures: error against cost, loss weights by exit, learning curves, comparisons of runs."""

from anytime.drawing import SCHEME_COLORS
from anytime.plotting.comparisons import plot_bars, plot_held, plot_inflation, plot_lines
from anytime.plotting.networks import plot_budgets, plot_curves, plot_learning

__all__ = [
    "SCHEME_COLORS",
    "plot_bars",
    "plot_budgets",
    "plot_curves",
    "plot_held",
    "plot_inflation",
    "plot_learning",
    "plot_lines",
]
