"""``anytime profile`` and ``anytime models``."""

import json
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch

import anytime
from anytime.cli.app import DEVICES, THREADS, Option, app, device_named, say_next, typer, use_threads
from anytime.cli.convert import named
from anytime.cli.tables import models_table, profile_table, show
from anytime.errors import AnytimeError, check_integer, require
from anytime.export.backend import load_backend
from anytime.export.exported import ExportedNetwork
from anytime.export.onnx_runtime import OPENVINO


@app.command()
def profile(
    model: Annotated[str, typer.Argument(help="The name of a model, or the folder of a saved one.")],
    size: Annotated[int | None, Option(help="Height and width of the image. Default: the model's.")] = None,
    channels: Annotated[int | None, Option(help="Channels of the image. Default: the saved model's, or 3.")] = None,
    classes: Annotated[int | None, Option(help="Number of classes. Default: 10, or 1000 for ImageNet models.")] = None,
    batch: Annotated[int, Option(help="Images per batch for the time; MACs are per image.")] = 1,
    threads: Annotated[int | None, Option(help=THREADS)] = None,
    repeats: Annotated[int, Option(help="Number of runs; the time is their median.")] = 30,
    device: Annotated[str, Option(help=DEVICES)] = "auto",
    backends: Annotated[
        str, Option(help="More columns: onnx, openvino, executorch. Default: the first two, if installed.")
    ] = "auto",
    save: Annotated[bool, Option("--save", help="Write profile.json beside the saved model; predict uses it.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print only JSON.")] = False,
) -> None:
    """What each exit costs: multiply-accumulates, parameters, measured milliseconds.

    Milliseconds are from the start to the exit's prediction, with the heads of all earlier exits and without them.
    On a CPU the model is also exported and measured on ONNX Runtime, and on OpenVINO where onnxruntime-openvino is
    installed; --backends none leaves that out. Exporting for ExecuTorch takes minutes: --backends executorch.
    With --save they are written to profile.json beside the model, for this device, number of threads and input shape.

    Examples:
    - `anytime profile resann-9-16 --classes 100`
    - `anytime profile runs/digits-resann-3-16-adaloss-seed0 --threads 1`
    """
    counts = {"size": size, "channels": channels, "classes": classes, "batch": batch, "repeats": repeats}
    for name, value in counts.items():
        if value is not None:
            check_integer(f"--{name}", value)
    use_threads(threads)
    if save and not Path(model).is_dir():
        raise AnytimeError(f"--save writes the profile beside a saved model, and {model} is not a folder")
    own = None
    if Path(model).is_dir():
        net = load_backend(model)
        if net.preprocessing is not None:
            channels, own = channels or net.preprocessing.channels, net.preprocessing.size
    else:
        options = {} if classes is None else {"num_classes": classes}
        net = named(model, in_channels=channels or 3, **options)
    side = size or net.image_size or 224
    shape = (channels or 3, *(own if own and size is None else (side, side)))
    exported = isinstance(net, ExportedNetwork)
    if isinstance(net, ExportedNetwork) and net.description.structure is None:
        shape = tuple(net.description.counted[0][1:])
    where = device_named("cpu" if exported else device)
    net.to(where).eval()
    cost = anytime.costs(net, torch.empty(1, *shape, device="meta"))
    measured = anytime.profile(net, torch.randn(batch, *shape, device=where), repeats)
    path = measured.save(model) if save else None
    others = _on_others(net, torch.randn(batch, *shape), repeats, _chosen("none" if exported else backends, where.type))
    if as_json:
        record = {"macs": cost.macs, "params": cost.params, "seconds": measured.through, "alone": measured.alone}
        record |= {f"{name}_seconds": profile.through for name, profile in others.items()}
        print(json.dumps(record, indent=2))
        return
    used = torch.get_num_threads()
    about = f"{'×'.join(map(str, shape))}, batch {batch}, {where}, {used} thread{'s' * (used > 1)}, median of {repeats}"
    show(profile_table(cost, measured, f"{model}: {about}", others))
    if path:
        print(f"Wrote {path}: anytime.predict(anytime.load({model!r}), x, deadline=…) uses it")
        say_next("predict", model, "IMAGE", "--deadline", f"{1200 * measured.alone[net.exits // 2]:.3g}ms")


BACKENDS = ("onnx", "openvino", "executorch")


def _chosen(backends: str, device: str) -> list[str]:
    """The backends to measure besides PyTorch."""
    if backends == "none" or (backends == "auto" and (device != "cpu" or not find_spec("onnxruntime"))):
        return []
    if backends == "auto":
        there = require("onnxruntime", "onnx").get_available_providers()
        return ["onnx", "openvino"] if OPENVINO in there else ["onnx"]
    chosen = backends.split(",")
    for name in chosen:
        if name not in BACKENDS:
            raise AnytimeError(f"--backends {backends}: expected {', '.join(BACKENDS)}, auto or none")
    return chosen


def _on_others(
    net: anytime.Network, x: torch.Tensor, repeats: int, backends: list[str]
) -> dict[str, anytime.Profile]:  # fmt: skip
    """The network exported for each backend and measured there."""
    measured = {}
    for name in backends:
        export = anytime.export.executorch if name == "executorch" else anytime.export.onnx
        with tempfile.TemporaryDirectory() as folder:
            provider = OPENVINO if name == "openvino" else None
            exported = anytime.load_exported(export(net, x, folder), provider=provider)
        measured[name] = anytime.profile(exported, x, repeats)
    return measured


@app.command()
def models(pattern: Annotated[str, typer.Argument(help="A pattern of names, e.g. 'resann-9-*'.")] = "*") -> None:
    """List the models, their costs and the sections of the paper that describe them.

    Examples:
    - `anytime models 'resann-*-32'`
    """
    found = anytime.list_models(pattern)
    if not found:
        raise AnytimeError(f"no model's name matches {pattern!r}; `anytime models` lists all of them")
    show(models_table(found))
