"""AnytimeNetwork: stages in a row, an exit after each."""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anytime.errors import AnytimeError


class Step(NamedTuple):
    """One prediction of an anytime network."""

    exit: int
    """Which exit made it: 0 is the shallowest, so ``net(x)[step.exit]`` is the same prediction."""
    logits: Tensor


class AnytimeNetwork(nn.Module):
    """A sequence of stages f_1 … f_L with a prediction g_i(x_i) after each (Sec. 3, Fig. 1b of the paper).

    The state x_i that goes from stage to stage may be anything that the next stage and the head at that
    depth accept: a tensor, or a tuple, list or dict of tensors, the samples of the batch along their first dimension.

    Args:
        stages: ``stages[0]`` takes the network's input, ``stages[i]`` the state that ``stages[i-1]`` returned.
        heads: ``heads[i]`` turns the state after ``stages[i]`` into logits.

    Example:
        >>> import torch
        >>> net = AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 3), nn.Linear(8, 3)])
        >>> [logits.shape for logits in net(torch.zeros(5, 8))]
        [torch.Size([5, 3]), torch.Size([5, 3])]
        >>> first = next(net.steps(torch.zeros(5, 8)))      # the second stage has not run
        >>> first.exit, first.logits.shape
        (0, torch.Size([5, 3]))
    """

    config: dict[str, Any] | None = None
    """What ``create_model`` needs to build this network again; ``save`` writes it."""

    image_size: int | None = None
    """Height and width of the images that the architecture was made for; most take others too."""

    def __init__(self, stages: Iterable[nn.Module], heads: Iterable[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.heads = nn.ModuleList(heads)
        if len(self.stages) != len(self.heads) or not self.stages:
            raise AnytimeError(
                f"got {len(self.stages)} stages and {len(self.heads)} heads; an anytime network has at least one "
                "stage and exactly one head after each: join stages without an exit with nn.Sequential(...)"
            )

    @property
    def exits(self) -> int:
        """The number of exits, L in the paper."""
        return len(self.heads)

    def layout(self) -> dict[str, Any]:
        """What must agree, besides the shapes of the weights, before weights of one network are loaded into another.

        ``save`` writes it as JSON and ``load`` compares it.
        """
        return {"exits": self.exits}

    def forward(self, x: Any, only: Iterable[int] | None = None) -> list[Tensor]:
        """Logits of every exit, shallow to deep; with ``only``, of those exits alone."""
        return [step.logits for step in self.steps(x, only)]

    def steps(self, x: Any, only: Iterable[int] | None = None) -> Iterator[Step]:
        """Yield one exit's prediction at a time; nothing deeper is computed until it is asked for.

        Args:
            x: the input, as for ``forward``.
            only: the exits wanted, e.g. ``[2, 8]`` or ``[-1]``; the heads of the others do not run, nor any
                stage past the last of them. Default: all.
        """
        wanted = self._wanted(only)
        return self._steps(x, wanted)

    def _steps(self, x: Any, wanted: frozenset[int]) -> Iterator[Step]:
        exits = (head for head in self.walk(x) if head is not None)
        for i, head in enumerate(islice(exits, max(wanted, default=-1) + 1)):
            if i in wanted:
                yield Step(i, head())

    @property
    def units(self) -> "list[tuple[nn.Module, nn.Module | None]]":
        """The stages in the order in which they run, each with its head; None where it has no exit."""
        return list(zip(self.stages, self.heads, strict=True))

    def walk(self, x: Any) -> Generator[Callable[[], Tensor] | None, Tensor | None, None]:
        """Run one stage at a time and yield the exit after it, unopened: calling it evaluates its head.

        Whoever walks may narrow the batch on the way: ``walk.send(rows)`` goes on with those samples alone. An ensemble
        also has stages without an exit; after these it yields None.

        Example:
            >>> import torch
            >>> net = AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 3), nn.Linear(8, 3)])
            >>> walk = net.walk(torch.zeros(5, 8))
            >>> first = next(walk)                              # one stage has run, and no head
            >>> second = walk.send(torch.tensor([0, 3]))
            >>> second().shape
            torch.Size([2, 3])
        """
        state = x
        for stage, head in zip(self.stages, self.heads, strict=True):
            state = stage(state)
            rows = yield partial(head, state)
            if rows is not None:
                state = self.take(state, rows)

    def take(self, state: Any, rows: Tensor) -> Any:
        """The state of some samples of the batch: those rows of every tensor in it."""
        return tree_map(lambda leaf: select_rows(leaf, rows) if isinstance(leaf, Tensor) else leaf, state)

    def _wanted(self, only: Iterable[int] | None) -> frozenset[int]:
        if only is None:
            return frozenset(range(self.exits))
        only = list(only)
        for i in only:
            if not -self.exits <= i < self.exits:
                raise IndexError(
                    f"no exit {i}: this network has {self.exits}, numbered 0 to {self.exits - 1} "
                    f"(or -{self.exits} to -1 from the end)"
                )
        return frozenset(i % self.exits for i in only)


def select_rows(tensor: Tensor, rows: Tensor, dim: int = 0) -> Tensor:
    """Some rows, laid out in memory as the tensor is: with channels last, if it has them there.

    ``index_select`` alone would put channels first, and everything after it would be slower.
    """
    order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
    back = sorted(range(tensor.ndim), key=order.__getitem__)
    return tensor.permute(order).index_select(order.index(dim), rows).permute(back)
