"""Errors that say what was given, what was expected and what would work."""

import importlib
import inspect
import math
import numbers
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import ModuleType


class AnytimeError(ValueError):
    """An error that the caller can fix: the message says how. The command line shows it as one line."""


class MissingExtraError(AnytimeError, ImportError):
    """A package that only part of this library needs is not installed."""


class NonFiniteLossError(AnytimeError, ArithmeticError):
    """Training met a loss that is infinite or not a number, and stopped before the update."""


@cache
def require(module: str, extra: str) -> ModuleType:
    """Import a package that is not installed with the library itself, or say which extra has it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f'{error}: this needs an extra; run: pip install "anytime-nets[{extra}]", or in a clone: '
            f'pip install ".[{extra}]"'
        ) from error
    except (RuntimeError, OSError) as error:  # a compiled part that was built for another version of something
        reason, package = str(error).partition("\n")[0], module.partition(".")[0]
        raise AnytimeError(
            f"{package} is installed but cannot be imported ({reason}): installed packages do not match; "
            f"reinstall them from one index, e.g. pip install --force-reinstall torch torchvision {package}"
        ) from error


LONGEST = 60
"""How many characters of a value an error shows."""


def shown(value: object) -> str:
    """A value as an error shows it: the name of its type where all of it would hide the message.

    Examples:
        >>> shown(0.5), shown(list(range(100)))
        ('0.5', 'list(…)')
    """
    text = repr(value)
    return text if len(text) <= LONGEST and "\n" not in text else f"{type(value).__name__}(…)"


def options_of(factory: Callable[..., object]) -> str:
    """The names of what a scheme or a rule takes besides the number of exits, for an error.

    Examples:
        >>> options_of(lambda exits, gamma, momentum: None), options_of(lambda exits: None)
        ('gamma, momentum', 'no options')
    """
    return ", ".join(name for name in inspect.signature(factory).parameters if name != "exits") or "no options"


def check_integer(name: str, value: int, least: int = 1, most: float = math.inf) -> int:
    """Return ``value`` as an ``int`` if it is an integer within the bounds; raise :class:`AnytimeError` otherwise.

    Examples:
        >>> check_integer("exits", 0)
        Traceback (most recent call last):
        ...
        anytime.errors.AnytimeError: exits=0 must be an integer >= 1
    """
    if type(value) is int and least <= value <= most:  # nearly always: the question below takes far longer
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not least <= value <= most:
        upper = f" and <= {most}" if math.isfinite(most) else ""
        raise AnytimeError(f"{name}={shown(value)} must be an integer >= {least}{upper}")
    return int(value)


def check_number(
    name: str,
    value: float,
    least: float = 0,
    below: float = math.inf,
    *,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return ``value`` as a ``float`` if it is finite and within the bounds; raise :class:`AnytimeError` otherwise.

    The bounds are ``value >= least``, ``value < below``, ``value > above`` and ``value <= most``.

    Examples:
        >>> check_number("momentum", 1.5, below=1)
        Traceback (most recent call last):
        ...
        anytime.errors.AnytimeError: momentum=1.5 must be a number >= 0 and < 1
    """
    number = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer beyond the range of float
            number = float(value)
    if not (math.isfinite(number) and least <= number < below and above < number <= most):
        lower = f"> {above:g}" if above >= least else f">= {least:g}"
        upper = f" and <= {most:g}" if most < below else f" and < {below:g}" if math.isfinite(below) else ""
        raise AnytimeError(f"{name}={shown(value)} must be a number {lower}{upper}")
    return number
