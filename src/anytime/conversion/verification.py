"""Checks that the stages of a captured model compute what the model computes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from anytime.conversion.graph import NotCaptured
from anytime.conversion.outputs import first_tensor
from anytime.conversion.pausing import CallHook, Place
from anytime.conversion.stages import Trunk
from anytime.network import AnytimeNetwork, tensors_of


class Features(NamedTuple):
    """The output of a module at an exit, for the example."""

    value: Tensor
    changed_later: bool
    """Whether the model changes it in place after the exit, in evaluation or in training mode."""


def observe(trunk: Trunk, places: list[Place], example: Any) -> dict[Place, Features]:
    """Run the model's own code and take copies of the features at these places."""
    seen: dict[Place, tuple[Tensor, Tensor, int]] = {}

    def note(place: Place, output: Any) -> None:
        tensor = first_tensor(output)
        assert tensor is not None
        seen[place] = tensor, tensor.clone(), tensor._version

    with CallHook(trunk.model, places, note):
        trunk(example)
    # Dropout acts in training mode only, so it cannot be observed here.
    drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.inplace for m in trunk.model.modules())
    return {
        place: Features(clone, drops or tensor._version != version) for place, (tensor, clone, version) in seen.items()
    }


def verify(
    net: AnytimeNetwork,
    trunk: Trunk,
    places: Sequence[str],
    example: Any,
    logits: Tensor,
    features: Mapping[Place, Features],
) -> None:
    """Compare the stages with the model: at each exit, at the end, and for another number of samples.

    Args:
        net: the stages and heads.
        trunk: the model.
        places: what the exits are called.
        example: an input.
        logits: the model's own for it.
        features: the model's own at the exits.

    Raises:
        NotCaptured: if they differ.
    """
    try:
        state = example
        own = [*(found.value for found in features.values()), logits]
        for i, (head, value) in enumerate(zip(net.heads, own, strict=True)):
            state = net.run_stage(i, state)
            if not torch.equal(state.values[head.index], value):
                raise NotCaptured(f"its captured graph computes other values than the model (at {places[i]})")
        more = tree_map(lambda leaf: torch.cat([leaf, leaf[:1]]) if is_batch(leaf, len(logits)) else leaf, example)
        if not torch.allclose(net(more, [-1])[0], trunk(more), rtol=1e-3, atol=1e-4):
            raise NotCaptured("its captured graph computes other values than the model for other batch sizes")
        _verify_rows(net, places, more)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise NotCaptured(f"its captured graph does not run ({str(error).splitlines()[0]})") from error


def _verify_rows(net: AnytimeNetwork, places: Sequence[str], x: Any) -> None:
    """Taking samples out of the batch at any cut must not change the outputs for the others."""
    whole = net(x)
    for place, logits in zip(places, whole, strict=True):
        if logits.shape != whole[-1].shape:
            shapes = f"{tuple(logits.shape)} where the model returns {tuple(whole[-1].shape)}"
            raise NotCaptured(f"the head after {place} returns {shapes}")
    rows = torch.arange(len(whole[-1]), device=whole[-1].device)
    rows = torch.cat([rows[:1], rows[2:]])
    for cut in range(net.exits - 1):
        state = x
        for i in range(net.exits):
            state = net.run_stage(i, state)
            state = net.take(state, rows) if i == cut else state
        if not torch.allclose(net.heads[-1](state), whole[-1][rows], rtol=1e-3, atol=1e-4):
            raise NotCaptured("a value that crosses a cut mixes the samples of a batch")


def two_samples(example: Any) -> Any:
    """With a single sample torch.export would treat the number of samples as a constant."""
    batch = len(tensors_of(example)[0])
    if batch > 1:
        return example
    return tree_map(lambda leaf: torch.cat([leaf, leaf]) if is_batch(leaf, 1) else leaf, example)


def is_batch(leaf: Any, batch: int) -> bool:
    """Whether an input has ``batch`` rows, one for each sample."""
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == batch
