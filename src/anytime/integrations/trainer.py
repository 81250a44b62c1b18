"""Hugging Face's Trainer (and Accelerate): a model that returns the objective of all exits as its loss."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from anytime.errors import AnytimeError
from anytime.integrations.mean_objective import MeanObjective, accuracy, count_labels, cross_entropy
from anytime.network import Network
from anytime.weights import WeightScheme


class TrainerModel(nn.Module):
    """An anytime network as ``transformers.Trainer`` expects a model: it takes a batch's columns and returns its loss.

    The scheme is a submodule, so the Trainer's checkpoints hold its state, ``trainer.evaluate()`` does not change it,
    and a resumed run equals an uninterrupted one. With gradient accumulation the update is that of one large batch; an
    adaptive scheme observes each part of it. Set ``remove_unused_columns=False`` in the ``TrainingArguments``, and pass
    ``compute_metrics=exit_metrics`` for the accuracy and loss of each exit.

    Args:
        net: The network. It is trained in place.
        scheme: A weight scheme's name (see ``create_scheme``) or a :class:`WeightScheme`.
        input: The column that holds the network's input, if it takes a tensor (``"pixel_values"``). Default: the
            network takes all columns but the labels, as a dict.
        loss: From the logits of one exit and the labels to a mean loss. Default: cross-entropy.

    Examples:
        >>> import anytime
        >>> net = anytime.AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 3), nn.Linear(8, 3)])
        >>> model = TrainerModel(net, "adaloss", input="x")
        >>> output = model(x=torch.zeros(5, 8), labels=torch.zeros(5, dtype=torch.long))
        >>> output["loss"].ndim, output["logits"].shape  # samples, exits, classes
        (0, torch.Size([5, 2, 3]))
    """

    accepts_loss_kwargs = True
    """Tells the Trainer that ``num_items_in_batch`` is handled here, so that it does not scale the loss again."""

    def __init__(
        self,
        net: Network,
        scheme: str | WeightScheme = "adaloss",
        *,
        input: str | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.objective, self.input = MeanObjective(net, scheme, loss), input
        # The Trainer writes safetensors, which refuse a tensor under two names: a shared one is saved under its first.
        self.register_state_dict_post_hook(_drop_aliases)
        self.register_load_state_dict_post_hook(_accept_without_aliases)

    @property
    def net(self) -> Network:
        """The network."""
        return self.objective.net

    @property
    def scheme(self) -> WeightScheme:
        """The weight scheme."""
        return self.objective.scheme

    def forward(
        self, labels: Tensor | None = None, num_items_in_batch: Tensor | int | None = None, **columns: Any
    ) -> dict[str, Tensor]:
        """Return ``logits`` of shape ``[samples, …, exits, classes]`` and, given labels, ``loss``.

        Args:
            labels: One per sample, or one per token.
            num_items_in_batch: How many labels the whole batch has of which this is a part; the loss is then this
                part's share of the batch's mean.
            columns: The network's input.
        """
        x = self._input(columns)
        if labels is None:
            return {"logits": _stack(self.net(x))}
        outcome = self.objective(x, labels)
        share = 1 if num_items_in_batch is None else count_labels(labels) / num_items_in_batch
        return {"loss": outcome.objective * share, "logits": _stack(outcome.logits)}

    def _input(self, columns: dict[str, Any]) -> Any:
        if not columns or (self.input is not None and self.input not in columns):
            raise AnytimeError(
                f"the batch has the columns {sorted(columns)} beside its labels, and the network takes "
                f"{self.input or 'at least one'}; set remove_unused_columns=False in the TrainingArguments"
            )
        return columns if self.input is None else columns[self.input]


def _stack(logits: list[Tensor]) -> Tensor:
    """The exits in front of the classes, which are the last dimension; of maps the second."""
    return torch.stack(logits, 1 if logits[0].ndim > 3 else -2)  # the Trainer pads tokens along dimension 1


def _aliases(module: nn.Module) -> set[str]:
    """The names of parameters and buffers that are known under an earlier name too."""
    first: dict[int, str] = {}
    named = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name for name, tensor in named if first.setdefault(id(tensor), name) != name}


def _drop_aliases(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in _aliases(module):
        state.pop(prefix + name, None)


def _accept_without_aliases(module: nn.Module, keys: Any) -> None:
    keys.missing_keys[:] = [name for name in keys.missing_keys if name not in _aliases(module)]


def exit_metrics(prediction: Any) -> dict[str, float]:
    """Accuracy and cross-entropy of each exit, for ``Trainer(compute_metrics=exit_metrics)``.

    Args:
        prediction: ``EvalPrediction`` of a :class:`TrainerModel`: logits ``[samples, …, exits, classes]`` and labels.

    Returns:
        ``accuracy_exit_1`` and ``loss_exit_1`` to ``accuracy_exit_L`` and ``loss_exit_L``; exit 1 is the shallowest.
    """
    logits, labels = torch.as_tensor(prediction.predictions), torch.as_tensor(prediction.label_ids)
    metrics = {}
    for number, each in enumerate(logits.unbind(-2), 1):
        metrics[f"accuracy_exit_{number}"] = accuracy(each, labels).item()
        metrics[f"loss_exit_{number}"] = cross_entropy(each.float(), labels).item()
    return metrics
