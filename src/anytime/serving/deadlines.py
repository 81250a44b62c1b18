"""Deadlines as clients write them: 50ms, 0.05s, microseconds, or gRPC's timeouts."""

import re
from collections.abc import Mapping
from typing import Any

from anytime.errors import AnytimeError, check_number

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
GRPC_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def seconds(text: str, name: str = "deadline") -> float:
    """A duration with its unit, in seconds.

    Examples:
        >>> seconds("20ms"), seconds("0.5s"), seconds("500us")
        (0.02, 0.5, 0.0005)
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(us|ms|s)", text.strip())
    if not match:
        raise AnytimeError(f"{name} {text[:40]}: expected a duration with its unit (us, ms or s), such as 20ms or 0.5s")
    return float(match[1]) * UNITS[match[2]]


def grpc_seconds(text: str) -> float:
    """The value of a ``grpc-timeout`` header in seconds: at most 8 digits and a unit.

    Examples:
        >>> grpc_seconds("50m"), grpc_seconds("2S"), grpc_seconds("500u")
        (0.05, 2.0, 0.0005)
    """
    match = re.fullmatch(r"([0-9]{1,8})([HMSmun])", text.strip())
    if not match:
        raise AnytimeError(f"grpc-timeout {text[:40]}: expected at most 8 digits and one of H M S m u n, e.g. 50m")
    return float(match[1]) * GRPC_UNITS[match[2]]


def deadline_of(
    written: str | None, headers: Mapping[str, str], default: float, most: float, microseconds: Any = None
) -> float:
    """The deadline of a request in seconds: what it says itself, else its ``grpc-timeout`` header, else the default.

    Args:
        written: such as ``50ms``, from the query or the JSON body.
        headers: of the request.
        default: seconds if the request has no deadline.
        most: seconds; a longer deadline is refused.
        microseconds: ``parameters.timeout`` of the Open Inference Protocol; 0 is none, as Triton has it.
    """
    if written is not None:
        found = seconds(written)
    elif microseconds:
        found = 1e-6 * check_number("parameters.timeout, in microseconds,", microseconds)
    elif "grpc-timeout" in headers:
        found = grpc_seconds(headers["grpc-timeout"])
    else:
        return default
    if not 0 < found <= most:
        raise AnytimeError(f"the deadline is {found:g} s; expected one above 0 and at most {most:g} s")
    return found
