"""The paper's tables and figures, one file each, on the public API of ``anytime``.

Each file has ``TITLE``, ``runs(preset)``, the trainings that it needs, and ``show(preset, records)``, its part of the
report.
"""

import importlib
from types import ModuleType

EXPERIMENTS = (
    "weights_by_depth",
    "table_weights",
    "small_vs_large",
    "backbones",
    "eann",
    "weights_by_dataset",
    "settings",
)
PRESETS = ("paper", "laptop")


def load(name: str) -> ModuleType:
    """An experiment by its name."""
    return importlib.import_module(f"experiments.{name}")
