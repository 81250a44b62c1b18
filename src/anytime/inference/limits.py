"""Stop whenever: predictions under a deadline or another limit, and predictions that run on in the background."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anytime.cost import Costs, costs, shapes
from anytime.errors import AnytimeError
from anytime.inference.latency import Profile, device_of, kind_of, recall, synchronize


class Stop(Protocol):
    """What tells a prediction to end: ``threading.Event``, ``multiprocessing.Event`` or the like."""

    def is_set(self) -> bool:
        """Whether it is time."""
        ...


@dataclass(frozen=True)
class Prediction:
    """The best answer that was reached."""

    logits: Tensor
    exit: int
    """Which exit gave it; 0 is the shallowest."""
    seconds: float
    """From the call to the answer."""
    complete: bool
    """Whether it is the network's last exit: there is none better."""
    stopped_by: str | None
    """What kept it from going on: ``deadline``, ``macs``, ``exits``, ``stop``; None where nothing did (yet)."""
    _costs: Callable[[], Costs | None] = field(repr=False, default=lambda: None)
    _every: bool = field(repr=False, default=False)

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates spent on the whole input; None where they cannot be counted. Counted when asked for."""
        cost = self._costs()
        return cost and (cost.macs if self._every else cost.alone)[self.exit]


class UnfinishedError(AnytimeError, TimeoutError):
    """Not even the first exit could be reached within the limit.

    Attributes:
        stopped_by: the limit: ``deadline``, ``macs``, ``stop``, or the ``timeout`` of ``BackgroundPrediction.result``.
        seconds: spent.
        needed: what the first exit takes, in seconds (deadline) or MACs (macs); None where it is not known.
        prediction: the first exit's answer where it came, but too late; otherwise None.
    """

    def __init__(
        self, stopped_by: str, seconds: float, needed: float | None = None, prediction: Prediction | None = None
    ) -> None:
        self.stopped_by, self.seconds, self.needed, self.prediction = stopped_by, seconds, needed, prediction
        unit = "multiply-accumulates" if stopped_by == "macs" else "s"
        more = "" if needed is None else f": it takes about {needed:.4g} {unit}; give it that, or use a smaller network"
        late = "; it came too late, as .prediction of this error" if prediction else ""
        super().__init__(f"no exit was reached within the limit ({stopped_by}){more}{late}")


def predict(
    net: Any,
    x: Any,
    *,
    deadline: float | None = None,
    macs: float | None = None,
    exits: int | None = None,
    stop: Stop | None = None,
) -> Prediction:
    """The best prediction within all the limits given; without any, that of the last exit.

    Only the head of the exit that is returned is evaluated. With a deadline, a stage is not begun that would not end
    in time by what is known of the network's latency: measured by ``profile``, saved with the model, or learned from
    the predictions before.

    Args:
        net: an ``AnytimeNetwork`` in eval mode, or anything with ``steps(x)``.
        x: the input.
        deadline: seconds from now.
        macs: multiply-accumulates for the whole input.
        exits: how many exits to go through.
        stop: ends the prediction once it is set, within one stage.

    Raises:
        UnfinishedError: not even the first exit could be reached.

    Example:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> prediction = anytime.predict(net, torch.zeros(1, 3, 32, 32), exits=2, deadline=60.0)
        >>> prediction.exit, prediction.complete, prediction.stopped_by
        (1, False, 'exits')
    """
    with torch.inference_mode():
        for prediction in answers(net, x, Limits(deadline, macs, exits, stop), every=False):
            return prediction
    raise AnytimeError(f"this {type(net).__name__} has no exits: its steps(x) gave nothing")


@dataclass(frozen=True)
class Limits:
    """What may end a prediction before the last exit; see ``predict``."""

    deadline: float | None = None
    macs: float | None = None
    exits: int | None = None
    stop: Stop | None = None

    def __post_init__(self) -> None:
        for name in ("deadline", "macs"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value != value):
                raise AnytimeError(f"{name}={value!r}: it must be a number")
        if self.exits is not None and (
            isinstance(self.exits, bool) or not isinstance(self.exits, int) or self.exits < 1
        ):
            raise AnytimeError(f"exits={self.exits!r}: it must be a whole number from 1")
        if self.stop is not None and (isinstance(self.stop, type) or not hasattr(self.stop, "is_set")):
            raise AnytimeError(f"stop={self.stop!r}: it must be an event, e.g. threading.Event(), with is_set()")


def check_limits(**limits: Any) -> None:
    """Refuse limits that make no sense."""
    Limits(**limits)


def answers(net: Any, x: Any, limits: Limits, every: bool) -> Iterator[Prediction]:
    """Walk through the network within the limits: every exit's prediction on the way, or the last one alone.

    What is done after each stage is kept short and flat: it is added to every stage's time.
    """
    clock = time.perf_counter
    begun = clock()
    deadline, stop = limits.deadline, limits.stop
    device, known = device_of(x), recall(net, x)
    if getattr(net, "training", False):
        raise AnytimeError("the network is in training mode: its answers would depend on the batch; call net.eval()")
    last, why_last = _last_exit(net, x, limits, every)
    _refuse(limits, known, begun)
    before = clock()

    def opened(why: str | None, ended: bool = False) -> Prediction:
        nonlocal before
        start = clock()
        logits = head()
        synchronize(device)
        before = clock()
        known.learn_head(exit_stage, before - start)
        complete = ended or exit + 1 == getattr(net, "exits", None)
        count = partial(_costs, net, shapes(x))
        answer = Prediction(logits, exit, before - begun, complete, None if complete else why, count, every)
        if exit == 0 and deadline is not None and answer.seconds > deadline:
            raise UnfinishedError("deadline", answer.seconds, known.ahead(-1), answer)
        return answer

    head: Callable[[], Tensor] = _nothing
    exit = stage = exit_stage = newest = -1
    expected = actual = 0.0  # seconds of the stages so far: as known, and by the clock
    must_wait, stages = device.type != "cpu", known.stages
    for reached in _walk(net, x):
        if must_wait:
            synchronize(device)
        now = clock()
        took, before = now - before, now
        stage += 1
        actual += took
        expected += stages[stage] if stage < len(stages) else took
        if stage == len(stages) or took < stages[stage]:
            known.learn(stage, took, reached is not None)
        if reached is not None:
            head, exit, exit_stage = reached, exit + 1, stage
        why = None
        if exit == last:
            why = why_last
        elif stop is not None and stop.is_set():
            why = "stop"
        elif deadline is not None:
            ahead = known.ahead(stage, took) + (known.head(stage) if every else 0.0)
            # The machine may be slower just now than it can be.
            if now - begun + ahead * max(1.0, actual / expected if expected else 1.0) > deadline:
                why = "deadline"
        if exit > newest and (every or why) and not (why == "stop" and newest >= 0):  # who stops does not wait
            newest = exit
            yield opened(why)
            if not why and stop is not None and stop.is_set():  # meanwhile
                return
        if why:
            if exit < 0:
                raise UnfinishedError(why, clock() - begun)
            return
    if exit > newest:
        yield opened(None, ended=True)


def _nothing() -> Tensor:
    raise AssertionError("no exit was reached")


def _walk(net: Any, x: Any) -> Iterator[Callable[[], Tensor] | None]:
    """Exits one after the other, unopened; of a network that has ``steps`` alone they are open already."""
    if hasattr(net, "walk"):
        return net.walk(x)
    if not hasattr(net, "steps"):
        raise AnytimeError(
            f"a {type(net).__name__} has no steps(x): give an anytime network; anytime.convert makes one"
        )
    return ((lambda step=step: step.logits) for step in net.steps(x))


def _last_exit(net: Any, x: Any, limits: Limits, every: bool) -> tuple[int | None, str | None]:
    """The exit to end at, where a limit says so beforehand, and which limit that is."""
    last, why = None, None
    total = getattr(net, "exits", None)
    if limits.exits is not None:
        if total is not None and limits.exits > total:
            raise AnytimeError(f"exits={limits.exits}: this network has {total}")
        last, why = limits.exits - 1, "exits"
    if limits.macs is not None:
        cost = _costs(net, x)
        if cost is None:
            raise AnytimeError(f"macs={limits.macs}: the cost of a {type(net).__name__} is not known")
        spent = cost.macs if every else cost.alone
        within = [exit for exit, macs in enumerate(spent) if macs <= limits.macs]
        if not within:
            raise UnfinishedError("macs", 0.0, spent[0])
        if last is None or within[-1] < last:
            last, why = within[-1], "macs"
    return (None, None) if last is None or last + 1 == total else (last, why)


def _refuse(limits: Limits, known: Profile, begun: float) -> None:
    """Do not even begin what cannot end well.

    What is known may be of a slow moment, and would stay so if nothing were tried any more: so some are let through.
    """
    seconds = time.perf_counter() - begun
    if limits.stop is not None and limits.stop.is_set():
        raise UnfinishedError("stop", seconds)
    if limits.deadline is None:
        return
    needed = known.ahead(-1)
    if seconds >= limits.deadline or (seconds + needed >= limits.deadline and not known.try_again()):
        raise UnfinishedError("deadline", seconds, needed or None)


_counted: "WeakKeyDictionary[Any, dict[Any, Costs]]" = WeakKeyDictionary()


def _costs(net: Any, x: Any) -> Costs | None:
    """The costs of such an input, counted once."""
    if not hasattr(net, "walk"):
        return None
    inputs = kind_of(x).inputs
    known = _counted.setdefault(net, {})
    if inputs not in known:
        known[inputs] = costs(net, x)
    return known[inputs]


def forget(net: Any) -> None:
    """What was counted of a network, since its stages have changed."""
    _counted.pop(net, None)
