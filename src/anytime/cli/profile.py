"""``anytime profile`` and ``anytime models``."""

import json
from pathlib import Path
from typing import Annotated

import torch

import anytime
from anytime.cli.app import DEVICES, Option, app, device_named, typer
from anytime.cli.tables import models_table, profile_table, show
from anytime.errors import AnytimeError
from anytime.saving import load


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help="A model's name, or the folder of a saved one.")],
    size: Annotated[int | None, Option(help="Height and width of the image, if not the model's own.")] = None,
    channels: Annotated[int | None, Option(help="Channels of the image; otherwise 3, or a saved model's.")] = None,
    classes: Annotated[int | None, Option(help="Number of classes; otherwise 10, or ILSVRC's 1000.")] = None,
    batch: Annotated[int, Option(help="Images at once, for the time; MACs are those of one.")] = 1,
    threads: Annotated[int | None, Option(help="Processor threads to use.")] = None,
    repeats: Annotated[int, Option(help="Runs that the median time is taken over.")] = 30,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
    save: Annotated[bool, Option("--save", help="Keep it beside the saved model, for predictions to go by.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """What each exit costs: multiply-accumulates, parameters, measured milliseconds.

    Milliseconds are from the start to the exit's prediction: with all exits before it, and with their heads skipped.
    With --save they go to profile.json beside the model, for this device, these threads and this shape of input.

    Examples:
    - `anytime profile resann-9-16 --classes 100`
    - `anytime profile runs/digits-resann-3-16-adaloss-seed0 --threads 1`
    """
    counts = {"size": size, "channels": channels, "classes": classes, "batch": batch, "repeats": repeats}
    counts |= {"threads": threads}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise AnytimeError(f"--{name} {value}: it is a whole number from 1")
    if threads is not None:
        torch.set_num_threads(threads)
    if save and not Path(model).is_dir():
        raise AnytimeError(f"--save keeps the profile beside a saved model, and {model} is no folder")
    if Path(model).is_dir():
        net = load(model)
        if net.preprocessing is not None:
            channels, size = channels or net.preprocessing.channels, size or net.preprocessing.size[0]
    else:
        options = {} if classes is None else {"num_classes": classes}
        net = anytime.create_model(model, in_channels=channels or 3, **options)
    channels, size = channels or 3, size or net.image_size or 224
    where = device_named(device)
    net.to(where).eval()
    cost = anytime.costs(net, torch.empty(1, channels, size, size, device="meta"))
    measured = anytime.profile(net, torch.randn(batch, channels, size, size, device=where), repeats)
    path = measured.save(model) if save else None
    if as_json:
        record = {"macs": cost.macs, "params": cost.params, "seconds": measured.through, "alone": measured.alone}
        print(json.dumps(record, indent=2))
        return
    about = f"{channels}×{size}×{size}, batch {batch}, {where}, {torch.get_num_threads()} threads, median of {repeats}"
    show(profile_table(cost, measured, f"{model}: {about}"))
    if path:
        print(f"Wrote {path}: anytime.predict(anytime.load({model!r}), x, deadline=…) goes by it")


@app.command()
def models(pattern: Annotated[str, typer.Argument(help="Which ones, e.g. 'resann-9-*'.")] = "*") -> None:
    """The networks that can be named, what they cost and where the paper has them.

    Examples:
    - `anytime models 'resann-*-32'`
    """
    found = anytime.list_models(pattern)
    if not found:
        raise AnytimeError(f"no model's name matches {pattern!r}; `anytime models` lists them all")
    show(models_table(found))
