"""ConvANN: few wide convolutions at low resolution, for small images and few multiply-accumulates."""

import re
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from anytime.models.layers import MLPHead, Stem, check_counts, initialize
from anytime.models.placement import join_stages, place_exits
from anytime.network import AnytimeNetwork

_NAME = re.compile(r"convann(-\d{1,5}x\d{1,3})+")

MODELS = {"convann-32x2-64x2-120x2": "the most accurate of ours at 12.5 million MACs, small images"}


def from_name(name: str) -> tuple[type[AnytimeNetwork], dict[str, Any]] | None:
    """What a name stands for: ``convann-32x2-64x3`` has two units of 32 channels, then three of 64."""
    if not _NAME.fullmatch(name):
        return None
    return ConvANN, {"blocks": [tuple(map(int, block.split("x"))) for block in name.split("-")[1:]]}


class Unit(nn.Module):
    """ReLU(BN(conv 3×3)), added to its input where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.same = inputs == outputs and stride == 1
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The next features."""
        y = F.relu(self.bn(self.conv(x)), inplace=True)
        return x + y if self.same else y


class ConvANN(AnytimeNetwork):
    """A stem of overlapping patches that halves the image, then blocks of 3×3 convolutions, each at half the size.

    Wide layers at low resolution have many parameters for their cost, and few layers learn in few epochs. Exits have
    a hidden layer (``MLPHead``).

    Args:
        blocks: for each block its channels and number of units. All but the first begin with stride 2.
        exits: the units after which to exit, counted from 1, the last one last. Default: after each.
        hidden: features of each head.
        num_classes: number of classes.
        in_channels: channels of the images.

    Examples:
        >>> ConvANN([(8, 1), (16, 2)]).exits
        3
    """

    def __init__(
        self,
        blocks: Sequence[tuple[int, int]],
        exits: Sequence[int] | None = None,
        hidden: int = 64,
        num_classes: int = 10,
        in_channels: int = 3,
    ) -> None:
        check_counts(hidden=hidden, num_classes=num_classes, in_channels=in_channels)
        channels = blocks[0][0]
        conv = nn.Conv2d(in_channels, channels, 4, 2, padding=1, bias=False)
        first = Stem(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True), channels=in_channels, least=8)
        units: list[nn.Module] = []
        widths: list[int] = []
        for number, (width, count) in enumerate(blocks):
            check_counts(channels=width, units=count)
            for i in range(count):
                units.append(Unit(channels, width, 2 if number and i == 0 else 1))
                widths.append(channels := width)
        after = place_exits(len(units), 1 if exits is None else None, exits)
        heads = [MLPHead(widths[unit - 1], hidden, num_classes) for unit in after]
        super().__init__(join_stages(units, after, first), heads)
        initialize(self)
        self.image_size, self.in_channels = 32, in_channels
