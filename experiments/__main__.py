"""Run the paper's experiments, and write the report of what they showed."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from anytime.distributed import cores
from anytime.errors import AnytimeError
from anytime.training.jobs import TrainingJob, run_jobs
from experiments import EXPERIMENTS, load
from experiments.cells import as_text, cells, check_schemes
from experiments.estimate import estimate
from experiments.presets import PRESETS
from experiments.records import COMMITTED, Records
from experiments.report import write_report
from experiments.runner import Run, find_data

EXAMPLES = """examples:
  python -m experiments run --list                        what there is, and how much of it is done
  python -m experiments run --preset minutes --data DIR   a short run: SVHN, one seed, a table and a verdict
  python -m experiments run table_weights --dry-run       what would be trained, and for how long
  python -m experiments run table_weights --data DIR      train what has no record yet, then show the result
  python -m experiments run table_weights --only svhn --schemes adaloss,my_package:my_scheme --seeds 3
                                                          single cells, and a scheme of your own beside them
  python -m experiments report                            write docs/REPRODUCTION.md from the records

Stop a run at any time (Ctrl-C) and repeat the command: it continues where it was, and what has a record is not
trained again. DIR holds a folder of parquet files for each data set (svhn, cifar10, cifar100); without --data they
are downloaded from the Hugging Face Hub."""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    text = {"epilog": EXAMPLES, "formatter_class": argparse.RawDescriptionHelpFormatter}
    whole = argparse.ArgumentParser("python -m experiments", description=__doc__, **text)
    commands = whole.add_subparsers(dest="command", required=True, metavar="{run,report}")
    run = commands.add_parser("run", help="train what has no record yet, then show the result", **text)
    run.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(EXPERIMENTS)}; all if none is given")
    run.add_argument("--only", metavar="DATA", help="train only on these data sets, e.g. svhn or cifar10,cifar100")
    run.add_argument(
        "--schemes",
        metavar="SCHEME,…",
        help="train these instead of the experiments' own, in each of their settings: schemes of the library or "
        "PACKAGE.MODULE:NAME, which is called with the number of exits and returns a module",
    )
    run.add_argument("--seeds", type=int, metavar="N", help="train N seeds instead of as many as the experiments have")
    run.add_argument("--data", type=Path, metavar="DIR", help="folder with the data sets; default: download them")
    run.add_argument(
        "--jobs", type=int, default=0, metavar="N", help="trainings at a time; default: one per GPU or core"
    )
    run.add_argument("--compile", action="store_true", help="train with torch.compile: faster, needs a C++ compiler")
    run.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of the training; default: float32. Processors with AVX512_BF16 are faster with bfloat16; some of them "
        "need ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment",
    )
    run.add_argument("--cluster", action="store_true", help="run the trainings as tasks of a Ray cluster")
    run.add_argument("--output", type=Path, help="folder of the runs; default: runs/PRESET")
    run.add_argument("--dry-run", action="store_true", help="only print what would be trained and how long it takes")
    run.add_argument("--list", action="store_true", help="only print the experiments and how many runs are done")
    report = commands.add_parser("report", help="write REPRODUCTION.md, its figures and an HTML page", **text)
    report.add_argument("--folder", type=Path, help="where to; default: docs, or docs/PRESET")
    presets = "; ".join(f"{name}: {about}" for name, about in PRESETS.items())
    for command in (run, report):
        command.add_argument("--preset", choices=PRESETS, default="laptop", help=f"{presets}; default: laptop")
        command.add_argument("--records", type=Path, help="folder of the records; default: see below")
        command.description = (
            f"{whole.description} Records of the preset laptop are in experiments/records, part of the project; those "
            "of other presets in runs/PRESET/records."
        )
    return whole


def records_of(options: argparse.Namespace) -> Path:
    """The folder of the records."""
    return options.records or (COMMITTED if options.preset == "laptop" else Path("runs", options.preset, "records"))


def missing(names: Sequence[str], preset: str, records: Records) -> list[Run]:
    """The runs of these experiments that have no record, each once, in the experiments' order."""
    wanted = {run.name: run for name in names for run in load(name).runs(preset)}
    return [run for run in wanted.values() if not records.find(run)]


