"""``anytime train-ensemble``."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import torch

import anytime
from anytime.cli.app import (
    DATA,
    SCHEMES,
    SEED,
    THREADS_BY_IMAGE,
    Option,
    app,
    drawing,
    end_stopped,
    say_next,
    say_where,
    title_of,
    use_threads,
)
from anytime.cli.evaluate import prepared
from anytime.cli.tables import curve_table, show
from anytime.data.loading import load_data
from anytime.ensemble.eann import EANN
from anytime.errors import AnytimeError, check_integer
from anytime.evaluation import evaluate
from anytime.files import write_json
from anytime.plotting import plot_held
from anytime.saving import load, save
from anytime.training.jobs import TrainingJob, run_jobs
from anytime.training.run_folder import read_run

FILE = "run.json"


@app.command("train-ensemble")
def train_ensemble(
    members: Annotated[
        str | None,
        Option(help="The networks, or give --smallest and --largest. Default: resann-1-8,resann-2-8,resann-4-8."),
    ] = None,
    smallest: Annotated[str | None, Option(help="The cheapest network of a planned ensemble.")] = None,
    largest: Annotated[str | None, Option(help="The most expensive one; those between are chosen.")] = None,
    base: Annotated[float, Option(help="Largest factor between the costs of a planned ensemble's networks.")] = 2.0,
    data: Annotated[str | None, Option(help=f"{DATA} Default: digits.")] = None,
    scheme: Annotated[str | None, Option(help=SCHEMES)] = None,
    epochs: Annotated[int | None, Option(help="Number of epochs for each network. Default: the recipe's.")] = None,
    learning_rate: Annotated[
        float | None, Option("--learning-rate", "--lr", help="Initial learning rate. Default: the recipe's.")
    ] = None,
    batch_size: Annotated[int | None, Option(help="Number of images per step. Default: the recipe's.")] = None,
    subset: Annotated[int | None, Option(help="Train on a balanced random subset of this many images.")] = None,
    size: Annotated[int | None, Option(help="Height and width that images are resized to.")] = None,
    seed: Annotated[int | None, Option(help=SEED)] = None,
    output: Annotated[
        Path | None, Option(help="Folder of the ensemble, with one per network in it. Default: in runs/.")
    ] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the ensemble in the output folder.")] = False,
    threads: Annotated[int | None, Option(help=THREADS_BY_IMAGE)] = None,
    jobs: Annotated[int, Option(help="Number of networks that train at the same time; they share the cores.")] = 1,
    cluster: Annotated[bool, Option("--cluster", help="Train the networks as tasks of a Ray cluster.")] = False,
) -> None:
    """Train the networks of an ensemble (EANN), choose the exits to offer, and evaluate it.

    Each network is trained by ``anytime train`` in a folder of its own; finished ones are not trained again. Then the
    exits to offer are chosen on the validation images: those better than all before them. With --data and the networks
    given, --resume also starts an ensemble, so that one command serves a job that may be restarted.

    Examples:
    - `anytime train-ensemble --members resann-1-8,resann-2-8,resann-4-8 --data digits --epochs 10`
    - `anytime train-ensemble --smallest resann-7-32 --largest resann-25-32 --data cifar100 --jobs 2 --output runs/eann`
    - `anytime train-ensemble --output runs/eann --resume`
    """
    given: dict[str, Any] = {
        "members": members, "data": data, "scheme": scheme, "epochs": epochs, "learning-rate": learning_rate,
        "batch-size": batch_size, "subset": subset, "size": size, "seed": seed,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if smallest or largest:
        if members or not (smallest and largest):
            raise AnytimeError("give --members, or both --smallest and --largest")
        given["members"] = ",".join(EANN.plan(smallest, largest, base))
        print(f"networks whose costs grow by a factor of at most {base:g}: {given['members']}", file=sys.stderr)
    asked = {"members": "resann-1-8,resann-2-8,resann-4-8", "data": "digits", "scheme": "adaloss", "seed": 0} | given
    words = [Path(asked["data"]).name, "eann", asked["scheme"], f"seed{asked['seed']}"]
    folder = output or Path("runs") / re.sub(r"[^\w.=-]+", "-", "-".join(words))
    check_integer("--jobs", jobs)
    asked = _begun(folder, given, resume) or asked
    names = list(dict.fromkeys(name.strip() for name in asked["members"].split(",")))
    # Loaded here once: errors show now rather than hours later, and the cache is filled for all trainings.
    images = load_data(asked["data"], size=asked.get("size"))
    for name in names:
        with torch.device("meta"):
            anytime.create_scheme(asked["scheme"], anytime.create_model(name).exits)
    asked["model"] = f"EANN of {', '.join(names)}"
    write_json(folder / FILE, {"ensemble": True, "asked": asked})
    left = _jobs(folder, names, asked, threads)
    try:
        run_jobs(left, jobs, cluster)
    except KeyboardInterrupt:
        end_stopped(f"{folder} keeps every step of its networks", "train-ensemble", "--output", folder, "--resume")
    use_threads(threads, images.shape)
    _assemble(folder, names, asked, made_anew=bool(left) or not _finished(folder))


def _begun(folder: Path, given: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    """The options of the ensemble in a folder; None if a new one is to be started there."""
    if not (folder / FILE).is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise AnytimeError(f"{folder} is not empty and holds no ensemble: choose another --output")
        if resume and not {"members", "data"} <= given.keys():
            raise AnytimeError(
                f"there is no ensemble in {folder} to resume: give the folder of one, or start one with --members and "
                "--data"
            )
        return None
    begun = read_run(folder)
    if not begun.get("ensemble"):
        raise AnytimeError(f"{folder} holds the run of one network, not of an ensemble: choose another --output")
    if not resume:
        if not any(path.is_dir() for path in folder.iterdir()):
            return None  # no training has begun there: started again with other options
        raise AnytimeError(f"{folder} holds an ensemble already: add --resume to continue, or choose another --output")
    for name, value in given.items():
        if begun["asked"].get(name) != value:
            raise AnytimeError(
                f"{folder} was started with --{name} {begun['asked'].get(name)}, not {value}: resume it as it was, or "
                "choose another --output"
            )
    return begun["asked"]


def _jobs(folder: Path, names: list[str], asked: dict[str, Any], threads: int | None) -> list[TrainingJob]:
    """One training for each network that is not finished."""
    options = [word for name in sorted(asked.keys() - {"members", "model"}) for word in (f"--{name}", str(asked[name]))]
    options += [] if threads is None else ["--threads", str(threads)]
    train = ["-m", "anytime", "train", *options, "--resume"]
    return [
        TrainingJob(name, [*train, "--model", name, "--output", str(folder / name)])
        for name in names
        if not _finished(folder / name)
    ]


def _finished(folder: Path) -> bool:
    """Whether a training has ended: its model can be loaded, with all its files whole and belonging together."""
    try:
        load(folder)
    except AnytimeError:
        return False
    return True


def _assemble(folder: Path, names: list[str], asked: dict[str, Any], made_anew: bool) -> None:
    """Make an ensemble of the trained networks, choose the exits to offer, and evaluate it; save it if it is new."""
    nets = [load(folder / name) for name in names]
    images = prepared(nets[0], folder / names[0], load_data(asked["data"], size=asked.get("size"), show=False))
    eann = EANN(nets, torch.empty(1, *images.shape, device="meta")).eval()
    errors = eann.fit_order(images.batches(images.validation))
    curve = evaluate(eann, images)
    if made_anew:  # saving removes the policy and the profile of an earlier model
        save(eann, folder)
        write_json(folder / "evaluation.json", {**curve.record(), "validation_errors": errors, "offered": eann.offered})
    title = title_of(asked)
    show(curve_table(curve, title=title, places=[f"{names[m]}, exit {exit + 1}" for m, exit in eann.offered]))
    curves = {"EANN": curve} | {f"{name} alone": evaluate(net, images) for name, net in zip(names, nets, strict=True)}
    with drawing():
        held = {name: [(each.costs.macs, [error or 0.0 for error in each.errors])] for name, each in curves.items()}
        plot_held(held, folder / "curve.png", title)
    print(f"{eann.exits} of {len(errors)} exits are offered: each has fewer validation errors than all before it")
    say_where(folder)
    say_next("serve", folder)
