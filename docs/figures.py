"""Numbers in the documents, taken from what the commands that measured them printed.

    python docs/figures.py                          # put them into README.md and docs/*.md
    python docs/figures.py measure exit_tax steps   # run these commands again, keep what they print, then do that
    python docs/figures.py renew                    # run those again that are stale in README.md and PERFORMANCE.md
    python docs/figures.py draw                     # draw the pictures whose records have changed
    python docs/figures.py draw all                 # draw all pictures
    python docs/figures.py stale                    # records whose code or command has changed since
    python docs/figures.py stale README.md          # those of this page

A record is a JSON file in ``docs/records``: the command, when, where and at which commit it ran, a digest of the code
that it measured, and what the command printed with ``--json``. In a document a number stands between two comments,
``<!--exit_tax-->1.08<!---->``: the name is a key of ``FIGURES``, which says what is taken from which record. The
figure ``measured`` is a sentence with the commits of all records that the page's other figures are from.

``renew``, also ``make records``, runs the quickest command first and keeps each record as soon as it is made: stopped
and started again, it goes on where it was. Trainings are not among them: ``python -m experiments run`` makes theirs.
"""

import argparse
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import export_tables
import facts
import guarantee_tables
import pictures
import pretrained_tables
import published_tables
import reproduction_tables
import serving_tables
from measurements import GOALS, MEASUREMENTS, ROWS
from measuring import DOCS, ROOT, measure_all, measured_at, read, read_by, results, stale

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
RENEWED = ("README.md", "PERFORMANCE.md")
"""The pages whose records ``renew`` keeps up to date if none are named."""

Figure = Callable[[], str]


def fact(record: str, name: str, template: str = "{:g}") -> Figure:
    """A number that a benchmark printed."""
    return lambda: template.format(results(record)["facts"][name]).replace("-", "−")


def ratio(record: str, what: str, digits: int = 3) -> Figure:
    """A median with its spread, whose ends have at least two significant digits."""

    def end(value: float) -> str:
        return f"{value:.{max(digits - 1, 1 - math.floor(math.log10(value)), 0)}f}"

    def figure() -> str:
        found = results(record)["figures"][what]
        return f"{found['median']:.{digits}f} ({end(found['low'])} to {end(found['high'])}, n={found['n']})"

    return figure


def performance() -> str:
    """The table of PERFORMANCE.md: one row for each comparison."""
    lines = [
        "| benchmark | what is compared | ratio (spread) | limit | verdict | measured |",
        "|---|---|---|---|---|---|",
    ]
    for record, what, name, text in ROWS:
        said = read(record)
        judged = said["results"]["verdicts"].get(name, {"limit": None})
        limit, word = "stated", "–"
        if judged["limit"] is not None:
            limit = f"{'≥' if judged['least'] else '≤'} {judged['limit']:g}"
            word = "ok" if judged["ok"] else "**missed**"
        digits = 3 if said["results"]["figures"][what]["median"] < 10 else 1
        script = said["command"].removeprefix("python benchmarks/")
        lines.append(
            f"| `{script}` | {text} | {ratio(record, what, digits)()} | {limit} | {word} | {said['date']}, {said['commit']} |"
        )
    return "\n" + "\n".join(lines) + "\n"


def missed() -> str:
    """All goals that were not met, of every record."""
    lines = ["| benchmark | goal | measured | limit |", "|---|---|---:|---:|"]
    for record in MEASUREMENTS:
        said = read(record)
        command = said["command"].removeprefix("python benchmarks/").partition(" --")[0]
        for name, judged in said["results"].get("verdicts", {}).items():
            if not judged["ok"]:
                bound = f"{'≥' if judged['least'] else '≤'} {judged['limit']:g}"
                lines.append(f"| `{command}` | {GOALS.get(name, name)} | {judged['ratio']:.3f} | {bound} |")
    return "\n" + "\n".join(lines) + "\n"


DEADLINES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
KINDS = {"eager": "PyTorch", "onnx": "ONNX Runtime"}
RHYTHMS = {"30hz": "30 a second", "in_a_row": "in a row"}


