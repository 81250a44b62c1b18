"""A served model: its engine and its metadata; reloaded without losing a request."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import exp, isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from anytime.cost import Costs, costs
from anytime.errors import AnytimeError
from anytime.preprocessing import Preprocessing
from anytime.serving.audit import Audit, Auditing
from anytime.serving.engine import Answer, Engine, OverloadedError
from anytime.serving.images import warm_up
from anytime.serving.model import saved_accuracy


def check_finite(x: Tensor) -> Tensor:
    """Return a client's input; raise if it has infinite or NaN values."""
    if x.is_floating_point() and not bool(x.isfinite().all()):
        raise AnytimeError("the input has infinite or NaN values")
    return x


@dataclass(eq=False)
class Loaded:
    """One state of a model's folder with an engine of its own; it is closed when nobody uses it any more."""

    engine: Engine
    exits: int
    shape: tuple[int, ...] | None
    """Of one sample; None if the folder does not say it."""
    preprocessing: Preprocessing | None
    classes: tuple[str, ...]
    costs: Costs
    audit: Audit | None
    """Audit of the answers that left early."""
    accuracy: list[float]
    """Share of right answers on held-out images, by exit; empty if it was not measured."""
    users: int = 0
    retired: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def class_name(self, index: int) -> str:
        """The name of a class; its number if it has none."""
        return self.classes[index] if index < len(self.classes) else str(index)

    def macs(self, exit: int, every: bool = False) -> int:
        """Multiply-accumulates up to an exit; ``every``: with the heads of all earlier exits."""
        every = every or self.engine.model.policy is not None  # which looks at all of them
        return (self.costs.macs if every else self.costs.alone)[exit]

    def check_sample(self, x: Tensor) -> Tensor:
        """Return an input; raise if its shape is not the network's."""
        if self.shape is not None and tuple(x.shape[1:]) != self.shape:
            raise AnytimeError(
                f"the input has the shape {list(x.shape)}; expected [N, {', '.join(map(str, self.shape))}]"
            )
        return x

    def probabilities(self, answer: Answer) -> list[float]:
        """The probability of each class; plain Python, which is faster than NumPy for one answer."""
        logits = answer.logits.flatten().tolist()
        if not isfinite(sum(logits)):
            raise AnytimeError("the logits for this input are infinite or NaN: are its values too large?")
        most = max(logits)
        exponentials = [exp(each - most) for each in logits]
        total = sum(exponentials)
        return [each / total for each in exponentials]


class Served:
    """A model under its name.

    Args:
        name: what clients call it.
        folder: of a run, a saved model or an exported network; None for a network in memory.
        make_engine: starts an engine for it.
        auditing: how it is audited, if it has a policy.
    """

    def __init__(
        self, name: str, folder: Path | None, make_engine: Callable[[], Engine], auditing: Auditing | None = None
    ) -> None:
        self.name, self.folder, self._make_engine = name, folder, make_engine
        self.auditing = auditing or Auditing()
        self.loaded = self._load()
        self._loading = asyncio.Lock()
        self._next: asyncio.Future[None] | None = None  # a queued reload, which has not read the folder yet

    def _load(self) -> Loaded:
        engine = self._make_engine()
        net, example = engine.model.net, engine.model.example
        shape = tuple(example.shape[1:]) if isinstance(example, Tensor) else None
        prepared = net.preprocessing
        if prepared is not None and prepared.channels in (1, 3):
            warm_up(prepared)
        cost = costs(net, example)
        accuracy = saved_accuracy(self.folder, net.exits) or []
        classes, audit = prepared.classes if prepared else (), self.auditing.of(engine, self.name)
        return Loaded(engine, net.exits, shape, prepared, classes, cost, audit, accuracy)

    @contextmanager
    def use(self) -> Iterator[Loaded]:
        """The present state of the model, which stays open until the context ends, also if the model is replaced."""
        loaded = self.loaded
        loaded.users += 1
        try:
            yield loaded
        finally:
            loaded.users -= 1
            if loaded.retired and not loaded.users:
                loaded.closed.set()

    async def warm_up(self) -> None:
        """Let the engine answer a few requests, alone and together: the first ones take much longer than all others."""
        await _warm_up(self.loaded.engine)

    async def reload(self) -> None:
        """Load the folder again; requests that have begun are answered by the old model, new ones by the new.

        Reloads run one after another, each until the old engine is closed: there are never more than two. Those that
        are asked for while one waits share it.
        """
        if self._next is None:
            self._next = asyncio.ensure_future(self._reload())
        await asyncio.shield(self._next)  # the client may disconnect

    async def _reload(self) -> None:
        async with self._loading:
            self._next = None
            new = await asyncio.to_thread(self._load)
            try:
                await _warm_up(new.engine)
            except BaseException:
                await asyncio.to_thread(new.engine.close)
                raise
            old, self.loaded = self.loaded, new
            old.retired = True
            if old.users:
                await old.closed.wait()
            await asyncio.to_thread(old.engine.close)

    def about(self) -> dict[str, Any]:
        """The model's metadata for the page."""
        loaded = self.loaded
        return {
            "name": self.name,
            "classes": list(loaded.classes),
            "shape": loaded.shape,
            "images": loaded.preprocessing is not None and loaded.preprocessing.channels in (1, 3),
            "exits": loaded.exits,
            "macs": loaded.costs.alone,
            "accuracy": loaded.accuracy or None,
        }


async def _warm_up(engine: Engine) -> None:
    for count in (1, 1, 8):
        answers = []
        with suppress(OverloadedError):  # a small queue, or a slow network: fewer will do
            for _ in range(count):
                answers.append(engine.asubmit(engine.model.example))
        await asyncio.gather(*answers)
