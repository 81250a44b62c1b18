"""Draws guarantees.png from the record of ``python benchmarks/guarantees.py``.

python docs/guarantees.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
record = json.loads((DOCS / "records" / "guarantees.json").read_text(encoding="utf-8"))["results"]["facts"]
network = next(iter(record.values()))
blue, red, gray = "#30638e", "#d1495b", "#8a8a8a"

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", width_ratios=[1.25, 1])
KINDS = {
    "as it was": ("kept on the held-out samples", gray),
    "mean": ("promised on average", blue),
    "delta": ("promised with 95 %", red),
}
for i, risk in enumerate((0.005, 0.01, 0.02)):
    left.plot([i - 0.42, i + 0.42], [100 * risk] * 2, color="black", linewidth=1.5, label="" if i else "ε")
    for j, (kind, (label, color)) in enumerate(KINDS.items()):
        found = network["risk"][f"{kind}, risk {risk:g}"]
        x, low, mean, high = i + 0.27 * (j - 1), *(100 * found[key] for key in ("low", "mean", "high"))
        left.errorbar(x, mean, [[mean - low], [high - mean]], fmt="o", color=color, capsize=4, label="" if i else label)
        left.text(x, -0.13, f"{found['saved']:.0%}", ha="center", va="top", color=color, fontsize=9)
left.text(-0.62, -0.13, "saved", ha="right", va="top", fontsize=9)
left.set_xlim(-0.6, 2.5)
left.set_ylim(-0.4, None)
left.set_xticks(range(3), ["ε = 0.5 points", "1 point", "2 points"])
left.set_ylabel("accuracy lost on new images (points)")
left.set_title(f"Mean and 95 % of {network['splits']:,} splits; below, the compute saved", loc="left", fontsize=10)
left.legend(frameon=False, fontsize=9, loc="upper left")
exits = range(1, len(network["costs"]) + 1)
right.plot(exits, network["sets"]["each"]["size"], "o-", color=blue, markersize=4, label="95 % at each exit")
right.plot(exits, network["sets"]["together"]["size"], "o-", color=red, markersize=4, label="95 % at all exits at once")
right.set_ylim(0, None)
right.set_xlabel("exit")
right.set_ylabel("classes in the set, mean")
right.set_title("Conformal sets", loc="left", fontsize=10)
right.legend(frameon=False, fontsize=9)
for axis in (left, right):
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
figure.savefig(DOCS / "guarantees.png", dpi=150)
