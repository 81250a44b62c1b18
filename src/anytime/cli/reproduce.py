"""``anytime reproduce`` and ``anytime report``: the experiments of a checkout of the project."""

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch

import anytime
from anytime.cli.app import Option, app, typer
from anytime.distributed import cores
from anytime.errors import AnytimeError
from anytime.training.jobs import Job, run_jobs


def _experiments(preset: str) -> Any:
    """The package beside the sources, or in the present folder."""
    sources = Path(anytime.__file__ or ".").resolve()
    for root in (sources.parents[2], Path.cwd()):
        if (root / "experiments" / "table_weights.py").is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            experiments = importlib.import_module("experiments")
            if preset not in experiments.PRESETS:
                raise AnytimeError(f"--preset {preset}; it is one of {', '.join(experiments.PRESETS)}")
            return experiments
    raise AnytimeError(
        "the experiments are not part of the installed package: get the project's sources and run this in their folder"
    )


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which experiment; --list shows them.")] = None,
    preset: Annotated[str, Option(help="paper: its own setting, for GPUs. laptop: two cores, a night.")] = "laptop",
    data: Annotated[Path | None, Option(help="A folder with the data sets in it; otherwise the Hub's.")] = None,
    jobs: Annotated[int, Option(help="Trainings at the same time; 0: one for each GPU, or core.")] = 0,
    cluster: Annotated[bool, Option("--cluster", help="Run them as tasks of a Ray cluster.")] = False,
    output: Annotated[Path, Option(help="Where the runs' folders go.")] = Path("runs/reproduce"),
    records: Annotated[Path | None, Option(help="Where the records go; otherwise experiments/records.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be trained and how long it takes.")] = False,
    show_list: Annotated[bool, Option("--list", help="Which experiments there are, and what is done.")] = False,
) -> None:
    """Run an experiment of the paper: every training that has no record yet, several at a time.

    Stop it whenever: it goes on where it was, and what has a record is not done again.

    Examples:
    - `anytime reproduce --list`
    - `anytime reproduce table_weights --dry-run --data DIR`
    - `anytime reproduce eann --preset laptop --data DIR`
    """
    experiments = _experiments(preset)
    kept = importlib.import_module("experiments.records")
    where: Path = records or kept.HERE
    done = kept.Records.read(where)
    if show_list or name is None:
        for each in experiments.EXPERIMENTS:
            experiment = experiments.load(each)
            runs = experiment.runs(preset)
            print(f"{each:20} {len(done.of(runs)):3} of {len(runs):3} runs done   {experiment.TITLE}")
        return
    if name not in experiments.EXPERIMENTS:
        raise AnytimeError(f"there is no experiment {name!r}; there are: {', '.join(experiments.EXPERIMENTS)}")
    wanted = experiments.load(name).runs(preset)
    recorded = {record["name"] for record in done.of(wanted)}
    runs = [run for run in wanted if run.name not in recorded]
    if data is not None:
        for each in {run.data for run in runs}:
            importlib.import_module("experiments.runner").find_data(data, each)
    at_once = jobs or torch.cuda.device_count() or cores()
    if dry_run:
        importlib.import_module("experiments.estimate").estimate(runs, data, at_once)
        return
    command = f"anytime reproduce {name} --preset {preset}"  # records travel: no paths of this machine
    script = str(Path(experiments.__path__[0]) / "runner.py")
    places = ["" if data is None else str(data.resolve()), str(output.resolve()), str(where.resolve())]
    run_jobs(
        [Job(run.name, [script, json.dumps(asdict(run)), *places, command]) for run in runs], at_once, cluster
    )  # fmt: skip
    also = f" --preset {preset}" if preset != "laptop" else ""
    also += f" --records {records}" if records else ""
    print(f"{name}: all runs are done; anytime report{also} shows them")


@app.command()
def report(
    preset: Annotated[str, Option(help="Whose runs: laptop or paper.")] = "laptop",
    records: Annotated[Path | None, Option(help="Where the records are; otherwise experiments/records.")] = None,
    folder: Annotated[Path | None, Option(help="Where it goes; otherwise docs, or docs/paper for that preset.")] = None,
) -> None:
    """Write REPRODUCTION.md, with pictures, and reproduction.html: what the records say, beside the paper's numbers.

    Example:
    - `anytime report --preset laptop`
    """
    experiments = _experiments(preset)
    kept = importlib.import_module("experiments.records")
    made = importlib.import_module("experiments.report")
    where: Path = records or kept.HERE
    if not where.is_dir():
        raise AnytimeError(f"--records {where} is no folder: anytime reproduce makes records")
    docs = Path(experiments.__path__[0]).parent / "docs"
    folder = folder or (docs if preset == "laptop" else docs / preset)
    made.write_report(preset, kept.Records.read(where), folder)
    print(f"Wrote {folder / 'REPRODUCTION.md'} and {folder / 'reproduction.html'}")