def run(options: argparse.Namespace) -> None:
    """Train what is missing of the experiments asked for, and show what they say."""
    for name in options.names:
        if name not in EXPERIMENTS:
            raise AnytimeError(f"there is no experiment {name!r}; there are: {', '.join(EXPERIMENTS)}")
    names, folder = options.names or EXPERIMENTS, records_of(options)
    done = Records.read(folder)
    if options.list:
        for name in names:
            runs = load(name).runs(options.preset)
            print(f"{name:20} {len(done.of(runs)):3} of {len(runs):3} runs done   {load(name).TITLE}")
        return
    wanted = {run.name: run for name in names for run in load(name).runs(options.preset)}
    if options.schemes or options.seeds is not None:
        chosen = [run for run in wanted.values() if not options.only or run.data in options.only.split(",")]
        train_cells(cells(chosen, options.schemes and options.schemes.split(","), options.seeds), options)
        return
    runs = missing(names, options.preset, done)
    if options.only:
        runs = [run for run in runs if run.data in options.only.split(",")]
    if not start(runs, folder, options):
        return
    for name in names:
        section = load(name).show(options.preset, Records.read(folder))
        if section.wanted:
            print(f"\n## {section.title}\n\n{section.as_markdown()}")


def train_cells(runs: list[Run], options: argparse.Namespace) -> None:
    """Train what is missing of these cells, and show them.

    Records of cells that an experiment has are beside its others, those of more schemes or seeds in the runs' folder.
    """
    planned = {run.name for name in EXPERIMENTS for run in load(name).runs(options.preset)}
    folders = {True: records_of(options), False: options.records or Path("runs", options.preset, "records")}
    check_schemes(runs)
    done = {folder: Records.read(folder) for folder in folders.values()}
    to_do = [run for run in runs if not done[folders[run.name in planned]].find(run)]
    for known, folder in folders.items():
        if not start([run for run in to_do if (run.name in planned) == known or options.dry_run], folder, options):
            return
    records = {name: record for folder in folders.values() for name, record in Records.read(folder).items()}
    print(as_text(runs, records))


def start(runs: list[Run], folder: Path, options: argparse.Namespace) -> bool:
    """Train these runs, or say how long it would take; whether they were trained."""
    for data in sorted({run.data for run in runs}) if options.data else ():
        find_data(options.data, data)
    at_once = options.jobs or torch.cuda.device_count() or cores()
    if options.dry_run or (runs and options.preset == "minutes"):  # those of this machine
        estimate(runs, options.data, at_once, options.compile, options.precision)
    if options.dry_run:
        return False
    train(runs, at_once, folder, options)
    return True


def train(runs: list[Run], at_once: int, records: Path, options: argparse.Namespace) -> None:
    """Train these runs, several at a time."""
    output = (options.output or Path("runs", options.preset)).resolve()
    places = [str(options.data.resolve()) if options.data else "", str(output), str(records.resolve())]
    script = str(Path(__file__).resolve().with_name("runner.py"))
    how = [str(options.compile), options.precision]
    jobs = [TrainingJob(run.name, [script, json.dumps(asdict(run)), *places, *how]) for run in runs]
    run_jobs(jobs, at_once, options.cluster)


def report(options: argparse.Namespace) -> None:
    """Write the report."""
    folder = records_of(options)
    if not folder.is_dir():
        raise AnytimeError(f"there is no folder {folder}: `python -m experiments run` makes records")
    docs = COMMITTED.parent.parent / "docs"
    where = options.folder or (docs if options.preset == "laptop" else docs / options.preset)
    write_report(options.preset, Records.read(folder), where)
    print(f"Wrote {where / 'REPRODUCTION.md'} and {where / 'reproduction.html'}")


def main() -> None:
    """Run a command."""
    options = parser().parse_args()
    try:
        {"run": run, "report": report}[options.command](options)
    except AnytimeError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the same command continues")


if __name__ == "__main__":
    main()
