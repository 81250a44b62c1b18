"""The pictures of the documents, drawn from records; each says in itself which records it was drawn from.

python docs/figures.py draw            # those whose records have changed since, or all: draw all
"""

import hashlib
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pretrained_tables
from measurements import EXAMPLES
from measuring import DOCS, RECORDS, results
from terminal import three_deadlines

from anytime.cost import Costs
from anytime.drawing import OTHER_COLORS, SCHEME_COLORS, finish, legend_below, subplots
from anytime.evaluation import Curve
from anytime.inference.calibration import Budgeted
from anytime.plotting import plot_budgets, plot_inflation

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, RED, GRAY, PURPLE = OTHER_COLORS
BLACK = "#222222"


class Picture(NamedTuple):
    """How a picture is drawn, and from what."""

    draw: Callable[[Path], object]
    records: Sequence[str]


def save(figure: Any, path: Path) -> None:
    """As SVG, the same bytes for the same figure."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})


def early_exit(path: Path) -> None:
    """Error against cost if all samples stop at the same exit, and if easy ones leave early."""
    found = results("budgets")
    curve = Curve(found["errors"], found["errors"], Costs(found["macs"], found["macs"]), found.get("images", 10_000))
    points = [Budgeted(**{"shares": [], **point}) for point in found["budgets"]["common"]]
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        plot_budgets(curve, {"confidence": points}, path, "ResANN(5, 16) with MLP heads on CIFAR-10, stacked")


KINDS = {
    "as it was": ("what was lost on the held-out images", GRAY),
    "mean": ("promised on average", BLUE),
    "delta": ("promised with 95 %", ORANGE),
}


def guarantees(path: Path) -> None:
    """In how many splits more than ε was lost, what was saved, and how large conformal sets are."""
    network = next(iter(results("guarantees_heads")["facts"].values()))
    figure, (left, right) = subplots(1, 2, figsize=(10, 4), width_ratios=[1.25, 1])
    for i, risk in enumerate((0.005, 0.01, 0.02)):
        for j, (kind, (label, color)) in enumerate(KINDS.items()):
            found = network["risk"][f"{kind}, risk {risk:g}"]
            x, height = i + 0.27 * (j - 1), 100 * found["exceeded"]
            left.bar(x, height, 0.24, color=color, label=label if i == 0 else None)
            left.text(x, max(height, 5) + 0.6, f"{height:.1f}", ha="center", va="bottom", fontsize=9)
            left.text(x, -1.2, f"{found['saved']:.0%}", ha="center", va="top", fontsize=9)
    left.text(-0.62, -1.2, "saved", ha="right", va="top", fontsize=9)
    left.axhline(5, color=BLACK, linewidth=1.2, linestyle="--")
    left.text(2.62, 5, "5 %", va="center", fontsize=9)
    left.set(xlim=(-0.55, 2.6), ylim=(0, 62), ylabel=f"splits that lost more than ε (%, of {network['splits']:,})")
    left.set_xticks(range(3), ["ε = 0.5 points", "1 point", "2 points"])
    left.tick_params(axis="x", length=0, pad=20)
    finish(left, "Early exit with thresholds that keep ε: how often they do not")
    exits = range(1, len(network["costs"]) + 1)
    for kind, label, color in (("each", "95 % at each exit", BLUE), ("together", "95 % at all exits at once", ORANGE)):
        right.plot(exits, network["sets"][kind]["size"], "o-", color=color, markersize=4, label=label)
    right.set(ylim=(0, None), xlabel="exit", ylabel="classes in the set, mean")
    finish(right, "Conformal sets")
    save(figure, path)


def deadlines(path: Path) -> None:
    """What predict runs, and when, for the model in the package."""
    facts = results("shipped")["facts"]
    stages, heads = facts["stages_ms"], facts["heads_ms"]
    stop = len(stages) // 2 - 1
    through = sum(stages[: stop + 1]) + heads[stop]
    deadline = through + 0.4 * stages[stop + 1]
    figure, axes = subplots(3, 1, figsize=(8, 4.6), sharex=True)

    def draw(axis: Any, title: str, answers: Sequence[int], upto: int) -> None:
        """Stages one after the other, the heads that run after them; what is not run in gray outline."""
        time = 0.0
        for i, (stage, head) in enumerate(zip(stages, heads, strict=True)):
            runs = i <= upto
            style = {"color": BLUE} if runs else {"fill": False, "edgecolor": GRAY, "linestyle": ":"}
            axis.barh(0, stage, left=time, height=0.6, linewidth=1, **({"edgecolor": "white"} | style))
            axis.text(time + stage / 2, 0, str(i + 1), ha="center", va="center", color="white" if runs else "#666666")
            time += stage
            if i in answers:
                axis.barh(0, head, left=time, height=0.6, color=ORANGE, edgecolor="white")
                time += head
                axis.plot(time, 0.55, "v", color=ORANGE, markersize=6)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set(ylim=(-0.45, 0.8), yticks=[])
        axis.spines[["top", "right", "left"]].set_visible(False)

    last = len(stages) - 1
    draw(axes[0], "net.steps(x): every head runs, an answer (▾) after each stage", range(len(stages)), last)
    draw(axes[1], "predict(net, x): one head, the last", [last], last)
    title = f"predict(net, x, deadline={deadline / 1000:.5f}): stage {stop + 2} would not end in time, exit {stop + 1} answers"
    draw(axes[2], title, [stop], stop)
    axes[2].axvline(deadline, color=BLACK, linewidth=1)
    axes[2].text(deadline, 0.72, " deadline", va="top")
    axes[2].set_xlabel("milliseconds since the call (the model in the package, one image, one processor thread)")
    bars = [axes[0].barh(0, 0, color=color) for color in (BLUE, ORANGE)]
    figure.legend(bars, ["stage", "head"], frameon=False, ncols=2, loc="outside upper right")
    save(figure, path)


SYSTEMS = {
    "engine": ("anytime.Engine", ORANGE, "-", "o"),
    "http": ("the engine over HTTP", RED, "-", "D"),
    "fixed": ("the exit that is best in hindsight", BLUE, "--", "s"),
    "plain": ("predict, one after another", GREEN, "--", "^"),
    "full": ("full depth, batches", GRAY, "--", "v"),
    "litserve": ("LitServe", PURPLE, ":", "X"),
    "ray": ("Ray Serve", BLACK, ":", "P"),
}


def serving(path: Path) -> None:
    """What real processes answer in time and right, and at which exit the engine answers."""
    facts = results("serving_load")["facts"]
    loads = sorted(float(key.rpartition("_")[2][:-1]) for key in facts if key.startswith("score_engine_"))
    figure, (left, right) = subplots(1, 2, figsize=(10, 4.4), width_ratios=[1.6, 1])
    shown = {}
    for name, (label, color, style, marker) in SYSTEMS.items():
        scores = [
            (load, 100 * max(facts.get(f"score_{each}_{load:g}x", -1) for each in ([name, "fixed2"] if name == "fixed" else [name])))
            for load in loads
        ]  # fmt: skip
        if found := [(load, score) for load, score in scores if score >= 0]:
            (shown[label],) = left.plot(*zip(*found, strict=True), style, color=color, marker=marker, markersize=5)
    left.set(ylim=(0, 80), ylabel="in time and right (% of all requests)")
    finish(left, "Score", legend=False)
    depths = [facts[f"exits_engine_{load:g}x"] + 1 for load in loads]
    right.plot(loads, depths, "-o", color=ORANGE, markersize=5)
    for load, depth in zip(loads, depths, strict=True):
        in_time = facts[f"in_time_engine_{load:g}x"]
        right.annotate(f"{in_time:.1%}", (load, depth), (4, 6), textcoords="offset points", fontsize=8)
    right.set(ylim=(0, 28), xlim=(0, 5.9), ylabel="mean exit that answers, of 27")
    finish(right, "Shallower, not later; beside each point: in time")
    for axis in (left, right):
        axis.set_xlabel("load; 1× is all that full depth can do")
    legend_below(figure, shown)
    save(figure, path)


SHIFTS = {"none": ("no shift", GRAY), "contrast": ("low contrast", BLUE), "blur": ("blurred", ORANGE), "svhn": ("house numbers (SVHN)", GREEN)}  # fmt: skip


def monitoring(path: Path) -> None:
    """The evidence for a shift, and the bounds of the live disagreement."""
    facts = results("serving_shift")["facts"]
    figure, (warning, alarm, share) = subplots(1, 3, figsize=(12, 3.8), sharex=True)
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
        axis.set(yscale="log", ylim=(1e-3, 2e4))
        axis.axhline(1, color=BLACK, linewidth=1)
        finish(axis, title, legend=axis is warning)
    warning.set_ylabel("evidence; 1 raises it")
    share.axhline(100 * facts["none_trail"][0]["allowed"], color=BLACK, linewidth=1)
    share.set(ylim=(0, 40), ylabel="%")
    finish(share, "Share of such answers, 95 % at all times; line: allowed")
    for axis in (warning, alarm, share):
        axis.axvline(facts["before"], color=BLACK, linewidth=0.8, linestyle=":")
        axis.set_xlabel("requests; from the dotted line on, shifted")
    save(figure, path)


def example(name: str) -> Callable[[Path], None]:
    """The curves of an example, with both schemes."""

    def draw(path: Path) -> None:
        found = results(f"example_{name}")
        figure, axes = subplots(1, len(found["curves"]), figsize=(3.6 * len(found["curves"]), 3), squeeze=False)
        for axis, (measure, curves) in zip(axes[0], found["curves"].items(), strict=True):
            _errors(axis, found["fractions"], curves, measure)
        save(figure, path)

    return draw


def converted(record: str, what: str) -> Callable[[Path], None]:
    """The errors of a converted network, with both schemes."""

    def draw(path: Path) -> None:
        schemes = {scheme: results(f"{record}_{scheme}") for scheme in ("adaloss", "const")}
        figure, axis = subplots(figsize=(3.6, 3))
        curves = {scheme: [100 * error for error in found["errors"]] for scheme, found in schemes.items()}
        _errors(axis, schemes["adaloss"]["fractions"], curves, what)
        save(figure, path)

    return draw


def text(path: Path) -> None:
    """The errors of the converted DistilBERT."""
    found = results("convert_text")
    figure, axis = subplots(figsize=(3.6, 3))
    _errors(axis, found["fractions"], {"adaloss": [100 * error for error in found["errors"]]}, "test error (%)")
    save(figure, path)


def _errors(axis: Any, fractions: Sequence[float], curves: Mapping[str, Sequence[float]], measure: str) -> None:
    for scheme, errors in curves.items():
        label = {"adaloss": "AdaLoss", "const": "CONST"}[scheme]
        axis.plot([100 * each for each in fractions], errors, "o-", color=SCHEME_COLORS[scheme], label=label)
    highest = max(error for errors in curves.values() for error in errors)
    axis.set(xlabel="% of the cost", ylabel=textwrap.fill(measure, 32), ylim=(0, 1.08 * highest), xlim=(0, 104))
    finish(axis)


def pretrained(path: Path) -> None:
    """Error against milliseconds: one network with exits, plain ones, the policy, the ensemble."""
    found = pretrained_tables.facts()
    figure, axes = subplots(1, 2, figsize=(9, 4), sharey=True)
    for axis, (kind, label) in zip(axes, pretrained_tables.KINDS.items(), strict=True):
        ms = [found[f"lite0_{kind}_ms_{exit}"] for exit in range(1, pretrained_tables.EXITS + 1)]
        errors = [
            100 * mean(pretrained_tables.seeds(found, f"lite0_seed{{seed}}_error_{exit}"))
            for exit in range(1, pretrained_tables.EXITS + 1)
        ]
        axis.plot(ms, errors, "-o", color=BLUE, markersize=5, label="one anytime network, Lite0 with 5 exits")
        for seed in pretrained_tables.eann_seeds(found):
            axis.plot(
                *pretrained_tables.eann(found, kind, seed), "--s", color=GREEN, markersize=4, linewidth=1, zorder=1,
                label="EANN of Lite0, 1, 2 (each seed)" if seed == 0 else None,
            )  # fmt: skip
        axis.plot(
            [mean(pretrained_tables.policy_ms(found, kind, seed) for seed in range(pretrained_tables.SEEDS))],
            [100 * mean(pretrained_tables.seeds(found, "policy_seed{seed}_error"))],
            "D", color=RED, markersize=6, zorder=4, label="policy that loses at most 1 point, mean time",
        )  # fmt: skip
        plain = [(found[f"plain{net}_{kind}_ms"], 100 * found[f"lite{net}_seed0_error_5"]) for net in range(3)]
        axis.plot(*zip(*plain, strict=True), "*", color=ORANGE, markersize=11, label="plain Lite0, 1, 2")
        for net, (point, offset) in enumerate(zip(plain, [(-16, -12), (6, 7), (0, 7)], strict=True)):
            axis.annotate(f"Lite{net}", point, offset, textcoords="offset points", ha="center", fontsize="small")
        axis.set(xlabel="milliseconds, one photo, one thread", xlim=(0, None), ylim=(0, None))
        finish(axis, label, legend=kind == "eager")
    axes[0].set_ylabel("error on 500 photos, %")
    save(figure, path)


def terminal(path: Path) -> None:
    """One picture, three deadlines."""
    path.write_text(three_deadlines(results("shipped")["facts"]), encoding="utf-8")


def inflation(path: Path) -> None:
    """Formulas, for four bases."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        plot_inflation([1.5, 2, 3, 8], path)


