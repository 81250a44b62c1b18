"""Audits of a served model: a small share of its requests also goes to the last exit, when there is time.

**Given** requests in the order in which they were admitted. **Wanted**: a sample of them that does not depend on what
is in them, so that what a ``Monitor`` learns from it holds for all. **Method**: a request is chosen at random as it is
admitted, and only if there is room for it to wait until the engine has nothing else to do. What is learned is noted in
the order of admission, since sure samples are answered sooner. What left early runs again, through all exits; what went
to the last exit anyway needs no more work.
"""

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anytime.errors import AnytimeError, check_number
from anytime.inference.monitoring import Monitor
from anytime.inference.policy import Policy
from anytime.serving.engine import Answer, Engine

LOG = logging.getLogger("anytime.serving")
WAITING = 64
"""Requests that may wait for their audit: more are not chosen meanwhile."""
LABELED = 10_000
"""The latest audited requests whose labels may come back."""
PAUSE = 0.02
"""Seconds until a busy engine is checked again."""


@dataclass(frozen=True)
class Auditing:
    """How a server's models are audited.

    Args:
        share: of the requests, chosen at random; 0 for none.
        delta: the chance of a false alarm, and of a false warning, while the server runs.
        fall_back: whether no sample leaves early any more after an alarm.
    """

    share: float = 0.01
    delta: float = 0.05
    fall_back: bool = False

    def __post_init__(self) -> None:
        check_number("share", self.share, most=1)
        check_number("delta", self.delta, above=0, below=1)

    def of(self, engine: Engine, name: str) -> "Audit | None":
        """The audit of a model; None if there is nothing to audit."""
        policy = engine.model.policy
        if not self.share or policy is None or policy.held_out is None:
            return None
        return Audit(engine, policy, self, name)


@dataclass(eq=False)
class Sample:
    """An admitted request."""

    id: str
    x: Any
    """Its input, if it was chosen."""
    answer: Answer | None = None
    settled: bool = False
    """Whether it is answered or failed."""
    classes: tuple[int, int] | None = None
    """Classes of the policy's answer and of the last exit's, once they are known."""
    left: bool = False
    """Whether it left early."""
    label: int | None = None


class Audit:
    """Audits one model; call it in the event loop.

    Args:
        engine: of the model.
        policy: that the engine uses, with what its held-out samples looked like.
        auditing: how much is audited, and what an alarm does.
        name: of the model, for the log.
    """

    def __init__(self, engine: Engine, policy: Policy, auditing: Auditing, name: str = "model") -> None:
        self.engine, self.policy, self.auditing, self.name = engine, policy, auditing, name
        self.monitor = Monitor(policy, auditing.delta)
        self.fallen_back = False
        """Whether no sample leaves early any more."""
        self._random = random.Random()
        self._order: deque[Sample] = deque()
        self._chosen: deque[Sample] = deque()  # answered, in the order of admission
        self._by_id: OrderedDict[str, Sample] = OrderedDict()
        self._waiting, self._busy = 0, False

    def follow(self, id: str, x: Any, future: "asyncio.Future[Answer]") -> None:
        """Follow a request that the engine has admitted."""
        chosen = self._waiting < WAITING and self._random.random() < self.auditing.share
        sample = Sample(id, x if chosen else None)
        self._waiting += chosen
        self._order.append(sample)
        future.add_done_callback(partial(self._answered, sample))

    def _answered(self, sample: Sample, future: "asyncio.Future[Answer]") -> None:
        sample.settled = True
        if not future.cancelled() and not future.exception():
            sample.answer = future.result()
        while self._order and self._order[0].settled:
            self._learn(self._order.popleft())

    def _learn(self, sample: Sample) -> None:
        chosen, answer = sample.x is not None, sample.answer
        if answer is None or answer.score is None:
            self._waiting -= chosen
            return
        warned = self.monitor.warning
        self.monitor.see(answer.score)
        if self.monitor.warning != warned:
            LOG.warning("%s: %s", self.name, self.monitor.warning)
        if chosen:
            self._chosen.append(sample)
            self._by_id[sample.id] = sample
            while len(self._by_id) > LABELED:
                self._by_id.popitem(last=False)
            self._work()

    def _work(self) -> None:
        """Run the waiting audits while the engine is idle."""
        while self._chosen and not self._busy:
            sample, answer = self._chosen[0], self._chosen[0].answer
            assert answer is not None
            if answer.complete and not self.fallen_back:
                last = int(answer.logits.argmax())
                self._audited(sample, (last, last))
                continue
            self._busy = True
            if self.engine.status()["in_flight"]:
                asyncio.get_running_loop().call_later(PAUSE, self._again)
                return
            exits: list[Tensor] = []
            try:
                future = self.engine.asubmit(sample.x, on_exit=partial(_collect, exits))
            except AnytimeError:  # it is full, or closing
                asyncio.get_running_loop().call_later(PAUSE, self._again)
                return
            future.add_done_callback(partial(self._ran, sample, exits))

    def _again(self) -> None:
        self._busy = False
        self._work()

    def _ran(self, sample: Sample, exits: list[Tensor], future: "asyncio.Future[Answer]") -> None:
        """Finish an audit: all exits of the sample are known, or it could not be run again."""
        self._busy = False
        logits = exits[: self.engine.model.net.exits]
        if future.cancelled() or future.exception() or len(logits) < len(self.policy.temperatures):
            self._audited(sample, None)
        else:
            outputs = torch.stack(logits)
            exit = int(self.policy.choose_exits(outputs)[0])
            sample.left = exit < len(outputs) - 1
            self._audited(sample, (int(outputs[exit].argmax()), int(outputs[-1].argmax())))
        self._work()

    def _audited(self, sample: Sample, classes: tuple[int, int] | None) -> None:
        self._chosen.popleft()
        self._waiting -= 1
        sample.x, sample.answer, sample.classes = None, None, classes
        if classes is None:
            self._by_id.pop(sample.id, None)
            return
        self._note(partial(self.monitor.compare, *classes, sample.left))
        if sample.label is not None:
            self._labeled(sample)

    def label(self, id: str, label: int) -> bool:
        """Take the label of a request; False if it was not audited, or long ago."""
        sample = self._by_id.get(id)
        if sample is None or sample.label is not None:
            return False
        sample.label = label
        if sample.classes is not None:
            self._labeled(sample)
        return True

    def _labeled(self, sample: Sample) -> None:
        assert sample.classes is not None
        assert sample.label is not None
        self._by_id.pop(sample.id, None)
        self._note(partial(self.monitor.label, *sample.classes, sample.label))

    def _note(self, note: Callable[[], object]) -> None:
        """Update the monitor; log its first alarm, and fall back if the settings say so."""
        before, warned = self.monitor.alarm, self.monitor.warning
        note()
        if self.monitor.warning != warned:
            LOG.warning("%s: %s", self.name, self.monitor.warning)
        if self.monitor.alarm == before:
            return
        LOG.error("%s: %s", self.name, self.monitor.alarm)
        if self.auditing.fall_back:
            self.engine.use(replace(self.policy, thresholds=[None] * len(self.policy.thresholds)))
            self.fallen_back = True
            LOG.error("%s: no sample leaves early any more", self.name)


def _collect(exits: list[Tensor], answer: Answer) -> None:
    """Store the outputs of an exit; called in the engine's thread."""
    exits.append(answer.logits)