def deadline_table() -> str:
    """How deadlines are kept, quiet and busy: the share in time, and the mean exit beside that in hindsight."""
    lines = ["| | " + " | ".join(f"{share:g} T" for share in DEADLINES) + " |", "|---|" + "---:|" * len(DEADLINES)]
    lines += [
        deadline_row(
            results(f"deadlines_{load}")["facts"],
            f"{load}_{kind}_{rhythm}",
            f"{load}, {KINDS[kind]}, {RHYTHMS[rhythm]}",
        )
        for load in ("quiet", "busy")
        for kind in KINDS
        for rhythm in RHYTHMS
    ]
    found = results("deadlines_realtime")["facts"]
    for kind, rhythm in itertools.product(KINDS, RHYTHMS):
        name = f"busy_{kind}_{rhythm}"
        lines.append(deadline_row(found, name, f"busy, `anytime.realtime()`, {KINDS[kind]}, {RHYTHMS[rhythm]}"))
    return "\n" + "\n".join(lines) + "\n"


def deadline_row(facts: dict[str, float], name: str, label: str) -> str:
    """The deadlines of one kind of load."""
    cells = []
    for share in DEADLINES:
        in_time, possible, exit, hindsight = (
            facts[f"{what}_{name}_{share:g}"] for what in ("in_time", "possible", "exit", "hindsight")
        )
        most = "" if possible > 0.995 else f" of {percent(possible, 0)}"
        cells.append(f"{percent(in_time)}{most} %, {exit:.1f} of {hindsight:.1f}")
    return f"| {label} | {' | '.join(cells)} |"


def percent(value: float, digits: int = 1) -> str:
    """A share as a percentage without its sign."""
    return f"{100 * value:.{digits}f}"


def gains() -> str:
    """What a network reaches at parts of its cost, with all samples stopping at the same exit and with easy ones leaving early."""
    found = results("budgets")
    full = found["macs"][-1]
    lines = [
        "| of the network's cost | test error, all images stop at the same exit | test error, easy images leave early |",
        "|---:|---:|---:|",
    ]
    for fraction, same in found["fractions"].items():
        early = nearest_budget(float(fraction))
        lines.append(
            f"| {float(fraction):.0%} | {percent(same['error'])} % (exit {same['exit'] + 1}, {same['fraction_used']:.0%}) "
            f"| {percent(early['error'])} % ({early['cost'] / full:.0%} on average) |"
        )
    return "\n" + "\n".join(lines) + "\n"


def nearest_budget(share: float) -> dict[str, Any]:
    """Of the budgets that thresholds were set for, the one nearest to a part of the network's cost."""
    found = results("budgets")
    return min(found["budgets"]["common"], key=lambda point: abs(point["budget"] / found["macs"][-1] - share))


