"""The command line: one file a group of commands."""

import sys
from typing import NoReturn

import torch

from anytime.cli import demo, train  # noqa: F401

# isort: split
from anytime.cli import ensemble, evaluate, predict, profile  # noqa: F401

# isort: split
from anytime.cli.app import app
from anytime.errors import AnytimeError
from anytime.training.jobs import stop_with_parent


def main() -> NoReturn:
    """Run the command; whatever the user can put right is one line on standard error and exit code 2."""
    stop_with_parent()
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:
        status = 130
    except AnytimeError as error:
        status = _complain(str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        status = _complain(f"out of memory: {error}")
    except Exception as error:
        if "allocate memory" in str(error) or "not enough memory" in str(error):  # what torch raises on a processor
            sys.exit(_complain(f"out of memory: {str(error).splitlines()[0]}; try something smaller"))
        if not hasattr(error, "format_message"):  # typer's own, about the words of the command
            raise
        status = _complain(f"{error.format_message()} (see: anytime --help)")  # type: ignore[attr-defined]
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> int:
    print("anytime: " + " ".join(message.split()), file=sys.stderr)
    return 2
