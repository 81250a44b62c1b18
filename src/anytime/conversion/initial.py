"""Layers that still have their initial weights."""

from math import sqrt

import torch
from torch import Tensor, nn

LEAST = 64
"""Smaller layers are not judged: their few weights may look random by chance."""


def untrained_layers(model: nn.Module) -> list[str]:
    """The names of frozen layers with torch's initial weights: uniform within a bound, or batch norm without a batch.

    Examples:
        >>> untrained_layers(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm2d(8)).requires_grad_(False))
        ['0', '1']
    """
    return [name for name, module in model.named_modules() if _frozen(module) and _initial(module)]


def _frozen(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def _initial(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        # A layer trained without counting its batches has other statistics or weights.
        fresh = [(module.running_mean, 0.0), (module.running_var, 1.0), (module.weight, 1.0), (module.bias, 0.0)]
        return module.track_running_stats and all(tensor is None or bool((tensor == to).all()) for tensor, to in fresh)
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return _uniform(module.weight, 1 / sqrt(module.weight[0].numel()))
    return False


@torch.no_grad()
def _uniform(weight: Tensor, bound: float) -> bool:
    """Whether the weights fill the interval from −bound to bound evenly, as torch starts linear layers."""
    if weight.numel() < LEAST or weight.is_meta or not weight.is_floating_point():
        return False
    largest, deviation = weight.abs().max().item(), weight.float().std().item()
    return 0.9 * bound < largest <= 1.01 * bound and abs(deviation * sqrt(3) / bound - 1) < 0.15
