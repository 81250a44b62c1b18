"""Batch norm whose running statistics would lag behind the weights gets a larger momentum for the training.

**Given** batch norm with momentum m, which after every step replaces the share m of its running statistics by those of
the batch, so that they are an average over about the last 1/m steps; and a training of n steps.

**Wanted** running statistics of the weights at the end of the training, since these are what predictions use. Models
ported from TensorFlow have m = 0.01 or less: after 100 steps a third of their statistics are those of the weights from
before the training. Training errors fall all the same, for they use the statistics of each batch.

**Method**: where m is below torch's default of 0.1 and 1/m is more than a tenth of the n steps, m is 0.1 for the length
of the training.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

DEFAULT = 0.1
"""Torch's momentum."""
LENGTHS = 10
"""A training must be this many times as long as the average over which a layer's statistics are taken."""


@contextmanager
def keeping_up(net: nn.Module, steps: int | None, warn: bool = True) -> Iterator[None]:
    """A context in which the running statistics of a network in training mode keep up with its weights.

    Args:
        net: the network; its layers have the momentum that they had afterwards.
        steps: how many steps the training has; None if not known.
        warn: whether to say so.
    """
    slow = {layer: layer.momentum for layer in net.modules() if isinstance(layer, _BatchNorm) and _lags(layer, steps)}
    if slow and warn:
        found = ", ".join(sorted({"None" if m is None else f"{m:g}" for m in slow.values()}))
        length = "not known in advance" if steps is None else f"{steps:,}"
        warnings.warn(
            f"{len(slow)} layers of batch norm have momentum {found}: their running statistics would lag behind the "
            f"weights in a training of this many steps ({length}), so it is {DEFAULT} during the training. To train "
            "with another, set it before: layer.momentum = 0.2"
        )
    try:
        for layer in slow:
            layer.momentum = DEFAULT
        yield
    finally:
        for layer, momentum in slow.items():
            layer.momentum = momentum


def _lags(layer: _BatchNorm, steps: int | None) -> bool:
    if layer.running_mean is None or not layer.training:  # no statistics, or those of a frozen part
        return False
    if layer.momentum is None:  # the mean over all steps
        return True
    return layer.momentum < DEFAULT and (steps is None or steps * layer.momentum < LENGTHS)
