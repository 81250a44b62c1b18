"""ResANN: pre-activation ResNets with exits (App. C of the paper), for small images and for ILSVRC."""

import re
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from anytime.errors import AnytimeError
from anytime.models.layers import LinearHead, MLPHead, PatchConv, Stem, check_counts, initialize
from anytime.models.placement import join_stages, place_exits
from anytime.network import AnytimeNetwork

_BLOCKS = {"resann26": (2, 2, 2, 2), "resann50": (3, 4, 6, 3), "resann101": (3, 4, 23, 3)}

_NAME = re.compile(r"resann-(?P<n>\d{1,9})-(?P<c>\d{1,9})(-patch(?P<patch>\d{1,9}))?(?P<heads>-mlpheads)?")

MODELS = {
    f"resann-{n}-{c}": "Sec. 5.2, CIFAR and SVHN"
    for n, c in [(n, c) for c in (16, 32) for n in (7, 9, 13, 17, 25)] + [(9, 64), (9, 128)]
} | {
    "resann26": "Sec. 5.3, ILSVRC, member of the EANN",
    "resann50": "Sec. 5.2, ILSVRC",
    "resann101": "Sec. 5.3, ILSVRC, member of the EANN",
}


def from_name(name: str) -> tuple[type[AnytimeNetwork], dict[str, Any]] | None:
    """What a name stands for: ``resann-9-16`` is ResANN(n=9, c=16), ``resann-9-16-patch2`` has ``patch=2``.

    ``-mlpheads`` at its end is ``mlp_heads=True``.
    """
    if name in _BLOCKS:
        return BottleneckResANN, {"blocks": _BLOCKS[name]}
    if match := _NAME.fullmatch(name):
        sizes = {key: int(match[key]) for key in ("n", "c", "patch") if match[key]}
        return ResANN, sizes | ({"mlp_heads": True} if match["heads"] else {})
    return None


def between(smallest: str, largest: str) -> list[str]:
    """The names of the ResANNs from one to another that differ in their depths alone.

    Examples:
        >>> between("resann-2-16", "resann-4-16"), between("resann26", "resann101")
        (['resann-2-16', 'resann-3-16', 'resann-4-16'], ['resann26', 'resann50', 'resann101'])
    """
    ends = [_NAME.fullmatch(name) for name in (smallest, largest)]
    names: list[str] = []
    if smallest in _BLOCKS and largest in _BLOCKS:
        every = list(_BLOCKS)
        names = every[every.index(smallest) : every.index(largest) + 1]
    elif ends[0] and ends[1] and (after_depth := smallest[ends[0].end("n") :]) == largest[ends[1].end("n") :]:
        names = [f"resann-{n}{after_depth}" for n in range(int(ends[0]["n"]), int(ends[1]["n"]) + 1)]
    if not names:
        raise AnytimeError(
            f"{smallest!r} to {largest!r}: give two ResANNs of one width, the smaller first, as in "
            "'resann-7-32' and 'resann-25-32', or two of " + ", ".join(_BLOCKS)
        )
    return names


class BasicUnit(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))), both convolutions 3×3.

    Where the width doubles, the first convolution has stride 2 and the shortcut is 2×2 average pooling with
    zeros for the new channels, so it has no parameters.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.new_channels = outputs - inputs
        stride = 2 if self.new_channels else 1
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The unit's output, as deep and wide as the network is there."""
        y = self.conv1(F.relu(self.bn1(x), inplace=True))
        y = self.conv2(F.relu(self.bn2(y), inplace=True))
        if self.new_channels:
            before = self.new_channels // 2
            x = F.avg_pool2d(x, 2, ceil_mode=True)  # ceil: as many pixels as the strided convolution, odd sizes too
            x = F.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        return x + y


class ResANN(AnytimeNetwork):
    """ResANN(n, c): a 3×3 convolution, then three blocks of n basic units with c, 2c and 4c channels.

    Convolutions start with He's fan-out normal distribution, linear layers with torch's default.

    Args:
        n: units per block; the network has 3n.
        c: channels of the first block.
        num_classes: number of classes.
        in_channels: number of image channels. Images may have any size from 8×8, times ``patch``.
        period: units per exit, counted from the end. Default: the paper's, 1 for n < 25, else 3.
        exits: the units after which to exit (1 to 3n), instead of a period.
        patch: the first convolution sees patches of patch × patch pixels as one with that many times the channels
            (``nn.PixelUnshuffle``): all of the image, at about 1/patch² of the cost. 1, the paper's, for none.
        mlp_heads: whether the exits of the first two blocks have heads with 8c features of their own (``MLPHead``):
            far better early exits. Default: no, as in the paper.

    Examples:
        >>> ResANN(3, 16, num_classes=10).exits
        9
    """

    def __init__(
        self,
        n: int,
        c: int,
        num_classes: int = 10,
        in_channels: int = 3,
        period: int | None = None,
        exits: Sequence[int] | None = None,
        patch: int = 1,
        mlp_heads: bool = False,
    ) -> None:
        check_counts(n=n, c=c, num_classes=num_classes, in_channels=in_channels, patch=patch)
        if period is None and exits is None:
            period = 1 if n < 25 else 3
        after = place_exits(3 * n, period, exits)
        widths = [c] * n + [2 * c] * n + [4 * c] * n
        stem = Stem(PatchConv(in_channels, c, patch), channels=in_channels, least=8 * patch)
        units = [BasicUnit(before, width) for before, width in zip([c, *widths], widths, strict=False)]
        heads = [
            MLPHead(width, 8 * c, num_classes) if mlp_heads and width < 4 * c else LinearHead(width, num_classes)
            for width in (widths[unit - 1] for unit in after)
        ]
        super().__init__(join_stages(units, after, stem), heads)
        initialize(self)
        self.image_size, self.in_channels = 32, in_channels


