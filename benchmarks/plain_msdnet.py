"""The original MSDNet for CIFAR-10 as the public PyTorch implementations compute it: a rival for benchmarks.

10 blocks of 4, 2, 2, … layers on three scales, with the authors' default settings. Every layer is convolution, batch
norm, ReLU, and a concatenation; channels come first in memory. ``create_model("msdnet-cifar")`` has as many parameters
and operations.
"""

import math

import torch
from torch import Tensor, nn

SCALES, FACTORS, GROWTH, CHANNELS, REDUCTION = 3, (1, 2, 4), 6, 16, 0.5
LAYERS = [4] + [2] * 9


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def edge(inputs: int, outputs: int, factor: int, stride: int = 1) -> nn.Sequential:
    """1×1, then 3×3."""
    inner = min(inputs, factor * outputs)
    return nn.Sequential(conv(inputs, inner, 1), conv(inner, outputs, 3, stride))


class Stem(nn.ModuleList):
    def __init__(self) -> None:
        widths = [3, *(CHANNELS * factor for factor in FACTORS)]
        super().__init__(conv(widths[i], widths[i + 1], stride=2 if i else 1) for i in range(SCALES))

    def forward(self, x: Tensor) -> list[Tensor]:
        scales = []
        for layer in self:
            x = layer(x)
            scales.append(x)
        return scales


class Layer(nn.Module):
    """Adds channels to each scale, half of them from the finer one where there is one."""

    def __init__(self, channels: int, read: int, write: int) -> None:
        super().__init__()
        self.dropped = read - write
        self.same, self.down = nn.ModuleList(), nn.ModuleList()
        for scale in range(SCALES - write, SCALES):
            outputs, finer = GROWTH * FACTORS[scale], scale > SCALES - read
            if finer:
                outputs //= 2
                self.down.append(edge(channels * FACTORS[scale - 1], outputs, FACTORS[scale - 1], 2))
            self.same.append(edge(channels * FACTORS[scale], outputs, FACTORS[scale]))

    def forward(self, scales: list[Tensor]) -> list[Tensor]:
        made = []
        for i, same in enumerate(self.same):
            x, finer = scales[i + self.dropped], i + self.dropped - 1
            parts = [x, self.down[i - 1 + self.dropped](scales[finer]), same(x)] if finer >= 0 else [x, same(x)]
            made.append(torch.cat(parts, 1))
        return made


class Transition(nn.ModuleList):
    """Halves the channels of each scale."""

    def forward(self, scales: list[Tensor]) -> list[Tensor]:
        return [layer(x) for layer, x in zip(self, scales, strict=True)]


class Classifier(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(conv(inputs, 128, stride=2), conv(128, 128, stride=2), nn.AvgPool2d(2))
        self.linear = nn.Linear(128, 10)

    def forward(self, scales: list[Tensor]) -> Tensor:
        return self.linear(self.convs(scales[-1]).flatten(1))


class PlainMSDNet(nn.Module):
    """All exits in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.classifiers = nn.ModuleList(), nn.ModuleList()
        channels, number, every = CHANNELS, 0, math.ceil(sum(LAYERS) / SCALES)
        for count in LAYERS:
            layers: list[nn.Module] = [] if number else [Stem()]
            for _ in range(count):
                number += 1
                read, write = SCALES - max(0, number - 2) // every, SCALES - (number - 1) // every
                layers.append(Layer(channels, read, write))
                channels += GROWTH
                if read > write:
                    less = math.floor(REDUCTION * channels)
                    layers.append(Transition(conv(channels * f, less * f, 1) for f in FACTORS[-write:]))
                    channels = less
            self.blocks.append(nn.Sequential(*layers))
            self.classifiers.append(Classifier(channels * FACTORS[-1]))

    def forward(self, x: Tensor) -> list[Tensor]:
        logits = []
        for block, classifier in zip(self.blocks, self.classifiers, strict=True):
            x = block(x)
            logits.append(classifier(x))
        return logits
