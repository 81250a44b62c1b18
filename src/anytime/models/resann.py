"""ResANN(n, c): pre-activation ResNets for small images with an exit after every unit (App. C of the paper)."""

import re
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from anytime.errors import AnytimeError
from anytime.models.exits import join_stages, place_exits
from anytime.network import AnytimeNetwork

MODELS = {
    f"resann-{n}-{c}": "Sec. 5.2, CIFAR and SVHN"
    for n, c in [(n, c) for c in (16, 32) for n in (7, 9, 13, 17, 25)] + [(9, 64), (9, 128)]
}
"""The paper's twelve, by name."""


def from_name(name: str) -> dict[str, int] | None:
    """The arguments that a name stands for: ``resann-9-16`` is n = 9, c = 16."""
    if match := re.fullmatch(r"resann-(\d+)-(\d+)", name):
        return {"n": int(match[1]), "c": int(match[2])}
    return None


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


class LinearHead(nn.Module):
    """The paper's predictor: BN – ReLU – global average pooling – linear."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(F.relu(self.bn(x), inplace=True).mean((2, 3)))


class ResANN(AnytimeNetwork):
    """ResANN(n, c): a 3×3 convolution, then three blocks of n basic units with c, 2c and 4c channels.

    Convolutions start with He's fan-out normal distribution, linear layers with torch's default.

    Args:
        n: units in a block; the network has 3n.
        c: channels of the first block.
        num_classes: as it says.
        in_channels: of the images; they may have any size from 8×8.
        period: an exit every so many units, counted from the end. Default: the paper's, 1 for n < 25, else 3.
        exits: the units after which to exit (1 to 3n), instead of a period.

    Example:
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
    ) -> None:
        for name, value in {"n": n, "c": c, "num_classes": num_classes, "in_channels": in_channels}.items():
            if value < 1:
                raise AnytimeError(f"{name}={value}: it is a whole number from 1")
        if period is None and exits is None:
            period = 1 if n < 25 else 3
        widths = [c] * n + [2 * c] * n + [4 * c] * n
        units = [BasicUnit(before, width) for before, width in zip([c, *widths], widths, strict=False)]
        after = place_exits(len(units), period, exits)
        stem = nn.Conv2d(in_channels, c, 3, padding=1, bias=False)
        super().__init__(
            join_stages(units, after, stem),
            [LinearHead(widths[unit - 1], num_classes) for unit in after],
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
