"""What each exit costs: multiply-accumulates, parameters, seconds."""

import copy
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from anytime.errors import AnytimeError
from anytime.network import AnytimeNetwork


@dataclass(frozen=True)
class Costs:
    """Cumulative costs, one number an exit, shallow to deep; earlier heads are included."""

    macs: list[int]
    """Multiply-accumulates of convolutions, linear layers, matrix products and attention. (Papers that count a
    multiplication and an addition each as a FLOP have twice this.)"""
    params: list[int]
    """Parameters of the stages and heads that have run by then."""

    @property
    def fractions(self) -> list[float]:
        """Share of the total MACs that each exit has used."""
        return [macs / self.macs[-1] for macs in self.macs]

    def exit_at(self, fraction: float) -> int:
        """The last exit within a fraction of the total MACs; the first exit where even that one costs more.

        Example:
            >>> Costs(macs=[46, 80, 100], params=[1, 2, 3]).exit_at(0.75)
            0
        """
        within = [i for i, macs in enumerate(self.macs) if macs <= fraction * self.macs[-1]]
        return within[-1] if within else 0


def costs(net: AnytimeNetwork, example: Any) -> Costs:
    """MACs and parameters up to each exit, counted on the meta device: no memory, no compute.

    Args:
        net: the network, on any device; it is not changed.
        example: an input as the network takes it, on any device; only its shape counts. MACs are those of the
            whole example, so pass a batch of one.

    Example:
        >>> import anytime
        >>> net = anytime.create_model("resann-9-16", num_classes=100)
        >>> f"{anytime.costs(net, torch.zeros(1, 3, 32, 32)).macs[-1] / 1e6:.1f} million"
        '125.6 million'
    """
    twin = on_meta(net).eval()
    example = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, example)
    macs = []
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        for _ in twin.steps(example):
            macs.append(counter.get_total_flops() // 2)
    return Costs(macs, _params(net))


def on_meta(net: AnytimeNetwork) -> AnytimeNetwork:
    """A copy whose parameters and buffers have shapes only, without hooks."""
    shapes: dict[int, Any] = {}
    for parameter in net.parameters():
        shapes[id(parameter)] = nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    for buffer in net.buffers():
        shapes[id(buffer)] = torch.empty_like(buffer, device="meta")
    twin = copy.deepcopy(net, shapes)
    for module in twin.modules():  # what others hang on the network is not for this one
        for hooks in (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks):
            hooks.clear()
    return twin


def _params(net: AnytimeNetwork) -> list[int]:
    seen: dict[int, int] = {}
    totals = []
    for stage, head in zip(net.stages, net.heads, strict=True):
        for module in (stage, head):
            seen |= {id(parameter): parameter.numel() for parameter in module.parameters()}
        totals.append(sum(seen.values()))
    return totals


@torch.no_grad()
def latency(net: AnytimeNetwork, example: Any, repeats: int = 30, warmup: int = 5) -> list[float]:
    """Median seconds from the start to each exit's prediction, running through all of them in order.

    Args:
        net: the network; it is measured as it stands (its device, threads, memory format), in eval mode.
        example: the input, on the network's device.
        repeats: how many runs the median is taken over.
        warmup: runs before those, not counted.
    """
    if repeats < 1:
        raise AnytimeError(f"repeats={repeats}: the median needs at least one run")
    was_training = net.training
    net.eval()
    try:
        runs = [list(_clocked(net, example)) for _ in range(warmup + repeats)][warmup:]
    finally:
        net.train(was_training)
    return [statistics.median(times) for times in zip(*runs, strict=True)]


def _clocked(net: AnytimeNetwork, example: Any) -> Iterator[float]:
    device = next((leaf.device for leaf in tree_leaves(example) if isinstance(leaf, Tensor)), torch.device("cpu"))
    _synchronise(device)
    start = time.perf_counter()
    for _ in net.steps(example):
        _synchronise(device)
        yield time.perf_counter() - start


def _synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given: its clock time is what users feel."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
