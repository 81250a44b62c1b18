"""DenseANN: DenseNets with exits between their layers (App. C of the paper)."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anytime.errors import AnytimeError, check_number
from anytime.meta import keeps_input
from anytime.models.layers import ConvBNReLU, LinearHead, PatchConv, Stem, check_counts, initialize
from anytime.models.placement import join_stages, place_exits
from anytime.network import AnytimeNetwork

_ILSVRC = {
    "denseann121": {"blocks": (6, 12, 24, 16), "growth": 32, "channels": 64},
    "denseann161": {"blocks": (6, 12, 36, 24), "growth": 48, "channels": 96},
    "denseann169": {"blocks": (6, 12, 32, 32), "growth": 32, "channels": 64},
    "denseann201": {"blocks": (6, 12, 48, 32), "growth": 32, "channels": 64},
}

MODELS = {name: "Sec. 5.2, ILSVRC" if name == "denseann169" else "DenseNet, ILSVRC" for name in _ILSVRC} | {
    "denseann-100-12": "DenseNet-BC, small images",
    "denseann-190-40": "DenseNet-BC, small images",
}


def from_name(name: str) -> tuple[type[AnytimeNetwork], dict[str, Any]] | None:
    """What a name stands for: ``denseann169``, or ``denseann-{depth}-{growth}`` for small images.

    ``-patch2`` at its end is DenseANN's ``patch=2``.
    """
    if name in _ILSVRC:
        return DenseANN, _ILSVRC[name]
    if match := re.fullmatch(r"denseann-(\d{1,9})-(\d{1,9})(-patch(\d{1,9}))?", name):
        depth, growth, patch = int(match[1]), int(match[2]), int(match[4] or 1)
        if depth < 10 or (depth - 4) % 6:
            near = max(10, 4 + 6 * round((depth - 4) / 6))
            raise AnytimeError(
                f"{name}: a DenseNet-BC's depth is 4 + 6k (three blocks of k layers of two convolutions); "
                f"the nearest that works is denseann-{near}-{growth}{match[3] or ''}"
            )
        layers = (depth - 4) // 6
        options = {"blocks": (layers,) * 3, "growth": growth, "channels": 2 * growth, "small": True, "patch": patch}
        return DenseANN, options
    return None


class DenseLayer(nn.Module):
    """BN – ReLU – 1×1 convolution to 4k channels – BN – ReLU – 3×3 convolution to k, of all features before it.

    The state is the list of all features of the block, so that a concatenation lives only while it is used.
    """

    def __init__(self, inputs: int, growth: int, dropout: float, save_memory: bool) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)
        self.dropout, self.save_memory = dropout, save_memory

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """The features and one more."""
        if self.save_memory and torch.is_grad_enabled() and any(f.requires_grad for f in features):
            again = (nullcontext(), self._statistics_kept())
            narrow = checkpoint(self._narrow, *features, use_reentrant=False, context_fn=lambda: again)
        else:
            narrow = self._narrow(*features)
        new = self.conv2(F.relu(self.bn2(narrow), inplace=True))
        return [*features, F.dropout(new, self.dropout, self.training)]

    @contextmanager
    def _statistics_kept(self) -> Iterator[None]:
        """While the backward pass computes again, batch norm must not count the batch a second time."""
        momentum, self.bn1.momentum = self.bn1.momentum, 0.0
        counted = self.bn1.num_batches_tracked
        try:
            yield
        finally:
            self.bn1.momentum = momentum
            if counted is not None:
                counted -= 1

    def _narrow(self, *features: Tensor) -> Tensor:
        together = torch.cat(features, 1)
        narrow = self.conv1(F.relu(self.bn1(together), inplace=True))
        return F.dropout(narrow, self.dropout, self.training)


class Transition(nn.Module):
    """Between blocks: BN – ReLU – 1×1 convolution to half the channels – 2×2 average pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        """The next block's first features."""
        x = self.conv(F.relu(self.bn(torch.cat(features, 1)), inplace=True))
        return [F.avg_pool2d(x, 2)]


class DenseStem(Stem):
    """A stem that begins the list of features."""

    def forward(self, input: Tensor) -> list[Tensor]:  # type: ignore[override]
        """The first block's first features."""
        return [super().forward(input)]


class DenseHead(LinearHead):
    """The paper's predictor on all features of the block so far."""

    @keeps_input
    def forward(self, x: list[Tensor]) -> Tensor:  # type: ignore[override]
        """Logits."""
        return super().forward(torch.cat(x, 1))


