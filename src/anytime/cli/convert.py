"""``anytime convert``, and networks by what ``--model`` names."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch

import anytime
from anytime.cli.app import DATA, THREADS, Option, app, check_free, say_next, typer, use_threads
from anytime.conversion.constructors import LIBRARIES, build_converted, is_constructor, options_for
from anytime.data.dataset import Data
from anytime.data.loading import load_data
from anytime.errors import AnytimeError
from anytime.network import Network
from anytime.saving import load, save

EXITS = "Number of exits, or the modules after which to exit: layer1,layer2 (for constructors)."
PRETRAINED = "Start from the weights that timm or torchvision downloads, or has in its cache."
HEAD = "Heads of the exits: linear, mlp (with a hidden layer), auto (mlp for feature maps). Default: auto."
MEAN = "Mean of each channel, pixels from 0 to 1: 0.5,0.5,0.5. Default: what timm says of its weights, else the data's."
STD = "Standard deviation of each channel, likewise."
OPTIONS = "An option of the constructor: img_size=32. Repeatable."


@app.command()
def convert(
    model: Annotated[
        str, typer.Argument(help="timm:NAME, torchvision:NAME, transformers:CLASS or package.module:function.")
    ],
    data: Annotated[str, Option(help=DATA)],
    output: Annotated[Path, Option(help="Folder for the converted model.")],
    exits: Annotated[str, Option(help=EXITS)] = "4",
    head: Annotated[str, Option(help=HEAD)] = "auto",
    option: Annotated[list[str] | None, Option(help=OPTIONS, metavar="NAME=VALUE")] = None,
    size: Annotated[int | None, Option(help="Height and width that images are resized to.")] = None,
    pretrained: Annotated[bool, Option("--pretrained", help=PRETRAINED)] = False,
    mean: Annotated[str | None, Option(help=MEAN)] = None,
    std: Annotated[str | None, Option(help=STD)] = None,
    seed: Annotated[int, Option(help="Seed of the initial weights.")] = 0,
    threads: Annotated[int | None, Option(help=THREADS)] = None,
) -> None:
    """Build a model of timm, torchvision, transformers or your own, add exits and save it.

    Its weights are random, or those of timm and torchvision with --pretrained.

    The folder names the constructor, which builds it again; nothing is pickled. A function of your own is only called
    by other commands if they are told to trust the folder: --trust.

    Examples:
    - `anytime convert timm:resnet18 --exits 4 --data cifar10 --output runs/r18`
    - `anytime convert timm:resnet18 --pretrained --size 224 --data photos/ --output runs/r18`
    - `anytime train --model runs/r18 --data cifar10 --output runs/r18-trained`
    - `anytime convert my_package.models:build --exits 3 --data photos/ --output runs/mine`
    """
    if not is_constructor(model):
        raise AnytimeError(
            f"cannot convert {model!r}: expected timm:NAME, torchvision:NAME, transformers:CLASS or "
            "package.module:function, e.g. timm:resnet18"
        )
    check_free(output)
    use_threads(threads)
    images = load_data(data, size=size)
    torch.manual_seed(seed)
    asked = {"model": model, "exits": exits, "head": head, "option": option or [], "pretrained": pretrained}
    asked |= {"mean": mean, "std": std}
    net = network(asked, images, trust=True)
    net.preprocessing = normalized(net, images, asked).preprocessing
    about: dict[str, Any] = {"data": data, "model": model} | ({} if size is None else {"size": size})
    save(net, output, **about)
    fractions = anytime.costs(net, torch.empty(1, *images.shape, device="meta")).fractions
    assert isinstance(net, anytime.ConvertedNetwork)
    for exit, (place, share) in enumerate(zip(net.places, fractions, strict=True)):
        print(f"exit {exit + 1}  after {place:32} {share:6.1%} of the cost")
    print(f"Wrote {output}; its new heads are not trained yet")
    say_next("train", "--model", output, "--data", data, *([] if model.partition(":")[0] in LIBRARIES else ["--trust"]))


def network(asked: dict[str, Any], images: Data, trust: bool = False) -> Network:
    """The network that ``--model`` names: one of ours, a saved one, or one that a constructor builds."""
    name, classes, channels = asked["model"], len(images.classes), images.shape[0]
    if is_constructor(name):
        if not trust and name.partition(":")[0] not in LIBRARIES:
            raise AnytimeError(f"--model {name} may be any code that is installed here: name it again, or add --trust")
        options = options_for(name, classes, channels, dict(map(_option, asked.get("option", []))))
        wanted = {"head": asked.get("head", "auto"), "trust": trust, "pretrained": asked.get("pretrained", False)}
        return build_converted(name, images.shape, _exits(asked.get("exits", "4")), options, **wanted)
    if strange := [f"--{key}" for key in ("exits", "head", "option", "pretrained") if asked.get(key)]:
        raise AnytimeError(f"{strange[0]} is for constructors such as timm:resnet18, not for {name}")
    if Path(name).is_dir():
        net = load(name)
        if net.preprocessing is not None:
            images.matching(net.preprocessing)  # refuses other classes
        return net.train()
    return named(name, num_classes=classes, in_channels=channels)


def normalized(net: Network, images: Data, asked: dict[str, Any]) -> Data:
    """The images as the network expects them: by --mean and --std, by what is known of its weights, or as they are."""
    if bool(asked.get("mean")) != bool(asked.get("std")):
        raise AnytimeError("give both --mean and --std, e.g. --mean 0.5,0.5,0.5 --std 0.5,0.5,0.5")
    if asked.get("mean"):
        net.preprocessing = replace(
            images.preprocessing, mean=_numbers("mean", asked["mean"]), std=_numbers("std", asked["std"])
        )
    return images if net.preprocessing is None else images.normalized_as(net.preprocessing)


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise AnytimeError(f"--{name} {text}: expected one number for each channel, e.g. 0.5,0.5,0.5") from None


def named(name: str, **options: Any) -> Network:
    """One of our networks; a path is not the name of one, so there is no such folder."""
    if "/" in name:
        raise AnytimeError(f"there is no folder {name}; models by name are listed by: anytime models")
    return anytime.create_model(name, **options)


def _exits(text: str) -> int | list[str]:
    return int(text) if text.isdecimal() else [name.strip() for name in text.split(",")]


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise AnytimeError(f"--option {text}: expected name=value, e.g. img_size=32")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
