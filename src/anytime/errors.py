"""Errors that say what was given, what was expected and what would work."""

import importlib
from types import ModuleType


class AnytimeError(ValueError):
    """Something the caller can put right: the message says how. The command line shows it as one line."""


class MissingExtraError(AnytimeError, ImportError):
    """A package is not installed that only part of this library needs."""


class NonFiniteLossError(AnytimeError, ArithmeticError):
    """Training met a loss that is infinite or not a number, and stopped before the update."""


def require(module: str, extra: str) -> ModuleType:
    """Import a package that is not installed with the library itself, or say which extra has it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f'{error}: this needs an extra; type: pip install "anytime[{extra}]"') from error
