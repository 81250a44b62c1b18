"""MSDNet: multi-scale DenseNets, the original's and the paper's own.

Gao Huang et al., *Multi-Scale Dense Networks for Resource Efficient Image Classification*, ICLR 2018. Every layer keeps
features at several scales, so that even the first exits see coarse ones; exits read the coarsest scale.
"""

import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anytime.errors import AnytimeError
from anytime.meta import keeps_input
from anytime.models.layers import ConvBNReLU, PatchConv, Stem, check_counts, initialize, pool
from anytime.models.placement import check_units, join_stages, place_exits
from anytime.network import AnytimeNetwork

_CIFAR = {"scales": 3, "growth": 6, "channels": 16}
_IMAGENET = {
    "blocks": 5,
    "scales": 4,
    "growth": 16,
    "channels": 32,
    "growth_factors": (1, 2, 4, 4),
    "bottleneck_factors": (1, 2, 4, 4),
    "imagenet": True,
    "num_classes": 1000,
}
_ORIGINALS = {
    "msdnet-cifar": {**_CIFAR, "blocks": 10, "base": 4, "step": 2},
    "msdnet-cifar-budgeted": {**_CIFAR, "blocks": 5, "base": 1, "step": 1, "step_mode": "lin_grow"},
    **{f"msdnet-imagenet-step{step}": {**_IMAGENET, "base": step, "step": step} for step in (4, 6, 7)},
}
_NAME = re.compile(r"msdnet-cifar-(?P<blocks>\d{1,9})-(?P<base>\d{1,9})-(?P<step>\d{1,9})(-patch(?P<patch>\d{1,9}))?")
_OF_THE_PAPER = {"msdnet38": (10, 9, 10, 9), "msdnet32": (6, 6, 10, 10)}

MODELS = {
    "msdnet38": "Sec. 5.2, ILSVRC",
    "msdnet32": "Sec. 5.2, ILSVRC, the smaller one",
    "msdnet-cifar": "original MSDNet, anytime prediction on CIFAR",
    "msdnet-cifar-budgeted": "original MSDNet, budgeted batches on CIFAR",
} | {f"msdnet-imagenet-step{step}": "original MSDNet, ImageNet" for step in (4, 6, 7)}


def from_name(name: str) -> tuple[type[AnytimeNetwork], dict[str, Any]] | None:
    """What a name stands for: one of ``MODELS``, or ``msdnet-cifar-{blocks}-{base}-{step}`` for small images.

    ``-patch2`` at its end is MSDNet's ``patch=2``.
    """
    if name in _OF_THE_PAPER:
        return BlockMSDNet, {"units": _OF_THE_PAPER[name]}
    if match := _NAME.fullmatch(name):
        return MSDNet, _CIFAR | {key: int(value) for key, value in match.groupdict().items() if value is not None}
    return (MSDNet, _ORIGINALS[name]) if name in _ORIGINALS else None


def _edge(inputs: int, outputs: int, width: int, stride: int) -> nn.Sequential:
    """1×1 to the bottleneck's width, then 3×3; BN and ReLU after each."""
    return nn.Sequential(ConvBNReLU(inputs, width, 1), ConvBNReLU(width, outputs, 3, stride))


class ScaleStem(Stem):
    """The first features at all scales: each from the one before by a 3×3 convolution with stride 2."""

    def __init__(self, channels: Sequence[int], in_channels: int, imagenet: bool, patch: int = 1) -> None:
        if imagenet:
            conv, bn, relu = ConvBNReLU(in_channels, channels[0], 7, stride=2, bias=True)
            first = nn.Sequential(conv, bn, relu, nn.MaxPool2d(3, 2, padding=1))
        else:
            first = ConvBNReLU(in_channels, channels[0], 3)
            if patch > 1:
                first[0] = PatchConv(in_channels, channels[0], patch)
        coarser = [ConvBNReLU(a, b, 3, stride=2) for a, b in itertools.pairwise(channels)]
        least = 2 ** (len(channels) - 1) * (4 if imagenet else patch)
        super().__init__(first, *coarser, channels=in_channels, least=least)

    def forward(self, input: Tensor) -> list[Tensor]:  # type: ignore[override]
        """One tensor per scale, fine to coarse."""
        scales: list[Tensor] = []
        self._check(input)
        for layer in self:
            input = layer(input)
            scales.append(input)
        return scales


class ScaleEdges(nn.Module):
    """The edges into one scale of a layer: down from the finer scale, if there is one, and straight on."""

    def __init__(self, down: nn.Module | None, normal: nn.Module) -> None:
        super().__init__()
        self.down, self.normal = down, normal

    def forward(self, x: Tensor, finer: Tensor) -> Tensor:
        """What the scale had, then its new features."""
        new = [self.normal(x)] if self.down is None else [self.down(finer), self.normal(x)]
        return torch.cat([x, *new], 1)


