"""Draws serving.png from the record of benchmarks/serving_rush.py: what load does to answers, exits and errors.

python docs/serving_picture.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
facts = json.loads((DOCS / "records" / "serving_rush.json").read_text())["results"]["facts"]
loads = sorted(float(key.removeprefix("engine_").removesuffix("x")) for key in facts if key.startswith("engine_"))


def line(name: str) -> list[float]:
    """One number per load."""
    return [facts[f"{name}_{load:g}x"] for load in loads]


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
SYSTEMS = {
    "engine": ("anytime.Engine", "#d1495b", "-", "o"),
    "fixed": ("the exit that is best in hindsight", "#30638e", "--", "s"),
    "plain": ("predict, one after another", "#5c946e", "--", "^"),
    "full": ("full depth, batches", "#7f7f7f", "--", "v"),
}
for name, (label, color, style, marker) in SYSTEMS.items():
    left.plot(loads, [100 * v for v in line(name)], style, color=color, marker=marker, markersize=4, label=label)
left.set_ylabel("in time and right, % of all requests")
left.set_ylim(0, 100)
left.legend(frameon=False, fontsize=8, loc="upper right")
right.plot(loads, line("exit"), color="#d1495b", marker="o", markersize=4, label="mean exit (of 27)")
right.set_ylabel("mean exit that answers", color="#d1495b")
right.set_ylim(0, 28)
share = right.twinx()
share.plot(loads, [100 * v for v in line("in_time")], color="#222222", marker="D", markersize=4)
share.set_ylim(0, 104)
share.set_ylabel("admitted requests answered in time, %", color="#222222")
share.spines["top"].set_visible(False)
for axis in (left, right):
    axis.set_xlabel("load; 1× is all that full depth can do")
    axis.grid(alpha=0.25)
    axis.spines["top"].set_visible(False)
left.spines["right"].set_visible(False)
left.set_title("Score", loc="left", fontsize="medium")
right.set_title("Shallower, not later", loc="left", fontsize="medium")
figure.savefig(DOCS / "serving.png", dpi=150)
