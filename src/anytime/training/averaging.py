"""The exponential moving average of the weights during a training."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from anytime.network import Network


class WeightAverage:
    """Averages of all parameters and floating-point buffers of a network, updated after every step.

    The decay rises to its value, (1 + t) / (10 + t) at step t, so that the first weights are soon forgotten.

    Args:
        net: the network.
        decay: how much of the average each step keeps; 0: no average is kept.
    """

    def __init__(self, net: Network, decay: float) -> None:
        self.net, self.decay = net, decay
        self.averages = {name: tensor.clone() for name, tensor in self._present().items()} if decay else {}
        self.count = torch.zeros((), dtype=torch.int64)

    def _present(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.net.state_dict().items() if tensor.is_floating_point()}

    @torch.no_grad()
    def update(self, bad: Tensor) -> None:
        """Count a step; ``bad`` says on the device that it was not taken."""
        if not self.decay:
            return
        self.count += 1
        decay = min(self.decay, (1 + int(self.count)) / (10 + int(self.count)))
        for name, tensor in self._present().items():
            average = self.averages[name]
            average.copy_(torch.where(bad, average, tensor.lerp(average, decay)))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the network has the averages as its weights."""
        before = {name: tensor.clone() for name, tensor in self._present().items()} if self.decay else {}
        self.apply()
        try:
            yield
        finally:
            self._put(before)

    def apply(self) -> None:
        """Give the network the averages as its weights."""
        self._put(self.averages)

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        present = self._present()
        for name, value in values.items():
            present[name].copy_(value)

    def capture(self) -> dict[str, Tensor]:
        """The averages, for a checkpoint."""
        return {**self.averages, "steps": self.count} if self.decay else {}

    def restore(self, captured: dict[str, Tensor]) -> None:
        """What ``capture`` gave."""
        for name, value in self.capture().items():
            value.copy_(captured[name])
