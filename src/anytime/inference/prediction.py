"""Predictions under a deadline or another limit."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor

from anytime.cost import Costs, known_costs
from anytime.errors import AnytimeError, check_integer, check_number
from anytime.inference.clock import Clock
from anytime.inputs import COMPLAINTS, as_input, check_outputs, explain, explained
from anytime.meta import shapes_later
from anytime.network import Network, ReachedExit
from anytime.walkable import Evaluated, OnlySteps, walkable


class Stop(Protocol):
    """Tells a prediction to stop: ``threading.Event``, ``multiprocessing.Event`` or anything else with ``is_set``."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value
class Prediction:
    """The best prediction that was reached."""

    logits: Tensor
    exit: int
    """The exit that gave it; 0 is the shallowest."""
    seconds: float
    """Seconds from the call to the prediction."""
    complete: bool
    """Whether it is from the last exit of the network."""
    stopped_by: str | None
    """The limit that was met: ``deadline``, ``macs``, ``exits`` or ``stop``; None if none was (yet)."""
    deadline: float | None = None
    """The deadline that it was asked for with, in seconds from the call."""
    late: bool = False
    """Whether it was returned after the deadline."""
    _costs: Callable[[], Costs | None] = field(repr=False, default=lambda: None)
    _every: bool = field(repr=False, default=False)

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates spent on the whole input; None if they cannot be counted. Counted on first access."""
        cost = self._costs()
        return cost and (cost.macs if self._every else cost.alone)[self.exit]


class UnfinishedError(AnytimeError, TimeoutError):
    """Not even the first exit could be reached within the limit.

    Attributes:
        stopped_by: the limit: ``deadline``, ``macs``, ``stop``, or the ``timeout`` of ``BackgroundPrediction.result``.
        seconds: seconds from the call to this error.
        needed: what the first exit takes, in seconds (deadline) or MACs (macs); None if not known.
        prediction: the prediction of the first exit if it came after the deadline; otherwise None: the network was not
            begun, since the deadline had passed or less time was left than the first exit takes.
    """

    def __init__(
        self, stopped_by: str, seconds: float, needed: float | None = None, prediction: Prediction | None = None
    ) -> None:
        self.stopped_by, self.seconds, self.needed, self.prediction = stopped_by, seconds, needed, prediction
        unit = "multiply-accumulates" if stopped_by == "macs" else "s"
        more = "" if not needed else f": the first takes about {needed:.4g} {unit}; allow more, or a smaller network"
        begun = "; the network was not begun" if needed and not prediction else ""
        late = "; its prediction came too late and is in the attribute .prediction of this error" if prediction else ""
        super().__init__(f"no exit was reached within the limit ({stopped_by}){more}{late}{begun}")


def predict(
    net: Any,
    x: Any,
    *,
    deadline: float | None = None,
    macs: float | None = None,
    exits: int | None = None,
    stop: Stop | None = None,
    confidence: float = 0.99,
) -> Prediction:
    """The best prediction within all limits given; without limits, that of the last exit.

    Only the head of the exit that is returned is evaluated. With a deadline, a stage is started only if the next exit's
    prediction is expected in time: on a machine that behaves as it did lately, 99 of 100 predictions are returned
    before the deadline. The times are measured by ``profile``, saved with the model, and learned from predictions.

    Args:
        net: an ``AnytimeNetwork`` in eval mode, or any object with ``steps(x)``.
        x: the input: a tensor, a NumPy array, or a dict, tuple or list of them.
        deadline: seconds from the call.
        macs: multiply-accumulates for the whole input.
        exits: number of exits to go through.
        stop: an event; once it is set, no further stage is started.
        confidence: the share of predictions that are to be returned before their deadlines; a higher one gives
            shallower predictions.

    Raises:
        UnfinishedError: if not even the first exit could be reached.
        AnytimeError: if its outputs are NaN.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> prediction = anytime.predict(net, torch.zeros(1, 3, 32, 32), exits=2, deadline=60.0)
        >>> prediction.exit, prediction.complete, prediction.stopped_by
        (1, False, 'exits')
    """
    clock, limits = Clock(), PredictionLimits(deadline, macs, exits, stop, confidence)
    with torch.inference_mode():
        found = list(answers(net, as_input(net, x), limits, clock, every=False))
    if not found:
        raise AnytimeError(f"the {type(net).__name__} has no exits: its steps(x) yielded nothing")
    if deadline is not None:
        clock.returned()
    return found[0]


Reached = ReachedExit | Evaluated


@dataclass(slots=True)
class PredictionLimits:
    """What may end a prediction before the last exit; see ``predict``."""

    deadline: float | None = None
    macs: float | None = None
    exits: int | None = None
    stop: Stop | None = None
    confidence: float = 0.99

    def __post_init__(self) -> None:
        for name, form in (("deadline", "number of seconds, e.g. 0.02"), ("macs", "number, e.g. 2e6")):
            value = getattr(self, name)
            if value is None or (type(value) is float and value == value):  # most are: it takes less time to see
                continue
            if isinstance(value, bool) or not isinstance(value, Real) or value != value:
                raise AnytimeError(f"{name}={value!r} must be a {form}")
        if self.exits is not None:
            check_integer("exits", self.exits)
        if self.confidence != 0.99:
            check_number("confidence", self.confidence, above=0, below=1)
        if self.stop is not None and (isinstance(self.stop, type) or not hasattr(self.stop, "is_set")):
            raise AnytimeError(f"stop={self.stop!r} must be an event with is_set(), e.g. threading.Event()")

    def stopped(self) -> bool:
        """Whether the event is set."""
        return self.stop is not None and self.stop.is_set()

    def last_exit(self, net: Any, x: Any, every: bool) -> tuple[int | None, str | None]:
        """The exit to end at and the limit that sets it; None if no limit does so in advance.

        Args:
            net: the network.
            x: its input.
            every: whether all heads are evaluated on the way.
        """
        if self.exits is None and self.macs is None:
            return None, None
        last, limit = None, None
        total = walkable(net).exits
        if self.exits is not None:
            if total is not None and self.exits > total:
                raise AnytimeError(f"exits={self.exits}: the network has {total}")
            last, limit = self.exits - 1, "exits"
        if self.macs is not None:
            with explained(net, x):
                cost = _costs(net, x)
            if cost is None:
                raise AnytimeError(f"macs={self.macs}: the cost of a {type(net).__name__} is not known")
            spent = cost.macs if every else cost.alone
            within = [exit for exit, macs in enumerate(spent) if macs <= self.macs]
            if not within:
                raise UnfinishedError("macs", 0.0, spent[0])
            if last is None or within[-1] < last:
                last, limit = within[-1], "macs"
        return (None, None) if last is None or last + 1 == total else (last, limit)

    def check_start(self, clock: Clock) -> None:
        """Raise if not even the first exit can be expected in time."""
        seconds = clock.seconds
        if self.stopped():
            raise UnfinishedError("stop", seconds)
        if self.deadline is None:
            return
        needed = clock.known.first_exit
        if seconds >= self.deadline or (seconds + needed >= self.deadline and not clock.known.try_again()):
            clock.known.missed += 1
            raise UnfinishedError("deadline", seconds, needed or None)

    def met_after_stage(self, clock: Clock, every: bool) -> str | None:
        """The limit that forbids to start the next stage, if any."""
        if self.stopped():
            return "stop"
        if self.deadline is not None and not clock.fits(self.deadline, self.confidence, with_head=every):
            return "deadline"
        return None


def answers(net: Any, x: Any, limits: PredictionLimits, clock: Clock, every: bool) -> Iterator[Prediction]:
    """Walk through the network within the limits.

    Args:
        net: the network.
        x: its input.
        limits: when to end.
        clock: started when the prediction was asked for.
        every: yield the prediction of every exit on the way; otherwise only that of the last one reached.
    """
    network = walkable(net)
    if network.training:
        raise AnytimeError("the network is in training mode: its predictions depend on the batch; call net.eval()")
    clock.recall(net, x)
    last, bound = limits.last_exit(net, x, every)
    limits.check_start(clock)
    count = partial(_costs_for, net, shapes_later(x))

    watched = every or limits.deadline is not None or limits.stop is not None
    if not watched and isinstance(network, Network) and network.joins_stages:
        (step,) = network.steps(x, [-1 if last is None else last])
        check_outputs(net, x, step.logits, step.exit)
        yield Prediction(step.logits, step.exit, clock.seconds, last is None, bound, _costs=count)
        return

    def evaluate(reached: Reached, limit: str | None, complete: bool = False) -> Prediction:
        logits = reached()
        check_outputs(net, x, logits, reached.exit)
        seconds = clock.head_ended()
        complete = complete or reached.exit + 1 == network.exits
        if every:
            late = limits.deadline is not None and seconds > limits.deadline
        else:
            late = clock.finish(limits.deadline, limits.confidence)
        prediction = Prediction(
            logits, reached.exit, seconds, complete, None if complete else limit, limits.deadline, late, count, every
        )
        if exit == 0 and late:
            raise UnfinishedError("deadline", seconds, clock.known.first_exit, prediction)
        return prediction

    exit, answered = -1, False
    latest: Reached | None = None  # the latest exit, unless its head has been evaluated
    for reached in _timed_walk(network, x, clock):
        if reached is not None:
            exit, latest = exit + 1, reached
        if not watched and exit != last:  # most stages of most predictions: nothing more is done after them
            continue
        limit = bound if exit == last else limits.met_after_stage(clock, every)
        # After a stop, evaluate no further head if there is a prediction already.
        if latest is not None and (every or limit) and not (limit == "stop" and answered):
            yield evaluate(latest, limit)
            latest, answered = None, True
            if limits.stopped():
                return
        if limit:
            if exit < 0:
                raise UnfinishedError(limit, clock.seconds)
            return
    if latest is not None:
        yield evaluate(latest, None, complete=True)


def _timed_walk(net: Network | OnlySteps, x: Any, clock: Clock) -> Iterator[Reached | None]:
    """The exits as the walk reaches them, None after a stage without one; the clock learns the times."""
    first = True
    clock.start()
    try:
        for reached in net.walk(x):
            clock.stage_ended(reached is not None)
            first = False
            yield reached
    except COMPLAINTS as error:
        if first:
            explain(error, net, x)
        raise


def _costs(net: Any, x: Any) -> Costs | None:
    return known_costs(net, x) if isinstance(net, Network) else None


def _costs_for(net: Any, inputs: Callable[[], Any]) -> Costs | None:
    with suppress(AnytimeError):  # an exported network knows its costs for one size of inputs
        return _costs(net, inputs())
    return None
