"""What the commands share."""

import copy
import json
import logging
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch

import anytime
from anytime.errors import AnytimeError, check_integer, require
from anytime.evaluation import Curve
from anytime.export.exported import ExportedNetwork
from anytime.plotting import plot_curves
from anytime.saving import CONFIG

try:
    typer: Any = require("typer", "cli")
    require("rich", "cli")
except AnytimeError as error:
    sys.exit(f"anytime: {error}")

Option = typer.Option
BACKEND = (
    "eager (PyTorch), onnx (ONNX Runtime, faster on CPUs; a saved model is exported first), or auto: an exported "
    "network runs as it was exported, a saved one with PyTorch."
)
DEVICES = "cpu, cuda, cuda:1, mps …; auto uses an accelerator if there is one."
DATA = "digits; cifar10, cifar100, svhn, imagenet or any owner/name on the Hugging Face Hub; or a local folder."
SCHEMES = (
    "How the exits' losses are weighted: adaloss (the default), annealed (const at first, adaloss at the end), const, "
    "linear, half-end, opt-I (exit I alone), geometric-mean, log-barrier, first-order; with options as in "
    "adaloss:gamma=0.1."
)
THREADS = "Number of CPU threads. Default: what torch takes, one for each core."
THREADS_BY_IMAGE = "Number of CPU threads. Default: 1 for images of at most 16×16, else one for each core."
TINY = 16 * 16
"""Pixels. A network computes such an image in so little time that threads mostly wait for each other, and whenever
another process has one of their cores, for milliseconds."""
SEED = "Seed of the initial weights, the image order and the subset. Default: 0."


STOPPED = 130
"""The exit code after Ctrl-C, as shells have it."""
UNTRUSTING = ("convert", "demo", "models", "train-ensemble")
"""Commands that load no saved model."""


class _Commands(require("typer.core", "cli").TyperGroup):
    """The commands; their help shows no type of a flag, which takes no value, and ``--trust``, which ``main`` reads."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            if cmd_name not in UNTRUSTING and not any("--trust" in param.opts for param in command.params):
                trust = copy.copy(next(param for param in self.params if "--trust" in param.opts))
                trust.expose_value = False
                command.params.append(trust)
            _hide_types(command.get_params(ctx))
        return command

    def get_params(self, ctx: Any) -> Any:
        return _hide_types(super().get_params(ctx))


def _hide_types(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Anytime neural networks: train every exit, know what each costs, stop whenever.\n\n"
    "First steps: **anytime demo**",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"anytime {anytime.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
    trust: bool = Option(False, "--trust", help="Call the function that a converted model's folder names to build it."),
) -> None:
    """Options that stand before the command."""


def device_named(name: str) -> torch.device:
    """The device of this name, or an error that says why it cannot be used."""
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        torch.zeros(1, device=name).item()
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise AnytimeError(f"--device {name} cannot be used here: {reason}; --device cpu always can") from None


def use_threads(asked: int | None, shape: Sequence[int] = ()) -> None:
    """Compute with the threads asked for; otherwise with one if the images, of this shape, are tiny."""
    if asked is not None:
        torch.set_num_threads(check_integer("--threads", asked))
    elif shape and shape[-1] * shape[-2] <= TINY:
        torch.set_num_threads(1)


def moved(net: anytime.Network, device: str) -> anytime.Network:
    """A network on the device of this name; exported ones stay where their runtime computes."""
    return net if isinstance(net, ExportedNetwork) else net.to(device_named(device))


def check_free(output: Path) -> None:
    """Refuse a folder that holds a model or a run: its weights would be lost."""
    if any((output / name).exists() for name in (CONFIG, "run.json")):
        raise AnytimeError(f"--output {output} holds a model: name another folder, or delete this one first")


def last_weights(folder: Path) -> list[float] | None:
    """The loss weights at the end of training, from the log."""
    try:
        lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return json.loads(lines[-1])["weights"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no log, or a damaged one: the table is shown without weights


def title_of(asked: dict[str, Any]) -> str:
    """The model, scheme and data of a run, as far as they are known."""
    data = f"on {Path(asked['data']).name}" if asked.get("data") else ""
    model = f"{asked['model']} + boosting" if asked.get("boosting") else asked.get("model")
    return ", ".join(filter(None, [model, asked.get("scheme"), data]))


def draw_curves(folders: dict[str, Path], curves: dict[str, Curve], path: Path, title: str) -> None:
    """Draw error against cost, with the loss weights of the runs that have some."""
    weights = {name: w for name, folder in folders.items() if (w := last_weights(folder))}
    plot_curves(curves, path, title, weights)


@contextmanager
def drawing() -> Iterator[None]:
    """A picture that cannot be drawn or written is a warning and does not end the command."""
    try:
        yield
    except (anytime.MissingExtraError, OSError) as error:
        logging.getLogger("anytime").warning("no plot: %s", error)


_MEANINGS = {
    "model.safetensors": "the model; anytime.load(folder) reads it",
    "log.jsonl": "one line per epoch: loss, error and weight of each exit",
    "evaluation.json": "the table above",
    "curve.png": "error against cost",
    "learning.png": "loss and error against epochs",
}


def say_where(folder: Path) -> None:
    """Print what is in a finished folder."""
    print(f"In {folder}/")
    for name, meaning in _MEANINGS.items():
        if (folder / name).exists():
            print(f"  {name:18} {meaning}")


def say_next(command: str, *words: object) -> None:
    """Print the command that usually comes next."""
    print(f"next: anytime {command} {shlex.join(map(str, words))}".rstrip())


def end_stopped(kept: str, *words: object) -> NoReturn:
    """After Ctrl-C: say what is kept and which command goes on, and end."""
    command = shlex.join(map(str, words))
    print(f"\nstopped; {kept}; go on with: anytime {command}", file=sys.stderr)
    sys.exit(STOPPED)
