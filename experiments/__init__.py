"""The paper's tables and figures, one file each, on the public API of ``anytime``; ``python -m experiments --help``.

Each file has ``TITLE``, ``CLAIM``, what the paper says, ``runs(preset)``, the trainings that it needs (none where a
preset does not have the experiment), and ``show(preset, records)``, its part of the report.
"""

import importlib
from types import ModuleType

EXPERIMENTS = (
    "table_weights",
    "weights_by_depth",
    "weights_by_dataset",
    "small_vs_large",
    "backbones",
    "eann",
    "variants",
    "extras",
    "heads",
    "planned",
    "separation",
    "weights_over_time",
    "combining",
)


def load(name: str) -> ModuleType:
    """An experiment by its name."""
    return importlib.import_module(f"experiments.{name}")
