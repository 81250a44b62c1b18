"""Inputs of other sizes than the example's: the graph is captured again, for all sizes if the model allows it."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from anytime.conversion.converted import Exit
from anytime.conversion.graph import Captured, NotCaptured
from anytime.conversion.pausing import Place
from anytime.conversion.stages import GraphStage, StageCode, Trunk
from anytime.conversion.verification import Features, is_batch, observe, two_samples, verify
from anytime.errors import AnytimeError
from anytime.network import AnytimeNetwork, eval_mode, tensors_of

ATTEMPTS = 3
"""How often a graph for all sizes is tried: one that was captured at a very small size may be valid for no other."""

MOST = 16
"""How many graphs a network holds."""

_capturing = threading.RLock()


class Graphs:
    """The stages of a converted network, and which of its graphs an input is for; the first stage asks that.

    The first input of another size takes as long as the conversion did, since the graph is captured again. Whether that
    graph is right for a further size is checked against the model's own code when an input of that size comes first.

    Args:
        trunk: the model.
        heads: the exits.
        places: the module calls after which they are, without the model's own output.
        names: what the exits are called.
        extra: indices of inputs that heads need at every exit.

    Attributes:
        stages: with the parts of all graphs.
    """

    def __init__(
        self, trunk: Trunk, heads: Sequence[Exit], places: Sequence[Place], names: Sequence[str], extra: Sequence[int]
    ) -> None:
        self.trunk, self.heads, self.places = trunk, list(heads), list(places)
        self.names, self.extra, self.attempts = names, extra, 0
        self.stages = [GraphStage(trunk, [], None if i else self) for i in range(len(heads))]
        self.known: dict[Any, int] = {}
        """By the shape of an input, without the number of samples: the number of its graph.

        Threads read it without a lock, so a graph is verified before it is noted here, and stays."""

    def add(self, parts: Sequence[StageCode], example: Any, logits: Tensor, features: Mapping[Place, Features]) -> None:
        """Add a graph, what each stage does in it. Raises ``NotCaptured`` if it is not right for the example."""
        self._verify(parts, example, logits, features)
        for stage, part in zip(self.stages, parts, strict=True):
            stage.parts.append(part)

    def __call__(self, x: Any) -> int:
        """The number of the graph that an input is for; 0, which refuses it, if it differs in more than its sizes."""
        inputs = self.parts[0].inputs
        leaves = inputs.leaves_of(x)
        if inputs.fit(leaves) or not all(map(_alike, leaves, inputs.leaves)):
            return 0
        shape = tuple(tuple(leaf.shape[1:]) for leaf in leaves if isinstance(leaf, Tensor))
        if shape not in self.known:
            with _capturing:
                if shape not in self.known:
                    self._learn(x, shape)
        return self.known[shape]

    @property
    def parts(self) -> list[StageCode]:
        """What the first stage does in each graph."""
        return self.stages[0].parts

    def _learn(self, x: Any, shape: Any) -> None:
        """Choose the graph for this shape: an existing one, or a new one."""
        tensors = tensors_of(x)
        batch, kind = len(tensors[0]), tensors[0].device.type
        # Leave the caller's modes: inference mode, operation counting, autocast.
        with (
            _disable_current_modes(),
            torch.inference_mode(False),
            torch.no_grad(),
            nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False),
            eval_mode(nn.ModuleList([self.trunk, *self.heads])),
        ):
            few = two_samples(tree_map(lambda leaf: leaf[:2].clone() if is_batch(leaf, batch) else leaf, x))
            try:
                logits = self.trunk(few)
            except Exception as error:
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                raise self._refusal(x, f"the model itself fails for it ({reason})") from error
            features = observe(self.trunk, self.places, few)
            leaves = self.parts[0].inputs.leaves_of(few)
            there = [form for form, part in enumerate(self.parts) if form and part.inputs.fit(leaves)]
            for form in there:
                with suppress(NotCaptured):
                    self._verify([stage.parts[form] for stage in self.stages], few, logits, features)
                    self.known[shape] = form
                    return
            try:
                self._capture(few, logits, features)
            except NotCaptured as error:
                raise self._refusal(x, str(error)) from error
        self.known[shape] = len(self.parts) - 1

    def _capture(self, few: Any, logits: Tensor, features: Mapping[Place, Features]) -> None:
        """Add a graph that is valid for this input, if possible for all sizes."""
        if len(self.parts) == MOST:
            raise NotCaptured(f"the graph of this model is another one for each size, and {MOST} are held already")
        reason = None
        for any_size in (True, False) if self.attempts < ATTEMPTS else (False,):
            self.attempts += any_size
            try:
                captured = Captured(self.trunk, few, any_size)
                ends = [captured.result(*place, tuple(features[place].value.shape)) for place in self.places]
                if None in ends:
                    raise NotCaptured("its captured graph has no place for an exit")
                cut = captured.cut([*ends, captured.output], self.extra)  # type: ignore[list-item]
            except NotCaptured as error:
                reason = f"its graph for it cannot be captured: {error}"
                continue
            try:
                return self.add([part for part, _, _ in cut], few, logits, features)
            except NotCaptured as error:
                reason = str(error)
        raise NotCaptured(reason)

    def _verify(self, parts: Sequence[StageCode], x: Any, logits: Tensor, features: Mapping[Place, Features]) -> None:
        """Raise ``NotCaptured`` if the graph of these parts is not right for an input."""
        if logits.device.type != "meta":  # meta tensors have no values to compare
            net = AnytimeNetwork((GraphStage(self.trunk, [part]) for part in parts), self.heads)
            verify(net, self.trunk, self.names, x, logits, features)

    def _refusal(self, x: Any, reason: str) -> AnytimeError:
        try:
            self.parts[0].inputs.flatten(x)
        except AnytimeError as error:
            return AnytimeError(f"{error}, and {reason}")
        raise AssertionError


def _alike(leaf: Any, expected: Any) -> bool:
    """Whether a leaf of an input matches the example's except in its sizes."""
    return leaf.ndim == len(expected) if isinstance(leaf, Tensor) else leaf == expected
