"""Lightning: a LightningModule that trains all exits."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from anytime.errors import AnytimeError, require
from anytime.integrations.mean_objective import MeanObjective, accuracy
from anytime.network import Network
from anytime.weights import WeightScheme

_lightning: Any = require("lightning", "lightning")


class AnytimeModule(_lightning.LightningModule):
    """An anytime network with its weight scheme, for ``lightning.Trainer``.

    Batches are ``(x, labels)``, or dicts with a key ``labels`` whose other entries are the network's input. Logged per
    epoch are ``train_loss``, ``val_loss`` and ``test_loss`` (the objective) and, for each exit, ``…_loss_exit_I`` and
    ``…_accuracy_exit_I``; exit 1 is the shallowest. The scheme is a submodule, so checkpoints hold its state,
    validation does not change it, and a resumed run equals an uninterrupted one.

    Args:
        net: The network. It is trained in place.
        scheme: A weight scheme's name (see ``create_scheme``) or a :class:`WeightScheme`.
        optimizer: From parameter groups to an optimizer, or to whatever else ``configure_optimizers`` may return.
            Default: ``torch.optim.AdamW`` with its defaults. The scheme's own parameters, if any, get no weight decay.
        loss: From the logits of one exit and the labels to a mean loss. Default: cross-entropy.

    Examples:
        >>> import anytime
        >>> net = anytime.AnytimeNetwork([torch.nn.Linear(8, 8)], [torch.nn.Linear(8, 3)])
        >>> model = AnytimeModule(net, "adaloss", lambda groups: torch.optim.SGD(groups, lr=0.1))
    """

    def __init__(
        self,
        net: Network,
        scheme: str | WeightScheme = "adaloss",
        optimizer: Callable[[Iterable[dict[str, Any]]], Any] = torch.optim.AdamW,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.objective, self._optimizer = MeanObjective(net, scheme, loss), optimizer

    @property
    def net(self) -> Network:
        """The network."""
        return self.objective.net

    @property
    def scheme(self) -> WeightScheme:
        """The weight scheme."""
        return self.objective.scheme

    def configure_optimizers(self) -> Any:
        """Build the optimizer of the network's and the scheme's parameters."""
        groups: list[dict[str, Any]] = [{"params": [p for p in self.net.parameters() if p.requires_grad]}]
        if learned := list(self.scheme.parameters()):
            groups.append({"params": learned, "weight_decay": 0.0})
        return self._optimizer(groups)

    def forward(self, x: Any) -> list[Tensor]:
        """Return the logits of every exit."""
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:  # noqa: ARG002
        """Return the objective."""
        return self._step(batch, "train")

    def validation_step(self, batch: Any, index: int) -> None:  # noqa: ARG002
        """Log the metrics of every exit."""
        self._step(batch, "val")

    def test_step(self, batch: Any, index: int) -> None:  # noqa: ARG002
        """Log the metrics of every exit."""
        self._step(batch, "test")

    def predict_step(self, batch: Any, index: int) -> list[Tensor]:  # noqa: ARG002
        """Return the logits of every exit."""
        return self.net(_split(batch)[0])

    def _step(self, batch: Any, phase: str) -> Tensor:
        x, labels = _split(batch)
        if labels is None:
            raise AnytimeError("expected batches of (x, labels), or dicts with a key 'labels'")
        outcome = self.objective(x, labels)
        metrics = {f"{phase}_loss": outcome.objective.detach()}
        for exit, logits in zip(self.objective.exits, outcome.logits, strict=True):
            metrics[f"{phase}_loss_exit_{exit + 1}"] = outcome.losses[exit]
            if labels.shape == logits.shape[:-1] and not labels.is_floating_point():  # classes
                metrics[f"{phase}_accuracy_exit_{exit + 1}"] = accuracy(logits, labels)
        self.log_dict(metrics, on_step=False, on_epoch=True, sync_dist=True, batch_size=len(labels))
        return outcome.objective


def _split(batch: Any) -> tuple[Any, Tensor | None]:
    """The network's input and the labels, if there are some."""
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name != "labels"}, batch.get("labels")
    if isinstance(batch, tuple | list) and len(batch) in (1, 2):
        return batch[0], batch[1] if len(batch) == 2 else None
    return batch, None