def convert() -> str:
    """Errors of the converted networks, and by how many standard deviations each exit is better than the one before."""
    models = {
        "resnet": "ResNet18 of timm, a quarter as wide, 12 epochs",
        "vit": "ViT of transformers, 6 layers of width 64, exits after layers 1, 2, 3, 20 epochs",
        "vit_even": "the same, exits evenly over the cost (after layers 1, 3, 4)",
    }
    lines = [
        "| model | scheme | exit 1 | exit 2 | exit 3 | the model's own |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for key, model in models.items():
        for scheme, label in {"adaloss": "AdaLoss", "const": "CONST"}.items():
            found = results(f"convert_{key}_{scheme}")
            errors = " | ".join(map(percent, found["errors"]))
            better = " | ".join(f"{each:.1f}".replace("-", "−") for each in found["deviations"][1:])
            lines.append(f"| {model if scheme == 'adaloss' else ''} | {label} | {errors} |")
            lines.append(f"| | | | {better} |")
    return "\n" + "\n".join(lines) + "\n"


def left_early(share: float) -> Figure:
    """The error when easy samples leave early, for the budget nearest to a part of the cost."""
    return lambda: percent(nearest_budget(share)["error"])


def shares(record: str) -> Figure:
    """What the exits of a converted network cost, in % of its last."""
    return lambda: ", ".join(percent(fraction, 0) for fraction in results(record)["fractions"])


def rules_differ() -> str:
    """The largest difference of the error, in points, between the two rules of early exit, over all budgets."""
    common, geometric = results("budgets")["budgets"].values()
    return percent(max(abs(a["error"] - b["error"]) for a, b in zip(common, geometric, strict=True)), 2)


FIGURES: dict[str, Figure] = {
    "rules_differ": rules_differ,
    "int8_table": lambda: export_tables.int8(results("export_int8")["facts"]),
    "backends_table": lambda: export_tables.backends(results("export_backends")["figures"]),
    "int8_time_1": ratio("export_int8", "batch 1: int8 / float32, all exits", 2),
    "int8_time_32": ratio("export_int8", "batch 32: int8 / float32, all exits", 2),
    "int8_mb": fact("export_int8", "int8_mb", "{:.1f}"),
    "float32_mb": fact("export_int8", "float32_mb", "{:.1f}"),
    **reproduction_tables.TABLES,
    **published_tables.TABLES,
    **pretrained_tables.TABLES,
    "gains": gains,
    "performance": performance,
    "deadline_table": deadline_table,
    "missed": missed,
    "exit_tax_percent": lambda: f"{100 * results('exit_tax')['verdicts']['exit_tax']['ratio'] - 100:.0f}",
    "eann_parallel": ratio("eann_parallel", "two workers of one thread / one after the other on one thread"),
    "eann_parallel_two": ratio("eann_parallel", "two workers of one thread / one after the other on two threads"),
    "eann_parallel_ray": ratio("eann_parallel_ray", "two workers of one thread / one after the other on one thread"),
    "eann_parallel_ray_two": ratio(
        "eann_parallel_ray", "two workers of one thread / one after the other on two threads"
    ),
    **{f"selected_{name}": fact("selected", f"selected_{name}", "{:.1%}") for name in ("5", "5_even", "all")},
    "deadlines_full": fact("deadlines_quiet", "full_eager_ms", "{:.1f}"),
    "deadlines_full_onnx": fact("deadlines_quiet", "full_onnx_ms", "{:.1f}"),
    "stop_wrong": fact("start_stop", "wrong"),
    "stop_threads": fact("start_stop", "threads"),
    "stop_leak": fact("start_stop", "leak_mb_per_1000", "{:.1f}"),
    "stop_p50": fact("start_stop", "stop_p50_ms", "{:.1f}"),
    "stop_p99": fact("start_stop", "stop_p99_ms", "{:.1f}"),
    "stop_stage_p50": fact("start_stop", "stage_p50_ms", "{:.1f}"),
    "stop_stage_p99": fact("start_stop", "stage_p99_ms", "{:.1f}"),
    **{
        name: lambda table=table: table(results("guarantees")["facts"])
        for name, table in guarantee_tables.TABLES.items()
    },
    **{
        f"guarantees_heads_{what}": lambda what=what, digits=digits: ", ".join(
            percent(facts["risk"][f"delta, risk {risk}"][what], digits)
            for facts in results("guarantees_heads")["facts"].values()
            for risk in ("0.005", "0.01", "0.02")
        )
        for what, digits in (("saved", 0), ("exceeded", 1))
    },
    **{
        f"extras_{extra.replace('-', '_')}": ratio("extras", f"time of a step, {extra} / AdaLoss alone")
        for extra in ("equilibrium", "distillation", "boosting", "annealed", "first-order", "famo", "mlpheads")
    },
    "serving_optimum": lambda: percent(results("serving_optimum")["verdicts"]["serving_optimum"]["ratio"]),
    **{
        f"serving_optimum_{kind}": lambda kind=kind: percent(
            results("serving_optimum")["facts"][f"optimum_{kind}_mean"]
        )
        for kind in ("once", "same", "mixed")
    },
    **{name: lambda table=table: table(results) for name, table in (serving_tables.TABLES | facts.FACTS).items()},
    "serving_decision": fact("serving_decision", "decision_64_us", "{:.0f}"),
    "serving_decision_1024": fact("serving_decision", "decision_1024_us", "{:.0f}"),
    "serving_decision_4096": fact("serving_decision", "decision_4096_us", "{:.0f}"),
    "clients_possible": fact("serving_clients", "burst_possible", "{:.0f}"),
    "serving_soak_growth": lambda: f"{results('serving_soak')['verdicts']['serving_soak_growth_mb']['ratio']:.0f}",
    "budgets_half": left_early(0.5),
    "budgets_more": left_early(0.75),
    "budgets_alike": lambda: percent(results("budgets")["fractions"]["0.5"]["error"]),
    "budgets_last": lambda: percent(results("budgets")["fractions"]["1.0"]["error"]),
    "convert": convert,
    "convert_resnet_costs": shares("convert_resnet_adaloss"),
    "convert_vit_costs": shares("convert_vit_adaloss"),
    "convert_vit_even_costs": shares("convert_vit_even_adaloss"),
    "text_counts": lambda: "{train:,} sentences to train on, {test:,}".format(**results("convert_text")),
    "text_first": lambda: percent(results("convert_text")["errors"][0]),
    "text_last": lambda: percent(results("convert_text")["errors"][-1]),
    "text_left": lambda: percent(results("convert_text")["early_exit"]["shares"][0], 0),
    "text_half": lambda: "{} % error at {} % of the cost".format(
        percent(results("convert_text")["early_exit"]["error"]),
        percent(results("convert_text")["early_exit"]["fraction"], 0),
    ),
}


def fill(text: str, keep: bool = False) -> str:
    """The text with every figure as its record has it; where there is no record, keep what stands there if asked to."""

    def figure(match: re.Match[str]) -> str:
        name = match[1]
        if name not in FIGURES and name != "measured":
            raise SystemExit(f"<!--{name}-->: docs/figures.py knows no such figure")
        try:
            return f"<!--{name}-->{measured(text) if name == 'measured' else FIGURES[name]()}<!---->"
        except SystemExit as missing:
            if not keep:
                raise
            print(missing)
            return match[0]

    return re.sub(r"<!--(\w+)-->.*?<!---->", figure, text, flags=re.S)


def records_of(text: str) -> list[str]:
    """The records that a page's figures are from."""
    return read_by(FIGURES[name] for name in re.findall(r"<!--(\w+)-->", text) if name in FIGURES)


def measured(text: str) -> str:
    """At which commits the figures of a page were measured."""
    trained = any(f"<!--{name}-->" in text for name in reproduction_tables.TABLES)
    return measured_at(records_of(text)) + " Errors of trainings: `docs/REPRODUCTION.md` has their commits." * trained


def records_of_pages(names: Iterable[str]) -> list[str]:
    """The records of pages by their names, each once."""
    pages = {page.name: page for page in PAGES}
    if unknown := set(names) - set(pages):
        raise SystemExit(f"there is no page {', '.join(sorted(unknown))}: {', '.join(pages)}")
    texts = [pages[name].read_text(encoding="utf-8") for name in names]
    return list(dict.fromkeys(record for text in texts for record in records_of(text)))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["fill", "measure", "renew", "draw", "stale"], default="fill")
    parser.add_argument(
        "names", nargs="*", help=f"with stale and renew: pages; with measure: {', '.join(MEASUREMENTS)}"
    )
    parser.add_argument(
        "--data", default="cifar10", help="CIFAR-10: its name on the Hub, or a folder of its parquet files"
    )
    asked = parser.parse_args()
    if asked.action == "stale":
        found = stale(records_of_pages(asked.names) if asked.names else MEASUREMENTS)
        print("\n".join(found) or "none")
        return
    if asked.action == "draw":
        pictures.draw(everything=asked.names == ["all"])
        return
    names = asked.names
    if asked.action == "renew":
        names = stale(records_of_pages(asked.names or RENEWED))
    elif (asked.action == "measure") != bool(names) or not set(names) <= set(MEASUREMENTS):
        parser.error(f"measure which? {', '.join(MEASUREMENTS)}")
    failed = measure_all(names, asked.data)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text, keep=True)) != text:
            page.write_text(filled, encoding="utf-8")
            print(f"{page.name} changed")
    if failed:
        sys.exit("not measured:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
