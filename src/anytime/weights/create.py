"""Weight schemes by name."""

import math
import re
from typing import Any

from anytime.errors import AnytimeError, check_integer, options_of
from anytime.weights.adaloss import AdaLoss
from anytime.weights.annealed import AnnealedAdaLoss
from anytime.weights.first_order import FirstOrderAdaLoss
from anytime.weights.fixed import Const, HalfEnd, LinearWeights, OnlyExit
from anytime.weights.geometric_mean import GeometricMean
from anytime.weights.log_barrier import LogBarrier
from anytime.weights.scheme import WeightScheme

_SCHEMES = {
    "const": Const,
    "linear": LinearWeights,
    "half-end": HalfEnd,
    "opt": OnlyExit,
    "adaloss": AdaLoss,
    "annealed": AnnealedAdaLoss,
    "geometric-mean": GeometricMean,
    "log-barrier": LogBarrier,
    "first-order": FirstOrderAdaLoss,
}


def create_scheme(name: str, exits: int) -> WeightScheme:
    """Create a weight scheme by name, as the command line takes it.

    Args:
        name: ``const``, ``linear``, ``half-end``, ``adaloss``, ``annealed`` (``AnnealedAdaLoss``; ``fit`` tells it
            how long the training is), ``geometric-mean``, ``log-barrier``, ``first-order`` (``FirstOrderAdaLoss``;
            ``fit`` makes it watch the network), or ``opt-I`` for all weight on the I-th exit as tables
            number them (1 is the shallowest; ``opt`` is the last). Options may follow:
            ``adaloss:gamma=0.1,final_extra=1``.
        exits: Number of exits.

    Examples:
        >>> create_scheme("adaloss:gamma=0.1", exits=9)
        AdaLoss(exits=9, momentum=0.9, gamma=0.1, final_extra=0.0, update_every=1)
        >>> create_scheme("opt-3", exits=9).only
        [2]
    """
    check_integer("exits", exits)
    kind, _, options = name.partition(":")
    arguments: dict[str, Any] = {}
    if opt := re.fullmatch(r"opt-(\d+)", kind):
        number = int(opt[1])
        if not 1 <= number <= exits:
            raise AnytimeError(f"scheme {name!r}: this network has exits 1 to {exits}; try opt-{exits}")
        kind, arguments = "opt", {"exit": number - 1}
    if kind not in _SCHEMES:
        known = ", ".join(n if n != "opt" else "opt-I" for n in _SCHEMES)
        raise AnytimeError(f"unknown scheme {name!r}; expected one of: {known}")
    for option in filter(None, options.split(",")):
        if kind == "opt":
            raise AnytimeError(f"scheme {name!r}: opt takes no options; opt-3 is the third exit")
        key, _, value = option.partition("=")
        arguments[key] = _number(value)
        if arguments[key] is None:
            raise AnytimeError(f"scheme {name!r}: the option {option!r} must be key=number, e.g. gamma=0.1")
    try:
        return _SCHEMES[kind](exits, **arguments)
    except TypeError:
        raise AnytimeError(f"scheme {name!r}: {kind} takes {options_of(_SCHEMES[kind])}") from None


def _number(text: str) -> int | float | None:
    try:
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text) if math.isfinite(float(text)) else None
    except ValueError:
        return None
