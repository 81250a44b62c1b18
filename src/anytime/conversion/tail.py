"""Exits that are the model's own tail: what follows its last block, with the features of an earlier block.

Given a model whose blocks all return features of one shape (ViT, BERT, GPT, mixers), an exit after block k that is the
model's own tail answers exactly what the model with its blocks cut to k answers.
"""

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.fx import Node

from anytime.conversion.converted import Exit
from anytime.conversion.graph import Captured
from anytime.conversion.stages import Carried, Inputs, StageFunction, Trunk
from anytime.conversion.survey import Found


def last_block(found: Found, places: Sequence[Found]) -> Found:
    """The last call of a module that is called as this one is, but for the numbers in its name.

    Examples:
        >>> places = [Found((f"layers.{i}.norm", 0), 0.1 * i, (2, 8), i) for i in range(4)]
        >>> last_block(places[1], places).place
        ('layers.3.norm', 0)
    """
    alike = [other for other in places if _kind(other) == _kind(found)]
    return max(alike, key=lambda other: other.order)


def _kind(found: Found) -> str:
    return re.sub(r"\d+", "#", found.place[0])


def fitting(captured: Captured, places: Sequence[Found]) -> list[Found]:
    """The places after which the model's own tail can stand: whole blocks, not the parts of one."""
    found = [place for place in places if _fits(captured, place, places)]
    blocks = {place.place[0] for place in found}
    return [place for place in found if not any(place.place[0].startswith(f"{block}.") for block in blocks)]


def _fits(captured: Captured, found: Found, places: Sequence[Found]) -> bool:
    """Whether the model's own tail can stand after this place: it takes these features, and nothing else of blocks."""
    last = last_block(found, places)
    if found.order >= last.order or found.shape != last.shape or found.batch_dim != last.batch_dim:
        return False
    return not any(node in captured.features for node in _besides(captured, last.node))


def _needed(captured: Captured, last: Node) -> list[Node]:
    """All nodes of the graph that the tail computes, given the features of the last block."""
    needed, left = dict[Node, None](), [captured.output]
    while left:
        node = left.pop()
        if node is not last and node not in needed and node in captured.position:
            needed[node] = None
            left += node.all_input_nodes
    return list(needed)


def _besides(captured: Captured, last: Node) -> list[Node]:
    """The nodes among them that do not depend on these features: masks, positions, other values."""
    depend = {last}
    for node in captured.nodes:
        if any(earlier in depend for earlier in node.all_input_nodes):
            depend.add(node)
    return [node for node in _needed(captured, last) if node not in depend]


class OwnTail(nn.Module):
    """The model's own tail, from the features of its last block to its logits. It shares the model's parameters.

    Args:
        trunk: the model.
        last: the last block.
    """

    def __init__(self, trunk: Trunk, captured: Captured, last: Found) -> None:
        super().__init__()
        self._trunk = (trunk,)  # in a tuple, so that it is not a submodule a second time
        nodes = _needed(captured, last.node)
        users = [i for i, node in enumerate(captured.users) if any(node in n.all_input_nodes for n in nodes)]
        self.users: list[int] = users
        """Which tensors of the model's input it takes besides the features."""
        self.run: StageFunction
        self.run, self.reads = captured.tail(last.node, users)
        self.batch_dim = last.batch_dim

    def forward(self, features: Tensor, *inputs: Tensor) -> Tensor:
        """Logits."""
        (logits,) = self.run(self._trunk[0], features.movedim(0, self.batch_dim).clone(), *inputs)
        return logits

    def parameters(self, recurse: bool = True) -> Any:  # noqa: ARG002
        """The model's parameters that the tail uses."""
        named = dict(self._trunk[0].named_parameters(remove_duplicate=False))
        return iter({id(named[name]): named[name] for name in self.reads if name in named}.values())


class OwnExit(Exit):
    """An exit whose head is the model's own tail: it takes features, and those inputs of the model that the tail takes.

    Args:
        index: where the features are in the state that a stage returns.
        batch_dim: the dimension of the features that holds the samples.
        at: where the inputs are in the state.
        form: of the model's input.
    """

    def __init__(self, head: OwnTail, index: int, batch_dim: int, at: list[int], form: Inputs, later: bool) -> None:
        super().__init__(head, index, batch_dim, None, later)
        self.at, self.form = at, form
        # The tail works on a copy of the features. It is not tried out on the meta device: that would copy the model.
        self._changes_input = self._changes_input_in_training = False

    def inputs(self, state: Any) -> tuple[Any, ...]:
        """The tail's inputs from a state."""
        assert isinstance(state, Carried)
        features = state.values[self.index]
        return (features.movedim(self.batch_dim, 0), *(state.values[i] for i in self.at))

    def evaluate(self, features: Tensor, x: Any) -> Tensor:
        """Logits, with the inputs from the network's input."""
        assert isinstance(self.head, OwnTail)
        tensors = [leaf for leaf in self.form.leaves_of(x) if isinstance(leaf, Tensor)]
        return self._apply_head((features.movedim(self.batch_dim, 0), *(tensors[i] for i in self.head.users)))

    def _apply_head(self, inputs: tuple[Any, ...]) -> Tensor:
        return self.head(*inputs)
