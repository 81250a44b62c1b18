"""``anytime train-ensemble``."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import torch

import anytime
from anytime.cli.app import DATA, SCHEMES, Option, app, drawing, say_where, title_of
from anytime.cli.evaluate import prepared
from anytime.cli.tables import curve_table, show
from anytime.data.loading import load_data
from anytime.ensemble.eann import EANN
from anytime.errors import AnytimeError
from anytime.evaluation import evaluate
from anytime.files import write_json
from anytime.plotting import plot_held
from anytime.saving import load, save
from anytime.training.jobs import Job, run_jobs
from anytime.training.run_folder import read_run

FILE = "run.json"


@app.command("train-ensemble")
def train_ensemble(
    members: Annotated[
        str | None,
        Option(help="The networks: resann-7-32,resann-13-32,resann-25-32; or --smallest, --largest."),
    ] = None,
    smallest: Annotated[str | None, Option(help="The cheapest network of a planned ensemble.")] = None,
    largest: Annotated[str | None, Option(help="Its dearest; those between are found.")] = None,
    base: Annotated[float, Option(help="By how much the costs of a planned ensemble grow, at most.")] = 2.0,
    data: Annotated[str | None, Option(help=DATA)] = None,
    scheme: Annotated[str | None, Option(help=f"How the exits' losses are weighed: {SCHEMES}.")] = None,
    epochs: Annotated[int | None, Option(help="How often each network sees each image.")] = None,
    learning_rate: Annotated[float | None, Option(help="At the start; the recipe says when it falls.")] = None,
    batch_size: Annotated[int | None, Option(help="Images a step.")] = None,
    subset: Annotated[int | None, Option(help="Train on a balanced random part of this many images.")] = None,
    size: Annotated[int | None, Option(help="Height and width that images are brought to.")] = None,
    seed: Annotated[int | None, Option(help="Of the first weights, the order of the images and the subset.")] = None,
    output: Annotated[Path | None, Option(help="The folder of the ensemble, with one of each network in it.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with what is in the output folder, if anything.")] = False,
    jobs: Annotated[int, Option(help="Networks to train at the same time; each has its share of the cores.")] = 1,
    cluster: Annotated[bool, Option("--cluster", help="Train them as tasks of a Ray cluster.")] = False,
) -> None:
    """Train the networks of an ensemble (EANN), find the order of its exits, and evaluate it.

    Each network is a run of its own in the output folder, which ``anytime train`` would make; finished ones are not
    trained again. Then the exits to offer are chosen on the validation images: those better than all before them.

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
        print(f"costs growing by at most {base:g}: {given['members']}", file=sys.stderr)
    asked = {"members": "resann-1-8,resann-2-8,resann-4-8", "data": "digits", "scheme": "adaloss", "seed": 0} | given
    words = [Path(asked["data"]).name, "eann", asked["scheme"], f"seed{asked['seed']}"]
    folder = output or Path("runs") / re.sub(r"[^\w.=-]+", "-", "-".join(words))
    asked = _begun(folder, given, resume) or asked
    names = list(dict.fromkeys(name.strip() for name in asked["members"].split(",")))
    load_data(asked["data"], size=asked.get("size"))  # errors now rather than hours later; decoded once for all
    for name in names:
        with torch.device("meta"):
            anytime.create_scheme(asked["scheme"], anytime.create_model(name).exits)
    if jobs < 1:
        raise AnytimeError(f"--jobs {jobs}: it is a whole number from 1")
    asked["model"] = f"EANN of {', '.join(names)}"
    write_json(folder / FILE, {"ensemble": True, "asked": asked})
    try:
        run_jobs(_jobs(folder, names, asked), jobs, cluster)
    except KeyboardInterrupt:
        print(f"\nstopped; go on with: anytime train-ensemble --output {folder} --resume", file=sys.stderr)
        raise
    _assemble(folder, names, asked)


def _begun(folder: Path, given: dict[str, Any], resume: bool) -> dict[str, Any] | None:
    """What the ensemble in a folder was asked to be; None if the folder is empty or not there."""
    if not (folder / FILE).is_file():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise AnytimeError(f"{folder} is not empty and holds no ensemble: choose another --output")
        return None
    begun = read_run(folder)
    if not begun.get("ensemble"):
        raise AnytimeError(f"{folder} holds the run of one network, not of an ensemble: choose another --output")
    if not any(path.is_dir() for path in folder.iterdir()):
        return None  # nothing was trained: a wrong option, mended by now
    if not resume:
        raise AnytimeError(f"{folder} holds an ensemble already: add --resume to go on, or choose another --output")
    for name, value in given.items():
        if begun["asked"].get(name) != value:
            raise AnytimeError(
                f"{folder} was started with --{name} {begun['asked'].get(name)}, not {value}: resume it as it was, or "
                "choose another --output"
            )
    return begun["asked"]


def _jobs(folder: Path, names: list[str], asked: dict[str, Any]) -> list[Job]:
    """A training for each network that has none."""
    options = [word for name in sorted(asked.keys() - {"members", "model"}) for word in (f"--{name}", str(asked[name]))]
    return [
        Job(name, ["-m", "anytime", "train", "--model", name, *options, "--output", str(folder / name), "--resume"])
        for name in names
        if not (folder / name / "model.safetensors").is_file()
    ]


def _assemble(folder: Path, names: list[str], asked: dict[str, Any]) -> None:
    """Put the trained networks together, choose the exits to offer, and measure."""
    nets = [load(folder / name) for name in names]
    images = prepared(nets[0], folder / names[0], load_data(asked["data"], size=asked.get("size"), show=False))
    eann = EANN(nets, torch.empty(1, *images.shape, device="meta")).eval()
    errors = eann.fit_order(images.batches(images.validation))
    save(eann, folder)
    curve = evaluate(eann, images)
    write_json(folder / "evaluation.json", {**curve.record(), "validation_errors": errors, "offered": eann.offered})
    title = title_of(asked)
    show(curve_table(curve, title=title, places=[f"{names[m]}, exit {exit + 1}" for m, exit in eann.offered]))
    curves = {"EANN": curve} | {f"{name} alone": evaluate(net, images) for name, net in zip(names, nets, strict=True)}
    with drawing():
        held = {name: [(each.costs.macs, [error or 0.0 for error in each.errors])] for name, each in curves.items()}
        plot_held(held, folder / "curve.png", title)
    print(f"{eann.exits} of {len(errors)} exits are offered: each has fewer errors on validation than all before it")
    say_where(folder)
