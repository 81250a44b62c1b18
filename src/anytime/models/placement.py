"""Where a network of N units has its exits, and the stages that follow from it."""

from collections.abc import Sequence

from torch import nn

from anytime.errors import AnytimeError, check_integer


def place_exits(units: int, period: int | None = None, exits: Sequence[int] | None = None) -> list[int]:
    """The units after which there is an exit, counted from 1 as the paper does; the last is always one.

    Args:
        units: number of units of the network.
        period: units per exit, counted backwards from the last (the paper's s). Default 1.
        exits: the units themselves, in ascending order, instead of a period.

    Examples:
        >>> place_exits(16, period=2)
        [2, 4, 6, 8, 10, 12, 14, 16]
        >>> place_exits(8, period=3)
        [2, 5, 8]
        >>> place_exits(8, exits=[1, 4, 8])
        [1, 4, 8]
    """
    check_units(units)
    if exits is None:
        period = 1 if period is None else period
        check_integer("period", period, most=units)
        return list(range((units - 1) % period + 1, units + 1, period))
    if period is not None:
        raise AnytimeError(f"period={period} and exits={exits} both say where the exits are: pass one of them")
    if not isinstance(exits, Sequence) or any(type(unit) is not int for unit in exits):
        raise AnytimeError(f"exits={exits!r} must be a list of integers from 1 to {units}, e.g. [{units}]")
    nearest = sorted({min(max(e, 1), units) for e in exits} | {units})
    if list(exits) != nearest:
        raise AnytimeError(
            f"exits={list(exits)} must be integers from 1 to {units} in ascending order, the last one {units}; "
            f"the nearest that works is exits={nearest}"
        )
    return nearest


def check_units(units: int) -> None:
    """Refuse numbers of units that would fill the memory."""
    if units > 100_000:
        raise AnytimeError(f"a network of {units:,} units: at most 100,000 can be built")


def join_stages(units: Sequence[nn.Module], exits: Sequence[int], stem: nn.Module | None = None) -> list[nn.Module]:
    """One stage per exit: the units since the previous exit; the first one begins with the stem."""
    stages: list[nn.Module] = []
    for start, end in zip([0, *exits[:-1]], exits, strict=True):
        modules = list(units[start:end])
        if start == 0 and stem is not None:
            modules.insert(0, stem)
        stages.append(modules[0] if len(modules) == 1 else nn.Sequential(*modules))
    return stages
