"""Numbers in the documents, taken from what the commands that measured them printed.

    python docs/figures.py                          # put them into README.md and docs/*.md
    python docs/figures.py measure exit_tax steps   # run these commands again, keep what they print, then do that
    python docs/figures.py measure convert_vit_const --data FOLDER    # CIFAR-10 in a folder, not from the Hub

A record is what a command printed, in ``docs/records``. In a document a number stands between two comments,
``<!--exit_tax-->1.08<!---->``: the name is a key of ``FIGURES``, which says what is taken from which record.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).parent
RECORDS = DOCS / "records"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]

CIFAR = "--data {data} --subset 15000"
CONVERTED = {
    "resnet": ("resnet", "--epochs 12"),
    "vit": ("vit", "--epochs 20 --exits vit.layers.0,vit.layers.1,vit.layers.2"),
    "vit_even": ("vit", "--epochs 20"),
}
BENCHMARKS = [
    "exit_tax",
    "pipeline",
    "epoch_overhead",
    "data_parallel",
    "memory",
    "steps",
    "import_time",
    "deadlines",
    "start_stop",
]
COMMANDS = {
    **{name: f"python benchmarks/{name}.py" for name in BENCHMARKS},
    "exit_tax_wide": "python benchmarks/exit_tax.py resann-7-32 1.08 11",
    "early_exit": "python benchmarks/early_exit.py runs/cifar10-resann-5-16",  # docs/early-exit.md trains it
    "eann_parallel": "python benchmarks/eann_parallel.py 30",
    "eann_parallel_ray": "python benchmarks/eann_parallel.py 30 --ray",
    "demo": "anytime demo",
    "budgets": "anytime evaluate runs/cifar10-resann-5-16 --budgets",
    **{
        f"convert_{name}_{scheme}": f"python examples/convert_cifar.py {model} {scheme} {CIFAR} {options} "
        f"--output runs/convert_{name}_{scheme}"
        for name, (model, options) in CONVERTED.items()
        for scheme in ("adaloss", "const")
    },
    "convert_text": "python examples/convert_text.py --epochs 3",
}
"""Of each record. ``{data}`` is CIFAR-10; runs in ``runs/`` that are finished are not redone."""

Figure = Callable[[], str]


def value(record: str, pattern: str, template: str = "{0:g}") -> Figure:
    """The numbers that a pattern's groups find in a record, in a template."""

    def figure() -> str:
        found = re.search(pattern, read(record))
        if found is None:
            raise SystemExit(f"docs/records/{record}.txt has nothing like {pattern}: measure it again")
        return template.format(*(float(group.replace(",", "")) for group in found.groups())).replace("-", "−")

    return figure


def ratio(record: str, what: str = "", template: str = "{0:.3f} ({1:.2f} to {2:.2f}, n={3:.0f})") -> Figure:
    """A median with its spread, as benchmarks print it."""
    return value(record, re.escape(what) + r".*: median (\S+), from (\S+) to (\S+), n=(\d+)", template)


def read(record: str) -> str:
    """What a command printed."""
    path = RECORDS / f"{record}.txt"
    if not path.is_file():
        raise SystemExit(f"{path.name} is not there: python docs/figures.py measure {record}")
    return path.read_text(encoding="utf-8")


