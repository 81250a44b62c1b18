"""Draws deadlines.png: what predict does when, from a profile measured on this machine.

python docs/deadlines.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import anytime

torch.set_num_threads(1)
net = anytime.create_model("resann-3-16").eval()
x = torch.randn(1, 3, 32, 32)
profile = anytime.profile(net, x, repeats=200, warmup=50)
deadline = 1e3 * (profile.alone[5] + 0.25 * profile.stages[6])

figure, axes = plt.subplots(3, 1, figsize=(8, 4.6), sharex=True, layout="constrained")
blue, red, gray = "#30638e", "#d1495b", "#b8b8b8"


def draw(axis, title, heads, upto):
    """Stages one after the other, the heads that run after them; what is not run in gray outline."""
    time = 0.0
    for i, (stage, head) in enumerate(zip(profile.stages, profile.heads, strict=True)):
        runs = i <= upto
        style = {"color": blue} if runs else {"fill": False, "edgecolor": gray, "linestyle": ":"}
        axis.barh(0, 1e3 * stage, left=time, height=0.6, linewidth=1, **({"edgecolor": "white"} | style))
        axis.text(time + 500 * stage, 0, str(i + 1), ha="center", va="center", color="white" if runs else gray)
        time += 1e3 * stage
        if i in heads:
            axis.barh(0, 1e3 * head, left=time, height=0.6, color=red, edgecolor="white")
            time += 1e3 * head
            axis.plot(time, 0.55, "v", color=red, markersize=6)
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylim(-0.45, 0.8)
    axis.set_yticks([])
    axis.spines[["top", "right", "left"]].set_visible(False)


draw(axes[0], "net.steps(x): every head runs, an answer (▾) after each stage", range(9), 8)
draw(axes[1], "predict(net, x): one head, the last", [8], 8)
draw(
    axes[2], f"predict(net, x, deadline={deadline / 1e3:.4f}): stage 7 would not end in time, so exit 6 answers", [5], 5
)
axes[2].axvline(deadline, color="black", linewidth=1)
axes[2].text(deadline, 0.72, " deadline", va="top")
axes[2].set_xlabel("milliseconds since the call (ResANN(3, 16), one image, one processor thread)")
bars = [plt.Rectangle((0, 0), 1, 1, color=color) for color in (blue, red)]
axes[0].legend(bars, ["stage", "head"], frameon=False, ncols=2, loc="upper right", bbox_to_anchor=(1, 1.5))
figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)
