"""``anytime train``."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import torch

from anytime import distributed
from anytime.cli.app import (
    DATA,
    DEVICES,
    SCHEMES,
    SEED,
    THREADS_BY_IMAGE,
    Option,
    app,
    device_named,
    draw_curves,
    drawing,
    end_stopped,
    last_weights,
    say_next,
    say_where,
    title_of,
    use_threads,
)
from anytime.cli.convert import EXITS, HEAD, MEAN, OPTIONS, STD, network, normalized
from anytime.cli.tables import curve_table, show
from anytime.combination.combined import combine
from anytime.conversion.converted import ConvertedNetwork
from anytime.data.dataset import Data
from anytime.data.loading import load_data
from anytime.errors import AnytimeError, check_integer
from anytime.memory import keep_freed_memory
from anytime.plotting import plot_learning
from anytime.saving import trusted
from anytime.training.checkpoint import has_checkpoint
from anytime.training.fit import FitResult, fit
from anytime.training.recipe import RECIPES
from anytime.training.run_folder import read_run

MODELS = (
    "A name from `anytime models`, or another size: resann-N-C; the folder of a saved model, to go on from its "
    "weights; or a constructor: timm:resnet18, package.module:function. Default: resann-3-16."
)
FREEZE = "Train only the new heads of a converted model and leave the model as it is: minutes, for pretrained ones."
FIT_OPTIONS = ("epochs", "lr", "batch_size", "accumulate", "precision", "compiled")


@app.command()
def train(
    model: Annotated[str | None, Option(help=MODELS)] = None,
    exits: Annotated[str | None, Option(help=EXITS)] = None,
    head: Annotated[str | None, Option(help=HEAD)] = None,
    freeze: Annotated[bool | None, Option("--freeze", help=FREEZE)] = None,
    option: Annotated[list[str] | None, Option(help=OPTIONS, metavar="NAME=VALUE")] = None,
    data: Annotated[str | None, Option(help=f"{DATA} Default: digits.")] = None,
    scheme: Annotated[str | None, Option(help=SCHEMES)] = None,
    boosting: Annotated[bool | None, Option("--boosting", help="Each exit corrects those before it.")] = None,
    epochs: Annotated[int | None, Option(help="Number of epochs. Default: the recipe's.")] = None,
    learning_rate: Annotated[
        float | None, Option("--learning-rate", "--lr", help="Initial learning rate. Default: the recipe's.")
    ] = None,
    batch_size: Annotated[int | None, Option(help="Number of images per step. Default: the recipe's.")] = None,
    recipe: Annotated[str | None, Option(help=f"{', '.join(RECIPES)}. Default: the one that suits the data.")] = None,
    subset: Annotated[int | None, Option(help="Train on a balanced random subset of this many images.")] = None,
    extra: Annotated[bool | None, Option("--extra", help="Add the data's extra training images (SVHN).")] = None,
    size: Annotated[int | None, Option(help="Height and width that images are resized to.")] = None,
    mean: Annotated[str | None, Option(help=MEAN)] = None,
    std: Annotated[str | None, Option(help=STD)] = None,
    seed: Annotated[int | None, Option(help=SEED)] = None,
    output: Annotated[Path | None, Option(help="The run folder. Default: one in runs/.")] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in the output folder.")] = False,
    checkpoint_seconds: Annotated[float, Option(help="Seconds between checkpoints; 0: after every step.")] = 30,
    accumulate: Annotated[int | None, Option(help="Split each batch into this many parts, to save memory.")] = None,
    precision: Annotated[
        str | None, Option(help="float32 (the default), bfloat16 (GPUs, some processors) or float16 (GPUs).")
    ] = None,
    compiled: Annotated[bool | None, Option("--compile", help="Run the network through torch.compile.")] = None,
    threads: Annotated[int | None, Option(help=THREADS_BY_IMAGE)] = None,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
) -> None:
    """Train a network, all exits together.

    The run folder gets run.json (what was asked for), log.jsonl (one line per epoch), checkpoint.safetensors, and at
    the end config.json + model.safetensors, evaluation.json and curve.png. Ctrl-C saves a checkpoint first. With
    --model and --data, --resume also starts a run, so that one command serves a job that may be restarted.

    Examples:
    - `anytime train --model resann-3-16 --data digits --epochs 20`
    - What we recommend, followed by anytime combine: `anytime train --model resann-7-16-mlpheads --data cifar10`
    - `anytime train --output runs/digits-resann-3-16-adaloss-seed0 --resume`
    - Convert a model and train it: `anytime train --model timm:resnet18 --exits 4 --data cifar10`
    - Train the exits of a pretrained model: `anytime train --model runs/r18 --freeze --data photos/`
    - On two devices: `torchrun --nproc-per-node 2 -m anytime train --model resann-7-16 --data cifar10`
    """
    given = {
        "model": model, "exits": exits, "head": head, "freeze": freeze, "option": option or None, "data": data,
        "scheme": scheme, "boosting": boosting, "epochs": epochs, "lr": learning_rate, "batch_size": batch_size,
        "recipe": recipe, "subset": subset, "extra": extra, "size": size, "mean": mean, "std": std, "seed": seed,
        "accumulate": accumulate, "precision": precision, "compiled": compiled, "threads": threads,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    keep_freed_memory()
    try:
        own = distributed.begin()
        _run(given, output, resume or distributed.restarted(), own or device_named(device), checkpoint_seconds)
    finally:
        distributed.end()


def _run(
    given: dict[str, Any], output: Path | None, resume: bool, device: torch.device, checkpoint_seconds: float = 30
) -> None:
    """Train as asked; what was not given comes from the run that is resumed, or else is the default."""
    asked = {"model": "resann-3-16", "data": "digits", "scheme": "adaloss", "seed": 0}
    if resume and output and (output / "run.json").is_file():
        begun = read_run(output)
        if begun.get("ensemble"):
            raise AnytimeError(f"{output} holds an ensemble: anytime train-ensemble --output {output} --resume")
        asked |= begun.get("asked", {})
    elif resume and not distributed.restarted():
        _check_resume(given, output)
    asked |= given
    recipe = asked.get("recipe")
    if recipe is not None and recipe not in RECIPES:
        raise AnytimeError(f"unknown recipe {recipe!r}; there are: {', '.join(RECIPES)}")
    check_integer("seed", asked["seed"], 0, 2**63 - 1)
    images = _data(asked)
    use_threads(asked.get("threads"), images.shape)
    torch.manual_seed(asked["seed"])
    net = network(asked, images, trust="model" in given or trusted()).to(device)
    if asked.get("freeze"):
        if not isinstance(net, ConvertedNetwork):
            raise AnytimeError(f"--freeze is for converted models such as timm:resnet18, not for {asked['model']}")
        net.freeze()
    images = normalized(net, images, asked)
    words = [images.name, Path(asked["model"]).name, asked["scheme"], f"seed{asked['seed']}"]
    if asked.get("boosting"):
        net = combine(net, "boosting")
        words.insert(3, "boosting")
    folder = output or Path("runs") / re.sub(r"[^\w.=-]+", "-", "-".join(words))
    if not resume and distributed.rank() == 0 and (folder / "run.json").is_file():
        raise AnytimeError(f"{folder} holds a run already: add --resume to continue it, or choose another --output")
    try:
        result = fit(
            net,
            images,
            asked["scheme"],
            recipe=RECIPES[recipe] if recipe else None,
            seed=asked["seed"],
            output=folder,
            resume=resume,
            about={"asked": asked, "command": " ".join(["anytime", *sys.argv[1:]])},
            checkpoint_seconds=checkpoint_seconds,
            **{name: asked[name] for name in FIT_OPTIONS if name in asked},
        )
    except KeyboardInterrupt:
        if distributed.rank() == 0 and has_checkpoint(folder):
            end_stopped(f"{folder} keeps every step so far", "train", "--output", folder, "--resume")
        raise
    if distributed.rank() == 0:
        _show(result, folder, asked)


def _show(result: FitResult, folder: Path, asked: dict[str, Any]) -> None:
    """The table, the pictures and what is in the folder."""
    scheme, title = asked["scheme"], title_of(asked)
    if result.curve is not None:
        show(curve_table(result.curve, last_weights(folder), title=title))
    with drawing():
        if result.curve is not None:
            draw_curves({scheme: folder}, {scheme: result.curve}, folder / "curve.png", title)
        plot_learning(result.history, folder / "learning.png", title)
    say_where(folder)
    if result.curve is None or None in result.curve.errors:
        say_next("evaluate", folder)
    else:
        say_next("evaluate", folder, "--budgets")


def _check_resume(given: dict[str, Any], output: Path | None) -> None:
    """There is no run to resume: refuse, unless the command says in full what to train."""
    if output is None:
        raise AnytimeError("--resume needs the run's folder: --output FOLDER")
    if not {"model", "data"} <= given.keys():
        raise AnytimeError(
            f"there is no run in {output} to resume: give the folder of one, or start one with --model and --data"
        )


def _data(asked: dict[str, Any]) -> Data:
    """The data asked for; the first process decodes, the others find it done."""
    if distributed.rank() > 0:
        distributed.wait()
    images = load_data(
        asked["data"], size=asked.get("size"), extra=asked.get("extra", False), show=distributed.rank() == 0
    )
    if distributed.rank() == 0:
        distributed.wait()
    return images.subset(asked["subset"], asked["seed"]) if "subset" in asked else images
