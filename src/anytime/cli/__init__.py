"""The command line: one file for each group of commands."""

import os
import sys
import warnings
from typing import NoReturn

import torch

from anytime.cli import demo, train  # noqa: F401

# isort: split
from anytime.cli import combine, convert, ensemble, evaluate, export, plan, predict, profile, select, serve  # noqa: F401

# isort: split
from anytime.cli.app import STOPPED, app
from anytime.errors import AnytimeError
from anytime.saving import TRUST
from anytime.training.jobs import stop_with_parent


def main() -> NoReturn:
    """Run the command. Errors that a user can fix are one line on standard error, with exit code 2."""
    stop_with_parent()
    words = sys.argv[1:] or ["--help"]
    if "--trust" in words:  # applies to everything that the command loads, so it may stand anywhere
        words.remove("--trust")
        os.environ[TRUST] = "1"
    try:
        with warnings.catch_warnings():  # which puts back how warnings are shown
            warnings.showwarning = _show_warning
            status = app(words, standalone_mode=False, prog_name="anytime")
    except KeyboardInterrupt:
        status = STOPPED
    except Exception as error:
        message = _explain(error)
        if message is None:
            raise
        _say(message)
        status = 2
    if status == STOPPED:  # by Ctrl-C; commands that keep something have said so and have ended by themselves
        print("\nstopped; nothing was written", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)


def _say(message: str) -> None:
    print("anytime: " + " ".join(message.split()), file=sys.stderr)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as one line, without the line of code that it comes from."""
    _say(f"warning: {message}")


def _explain(error: Exception) -> str | None:
    """The message for a user's error; None for all others, which are ours and are shown with their traceback."""
    if isinstance(error, AnytimeError):
        return str(error)
    if hasattr(error, "format_message"):  # typer's own: unknown options, missing arguments
        command = error.ctx.command_path if getattr(error, "ctx", None) else "anytime"  # type: ignore[attr-defined]
        return f"{error.format_message()} (see: {command} --help)"  # type: ignore[attr-defined]
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return f"out of memory: {error}"
    if "allocate memory" in str(error) or "not enough memory" in str(error):  # RuntimeErrors of torch on a CPU
        return f"out of memory: {str(error).splitlines()[0]}; try something smaller"
    if isinstance(error, OSError):  # files and networks
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    return None
