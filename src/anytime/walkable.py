"""What predictions under limits walk through: networks, and other objects that yield their predictions themselves."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from anytime.errors import AnytimeError
from anytime.network import Network, Step


@runtime_checkable
class HasSteps(Protocol):
    """Anything else that ``predict`` and ``start`` take. It may have an attribute ``exits``, their number."""

    def steps(self, x: Any) -> Iterable[Step]:
        """Yield the prediction of one exit at a time, shallow to deep; exits may be left out."""
        ...


class Evaluated(NamedTuple):
    """An exit whose head has been evaluated."""

    exit: int
    logits: Tensor

    def __call__(self) -> Tensor:
        """The logits of this exit."""
        return self.logits


class OnlySteps:
    """A walk through an object with ``steps``: each of its exits comes evaluated."""

    training = joins_stages = False

    def __init__(self, steps: HasSteps) -> None:
        self._steps = steps
        self.exits: int | None = getattr(steps, "exits", None)

    def walk(self, x: Any) -> Iterator[Evaluated]:
        """The exits as they come."""
        return map(Evaluated._make, self._steps.steps(x))


def walkable(net: Any) -> Network | OnlySteps:
    """What a prediction walks through, given what it was asked of."""
    if isinstance(net, Network):
        return net
    if isinstance(net, HasSteps) and not isinstance(net, type):
        return OnlySteps(net)
    raise AnytimeError(f"a {type(net).__name__} has no steps(x): pass an anytime network, see anytime.convert")
