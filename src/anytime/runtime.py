"""Stop whenever: predictions under a deadline or another limit, and predictions that run on in the background."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anytime.cost import Costs, costs, shapes
from anytime.errors import AnytimeError
from anytime.latency import Profile, device_of, kind_of, recall, synchronise


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


class Unfinished(AnytimeError, TimeoutError):
    """Not even the first exit could be reached within the limit.

    Attributes:
        stopped_by: the limit: ``deadline``, ``macs``, ``stop``, or the ``timeout`` of ``Run.result``.
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
        Unfinished: not even the first exit could be reached.

    Example:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> prediction = anytime.predict(net, torch.zeros(1, 3, 32, 32), exits=2, deadline=60.0)
        >>> prediction.exit, prediction.complete, prediction.stopped_by
        (1, False, 'exits')
    """
    with torch.inference_mode():
        for prediction in _answers(net, x, _Limits(deadline, macs, exits, stop), every=False):
            return prediction
    raise AnytimeError(f"this {type(net).__name__} has no exits: its steps(x) gave nothing")


@dataclass(frozen=True)
class _Limits:
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
    _Limits(**limits)


def _answers(net: Any, x: Any, limits: _Limits, every: bool) -> Iterator[Prediction]:
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
        synchronise(device)
        before = clock()
        known.learn_head(exit_stage, before - start)
        complete = ended or exit + 1 == getattr(net, "exits", None)
        count = partial(_costs, net, shapes(x))
        answer = Prediction(logits, exit, before - begun, complete, None if complete else why, count, every)
        if exit == 0 and deadline is not None and answer.seconds > deadline:
            raise Unfinished("deadline", answer.seconds, known.ahead(-1), answer)
        return answer

    head: Callable[[], Tensor] = _nothing
    exit = stage = exit_stage = newest = -1
    expected = actual = 0.0  # seconds of the stages so far: as known, and by the clock
    must_wait, stages = device.type != "cpu", known.stages
    for reached in _walk(net, x):
        if must_wait:
            synchronise(device)
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
                raise Unfinished(why, clock() - begun)
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


def _last_exit(net: Any, x: Any, limits: _Limits, every: bool) -> tuple[int | None, str | None]:
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
            raise Unfinished("macs", 0.0, spent[0])
        if last is None or within[-1] < last:
            last, why = within[-1], "macs"
    return (None, None) if last is None or last + 1 == total else (last, why)


def _refuse(limits: _Limits, known: Profile, begun: float) -> None:
    """Do not even begin what cannot end well.

    What is known may be of a slow moment, and would stay so if nothing were tried any more: so some are let through.
    """
    seconds = time.perf_counter() - begun
    if limits.stop is not None and limits.stop.is_set():
        raise Unfinished("stop", seconds)
    if limits.deadline is None:
        return
    needed = known.ahead(-1)
    if seconds >= limits.deadline or (seconds + needed >= limits.deadline and not known.try_again()):
        raise Unfinished("deadline", seconds, needed or None)


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


class Run:
    """A prediction that goes on in the background: ``start`` makes it. As a context manager it ends with the block."""

    def __init__(self, net: Any, x: Any, limits: _Limits, tell: Callable[[Prediction | None], object] | None) -> None:
        self._halt = threading.Event()
        self._latest: Prediction | None = None
        self._error: BaseException | None = None
        limits = replace(limits, stop=_Any(self._halt, limits.stop))
        self._thread = threading.Thread(target=self._work, args=(net, x, limits, tell), name="anytime")
        self._thread.start()

    def _work(self, net: Any, x: Any, limits: _Limits, tell: Callable[[Prediction | None], object] | None) -> None:
        try:
            with torch.inference_mode():
                for self._latest in _answers(net, x, limits, every=True):
                    if tell:
                        tell(self._latest)
        except BaseException as error:
            self._error = error
        finally:
            if tell:
                tell(None)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def latest(self) -> Prediction | None:
        """The best prediction so far, without waiting; None before the first. Raises what the network raised."""
        if self._error is not None and not isinstance(self._error, Unfinished):
            raise self._error
        best = self._latest
        if best is not None and not best.complete and best.stopped_by is None and self.done:
            return replace(best, stopped_by="stop")  # it was stopped after this one
        return best

    def result(self, timeout: float | None = None) -> Prediction:
        """Wait for the end, at most so many seconds, and give the best prediction; ``Unfinished`` if there is none."""
        if timeout is not None and timeout != timeout:
            raise AnytimeError(f"timeout={timeout}: it must be a number")
        self._wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        best = self.latest()
        if best is None:
            raise self._error or Unfinished("timeout", timeout or 0.0)
        return best

    def _wait(self, timeout: float | None) -> None:
        self._thread.join(timeout)

    def stop(self) -> None:
        """End it; returns once the stage that was running has ended and the worker is free."""
        self._halt.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Any:
    """Set when any of the events is, or when the interpreter ends."""

    def __init__(self, halt: threading.Event, stop: Stop | None) -> None:
        self.halt, self.stop = halt, stop

    def is_set(self) -> bool:
        if self.halt.is_set() or not threading.main_thread().is_alive():
            return True
        return self.stop is not None and self.stop.is_set()


def start(
    net: Any,
    x: Any,
    *,
    deadline: float | None = None,
    macs: float | None = None,
    exits: int | None = None,
    stop: Stop | None = None,
) -> Run:
    """Begin a prediction and return at once; it runs on in a thread, evaluating every exit.

    Args:
        net: as for ``predict``; any number of runs may share it.
        x: the input; do not change it while the run goes on.
        deadline: seconds from now; limits are as for ``predict``.
        macs: multiply-accumulates for the whole input.
        exits: how many exits to go through.
        stop: ends the run once it is set.

    Example:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> with anytime.start(net, torch.zeros(1, 3, 32, 32)) as run:
        ...     early = run.latest()            # None, or the best so far
        ...     run.result().exit
        2
    """
    return Run(net, x, _Limits(deadline, macs, exits, stop), None)


def astart(
    net: Any,
    x: Any,
    *,
    deadline: float | None = None,
    macs: float | None = None,
    exits: int | None = None,
    stop: Stop | None = None,
) -> AsyncGenerator[Prediction, None]:
    """The predictions of ``start`` one by one, for ``async for``; leaving the loop stops the network.

    That is so if the iterator is made in the loop's head, as below. One that has a name of its own lives on: stop it
    with ``await iterator.aclose()`` or ``contextlib.aclosing``.

    Example:
        >>> import anytime, asyncio
        >>> net = anytime.create_model("resann-1-8").eval()
        >>> async def exits():
        ...     return [prediction.exit async for prediction in anytime.astart(net, torch.zeros(1, 3, 32, 32))]
        >>> asyncio.run(exits())
        [0, 1, 2]
    """
    limits, begun = _Limits(deadline, macs, exits, stop), time.perf_counter()
    return _astart(net, x, limits, begun)


async def _astart(net: Any, x: Any, limits: _Limits, begun: float) -> AsyncGenerator[Prediction, None]:
    if limits.deadline is not None:
        limits = replace(limits, deadline=limits.deadline - (time.perf_counter() - begun))
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Prediction | None] = asyncio.Queue()

    def tell(prediction: Prediction | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(queue.put_nowait, prediction)

    run = Run(net, x, limits, tell)
    try:
        while (prediction := await queue.get()) is not None:
            yield prediction
        if run._error is not None:
            raise run._error
    finally:
        run._halt.set()
