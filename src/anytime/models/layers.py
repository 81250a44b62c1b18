"""Pieces that several architectures share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anytime.errors import AnytimeError, check_integer
from anytime.meta import keeps_input


class ConvBNReLU(nn.Sequential):
    """A convolution that keeps the size but for its stride, batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )
        self.narrow = outputs < 16

    @keeps_input
    def forward(self, input: Tensor) -> Tensor:
        """The new features."""
        if not (self.narrow and self.training and input.device.type == "cpu"):
            return super().forward(input)
        # On processors, torch's batch norm of fewer than 16 channels is several times slower with channels last.
        conv, bn, relu = self
        return relu(bn(conv(input).contiguous())).contiguous(memory_format=torch.channels_last)


class PatchConv(nn.Conv2d):
    """A 3×3 convolution that sees patches of patch × patch pixels as one with that many times the channels.

    As ``nn.PixelUnshuffle`` before it would: all of the image, at about 1/patch² of the network's cost. It is one of
    pixels with a larger kernel and a stride.
    """

    def __init__(self, inputs: int, outputs: int, patch: int) -> None:
        super().__init__(inputs, outputs, 3 * patch, stride=patch, padding=patch, bias=False)


class LinearHead(nn.Module):
    """The paper's predictor: BN – ReLU – global average pooling – linear."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, num_classes)

    @keeps_input
    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(pool(F.relu(self.bn(x), inplace=True)))


class MLPHead(nn.Module):
    """A predictor with features of its own: BN – ReLU – average pooling to 4×4 – linear – layer norm – ReLU – linear.

    The paper's predictor tells the classes apart by one number per channel, so early exits, which have few, ask the
    shared layers for other features than later ones need. This one makes them itself, and sees where in the image the
    shared ones are. It costs next to nothing, but has many parameters.

    Args:
        channels: of the features.
        hidden: features of its own.
        num_classes: number of classes.
    """

    def __init__(self, channels: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.hidden = nn.Linear(16 * channels, hidden)
        self.norm = nn.LayerNorm(hidden)  # of each sample by itself: a batch may be one sample
        self.fc = nn.Linear(hidden, num_classes)

    @keeps_input
    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        cells = F.adaptive_avg_pool2d(F.relu(self.bn(x), inplace=True), 4)
        return self.fc(F.relu(self.norm(self.hidden(cells.flatten(1))), inplace=True))


def pool(x: Tensor) -> Tensor:
    """Global average pooling.

    In training as a sum, whose gradient is a view: that of ``mean`` is divided at every pixel, in a layout that the
    ReLU before it then reads slowly. It is most of what an exit costs in training. The values are the same.
    """
    if not torch.is_grad_enabled():
        return x.mean((2, 3))
    return x.sum((2, 3)) / (x.shape[2] * x.shape[3])


class Stem(nn.Sequential):
    """The layers before the first unit; refuses images that the network cannot take.

    Args:
        layers: what to run.
        channels: of the images.
        least: their smallest height and width.
    """

    def __init__(self, *layers: nn.Module, channels: int, least: int) -> None:
        super().__init__(*layers)
        self.channels, self.least = channels, least

    def forward(self, input: Tensor) -> Tensor:
        """The first features."""
        self._check(input)
        return super().forward(input)

    def _check(self, input: Tensor) -> None:
        if input.ndim != 4 or input.shape[1] != self.channels or min(input.shape[2:]) < self.least:
            raise AnytimeError(
                f"got an input of shape {tuple(input.shape)}; this network takes N × {self.channels} × height × width, "
                f"each at least {self.least}; the nearest that works is {self._nearest(tuple(input.shape))}"
            )

    def _nearest(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        sizes = shape[-2:] if len(shape) > 1 else (self.least, self.least)
        return (shape[0] if len(shape) == 4 else 1, self.channels, *(max(size, self.least) for size in sizes))


def initialize(net: nn.Module) -> None:
    """Convolutions from He's normal distribution by fan-out; batch norm and linear layers as torch starts them.

    Weights are laid out with channels last, which is faster on processors and on GPUs whatever the images' layout.
    """
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(module, PatchConv):
            with torch.no_grad():  # with its stride no pixel reaches more outputs than with a 3×3 kernel
                module.weight *= module.stride[0]
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def check_counts(**counts: int) -> None:
    """Refuse what is not an integer >= 1, or more channels or classes than any network has."""
    for name, value in counts.items():
        check_integer(name, value, most=2**24)
