"""AnytimeNetwork: a sequence of stages with an exit after each."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anytime.errors import AnytimeError
from anytime.meta import changes_input
from anytime.preprocessing import Preprocessing


class Step(NamedTuple):
    """One prediction of an anytime network."""

    exit: int
    """Which exit made it: 0 is the shallowest, so ``net(x)[step.exit]`` is the same prediction."""
    logits: Tensor


class ReachedExit:
    """An exit that a walk has reached: calling it evaluates its head.

    It can be called until the next stage runs, which may change the state in place.
    """

    __slots__ = ("_head", "_state")

    def __init__(self, head: nn.Module, state: Any) -> None:
        self._head: nn.Module | None = head
        self._state = state

    def __call__(self) -> Tensor:
        """The logits of this exit."""
        if self._head is None:
            raise AnytimeError("the walk has gone past this exit: call it before the next stage runs")
        # The next stage reads the state: a head that works in place gets a copy, or other answers would depend on it.
        state = clone_tensors(self._state) if changes_input(self._head, self._state) else self._state
        logits = self._head(state)
        # A head such as nn.Flatten returns the state's own memory, which the next stage may change in place.
        return clone_tensors(logits) if _shares_memory(logits, self._state) else logits

    def copy(self) -> "ReachedExit":
        """The same exit with a copy of the state: it can be called at any time."""
        assert self._head is not None
        return ReachedExit(self._head, clone_tensors(self._state))

    def close(self) -> None:
        """Release the state: the next stage is about to run."""
        self._head = self._state = None


class OwnRows:
    """A state that itself knows where its samples are: not along the first dimension of every tensor."""

    def take(self, rows: Tensor) -> Self:
        """The state of some samples."""
        raise NotImplementedError

    def join(self, others: Sequence[Any]) -> Self:
        """The state of these samples and those of the others after them."""
        raise NotImplementedError


class AnytimeNetwork(nn.Module):
    """A sequence of stages f_1 … f_L with a prediction g_i(x_i) after each (Sec. 3, Fig. 1b of the paper).

    The state x_i that goes from stage to stage may be anything that the next stage and the head at that
    depth accept: a tensor, or a tuple, list or dict of tensors, the samples of the batch along their first dimension.

    Args:
        stages: ``stages[0]`` takes the network's input, ``stages[i]`` the state that ``stages[i-1]`` returned.
        heads: ``heads[i]`` turns the state after ``stages[i]`` into logits.

    Examples:
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

    preprocessing: Preprocessing | None = None
    """What the network expects of its images, and the names of its classes; ``fit`` sets it, ``save`` writes it."""

    image_size: int | None = None
    """Height and width of the images that the architecture was made for; most take others too."""

    chained: bool = True
    """Whether each stage takes what the stage before it returned; an ensemble's networks each take the input."""

    keeps_features: bool = False
    """Whether heads alone are trained, on features that do not change: see ``ConvertedNetwork.features``."""

    answers_together: bool = False
    """Whether an exit answers with what the exits before it say too."""

    joins_stages: bool = False
    """Whether stages run as one where no exit between them is wanted: ``steps(x, only)`` is then faster than a walk."""

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

    def extra_repr(self) -> str:
        """What ``print(net)`` shows before the modules."""
        return f"exits={self.exits}"

    def preprocess(self, images: Any) -> Tensor:
        """Batch of images as this network sees them, on its device and in its precision.

        Args:
            images: uint8 pixels N × C × H × W (tensor or numpy array), or an image or a list of images (paths or Pillow
                images).
        """
        if self.preprocessing is None:
            raise AnytimeError(
                "this network does not know how its images are preprocessed: anytime.fit notes it, or set "
                "net.preprocessing = anytime.Preprocessing(channels=3, size=(32, 32), mean=[...], std=[...])"
            )
        prepared = self.preprocessing(images)
        return prepared.to(next((weight for weight in self.parameters() if weight.is_floating_point()), prepared))

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
            only: the exits wanted, e.g. ``[-1]``; no other head runs, nor any stage past the last. Default: all.
        """
        return self._steps(x, self.exit_indices(only))

    def _steps(self, x: Any, wanted: frozenset[int]) -> Iterator[Step]:
        exits = (head for head in self.walk(x) if head is not None)
        for i, head in enumerate(islice(exits, max(wanted, default=-1) + 1)):
            if i in wanted:
                yield Step(i, head())

    def forget(self) -> None:
        """Forget the known costs and latencies of the stages; call it after changing a stage."""
        vars(self).pop("_costs", None)
        vars(self).pop("_profiles", None)

    @property
    def units(self) -> "list[tuple[nn.Module, nn.Module | None]]":
        """The stages in the order in which they run, each with its head; None where it has no exit."""
        return list(zip(self.stages, self.heads, strict=True))

    @property
    def trained_units(self) -> "list[tuple[nn.Module, nn.Module | None]]":
        """The units as a training runs them: where modules wrap others, those inside, which take an exit's features."""
        return self.units

    def walk(self, x: Any) -> Generator[ReachedExit | None, Tensor | None, None]:
        """Run one stage at a time and yield the exit after it; its head is evaluated when the exit is called.

        An exit can be called until the walk yields the next one. An ensemble also has stages without an exit; after
        these it yields None. ``walk.send(rows)`` removes all other samples from the batch before the next stage.

        Examples:
            >>> import torch
            >>> net = AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 3), nn.Linear(8, 3)])
            >>> walk = net.walk(torch.zeros(5, 8))
            >>> first = next(walk)                              # one stage has run, and no head
            >>> second = walk.send(torch.tensor([0, 3]))
            >>> second().shape
            torch.Size([2, 3])
        """
        state, reached = x, None
        for stage, head in zip(self.stages, self.heads, strict=True):
            if reached is not None:
                reached.close()
            state = stage(state)
            reached = ReachedExit(head, state)
            rows = yield reached
            if rows is not None:
                state = self.take(state, rows)

    def take(self, state: Any, rows: Tensor) -> Any:
        """The state of some samples of the batch: those rows of every tensor in it."""

        def chosen(leaf: Any) -> Any:
            if isinstance(leaf, OwnRows):
                return leaf.take(rows)
            return select_rows(leaf, rows) if isinstance(leaf, Tensor) else leaf

        return tree_map(chosen, state, is_leaf=_has_own_rows)

    def join(self, states: Sequence[Any]) -> Any:
        """One state of all samples, in the order given: the reverse of ``take``.

        Args:
            states: after the same stage, or inputs; of samples of the same shape.

        Examples:
            >>> import torch
            >>> net = AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 3), nn.Linear(8, 3)])
            >>> states = [net.run_stage(0, torch.zeros(n, 8)) for n in (1, 2)]
            >>> joined = net.run_stage(1, net.join(states))
            >>> net.exit_after(1, joined)().shape
            torch.Size([3, 3])
        """
        if len(states) == 1:
            return states[0]

        def together(first: Any, *others: Any) -> Any:
            if isinstance(first, OwnRows):
                return first.join(others)
            return join_values(first, others)

        try:
            return tree_map(together, *states, is_leaf=_has_own_rows)
        except (ValueError, RuntimeError, TypeError) as error:
            if isinstance(error, AnytimeError):
                raise
            raise AnytimeError(
                f"these {len(states)} states cannot be joined ({error}): they must be after the same stage, and of "
                "samples of the same shape"
            ) from error

    @property
    def stage_exits(self) -> list[int | None]:
        """For each stage, in the order in which they run, the exit after it; None where it has none."""
        return list(range(self.exits))

    def run_stage(self, stage: int, state: Any) -> Any:
        """Run one stage, on the input or on what the stage before returned, in a walk that may pause and divide."""
        return self.stages[stage](state)

    def exit_after(self, stage: int, state: Any) -> ReachedExit | None:
        """The exit that ``walk`` yields after a stage, given what ``run_stage`` returned."""
        return ReachedExit(self.heads[stage], state)

    def exit_indices(self, only: Iterable[int] | None) -> frozenset[int]:
        """The exits in ``only``, counted from 0; all of them for None. Raises ``IndexError`` for others."""
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