PICTURES = {
    "three-deadlines.svg": Picture(terminal, ["shipped"]),
    "early-exit.svg": Picture(early_exit, ["budgets"]),
    "guarantees.svg": Picture(guarantees, ["guarantees_heads"]),
    "deadlines.svg": Picture(deadlines, ["shipped"]),
    "serving.svg": Picture(serving, ["serving_load"]),
    "monitoring.svg": Picture(monitoring, ["serving_shift"]),
    "inflation.svg": Picture(inflation, []),
    "pretrained.svg": Picture(pretrained, ["pretrained_errors", "pretrained_times"]),
    **{f"examples/{name}.svg": Picture(example(name), [f"example_{name}"]) for name in EXAMPLES},
    "examples/convert-resnet.svg": Picture(
        converted("convert_resnet", "test error (%)"), ["convert_resnet_adaloss", "convert_resnet_const"]
    ),
    "examples/convert-vit.svg": Picture(
        converted("convert_vit", "test error (%)"), ["convert_vit_adaloss", "convert_vit_const"]
    ),
    "examples/convert-text.svg": Picture(text, ["convert_text"]),
}
"""By their paths below ``docs``."""


def source(picture: Picture) -> str:
    """What a picture says of the records that it was drawn from, and of the code that drew it."""
    found = [f"{name} {digest(json.dumps(results(name), sort_keys=True))}" for name in picture.records]
    code = digest("".join((HERE / name).read_text(encoding="utf-8") for name in ("pictures.py", "terminal.py")))
    return f"<!-- drawn by docs/pictures.py {code} from docs/records: {', '.join(found) or 'none, a formula'} -->"


def digest(text: str) -> str:
    """Of what a command printed, or of code."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drawn_from(name: str) -> str | None:
    """What a picture that is there says."""
    path = DOCS / name
    found = re.search(r"<!-- drawn by .*? -->", path.read_text(encoding="utf-8")) if path.is_file() else None
    return found and found[0]


def draw(everything: bool = False) -> None:
    """Draw the pictures whose records have changed, or all."""
    for name, picture in PICTURES.items():
        if not all((RECORDS / f"{record}.json").is_file() for record in picture.records):
            print(f"{name}: {', '.join(picture.records)} is missing")
        elif everything or drawn_from(name) != source(picture):
            path = DOCS / name
            path.parent.mkdir(exist_ok=True)
            picture.draw(path)
            svg = path.read_text(encoding="utf-8")
            path.write_text(re.sub(r"(<svg )", rf"{source(picture)}\n\1", svg, count=1), encoding="utf-8")
            print(f"{name} drawn")