class BottleneckUnit(nn.Module):
    """Pre-activation bottleneck: 1×1 – 3×3 – 1×1, each after BN – ReLU; the 3×3 has the stride.

    Where width or size change, the shortcut is a 1×1 convolution of the first BN – ReLU's output.
    """

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """The unit's output."""
        active = F.relu(self.bn1(x), inplace=True)
        y = self.conv1(active)
        y = self.conv2(F.relu(self.bn2(y), inplace=True))
        y = self.conv3(F.relu(self.bn3(y), inplace=True))
        return y + (x if self.shortcut is None else self.shortcut(active))


class BottleneckResANN(AnytimeNetwork):
    """ResANN26, 50 and 101 for ILSVRC: four blocks of bottleneck units with 256, 512, 1024 and 2048 channels.

    Convolutions start with He's fan-out normal distribution, linear layers with torch's default.

    Args:
        blocks: units in each of the four blocks, e.g. (3, 4, 6, 3) for ResANN50.
        num_classes: number of classes.
        in_channels: number of image channels. Images may have any size from 32×32.
        period: units per exit, counted from the end. Default: the paper's, 2, or 3 for ResANN101.
        exits: the units after which to exit, instead of a period.
        groups: groups of the 3×3 convolutions; above 1, these are ResNeXt's units (e.g. 32 with ``group_width=4``).
        group_width: channels of a group in the first block, if ``groups`` is above 1.

    Examples:
        >>> BottleneckResANN((2, 2, 2, 2)).exits
        4
    """

    def __init__(
        self,
        blocks: Sequence[int],
        num_classes: int = 1000,
        in_channels: int = 3,
        period: int | None = None,
        exits: Sequence[int] | None = None,
        groups: int = 1,
        group_width: int = 4,
    ) -> None:
        check_counts(num_classes=num_classes, in_channels=in_channels, groups=groups, group_width=group_width)
        if len(blocks) != 4 or min(blocks) < 1:
            raise AnytimeError(f"blocks={tuple(blocks)} must be four integers >= 1, e.g. (3, 4, 6, 3)")
        total = sum(blocks)
        if period is None and exits is None:
            period = 2 if total <= 16 else 3
        after = place_exits(total, period, exits)
        units, widths, channels = [], [], 64
        for block, count in enumerate(blocks):
            width = (64 if groups == 1 else groups * group_width) * 2**block
            for i in range(count):
                stride = 2 if block and i == 0 else 1
                units.append(BottleneckUnit(channels, width, 256 * 2**block, stride, groups))
                channels = 256 * 2**block
                widths.append(channels)
        stem = Stem(
            nn.Conv2d(in_channels, 64, 7, 2, padding=3, bias=False),
            nn.MaxPool2d(3, 2, padding=1),
            channels=in_channels,
            least=32,
        )
        heads = [LinearHead(widths[unit - 1], num_classes) for unit in after]
        super().__init__(join_stages(units, after, stem), heads)
        initialize(self)
        self.blocks, self.image_size, self.in_channels = tuple(blocks), 224, in_channels

    def foreign_names(self) -> dict[str, str]:
        """Maps the names of modules in timm's pre-activation ResNets (``resnetv2_50``) to those of this network."""
        units = [name for name, module in self.named_modules() if isinstance(module, BottleneckUnit)]
        places = [(block, i) for block, count in enumerate(self.blocks) for i in range(count)]
        inner = {f"norm{i}": f"bn{i}" for i in (1, 2, 3)} | {f"conv{i}": f"conv{i}" for i in (1, 2, 3)}
        inner["downsample.conv"] = "shortcut"
        names = {
            f"stages.{block}.blocks.{i}.{theirs}": f"{unit}.{ours}"
            for (block, i), unit in zip(places, units, strict=True)
            for theirs, ours in inner.items()
        }
        stem = next(name for name, module in self.named_modules() if isinstance(module, Stem))
        last = f"heads.{self.exits - 1}"
        return names | {"stem.conv": f"{stem}.0", "norm": f"{last}.bn", "head.fc": f"{last}.fc"}