class DenseANN(AnytimeNetwork):
    """A DenseNet with exits between its dense layers, which are its units; DenseANN169 is the paper's.

    Convolutions start with He's fan-out normal distribution, linear layers with torch's default.

    Args:
        blocks: dense layers in each block.
        growth: k, the channels that each layer adds.
        channels: number of channels after the stem.
        num_classes: number of classes.
        in_channels: number of image channels. Images may have any size from 32×32 (8×8 with ``small``); where it is
            odd, pooling drops a row.
        small: a 3×3 stem for small images instead of ILSVRC's 7×7 with stride and pooling.
        patch: with ``small``, the stem sees patches of patch × patch pixels, at about 1/patch² of the cost; images may
            then have any size from that many times 8×8.
        period: layers per exit, counted from the end. Default: the paper's 14, or 4 with ``small``.
        exits: the layers after which to exit, instead of a period.
        dropout: probability after each convolution of a layer; the paper found it harmful on ILSVRC.
        save_memory: do not keep concatenations for the backward pass but compute them again: much less memory for
            about a fifth more time.

    Examples:
        >>> DenseANN((6, 12, 32, 32)).exits
        6
    """

    def __init__(
        self,
        blocks: Sequence[int],
        growth: int = 32,
        channels: int = 64,
        num_classes: int = 1000,
        in_channels: int = 3,
        small: bool = False,
        patch: int = 1,
        period: int | None = None,
        exits: Sequence[int] | None = None,
        dropout: float = 0.0,
        save_memory: bool = False,
    ) -> None:
        check_counts(growth=growth, channels=channels, num_classes=num_classes, in_channels=in_channels, patch=patch)
        if patch > 1 and not small:
            raise AnytimeError(f"patch={patch} is for small images: leave it out, or say small=True")
        if not blocks or min(blocks) < 1:
            raise AnytimeError(f"blocks={tuple(blocks)} must be integers >= 1, one per block, e.g. (6, 12, 32, 32)")
        check_number("dropout", dropout, below=1)
        total = sum(blocks)
        if period is None and exits is None:
            period = min(4 if small else 14, total)
        after = place_exits(total, period, exits)
        if small:
            stem = DenseStem(PatchConv(in_channels, channels, patch), channels=in_channels, least=8 * patch)
        else:
            wide = ConvBNReLU(in_channels, channels, 7, stride=2)
            stem = DenseStem(wide, nn.MaxPool2d(3, 2, padding=1), channels=in_channels, least=32)
        units, widths, width = [], [], channels
        for block, count in enumerate(blocks):
            for i in range(count):
                before: list[nn.Module] = []
                if block and i == 0:
                    before = [Transition(width, width // 2)]
                    width //= 2
                layer = DenseLayer(width, growth, dropout, save_memory)
                units.append(nn.Sequential(*before, layer) if before else layer)
                width += growth
                widths.append(width)
        heads = [DenseHead(widths[unit - 1], num_classes) for unit in after]
        super().__init__(join_stages(units, after, stem), heads)
        initialize(self)
        self.blocks, self.image_size, self.in_channels = tuple(blocks), 32 if small else 224, in_channels

    def foreign_names(self) -> dict[str, str]:
        """Maps the names of modules in torchvision's and timm's DenseNets to those of this network."""
        of_type = {
            kind: [name for name, module in self.named_modules() if isinstance(module, kind)]
            for kind in (DenseLayer, Transition, DenseStem)
        }
        places = [(block + 1, i + 1) for block, count in enumerate(self.blocks) for i in range(count)]
        stem, last = of_type[DenseStem][0], f"heads.{self.exits - 1}"
        names = {"features.norm5": f"{last}.bn", "classifier": f"{last}.fc"}
        names |= {"features.conv0": f"{stem}.0.0", "features.norm0": f"{stem}.0.1"}
        for (block, i), unit in zip(places, of_type[DenseLayer], strict=True):
            for kind, ours in (("norm", "bn"), ("conv", "conv")):
                names |= {f"features.denseblock{block}.denselayer{i}.{kind}{j}": f"{unit}.{ours}{j}" for j in (1, 2)}
        for i, unit in enumerate(of_type[Transition], 1):
            names |= {f"features.transition{i}.norm": f"{unit}.bn", f"features.transition{i}.conv": f"{unit}.conv"}
        return names
