"""The heads' modules: from features at an exit to an output shaped as the model's own."""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anytime.meta import keeps_input

_CELLS = ((4,), (2, 2), (2, 2, 2))


class PooledHead(nn.Module):
    """A head in two parts: ``pool`` has no parameters, ``classify`` has them all.

    What ``pool`` returns is small, so a training of frozen networks computes it once and keeps it.

    Args:
        pool: from the features, and the padding mask if it takes one, to one tensor per sample.
        classify: from these tensors to logits.
    """

    def __init__(self, pool: nn.Module, classify: nn.Module) -> None:
        super().__init__()
        self.pool, self.classify = pool, classify

    @keeps_input
    def forward(self, *features: Any) -> Tensor:
        """Logits."""
        return self.classify(self.pool(*features))


class Moments(nn.Module):
    """Mean and standard deviation of each channel in each cell of a grid: samples × 2 channels × cells.

    Args:
        cells: of the grid, along each dimension of the map.
        channel_dim: the dimension of the features that holds the channels.
    """

    def __init__(self, cells: tuple[int, ...], channel_dim: int = 1) -> None:
        super().__init__()
        self.cells, self.channel_dim = cells, channel_dim

    @keeps_input
    def forward(self, x: Tensor) -> Tensor:
        """The moments."""
        x = x.movedim(self.channel_dim, 1)
        center = x.mean(tuple(range(2, x.ndim)), keepdim=True)  # numerically stable also for values far from 0
        x = x - center
        mean = _averages(x, self.cells)
        variance = _averages(x.square(), self.cells) - mean.square()
        return torch.cat([(mean + center).flatten(2), (F.relu(variance) + 1e-5).sqrt().flatten(2)], 1)


def _averages(x: Tensor, cells: tuple[int, ...]) -> Tensor:
    """The mean of each cell, as adaptive pooling has it; by slices, which every backend has for maps of any size."""
    for dim, count in reversed(list(enumerate(cells, start=2))):
        size = x.shape[dim]
        bounds = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        x = torch.cat([x.narrow(dim, start, end - start).mean(dim, keepdim=True) for start, end in bounds], dim)
    return x


class TokenPool(nn.Module):
    """The class token, or the mean over the tokens that are not padding."""

    def __init__(self, class_token: bool = False) -> None:
        super().__init__()
        self.class_token = class_token

    @keeps_input
    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """One vector per sample."""
        if self.class_token:
            return tokens[:, 0]
        if mask is None:
            return tokens.mean(1)
        weight = mask.to(tokens.dtype)[..., None]
        return (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)


class TokenHead(PooledHead):
    """Class token, or mean over the tokens that are not padding – layer norm – linear, or two linear layers."""

    def __init__(self, features: int, outputs: int, class_token: bool = False, hidden: int = 0) -> None:
        last = _hidden(features, hidden, outputs) if hidden else [nn.Linear(features, outputs)]
        super().__init__(TokenPool(class_token), nn.Sequential(nn.LayerNorm(features), *last))


class VectorHead(nn.Sequential):
    """Layer norm – linear, or two linear layers: of a vector, or of each token."""

    def __init__(self, features: int, outputs: int, hidden: int = 0) -> None:
        last = _hidden(features, hidden, outputs) if hidden else [nn.Linear(features, outputs)]
        super().__init__(nn.LayerNorm(features), *last)


class MapHead(nn.Module):
    """The paper's predictor, BN – ReLU – pool – linear, for maps of 1 or 3 dimensions or with channels last."""

    def __init__(self, channels: int, outputs: int, dims: int, channel_dim: int) -> None:
        super().__init__()
        self.bn = _NORMS[dims - 1](channels)
        self.fc, self.channel_dim = nn.Linear(channels, outputs), channel_dim

    @keeps_input
    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(F.relu(self.bn(x.movedim(self.channel_dim, 1))).flatten(2).mean(2))


class MomentsHead(PooledHead):
    """Mean and deviation of each channel in a grid of cells – BN – linear – layer norm – ReLU – linear.

    The paper's predictor tells the classes apart by the mean of each channel, of which early exits have few. The
    moments are eight numbers per channel, the hidden layer makes features of the exit's own. It costs next to nothing.

    Args:
        channels: of the features.
        outputs: number of outputs.
        dims: of the map.
        channel_dim: the dimension of the features that holds the channels.
        hidden: features of its own.
    """

    def __init__(self, channels: int, outputs: int, dims: int = 2, channel_dim: int = 1, hidden: int = 256) -> None:
        cells = _CELLS[dims - 1]
        size = 2 * channels * prod(cells)
        norm = nn.BatchNorm1d(2 * channels)
        classify = nn.Sequential(norm, nn.Flatten(), nn.Dropout(0.2), *_hidden(size, hidden, outputs))
        super().__init__(Moments(cells, channel_dim), classify)


def _hidden(size: int, hidden: int, outputs: int) -> list[nn.Module]:
    norm = nn.LayerNorm(hidden)  # of each sample by itself: a batch may be one sample
    return [nn.Linear(size, hidden), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, outputs)]


class PixelHead(nn.Module):
    """BN – ReLU – 1×1 convolution – interpolation to the size of the model's output: logits for each pixel.

    Args:
        channels: of the features.
        outputs: of each pixel.
        size: of the output.
        channel_dim: the dimension of the features that holds the channels.
        image: size of the images of which the output has that size; the output follows it.
    """

    follows_image = True

    def __init__(
        self, channels: int, outputs: int, size: tuple[int, ...], channel_dim: int = 1, image: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.bn = _NORMS[len(size) - 1](channels)
        self.conv = _CONVOLUTIONS[len(size) - 1](channels, outputs, 1)
        self.size, self.channel_dim, self.image = size, channel_dim, image

    @keeps_input
    def forward(self, x: Tensor, image: tuple[int, ...] = ()) -> Tensor:
        """Logits, for an image of this size."""
        logits = self.conv(F.relu(self.bn(x.movedim(self.channel_dim, 1))))
        return _resize(logits, _follow(self.size, self.image, image))


class GridHead(nn.Module):
    """Layer norm – linear for each token, laid out as an image – interpolation: logits for each pixel."""

    follows_image = True

    def __init__(
        self, features: int, outputs: int, grid: tuple[int, int], size: tuple[int, ...], image: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.fc = VectorHead(features, outputs)
        self.grid, self.size, self.image = grid, size, image

    @keeps_input
    def forward(self, tokens: Tensor, image: tuple[int, ...] = ()) -> Tensor:
        """Logits, for an image of this size."""
        grid = _follow(self.grid, self.image, image)
        logits = self.fc(tokens[:, -prod(grid) :])
        return _resize(logits.movedim(2, 1).unflatten(2, grid), _follow(self.size, self.image, image))


def _follow(size: tuple[int, ...], image: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Scale a size in proportion to the image, rounded up."""
    if other == image or len(other) != len(image) or len(image) != len(size):
        return size
    return tuple(-(-n * now // then) for n, then, now in zip(size, image, other, strict=True))


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _resize(x: Tensor, size: tuple[int, ...]) -> Tensor:
    mode = ("linear", "bilinear", "trilinear")[len(size) - 1]
    return x if x.shape[2:] == size else F.interpolate(x, size, mode=mode, align_corners=False)
