"""Network: what all anytime networks offer, whatever they are made of. AnytimeNetwork: one of stages and heads."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from anytime.errors import AnytimeError
from anytime.meta import changes_input
from anytime.preprocessing import Preprocessing
from anytime.rows import join_rows, take_rows


class Step(NamedTuple):
    """One prediction of an anytime network."""

    exit: int
    """Which exit made it: 0 is the shallowest, so ``net(x)[step.exit]`` is the same prediction."""
    logits: Tensor


class ReachedExit:
    """An exit that a walk has reached, the one numbered ``exit``: calling it evaluates its head.

    It can be called until the next stage runs, which may change the state in place.
    """

    __slots__ = ("_head", "_state", "exit")

    def __init__(self, head: nn.Module, state: Any, exit: int) -> None:
        self._head: nn.Module | None = head
        self._state, self.exit = state, exit

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
        return ReachedExit(self._head, clone_tensors(self._state), self.exit)

    def close(self) -> None:
        """Release the state: the next stage is about to run."""
        self._head = self._state = None


class Deadlines(NamedTuple):
    """How many predictions under a deadline were returned in time."""

    kept: int
    missed: int
    """Returned late; or not even begun, since the first exit takes longer."""


class Network(nn.Module, ABC):
    """What every anytime network offers: stages, after each of which there may be an exit (Sec. 3 of the paper).

    Predictions, evaluation, ensembles, export and the server use this alone. A kind of network says how it runs one
    stage (``run_stage``), which exit is there afterwards (``stage_exits``, ``exit_after``) and which modules it is made
    of (``units``); all else follows. ``AnytimeNetwork`` is the usual kind.
    """

    config: dict[str, Any] | None = None
    """What ``create_model`` needs to build this network again; ``save`` writes it."""

    preprocessing: Preprocessing | None = None
    """What the network expects of its images, and the names of its classes; ``fit`` sets it, ``save`` writes it."""

    image_size: int | None = None
    """Height and width of the images that the architecture was made for; most take others too."""

    in_channels: int | None = None
    """The number of channels of the images; None if it does not take images, or does not say."""

    input_form: Any = None
    """Type and number of dimensions of each tensor of the input, by name where it is a dict; None if not known."""

    paused_because: str | None = None
    """Why samples cannot leave a batch after the first stage, if they cannot: the network has no graph."""

    exported: bool = False
    """Whether it is exported graphs, which can be no part of another network and are not saved again."""

    chained: bool = True
    """Whether each stage takes what the stage before it returned; the networks of an ensemble each take the input."""

    keeps_features: bool = False
    """Whether heads alone are trained, on features that do not change: see ``ConvertedNetwork.features``."""

    recipe: str | None = None
    """The recipe that suits it, if that of the data does not: a name in ``RECIPES``."""

    answers_together: bool = False
    """Whether an exit answers with what the exits before it say too."""

    joins_stages: bool = False
    """Whether stages run as one where no exit between them is wanted: ``steps(x, only)`` is then faster than a walk."""

    @property
    @abstractmethod
    def stage_exits(self) -> list[int | None]:
        """For each stage, in the order in which they run, the exit after it; None where it has none."""

    @abstractmethod
    def run_stage(self, stage: int, state: Any) -> Any:
        """Run one stage of a walk that may pause, be joined by others and be divided between any two stages.

        Args:
            stage: its number; 0 is the first.
            state: what ``run_stage`` returned for the stage before; for stage 0 the network's input. It may be changed.
        """

    @abstractmethod
    def exit_after(self, stage: int, state: Any) -> ReachedExit | None:
        """The exit after a stage, given the state that ``run_stage`` returned."""

    @property
    @abstractmethod
    def units(self) -> "list[tuple[nn.Module, nn.Module | None]]":
        """The modules of the stages in the order in which they run, each with its head; None where it has no exit."""

    @property
    def trained_units(self) -> "list[tuple[nn.Module, nn.Module | None]]":
        """The units as a training runs them: where modules wrap others, those inside, which take an exit's features."""
        return self.units

    def take(self, state: Any, rows: Tensor) -> Any:
        """The state of some samples of the batch: those rows of every tensor in it."""
        return take_rows(state, rows)

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
        return join_rows(states)

    def stated_costs(self, example: Any) -> Any:  # noqa: ARG002
        """The ``Costs`` for an input where the network states them; None: ``anytime.costs`` counts them."""
        return None

    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample: channels, height and width as its preprocessing says, else as it was made for."""
        if self.preprocessing is not None:
            return (self.preprocessing.channels, *self.preprocessing.size)
        if self.image_size is None or self.in_channels is None:
            raise AnytimeError(
                f"this {type(self).__name__} does not say which images it takes: pass an input, "
                "anytime.Engine(net, example=x) or anytime.export.onnx(net, x, folder) with x a batch of one"
            )
        return self.in_channels, self.image_size, self.image_size

    def layout(self) -> dict[str, Any]:
        """What must agree, besides the shapes of the weights, before weights of one network are loaded into another.

        ``save`` writes it as JSON and ``load`` compares it.
        """
        return {"exits": self.exits}

    def foreign_names(self) -> dict[str, str]:
        """Maps the names of modules in public checkpoints to those of this network; empty if there are none."""
        return {}

    @property
    def exits(self) -> int:
        """The number of exits, L in the paper."""
        return sum(exit is not None for exit in self.stage_exits)

    def extra_repr(self) -> str:
        """What ``print(net)`` shows before the modules."""
        return f"exits={self.exits}"

    def preprocess(self, images: Any) -> Tensor:
        """Batch of images as this network sees them, on its device and in its precision.

        Args:
            images: uint8 pixels N × C × H × W (tensor or array), or one or a list of images (paths or Pillow images).
        """
        if self.preprocessing is None:
            raise AnytimeError(
                "this network does not know how its images are preprocessed: anytime.fit notes it, or set "
                "net.preprocessing = anytime.Preprocessing(channels=3, size=(32, 32), mean=[...], std=[...])"
            )
        prepared = self.preprocessing(images)
        return prepared.to(next((weight for weight in self.parameters() if weight.is_floating_point()), prepared))

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
        return self._steps(x, self.exit_indices(only))

    def _steps(self, x: Any, wanted: frozenset[int]) -> Iterator[Step]:
        """``steps`` for these exits: by a walk, unless a kind of network has a shorter way for all of them."""
        for reached in self.walk(x) if wanted else ():
            if reached is not None and reached.exit in wanted:
                yield Step(reached.exit, reached())
                if reached.exit == max(wanted):
                    return

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
        state, latest = x, None
        for stage, exit in enumerate(exits := self.stage_exits):
            if latest is not None and exit is not None:
                latest.close()
            state = self.run_stage(stage, state)
            reached = self.exit_after(stage, state)
            if reached is not None:
                # It stays the latest exit while stages without one run, and these may change its state in place.
                followed = stage + 1 < len(exits) and exits[stage + 1] is None
                latest = reached = reached.copy() if followed else reached
            rows = yield reached
            if rows is not None:
                state = self.take(state, rows)

    def exit_indices(self, only: Iterable[int] | None) -> frozenset[int]:
        """The exits in ``only``, counted from 0; all of them for None. Raises ``IndexError`` for others."""
        total = self.exits
        if only is None:
            return frozenset(range(total))
        only = list(only)
        for i in only:
            if not -total <= i < total:
                raise IndexError(
                    f"no exit {i}: this network has {total}, numbered 0 to {total - 1} (or -{total} to -1 from the end)"
                )
        return frozenset(i % total for i in only)

    @property
    def deadlines(self) -> Deadlines:
        """How many predictions of this network were in time, and how many were not, since ``forget()``.

        Examples:
            >>> import anytime
            >>> net = anytime.create_model("resann-1-8").eval()
            >>> prediction = anytime.predict(net, torch.zeros(1, 3, 32, 32), deadline=60.0)
            >>> net.deadlines, prediction.late
            (Deadlines(kept=1, missed=0), False)
        """
        known = vars(self).get("_times", {}).values()
        return Deadlines(sum(times.kept for times in known), sum(times.missed for times in known))

    def forget(self) -> None:
        """Forget the known costs and latencies of the stages; call it after changing a stage."""
        vars(self).pop("_costs", None)
        vars(self).pop("_times", None)


class AnytimeNetwork(Network):
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
    def stage_exits(self) -> list[int | None]:
        """Every stage has an exit."""
        return list(range(len(self.heads)))

    @property
    def units(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The stages, each with its head."""
        return list(zip(self.stages, self.heads, strict=True))

    def run_stage(self, stage: int, state: Any) -> Any:
        """Run one stage; see ``Network``."""
        return _item(self, "stages", stage)(state)

    def exit_after(self, stage: int, state: Any) -> ReachedExit | None:
        """The exit after a stage; see ``Network``."""
        return ReachedExit(_item(self, "heads", stage), state, stage)


def _item(owner: nn.Module, name: str, number: int) -> nn.Module:
    """An item of a list of modules, as ``net.stages[3]``; in a fraction of the time, which counts after each stage."""
    modules = owner._modules[name]
    found = modules._modules.get(str(number)) if modules is not None else None
    return getattr(owner, name)[number] if found is None else found


def name_of(config: Mapping[str, Any] | None) -> str | None:
    """The name of the network that a configuration describes: resann-1-8 + boosting, resann-9-16 with 5 exits."""
    known = config or {}
    if "network" not in known:
        return known.get("model")
    more = f"+ {known['rule']}" if "rule" in known else f"with {len(known['exits'])} exits"
    return f"{name_of(known['network'])} {more}"


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


def tensors_of(state: Any) -> list[Tensor]:
    """All tensors of a state or an input."""
    if isinstance(state, Tensor):
        return [state]
    if type(state) is tuple or type(state) is list:  # as tree_leaves, in a tenth of its time
        return [leaf for part in state for leaf in tensors_of(part)]
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
