"""The network of the race: few, wide 3×3 convolutions at low resolution, with an exit after most of them.

A stem of patches halves the image at once; each later block halves it again and is wider. Few wide layers learn more in
a short training than many narrow ones of the same cost, and run faster on a processor.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anytime.models.layers import LinearHead, MLPHead, Stem, initialize
from anytime.models.placement import join_stages, place_exits
from anytime.network import AnytimeNetwork
from experiments.surgery import Partition


class ScaledBias(nn.BatchNorm2d):
    """Batch norm whose bias is ``scale`` times its parameter, and so learns scale² times as fast.

    Biases have a learning rate of 64 times the weights' in airbench; with SGD a factor of 8 is the same.
    """

    def __init__(self, channels: int, scale: float) -> None:
        super().__init__(channels)
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        """Normalized by the batch in training, else by the averages."""
        if self.training:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
        bias = self.bias * self.scale
        averages = (self.running_mean, self.running_var)
        return F.batch_norm(input, *averages, self.weight, bias, self.training, self.momentum or 0.1, self.eps)


class Unit(nn.Module):
    """ReLU(BN(conv 3×3)), added to its input where the shape stays.

    Args:
        inputs: channels.
        outputs: channels.
        stride: of the convolution.
        excite: reduction of squeeze and excitation, before the sum; 0: none.
        bias_scale: of the batch norm's bias (``ScaledBias``).
        shortcut: whether the input is added where the shape changes too: averaged, with zeros as new channels.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, excite: int, bias_scale: float, shortcut: bool = False
    ) -> None:
        super().__init__()
        self.same = inputs == outputs and stride == 1
        self.shortcut = shortcut
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn = ScaledBias(outputs, bias_scale) if bias_scale != 1 else nn.BatchNorm2d(outputs)
        self.squeeze = nn.Linear(outputs, outputs // excite) if excite else None
        self.excite = nn.Linear(outputs // excite, outputs) if excite else None

    def forward(self, x: Tensor) -> Tensor:
        """The next features."""
        y = F.relu(self.bn(self.conv(x)), inplace=True)
        if self.squeeze is not None and self.excite is not None:
            y = y * self.excite(F.relu(self.squeeze(y.mean((2, 3))))).sigmoid()[:, :, None, None]
        if self.same:
            return x + y
        if not self.shortcut:
            return y
        x = F.avg_pool2d(x, x.shape[2] // y.shape[2])
        return y + F.pad(x, (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))


class RaceNet(AnytimeNetwork):
    """A patch stem, then blocks of units.

    Args:
        blocks: for each block its channels and number of units. All but the first begin with stride 2.
        stem: channels and kernel of the stem, a convolution with stride 2.
        exits: the units after which to exit, counted from 1, the last one last. Default: after each.
        hidden: features of each exit's own head (``MLPHead``); 0: heads are linear.
        excite: reduction of squeeze and excitation; 0: none.
        share: of the channels that belong to their exit alone (``Partition``).
        dirac: whether the units' first filters hand on their inputs at the start.
        bias_scale: of the units' batch norms (``ScaledBias``).
        shortcut: whether units that change the shape add their input too.
        num_classes: number of classes.

    Examples:
        >>> RaceNet([(8, 1), (16, 2)], stem=(8, 4), exits=[1, 3]).exits
        2
    """

    def __init__(
        self,
        blocks: Sequence[tuple[int, int]],
        stem: tuple[int, int],
        exits: Sequence[int] | None = None,
        hidden: int = 128,
        excite: int = 0,
        share: float = 0.0,
        dirac: bool = False,
        bias_scale: float = 1.0,
        shortcut: bool = False,
        num_classes: int = 10,
    ) -> None:
        channels, kernel = stem
        conv = nn.Conv2d(3, channels, kernel, 2, padding=(kernel - 2) // 2, bias=False)
        first = Stem(conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True), channels=3, least=32)
        units: list[nn.Module] = []
        widths: list[int] = []
        for number, (width, count) in enumerate(blocks):
            for i in range(count):
                stride = 2 if number and i == 0 else 1
                units.append(Unit(channels, width, stride, excite, bias_scale, shortcut))
                widths.append(channels := width)
        after = place_exits(len(units), 1 if exits is None else None, exits)
        stages = join_stages(units, after, first)
        if share:
            stages[1:] = [nn.Sequential(Partition(share), stage) for stage in stages[1:]]
        each = [widths[unit - 1] for unit in after]
        heads = [MLPHead(w, hidden, num_classes) if hidden else LinearHead(w, num_classes) for w in each]
        super().__init__(stages, heads)
        initialize(self)
        for conv in (unit.conv for unit in units if isinstance(unit, Unit) and dirac):
            nn.init.dirac_(conv.weight[: conv.in_channels])
        self.image_size = 32


def whiten(net: AnytimeNetwork, images: Tensor) -> None:
    """Start the stem from the principal patches of normalized images, each with its negative (as airbench does).

    Args:
        net: changed in place.
        images: some thousand normalized images.
    """
    conv = next(module for module in net.modules() if isinstance(module, nn.Conv2d))
    kernel, (outputs, inputs) = conv.kernel_size[0], conv.weight.shape[:2]
    patches = images.unfold(2, kernel, 2).unfold(3, kernel, 2).transpose(1, 3).reshape(-1, inputs * kernel**2)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (vectors / (values + 5e-4).sqrt()).T.flip(0)[: outputs // 2]
    filters = torch.cat([filters, -filters]).view(-1, inputs, kernel, kernel)
    with torch.no_grad():
        conv.weight[: len(filters)].copy_(filters)
