"""Draws monitoring.png from the record of ``python benchmarks/serving_shift.py``.

python docs/monitoring.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

DOCS = Path(__file__).parent
facts = json.loads((DOCS / "records" / "serving_shift.json").read_text(encoding="utf-8"))["results"]["facts"]
SHIFTS = {
    "none": ("no shift", "#8a8a8a"),
    "contrast": ("low contrast", "#30638e"),
    "blur": ("blurred", "#d1495b"),
    "svhn": ("house numbers (SVHN)", "#5c946e"),
}
before = int(facts["before"])

figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained", sharex=True)
warning, alarm, share = axes
for name, (label, color) in SHIFTS.items():
    trail = facts[f"{name}_trail"]
    sent = [each["sent"] for each in trail]
    for axis, test in ((warning, "inputs"), (alarm, "disagreement")):
        axis.plot(sent, [max(min(each["evidence"][test], 1e4), 1e-4) for each in trail], color=color, label=label)
    low, high = ([100 * each["disagreement"][i] for each in trail] for i in (0, 1))
    share.fill_between(sent, low, high, color=color, alpha=0.25, linewidth=0)
    share.plot(sent, low, color=color)
for axis, title in (
    (warning, "Warning: the first exit's confidence"),
    (alarm, "Alarm: answers unlike the last exit's"),
):
    axis.set_yscale("log")
    axis.axhline(1, color="black", linewidth=1)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylim(1e-3, 2e4)
warning.set_ylabel("evidence; 1 raises it")
warning.legend(frameon=False, fontsize=8, loc="upper left")
share.axhline(100 * facts["none_trail"][0]["allowed"], color="black", linewidth=1)
share.set_ylim(0, 40)
share.set_ylabel("%")
share.set_title("Share of such answers, 95 % at all times; line: allowed", loc="left", fontsize=10)
for axis in axes:
    axis.axvline(before, color="black", linewidth=0.8, linestyle=":")
    axis.set_xlabel("requests; from the dotted line on, shifted")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
figure.savefig(DOCS / "monitoring.png", dpi=150)
