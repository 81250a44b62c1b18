"""``anytime export``."""

import tempfile
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import anytime
from anytime.cli.app import DATA, THREADS, Option, app, say_next, typer, use_threads
from anytime.cli.evaluate import data_of, prepared
from anytime.cli.tables import compared_table, show
from anytime.errors import AnytimeError, check_integer
from anytime.export.backend import example_for, export_run
from anytime.saving import load

CALIBRATION = 256
"""Training images that --int8 looks at."""


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run or a saved model.")],
    to: Annotated[str, Option("--to", help="What will run it: onnx (ONNX Runtime) or executorch.")] = "onnx",
    output: Annotated[Path | None, Option(help="Folder to write. Default: RUN/onnx, RUN/executorch.")] = None,
    exits: Annotated[str | None, Option(help="Exits to keep, e.g. 4,9,27: fewer graphs, faster. Default: all.")] = None,
    int8: Annotated[bool, Option("--int8", help="8-bit integers; errors before and after are shown.")] = False,
    calibrate: Annotated[str | None, Option(help=f"Images for --int8. Default: the run's. {DATA}")] = None,
    tolerate: Annotated[float, Option(help="Percentage points that the last exit may lose with --int8.")] = 1.0,
    threads: Annotated[int | None, Option(help=THREADS)] = None,
    any_size: Annotated[bool, Option("--any-size", help="Let images have any size, not only the trained one.")] = False,
) -> None:
    """Write a model as one graph for each stage and each exit, to run without PyTorch.

    The folder holds stage-01.onnx, head-01.onnx, … and anytime.json, which says what goes from stage to stage, what
    each exit costs, how images are prepared and what the classes are called. Every exit is compared with the model
    first.

    Examples:
    - `anytime export runs/a --to onnx`
    - `anytime export runs/a --to onnx --output phone --exits 4,9,27`
    - `anytime export runs/a --to onnx --int8 --calibrate cifar10`
    - `anytime export runs/a --to executorch`
    """
    if to not in ("onnx", "executorch"):
        raise AnytimeError(f"--to {to}: expected onnx or executorch")
    use_threads(threads)
    if to != "onnx" and (int8 or any_size):
        raise AnytimeError(f"--to {to}: {'--int8' if int8 else '--any-size'} is for --to onnx only")
    net, options = load(run), dict[str, Any]()
    if exits is not None:
        options["exits"] = [number - 1 for number in _numbers(exits)]
        if max(options["exits"]) >= net.exits:
            raise AnytimeError(f"--exits {exits}: the network has {net.exits}")
    if any_size:
        options["other"] = example_for(net, size=2 * example_for(net).shape[-1])
    target = output or run / (f"{to}-int8" if int8 else to)
    if int8:
        _quantize(run, net, calibrate, tolerate, target, options)
    else:
        export_run(run, target, to, **options)
    size = sum(path.stat().st_size for path in target.iterdir() if path.is_file())
    print(f"In {target}/: {anytime.load_exported(target).exits} stages and heads, {size / 1e6:.1f} MB")
    print(f"  python: anytime.predict(anytime.load_exported({str(target)!r}), x, deadline=0.02)")
    say_next("serve", target)


def _quantize(
    run: Path, net: anytime.Network, data: str | None, tolerate: float, target: Path, options: dict[str, Any]
) -> None:
    """Export in floats, then in integers: calibrated with training images, errors from test images."""
    images = prepared(net, run, data_of(run, data, "--calibrate"))
    test = images.test or images.validation
    some = images.batches(images.train, batch_size=CALIBRATION // 4)
    with tempfile.TemporaryDirectory() as place:
        floats = export_run(run, Path(place), **options)
        found = anytime.export.int8(floats, target, islice(some, 4), images.batches(test), tolerate)
    title = f"{run}: test errors, {CALIBRATION} images to calibrate"
    show(compared_table(found.before, found.after, title, ("float32", "int8")))


def _numbers(text: str) -> list[int]:
    """The exits that a list such as 4,9,27 names."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise AnytimeError(f"--exits {text}: expected numbers from 1, e.g. 4,9,27")
    return [check_integer("--exits", int(part)) for part in parts]
