"""``anytime export``."""

from pathlib import Path
from typing import Annotated, Any

import anytime
from anytime.cli.app import Option, app, typer
from anytime.errors import AnytimeError, check_integer
from anytime.export.backend import example_for, export_run
from anytime.saving import load


@app.command("export")
def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run or a saved model.")],
    to: Annotated[str, Option("--to", help="What will run it: onnx (ONNX Runtime).")] = "onnx",
    output: Annotated[Path | None, Option(help="Folder to write. Default: RUN/onnx.")] = None,
    exits: Annotated[str | None, Option(help="Exits to keep, e.g. 4,9,27: fewer graphs, faster. Default: all.")] = None,
    any_size: Annotated[bool, Option("--any-size", help="Let images have any size, not only the trained one.")] = False,
) -> None:
    """Write a model as one graph for each stage and each exit, to run without PyTorch.

    The folder holds stage-01.onnx, head-01.onnx, … and anytime.json, which says what goes from stage to stage, what
    each exit costs, how images are prepared and what the classes are called. Every exit is compared with the model
    first.

    Examples:
    - `anytime export runs/a --to onnx`
    - `anytime export runs/a --to onnx --output phone --exits 4,9,27`
    """
    if to != "onnx":
        raise AnytimeError(f"--to {to} must be onnx")
    net, options = load(run), dict[str, Any]()
    if exits is not None:
        options["exits"] = [number - 1 for number in _numbers(exits)]
        if max(options["exits"]) >= net.exits:
            raise AnytimeError(f"--exits {exits}: the network has {net.exits}")
    if any_size:
        options["other"] = example_for(net, size=2 * example_for(net).shape[-1])
    folder = export_run(run, output or run / to, **options)
    exported = anytime.load_exported(folder)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    print(f"In {folder}/: {exported.exits} stages and heads, {size / 1e6:.1f} MB")
    print(f"  python: anytime.predict(anytime.load_exported({str(folder)!r}), x, deadline=0.02)")


def _numbers(text: str) -> list[int]:
    """The exits that a list such as 4,9,27 names."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise AnytimeError(f"--exits {text}: expected numbers from 1, e.g. 4,9,27")
    return [check_integer("--exits", int(part)) for part in parts]
