"""The samples of a state: taken out of it, and put together again."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from anytime.errors import AnytimeError


class Rows(NamedTuple):
    """Where a value holds the samples."""

    dim: int
    each: int | None = 1
    """How many consecutive rows each sample has; None: as many as the other values of the state tell."""


class OwnRows(ABC):
    """A state whose values do not all hold the samples along their first dimension."""

    @abstractmethod
    def entries(self) -> "Sequence[tuple[Any, Rows | None]]":
        """Its values (tensors or arrays), each with the rows of the samples; None for a value of the whole batch."""

    @abstractmethod
    def with_values(self, values: list[Any]) -> Self:
        """The same with other values, in the order of ``entries``."""

    def take(self, rows: Tensor) -> Self:
        """The state of some samples."""
        entries = self.entries()
        known = (v.shape[where.dim] // where.each for v, where in entries if where and where.each)
        samples = next(known)
        return self.with_values([_take(value, where, rows, samples) for value, where in entries])

    def join(self, others: "Sequence[OwnRows]") -> Self:
        """The state of these samples and those of the others after them."""
        rest = zip(*([value for value, _ in other.entries()] for other in others), strict=True)
        pairs = zip(self.entries(), rest, strict=True)
        return self.with_values([join_values(first, more, where and where.dim) for (first, where), more in pairs])


def _take(value: Any, where: Rows | None, rows: Tensor, samples: int) -> Any:
    if where is None:
        return value
    each = where.each or value.shape[where.dim] // samples
    if each > 1:
        rows = (rows[:, None] * each + torch.arange(each, device=rows.device)).flatten()
    return value.take(rows.numpy(), where.dim) if isinstance(value, np.ndarray) else select_rows(value, rows, where.dim)


def take_rows(state: Any, rows: Tensor) -> Any:
    """The state of some samples: those rows of every tensor in it."""

    def chosen(leaf: Any) -> Any:
        if isinstance(leaf, OwnRows):
            return leaf.take(rows)
        return select_rows(leaf, rows) if isinstance(leaf, Tensor) else leaf

    return tree_map(chosen, state, is_leaf=_has_own_rows)


def join_rows(states: Sequence[Any]) -> Any:
    """One state of the samples of all states, in the order given."""
    if len(states) == 1:
        return states[0]

    def together(first: Any, *others: Any) -> Any:
        return first.join(others) if isinstance(first, OwnRows) else join_values(first, others)

    try:
        return tree_map(together, *states, is_leaf=_has_own_rows)
    except (ValueError, RuntimeError, TypeError) as error:
        if isinstance(error, AnytimeError):
            raise
        raise AnytimeError(
            f"these {len(states)} states cannot be joined ({error}): they must be after the same stage, and of "
            "samples of the same shape"
        ) from error


def _has_own_rows(state: Any) -> bool:
    return isinstance(state, OwnRows)


def select_rows(tensor: Tensor, rows: Tensor, dim: int = 0) -> Tensor:
    """Some rows, laid out in memory as the tensor is: with channels last, if it has them there.

    ``index_select`` alone would put channels first, and everything after it would be slower.
    """
    order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
    back = sorted(range(tensor.ndim), key=order.__getitem__)
    return tensor.permute(order).index_select(order.index(dim), rows).permute(back)


def join_values(first: Any, others: Sequence[Any], dim: int | None = 0) -> Any:
    """Tensors or arrays one after another along a dimension; tensors laid out in memory as the first is.

    Values without samples (``dim=None``, or no tensors) must be equal.
    """
    if dim is not None and isinstance(first, np.ndarray):
        return np.concatenate([first, *others], dim)
    if dim is not None and isinstance(first, Tensor):
        order = sorted(range(first.ndim), key=lambda d: (-first.stride(d), d))
        back = sorted(range(first.ndim), key=order.__getitem__)
        return torch.cat([t.permute(order) for t in (first, *others)], order.index(dim)).permute(back)
    for other in others:
        if not _equal(first, other):
            raise AnytimeError(f"states with different values, {first!r} and {other!r}, cannot be joined")
    return first


def _equal(first: Any, other: Any) -> bool:
    if isinstance(first, np.ndarray):
        return np.array_equal(first, other)
    return torch.equal(first, other) if isinstance(first, Tensor) else first == other