class ScaleLayer(nn.Module):
    """A layer at all scales: each keeps what it had and adds features from the finer scale and from itself.

    Args:
        channels: of every scale that is read, fine to coarse.
        growth: of every scale that is written; the last ones of those read.
        width: the bottleneck's: a function of an edge's input channels, its output channels and the index, among those
            read, of the scale that it starts from.
    """

    def __init__(self, channels: Sequence[int], growth: Sequence[int], width: Callable[[int, int, int], int]) -> None:
        super().__init__()
        self.dropped = len(channels) - len(growth)

        def edge(scale: int, outputs: int, stride: int) -> nn.Module:
            return _edge(channels[scale], outputs, width(channels[scale], outputs, scale), stride)

        self.scales = nn.ModuleList(
            ScaleEdges(edge(i - 1, new // 2, 2), edge(i, new - new // 2, 1)) if i else ScaleEdges(None, edge(i, new, 1))
            for i, new in enumerate(growth, self.dropped)
        )

    def forward(self, scales: list[Tensor]) -> list[Tensor]:
        """The scales that remain, each with its new features."""
        return [edges(scales[i], scales[i - 1]) for i, edges in enumerate(self.scales, self.dropped)]


class ScaleTransition(nn.ModuleList):
    """A 1×1 convolution at each scale to fewer channels."""

    def __init__(self, before: Sequence[int], after: Sequence[int]) -> None:
        super().__init__(ConvBNReLU(a, b, 1) for a, b in zip(before, after, strict=True))

    def forward(self, scales: list[Tensor]) -> list[Tensor]:
        """The same scales, narrower."""
        return [conv(x) for conv, x in zip(self, scales, strict=True)]


class ScaleHead(nn.Module):
    """Two 3×3 convolutions with stride 2 on the coarsest scale, average pooling, linear."""

    def __init__(self, inputs: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(ConvBNReLU(inputs, width, 3, stride=2), ConvBNReLU(width, width, 3, stride=2))
        self.fc = nn.Linear(width, num_classes)

    @keeps_input
    def forward(self, scales: list[Tensor]) -> Tensor:
        """Logits."""
        return self.fc(pool(self.convs(scales[-1])))


class MSDNet(AnytimeNetwork):
    """The original MSDNet; its units are its layers, its exits stand after each block of them.

    Convolutions start with He's fan-out normal distribution, as in the original; linear layers with torch's default.

    Args:
        blocks: number of blocks of layers, and so of exits.
        base: layers of the first block.
        step: layers of every further block; with ``lin_grow``, block i (from 1) has ``step · i + 1``.
        step_mode: ``even`` or ``lin_grow``.
        scales: S, the number of scales.
        growth: channels that a layer adds at the finest scale.
        channels: number of channels of the stem at the finest scale.
        growth_factors: for each scale, what growth and channels are multiplied by.
        bottleneck_factors: for each scale, how much wider than its output an edge's 1×1 convolution is; it is never
            wider than its input.
        prune: how scales are dropped as depth grows: ``max`` drops the finest after each S-th part of the layers,
            ``min`` only where they can no longer reach the last exit.
        reduction: what is left of the channels after a transition: one where a scale is dropped (``max``), or at each
            third of the layers (``min``). 0 for none.
        imagenet: a 7×7 stem with stride and pooling, and heads as wide as their input instead of 128 channels.
        patch: the stem sees patches of patch × patch pixels, at about 1/patch² of the cost; not with ``imagenet``.
        num_classes: number of classes.
        in_channels: number of image channels.
        period: layers per exit, counted from the end, instead of after each block.
        exits: the layers after which to exit, likewise.

    Examples:
        >>> MSDNet(blocks=10, base=4, step=2, num_classes=100).exits
        10
    """

    def __init__(
        self,
        blocks: int = 10,
        base: int = 4,
        step: int = 2,
        step_mode: str = "even",
        scales: int = 3,
        growth: int = 6,
        channels: int = 16,
        growth_factors: Sequence[int] = (1, 2, 4),
        bottleneck_factors: Sequence[int] = (1, 2, 4),
        prune: str = "max",
        reduction: float = 0.5,
        imagenet: bool = False,
        patch: int = 1,
        num_classes: int = 10,
        in_channels: int = 3,
        period: int | None = None,
        exits: Sequence[int] | None = None,
    ) -> None:
        check_counts(blocks=blocks, base=base, step=step, growth=growth, channels=channels)
        check_counts(num_classes=num_classes, in_channels=in_channels, patch=patch)
        if imagenet and patch > 1:
            raise AnytimeError(f"patch={patch} is for small images: leave it out, or leave out imagenet=True")
        factors = _factors(scales, growth_factors, bottleneck_factors)
        if step_mode not in ("even", "lin_grow") or prune not in ("max", "min"):
            raise AnytimeError(f"{step_mode=} must be 'even' or 'lin_grow', {prune=} must be 'max' or 'min'")
        check_units(blocks)
        sizes = [base, *(step if step_mode == "even" else step * i + 1 for i in range(1, blocks))]
        total = sum(sizes)
        if period is None and exits is None:
            exits = list(itertools.accumulate(sizes))
        after = place_exits(total, period, exits)

        stem = ScaleStem([channels * f for f in factors], in_channels, imagenet, patch)
        units, coarsest = [], []
        for layer in range(1, total + 1):
            read, write = _scales_at(layer, total, scales, prune)

            def width(inputs: int, outputs: int, index: int, first: int = scales - read) -> int:
                return min(inputs, bottleneck_factors[first + index] * outputs)

            unit: nn.Module = ScaleLayer(
                [channels * f for f in factors[-read:]], [growth * f for f in factors[-write:]], width
            )
            channels += growth
            thirds = (total // 3, 2 * total // 3)
            if reduction > 0 and (read > write if prune == "max" else layer in thirds):
                less = math.floor(reduction * channels)
                kept = factors[-write:]
                unit = nn.Sequential(unit, ScaleTransition([channels * f for f in kept], [less * f for f in kept]))
                channels = less
            units.append(unit)
            coarsest.append(channels * factors[-1])
        inputs = [coarsest[unit - 1] for unit in after]
        heads = [ScaleHead(n, n if imagenet else 128, num_classes) for n in inputs]
        super().__init__(join_stages(units, after, stem), heads)
        initialize(self)
        self.image_size, self.in_channels = 224 if imagenet else 32, in_channels


def _factors(scales: int, growth: Sequence[int], bottleneck: Sequence[int]) -> Sequence[int]:
    check_counts(scales=scales)
    if len(growth) != scales or len(bottleneck) != scales:
        raise AnytimeError(
            f"scales={scales} with growth_factors={tuple(growth)} and bottleneck_factors={tuple(bottleneck)}: "
            "both must have one factor per scale"
        )
    return growth


def _scales_at(layer: int, total: int, scales: int, prune: str) -> tuple[int, int]:
    """How many scales a layer (from 1) reads and writes."""
    if prune == "min":
        return min(scales, total - layer + 2), min(scales, total - layer + 1)
    interval = math.ceil(total / scales)
    return scales - max(0, layer - 2) // interval, scales - (layer - 1) // interval


class BlockMSDNet(AnytimeNetwork):
    """MSDNet38 and MSDNet32 as the paper's authors built them for ILSVRC.

    Units are the stem, the layers, and a transition between blocks that halves the channels of all scales; the first
    layer of the next block then drops the finest scale. Bottlenecks are not capped by their input's width.

    Convolutions start with He's fan-out normal distribution, linear layers with torch's default.

    Args:
        units: of each block; a block's last is a transition, but for the last block's, and the first block's
            first is the stem.
        growth: channels that a layer adds at the finest scale; the stem has twice as many.
        growth_factors: for each scale, what growth is multiplied by.
        bottleneck_factors: for each scale, how much wider than its output an edge's 1×1 convolution is.
        reduction: what is left of the channels after a transition.
        num_classes: number of classes.
        in_channels: number of image channels.
        period: units per exit, counted from the end. Default: the paper's 7, none before the fourth.
        exits: the units after which to exit, instead of a period.

    Examples:
        >>> BlockMSDNet((10, 9, 10, 9)).exits
        5
    """

    def __init__(
        self,
        units: Sequence[int],
        growth: int = 16,
        growth_factors: Sequence[int] = (1, 2, 4, 4),
        bottleneck_factors: Sequence[int] = (1, 2, 4, 4),
        reduction: float = 0.5,
        num_classes: int = 1000,
        in_channels: int = 3,
        period: int | None = None,
        exits: Sequence[int] | None = None,
    ) -> None:
        check_counts(growth=growth, num_classes=num_classes, in_channels=in_channels)
        factors = _factors(len(units), growth_factors, bottleneck_factors)
        if period is None and exits is None:
            exits = [unit for unit in place_exits(sum(units), 7) if unit > 3]  # MSDNet38's first would be at unit 3
        after = place_exits(sum(units), period, exits)
        channels = 2 * growth
        modules: list[nn.Module] = [ScaleStem([channels * f for f in factors], in_channels, imagenet=True)]
        coarsest = [channels * factors[-1]]
        for block, count in enumerate(units):
            for layer in range(count - 1):
                first = block - 1 if block and layer == 0 else block

                def width(_inputs: int, outputs: int, index: int, first: int = first) -> int:
                    return bottleneck_factors[first + index] * outputs

                read = [channels * f for f in factors[first:]]
                modules.append(ScaleLayer(read, [growth * f for f in factors[block:]], width))
                channels += growth
                coarsest.append(channels * factors[-1])
            if block < len(units) - 1:
                less, kept = int(channels * reduction), factors[block:]
                modules.append(ScaleTransition([channels * f for f in kept], [less * f for f in kept]))
                channels = less
                coarsest.append(channels * factors[-1])
        heads = [ScaleHead(coarsest[unit - 1], coarsest[unit - 1], num_classes) for unit in after]
        super().__init__(join_stages(modules, after), heads)
        initialize(self)
        self.image_size, self.in_channels = 224, in_channels
