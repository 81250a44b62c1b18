"""Batches as training and evaluation take them: inputs and targets, whatever loader they come from."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, IterableDataset

from anytime.errors import AnytimeError
from anytime.inputs import as_tensor, like_weights
from anytime.network import Network, tensors_of, weights_device

TARGETS = ("labels", "label", "targets", "target")
"""What the targets may be called in a batch that is a dict."""


@dataclass(frozen=True)
class Batch:
    """Inputs of a network and what is right for them: tensors, or dicts, tuples and lists of them."""

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        """The number of samples."""
        tensors = tensors_of(self.inputs) or tensors_of(self.targets)
        return len(tensors[0]) if tensors and tensors[0].ndim else 0

    def to(self, device: torch.device) -> "Batch":
        """The same on a device; tensors that are there already are not copied."""
        return Batch(_moved(self.inputs, device), _moved(self.targets, device))

    def parts(self, count: int) -> "list[Batch]":
        """The samples shared out over so many batches of about the same size."""
        if count == 1:
            return [self]
        samples = len(self)
        leaves = tree_leaves((self.inputs, self.targets))
        if samples < count or not all(
            isinstance(leaf, Tensor) and leaf.ndim and len(leaf) == samples for leaf in leaves
        ):
            raise AnytimeError(
                f"a batch of {samples} samples cannot be split into {count} parts: every tensor of it must have one "
                f"row for each sample, and there must be at least {count}"
            )
        rows = torch.arange(samples).tensor_split(count)
        return [
            Batch(*tree_map(lambda leaf, part=part: leaf[part[0] : part[-1] + 1], (self.inputs, self.targets)))
            for part in rows
        ]


def _moved(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(device, non_blocking=True)
    return tree_map(lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf, tree)


def batches_of(net: Network, items: Any) -> Iterator[Batch]:
    """What a loader yields, as batches on the network's device.

    Args:
        net: the network.
        items: an iterable of pairs (inputs, targets), or of dicts with the targets under ``labels`` or the like and the
            inputs under their own names, as Hugging Face's collators make them.
    """
    check_batches("this", items)
    device = weights_device(net)
    for item in items:
        yield as_batch(net, item).to(device)


def check_batches(caller: str, items: Any) -> None:
    """Refuse what is not an iterable of batches, and say what is."""
    if hasattr(items, "batches") and not isinstance(items, Iterable):  # a data set, or a split of one
        raise AnytimeError(
            f"{caller} expects batches, not a {type(items).__name__}: pass data.batches(data.validation)"
        )
    if isinstance(items, Dataset) and not isinstance(items, IterableDataset):
        raise AnytimeError(
            f"{caller} expects batches, and a {type(items).__name__} has single samples: pass "
            "torch.utils.data.DataLoader(dataset, batch_size=32), or with batch_size=None if its items are batches"
        )
    single = isinstance(items, Tensor | str | bytes | Mapping)
    if single or (not isinstance(items, Iterable) and not hasattr(items, "__getitem__")):
        raise AnytimeError(
            f"{caller} expects batches, not a {type(items).__name__}: a DataLoader, any other iterable of (inputs, "
            "targets), or an anytime.Data (anytime.load_data makes one); of a single batch make a list: "
            "[(inputs, targets)]"
        )


def runs_out(items: Any) -> bool:
    """Whether this can be iterated over only once, as a generator; iterators with a length are loaders that reset."""
    return isinstance(items, Iterator) and not hasattr(items, "__len__")


def as_batch(net: Network, item: Any) -> Batch:
    """One item of a loader as a batch for this network, its inputs in the precision of the weights."""
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping):
        return _of_columns(net, dict(item))
    if isinstance(item, tuple | list) and len(item) == 2:
        return Batch(like_weights(net, _plain(item[0])), _plain(item[1]))
    shown = f"a {type(item).__name__}" + (f" of {len(item)}" if isinstance(item, tuple | list) else "")
    raise AnytimeError(
        f"expected batches of (inputs, targets), or dicts with a key 'labels', and got {shown}; of a single batch make "
        "a list: [(inputs, targets)]"
    )


def _plain(part: Any) -> Any:
    """Hugging Face's containers as plain dicts, which torch's trees know; NumPy's arrays as tensors."""
    if isinstance(part, Tensor):
        return part
    part = dict(part) if isinstance(part, Mapping) and not isinstance(part, dict) else part
    return tree_map(lambda leaf: as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf, part)


def _of_columns(net: Network, columns: dict[str, Any]) -> Batch:
    name = next((name for name in TARGETS if name in columns), None)
    if name is None:
        raise AnytimeError(
            f"the batch has the columns {', '.join(map(str, columns))}; expected the targets under one of "
            f"{', '.join(TARGETS)}, or a pair (inputs, targets)"
        )
    targets = _plain(columns.pop(name))
    # A network that was converted with a dict takes one; any other takes the tensor, if there is one column.
    takes_dict = isinstance(net.input_form, dict)
    inputs = next(iter(columns.values())) if len(columns) == 1 and not takes_dict else columns
    return Batch(like_weights(net, _plain(inputs)), targets)


class Peeked:
    """Batches of a loader that remember the inputs of the first one that has samples in it, once it was seen.

    Args:
        net: the network.
        items: see ``batches_of``.
        check: is called with these inputs before anything is done with them.
    """

    def __init__(self, net: Network, items: Any, check: Callable[[Any], object] | None = None) -> None:
        self.net, self.items, self.inputs, self.check = net, items, None, check

    def __iter__(self) -> Iterator[Batch]:
        for batch in batches_of(self.net, self.items):
            if self.inputs is None and len(batch):
                self.inputs = batch.inputs
                if self.check is not None:
                    self.check(self.inputs)
            yield batch

    @property
    def first(self) -> Any:
        """The inputs of the first batch; call it after iterating."""
        if self.inputs is None:
            raise AnytimeError("there are no samples: expected at least one batch of (inputs, targets)")
        return self.inputs


def one_sample(inputs: Any) -> Any:
    """The first sample of a batch of inputs."""
    return samples(inputs, 1)


def samples(inputs: Any, count: int) -> Any:
    """The first ``count`` samples of a batch of inputs."""
    return tree_map(lambda leaf: leaf[:count] if isinstance(leaf, Tensor) and leaf.ndim else leaf, inputs)