def demo() -> str:
    """Both runs of the demo side by side."""
    row = r"│ +(\d+) │ +(\S+ M) │ +(\S+)% │ +(\S+)% │ +(\S+) │"
    rows = re.findall(row, read("demo"))
    exits = len(rows) // 2
    lines = [
        "| exit | MACs | % of cost | error, CONST | error, AdaLoss | AdaLoss weight |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for const, adaloss in zip(rows[:exits], rows[exits:], strict=True):
        exit, macs, share, error, weight = adaloss
        lines.append(f"| {exit} | {macs} | {share} | {float(const[3]):.1f} % | {float(error):.1f} % | {weight} |")
    return "\n" + "\n".join(lines) + "\n"


def convert() -> str:
    """Errors of the converted networks, and by how many standard deviations each exit is better than the last."""
    models = {
        "resnet": "ResNet18 of timm, a quarter as wide, 12 epochs",
        "vit": "ViT of transformers, 6 layers of width 64, exits after layers 1, 2, 3, 20 epochs",
        "vit_even": "the same, exits evenly over the cost (after layers 1, 3, 4)",
    }
    lines = [
        "| model | scheme | exit 1 | exit 2 | exit 3 | the model's own | minutes |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for key, model in models.items():
        for scheme, label in {"adaloss": "AdaLoss", "const": "CONST"}.items():
            text = read(f"convert_{key}_{scheme}")
            errors = [f"{float(error):.1f}" for error in re.findall(r"(\S+)% error", text)]
            better = re.findall(r"(\S+) standard deviations", text.replace(" -", " −"))
            minutes = value(f"convert_{key}_{scheme}", r"(\S+) minutes")()
            lines.append(f"| {model if scheme == 'adaloss' else ''} | {label} | {' | '.join(errors)} | {minutes} |")
            lines.append(f"| | | | {' | '.join(better)} | |")
    return "\n" + "\n".join(lines) + "\n"


def weights() -> str:
    """The rows of the report's table of weight schemes for one data set, and the paper's."""
    _, _, report = (DOCS / "REPRODUCTION.md").read_text(encoding="utf-8").partition("(Table a)")
    header, line, *rows = re.findall(r"^\|.*\|$", report.partition("\n## ")[0], re.M)
    chosen = [row for row in rows if re.match(r"\| (svhn|the paper), ", row)]
    return "\n" + "\n".join([header, line, *chosen]) + "\n"


def left_early(percent: float) -> str:
    """The error when easy samples leave early, for the budget nearest to a part of the cost."""
    rows = re.findall(r"│ +(\S+)% │ +\S+% │ +(\S+)% │ +\d+ │", read("budgets"))
    return f"{float(min(rows, key=lambda row: abs(float(row[0]) - percent))[1]):.1f}"


def shares(record: str) -> Figure:
    """What the exits of a converted network cost, in % of its last."""
    return lambda: ", ".join(f"{float(share):.0f}" for share in re.findall(r"(\S+)% of the cost  ", read(record)))


FIGURES: dict[str, Figure] = {
    "demo": demo,
    "weights": weights,
    "exit_tax": ratio("exit_tax"),
    "exit_tax_percent": lambda: f"{100 * float(ratio('exit_tax', template='{0}')()) - 100:.0f}",
    "exit_tax_wide": ratio("exit_tax_wide"),
    "pipeline": ratio("pipeline", "ours / Pillow", "{0:.1f} ({1:.1f} to {2:.1f}, n={3:.0f})"),
    "pipeline_eaten": ratio("pipeline", "eaten by training", "{0:.0f} ({1:.0f} to {2:.0f}, n={3:.0f})"),
    "epoch_overhead": ratio("epoch_overhead"),
    "data_parallel": ratio("data_parallel"),
    "memory": ratio("memory"),
    "steps_1": ratio("steps", "batch 1: steps"),
    "steps_32": ratio("steps", "batch 32: steps"),
    "predict_1": ratio("steps", "batch 1: predict"),
    "predict_32": ratio("steps", "batch 32: predict"),
    "early_exit": ratio("early_exit"),
    "eann_parallel": ratio("eann_parallel", "one after the other on one thread"),
    "eann_parallel_two": ratio("eann_parallel", "one after the other on two threads"),
    "eann_parallel_ray": ratio("eann_parallel_ray", "one after the other on one thread"),
    "eann_parallel_ray_two": ratio("eann_parallel_ray", "one after the other on two threads"),
    "import_time": ratio("import_time"),
    "deadlines_full": value("deadlines", r"(\S+) ms to the last exit", "{0:.1f}"),
    "deadlines_stage": value("deadlines", r"(\S+) ms the longest stage", "{0:.2f}"),
    "deadlines_wrong": value("deadlines", r"(\d+) wrong"),
    "deadlines_p50": value("deadlines", r"p50 (\S+) ms", "{0:.2f}"),
    "deadlines_p99": value("deadlines", r"p99 (\S+) ms", "{0:.2f}"),
    "deadlines_pace": value("deadlines", r"deepest_at_its_pace ratio=(\S+)", "{0:.0%}"),
    "deadlines_medians": value("deadlines", r"deepest_by_profile ratio=(\S+)", "{0:.0%}"),
    "stop_wrong": value("start_stop", r"wrong: (\d+)"),
    "stop_threads": value("start_stop", r"threads: ([+-]\d+)"),
    "stop_memory": value("start_stop", r"memory: (\S+) MB", "{0:.0f}"),
    "stop": value("start_stop", r"stop: median (\S+) ms, p99 (\S+) ms", "{0:.1f} ms (median) and {1:.1f} ms (99 %)"),
    "stop_stage": value(
        "start_stop", r"load: median (\S+) ms, p99 (\S+) ms", "{0:.1f} ms (median) and {1:.1f} ms (99 %)"
    ),
    "budgets_half": lambda: left_early(50),
    "budgets_more": lambda: left_early(75),
    "budgets_alike": value("budgets", r"at  50% of the cost: .*, (\S+)% error", "{0:.1f}"),
    "budgets_last": value("budgets", r"at 100% of the cost: .*, (\S+)% error", "{0:.1f}"),
    "convert": convert,
    "convert_resnet_costs": shares("convert_resnet_adaloss"),
    "convert_vit_costs": shares("convert_vit_adaloss"),
    "convert_vit_even_costs": shares("convert_vit_even_adaloss"),
    "text_counts": value(
        "convert_text",
        r"(\d+) sentences to train on, \d+ for thresholds, (\d+)",
        "{0:,.0f} sentences to train on, {1:,.0f}",
    ),
    "text_first": value("convert_text", r"layer\.0 .*  (\S+)% error", "{0:.1f}"),
    "text_last": value("convert_text", r"own .*  (\S+)% error", "{0:.1f}"),
    "text_left": value("convert_text", r"\['(\d+)%'"),
    "text_half": value("convert_text", r"early: (\S+)% error at (\S+)% of", "{0:.1f} % error at {1:.0f} % of the cost"),
}


def fill(text: str, keep: bool = False) -> str:
    """The text with every figure as its record has it; where there is no record, keep what stands there if asked to."""

    def figure(match: re.Match[str]) -> str:
        if match[1] not in FIGURES:
            raise SystemExit(f"<!--{match[1]}-->: docs/figures.py knows no such figure")
        try:
            return f"<!--{match[1]}-->{FIGURES[match[1]]()}<!---->"
        except SystemExit as missing:
            if not keep:
                raise
            print(missing)
            return match[0]

    return re.sub(r"<!--(\w+)-->.*?<!---->", figure, text, flags=re.S)


def machine() -> str:
    """What it was measured on."""
    import torch

    from anytime.distributed import cores
    from anytime.inference.latency import kind_of

    return f"torch {torch.__version__}, {cores()} cores, {kind_of(torch.zeros(1)).device}"


def measure(name: str, data: str) -> None:
    """Run a command and keep what it prints."""
    command = shlex.split(COMMANDS[name].format(data=data))
    command[0] = {"python": sys.executable, "anytime": str(Path(sys.executable).with_name("anytime"))}[command[0]]
    said = COMMANDS[name].format(data="cifar10")
    head = f"$ {said}\n# {machine()}\n"
    print(head, end="", flush=True)
    process = subprocess.Popen(
        command, cwd=DOCS.parent, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert process.stdout is not None
    lines = [head]
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        sys.exit(f"{name} failed: its record stays as it was")
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{name}.txt").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", nargs="*", help=f"measure, then which of: {', '.join(COMMANDS)}")
    parser.add_argument("--data", default="cifar10", help="its name on the Hub, or a folder of its parquet files")
    asked = parser.parse_args()
    names = asked.measure[1:]
    if asked.measure and (asked.measure[0] != "measure" or not names or not set(names) <= set(COMMANDS)):
        parser.error(f"measure which? {', '.join(COMMANDS)}")
    for name in names:
        measure(name, asked.data)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text, keep=True)) != text:
            page.write_text(filled, encoding="utf-8")
            print(f"{page.name} changed")


if __name__ == "__main__":
    main()