def name_of(config: Mapping[str, Any] | None) -> str | None:
    """The name of the network that a configuration describes, with its rule: resann-1-8 + boosting."""
    return f"{name_of(c['network'])} + {c['rule']}" if "network" in (c := config or {}) else c.get("model")


def weights_device(net: nn.Module) -> torch.device:
    """Where a network's parameters are; the CPU if it has none."""
    return next((parameter.device for parameter in net.parameters()), torch.device("cpu"))


@contextmanager
def eval_mode(net: nn.Module) -> Iterator[None]:
    """A context in which a network is in eval mode; afterwards each of its modules has its own mode back."""
    before = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def clone_tensors(state: Any) -> Any:
    """A copy of all tensors of a state or an input."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, state)


def _shares_memory(logits: Any, state: Any) -> bool:
    if torch.compiler.is_compiling():  # no compiler can follow the question, and it removes a needless copy
        return True
    try:
        given, found = ({leaf.untyped_storage().data_ptr() for leaf in tensors_of(x)} for x in (state, logits))
        return not given.isdisjoint(found)
    except RuntimeError:  # tensors inside torch.func's transforms have no storage to look at
        return True


def _has_own_rows(state: Any) -> bool:
    return isinstance(state, OwnRows)


def tensors_of(state: Any) -> list[Tensor]:
    """All tensors of a state or an input."""
    if isinstance(state, Tensor):
        return [state]
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]


def select_rows(tensor: Tensor, rows: Tensor, dim: int = 0) -> Tensor:
    """Some rows, laid out in memory as the tensor is: with channels last, if it has them there.

    ``index_select`` alone would put channels first, and everything after it would be slower.
    """
    order = sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d))
    back = sorted(range(tensor.ndim), key=order.__getitem__)
    return tensor.permute(order).index_select(order.index(dim), rows).permute(back)


def join_values(first: Any, others: Sequence[Any], dim: int | None = 0) -> Any:
    """Tensors one after another along a dimension, laid out in memory as the first is.

    Values without samples (``dim=None``, or no tensors) must be equal.
    """
    if dim is not None and isinstance(first, Tensor):
        order = sorted(range(first.ndim), key=lambda d: (-first.stride(d), d))
        back = sorted(range(first.ndim), key=order.__getitem__)
        return torch.cat([t.permute(order) for t in (first, *others)], order.index(dim)).permute(back)
    for other in others:
        same = torch.equal(first, other) if isinstance(first, Tensor) else first == other
        if not same:
            raise AnytimeError(f"states with different values, {first!r} and {other!r}, cannot be joined")
    return first
