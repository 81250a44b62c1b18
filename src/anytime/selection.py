"""Which exits are worth having: those with the smallest expected error under deadlines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from anytime.batches import Peeked, one_sample
from anytime.errors import AnytimeError, check_integer, check_number
from anytime.evaluation import collect
from anytime.inference.latency import profile
from anytime.network import Network, ReachedExit, Step
from anytime.preprocessing import Preprocessing

NAME = "selected"
"""The name of such a network in ``config.json``."""


def select_exits(
    net: Network,
    batches: Iterable[tuple[Any, Tensor]],
    exits: int = 5,
    *,
    deadlines: Sequence[float] | None = None,
    seconds: Sequence[float] | None = None,
) -> "SelectedNetwork":
    """The network with its most useful exits only: fewer heads to train further, to export and to stack.

    **Given** the errors e_1 … e_L of the exits on held-out samples, the seconds t_1 ≤ … ≤ t_L to each, and deadlines:
    a deadline d is answered by the deepest chosen exit with t ≤ d, and not at all, with error 1, before the first.
    **Wanted**: the k exits with the smallest mean error over the deadlines. Found by dynamic programming over the last
    exit chosen, since what an exit costs depends on the next one only.

    Args:
        net: a network of one model: plain, converted; combine it (``anytime.combine``) afterwards.
        batches: of inputs and labels, held out from the training: ``data.batches(data.validation)``.
        exits: how many to keep, at most.
        deadlines: seconds, a sample of those expected. Default: uniform, up to the time of the last exit.
        seconds: to each exit for one sample. Default: measured now.

    Examples:
        >>> import anytime, torch
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-2-8", in_channels=1).eval()
        >>> few = anytime.select_exits(net, data.batches(data.validation), exits=3)
        >>> few.exits <= 3, len(few(torch.zeros(1, 1, 8, 8))) == few.exits
        (True, True)
    """
    if not isinstance(net, Network):
        raise AnytimeError(f"select_exits expects an AnytimeNetwork, not a {type(net).__name__}: see anytime.convert")
    check_integer("exits", exits)
    peeked = Peeked(net, batches)
    errors = collect(net, peeked).wrong.double().mean(1).tolist()
    if seconds is None:
        seconds = profile(net, one_sample(peeked.first)).alone
    if len(seconds) != net.exits:
        raise AnytimeError(f"seconds has {len(seconds)} numbers, the network {net.exits} exits: give one for each")
    return SelectedNetwork(net, best_exits(errors, seconds, exits, deadlines))


def best_exits(
    errors: Sequence[float], seconds: Sequence[float], count: int, deadlines: Sequence[float] | None = None
) -> list[int]:
    """At most ``count`` exits with the smallest mean error over the deadlines; see ``select_exits``.

    Examples:
        >>> best_exits([0.5, 0.4, 0.39, 0.1], seconds=[1.0, 2.0, 3.0, 4.0], count=2, deadlines=[1.5, 2.5, 3.5, 4.5])
        [0, 3]
    """
    reached = _share_below(seconds[-1], deadlines)
    before = [reached(time) for time in seconds]  # share of the deadlines that the exit is too late for
    last = len(errors)
    # least[c][i]: the smallest mean error over the deadlines from t_i on, with exit i and at most c exits after it.
    least, following = [[0.0] * last], [[last] * last]
    for chosen in range(count):
        row, best = [], []
        for i in range(last):
            options = {last: (1 - before[i]) * errors[i]}
            if chosen:
                options |= {j: (before[j] - before[i]) * errors[i] + least[-1][j] for j in range(i + 1, last)}
            best.append(min(options, key=options.__getitem__))
            row.append(options[best[-1]])
        least.append(row)
        following.append(best)
    exit = min(range(last), key=lambda i: before[i] + least[-1][i])
    found = []
    for best in reversed(following[1:]):
        found.append(exit)
        exit = best[exit]
        if exit == last:
            break
    return found


def mean_error(
    errors: Sequence[float], seconds: Sequence[float], exits: Sequence[int], deadlines: Sequence[float] | None = None
) -> float:
    """The mean error over the deadlines with these exits only."""
    reached = _share_below(seconds[-1], deadlines)
    times = [*(reached(seconds[exit]) for exit in exits), 1.0]
    return times[0] + sum((times[i + 1] - times[i]) * errors[exit] for i, exit in enumerate(exits))


def _share_below(full: float, deadlines: Sequence[float] | None) -> Callable[[float], float]:
    """The share of the deadlines that are too short for some seconds."""
    if deadlines is None:
        return lambda seconds: min(seconds / full, 1.0) if full > 0 else 0.0
    given = np.sort([check_number("deadlines", float(deadline), above=0) for deadline in deadlines])
    if not len(given):
        raise AnytimeError("deadlines is empty: give a sample of those expected, in seconds, or None")
    return lambda seconds: float(np.searchsorted(given, seconds)) / len(given)


class SelectedNetwork(Network):
    """A network with some of the exits of another; its stages reach from one of them to the next.

    Args:
        net: the network; it is shared, not copied.
        exits: of that network, counted from 0.
    """

    def __init__(self, net: Network, exits: Iterable[int]) -> None:
        super().__init__()
        if not net.chained:
            raise AnytimeError(f"a {type(net).__name__} chooses its exits itself: eann.fit_order(batches)")
        if net.exported:
            raise AnytimeError("this network is exported: choose exits when exporting, anytime.export.onnx(…, exits=…)")
        self.selected = sorted(net.exit_indices(exits))
        if not self.selected:
            raise AnytimeError("exits is empty: keep at least one")
        self.net = net
        self.image_size, self.in_channels = net.image_size, net.in_channels
        self.input_form, self.paused_because = net.input_form, net.paused_because
        if net.config and net.config.get("model"):
            inner = {key: value for key, value in net.config.items() if key != "about"}
            self.config = {"model": NAME, "exits": self.selected, "network": inner}
        ends = [net.stage_exits.index(exit) + 1 for exit in self.selected]
        self._ranges = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        units = net.units
        # In a tuple, so that they are not submodules a second time.
        self._units = tuple((_Stages(units[i][0] for i in stages), units[stages[-1]][1]) for stages in self._ranges)
        self.train(net.training)

    @property
    def stage_exits(self) -> list[int | None]:
        """Every stage has an exit."""
        return list(range(len(self._ranges)))

    def run_stage(self, stage: int, state: Any) -> Any:
        """Run the network's stages up to the next exit; see ``Network``."""
        for i in self._ranges[stage]:
            state = self.net.run_stage(i, state)
        return state

    def exit_after(self, stage: int, state: Any) -> ReachedExit:
        """The exit after a stage; see ``Network``."""
        head = self._units[stage][1]
        assert head is not None
        return ReachedExit(head, state, stage)

    def take(self, state: Any, rows: Tensor) -> Any:
        """As the network does."""
        return self.net.take(state, rows)

    def join(self, states: Sequence[Any]) -> Any:
        """As the network does."""
        return self.net.join(states)

    @property
    def units(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The joined stages, each with its head."""
        return list(self._units)

    @property
    def stages(self) -> list[nn.Module]:
        """The joined stages."""
        return [stage for stage, _ in self._units]

    @property
    def heads(self) -> list[nn.Module | None]:
        """The head after each."""
        return [head for _, head in self._units]

    @property
    def preprocessing(self) -> Preprocessing | None:  # type: ignore[override]
        """That of the network."""
        return self.net.preprocessing

    @preprocessing.setter
    def preprocessing(self, preprocessing: Preprocessing | None) -> None:  # type: ignore[override]
        self.net.preprocessing = preprocessing

    def layout(self) -> dict[str, Any]:
        """That of the network, and the exits."""
        return {"exits": self.selected, "network": self.net.layout()}

    def _steps(self, x: Any, wanted: frozenset[int]) -> Iterator[Step]:
        # By the network's own steps: in training mode a converted network runs its own code, not its stages.
        number = {exit: i for i, exit in enumerate(self.selected)}
        for step in self.net.steps(x, [self.selected[i] for i in wanted]):
            yield Step(number[step.exit], step.logits)


class _Stages(nn.Module):
    """Stages one after the other; those of converted networks share parameters, which belong to the network."""

    def __init__(self, stages: Iterable[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, state: Any) -> Any:
        """The state after the last of them."""
        for stage in self.stages:
            state = stage(state)
        return state

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Those of all stages."""
        seen = set()
        for stage in self.stages:
            for parameter in stage.parameters(recurse):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter
