"""Kept features: what the heads of a frozen network are given, computed once, in memory or else on disk."""

import os
import random
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, SubsetRandomSampler

from anytime.batches import Batch
from anytime.errors import AnytimeError

GIGABYTE = 10**9
PROBED = 16
"""How many samples of a data set are fetched twice, to see whether they change at random."""


class Column:
    """Tensors one after another along their first dimension: in memory, or in a file once ``spill`` is called."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        self.path: Path | None = None
        self.file: BinaryIO | None = None
        self.shape, self.dtype, self.length = (), torch.float32, 0

    def append(self, rows: Tensor) -> None:
        """Add rows; all must be of one shape and type."""
        self.shape, self.dtype, self.length = tuple(rows.shape[1:]), rows.dtype, self.length + len(rows)
        if self.file is None:
            self.parts.append(rows)
        else:
            self._write(rows)

    def spill(self, path: Path) -> None:
        """Go on in a file."""
        self.path, self.file = path, open(path, "wb")  # noqa: SIM115, open until ``seal``
        for rows in self.parts:
            self._write(rows)
        self.parts = []

    def _write(self, rows: Tensor) -> None:
        assert self.file is not None
        rows.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tofile(self.file)

    def seal(self) -> Tensor:
        """All rows as one tensor; a file is mapped into memory and removed, so that nothing is left behind."""
        if self.file is None:
            whole, self.parts = torch.cat(self.parts), []
            return whole
        self.file.close()
        count = self.length * int(np.prod(self.shape))
        assert self.path is not None
        mapped = torch.from_file(str(self.path), shared=False, size=count, dtype=self.dtype)
        if os.name == "posix":
            self.path.unlink()
        return mapped.view(self.length, *self.shape)


@dataclass
class Group:
    """Samples whose features have the same shapes."""

    spec: Any
    constants: list[Any]
    """The leaves that are no tensors, at their places; None where there is a tensor."""
    columns: list[Column] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tensors[0])

    def rows(self, which: Tensor) -> Batch:
        """Some of the samples."""
        values = iter(self.tensors)
        leaves = [next(values).index_select(0, which) if leaf is None else leaf for leaf in self.constants]
        return Batch(*tree_unflatten(leaves, self.spec))


class FeatureStore:
    """The features and targets of all samples, grouped by their shapes.

    Args:
        gigabytes: how much is kept in memory; what is more goes to a temporary folder.
    """

    def __init__(self, gigabytes: float) -> None:
        self.limit, self.bytes = gigabytes * GIGABYTE, 0
        self.groups: dict[Any, Group] = {}
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def add(self, features: Any, targets: Any) -> None:
        """Add the samples of a batch."""
        leaves, spec = tree_flatten((features, targets))
        tensors = [leaf.cpu() for leaf in leaves if isinstance(leaf, Tensor)]
        if len({len(tensor) if tensor.ndim else -1 for tensor in tensors}) != 1:
            raise AnytimeError(
                "the features of a frozen network are kept sample by sample, and not every tensor of this batch has "
                "one row for each sample; pass features_gb=0 to fit, which computes them anew in every epoch"
            )
        constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        key = (str(spec), str(constants), *((tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors))
        if key not in self.groups:
            self.groups[key] = Group(spec, constants, [Column() for _ in tensors])
        self.bytes += sum(tensor.nbytes for tensor in tensors)
        if self.bytes > self.limit and self.folder is None:
            self.folder = tempfile.TemporaryDirectory(prefix="anytime-features-")
        with self._room():
            for number, group in enumerate(self.groups.values()):
                self._spill(group, number)
            for column, tensor in zip(self.groups[key].columns, tensors, strict=True):
                column.append(tensor)

    def _spill(self, group: Group, number: int) -> None:
        for i, column in enumerate(group.columns):
            if self.folder is not None and column.file is None:
                column.spill(Path(self.folder.name) / f"{number}-{i}")

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AnytimeError(
                f"the features of the frozen network do not fit into {tempfile.gettempdir()} ({error}): set TMPDIR to "
                "a folder with more room, or pass features_gb=0 to fit, which computes them anew in every epoch"
            ) from error

    def seal(self) -> list[Group]:
        """All groups, ready to be read."""
        with self._room():
            for group in self.groups.values():
                group.tensors = [column.seal() for column in group.columns]
                group.columns = []
        return list(self.groups.values())


def unchanging(loader: Any) -> Iterable[Any] | None:
    """The samples of a loader in a fixed order, if they are the same in every epoch; None otherwise.

    Those of a list of batches are. Of a ``DataLoader`` some samples are fetched twice, with other random numbers: data
    sets and collators that change them at random are found so.
    """
    if isinstance(loader, list | tuple):
        return loader
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    places = _places(loader)
    if not places:
        return None
    few = places[:: max(1, len(places) // PROBED)][:PROBED]
    if not same(*(_fetched(loader, few, seed) for seed in (1, 2))):
        return None
    options = {"num_workers": loader.num_workers, "collate_fn": loader.collate_fn, "pin_memory": loader.pin_memory}
    return DataLoader(loader.dataset, loader.batch_size, sampler=places, **options)  # type: ignore[arg-type]


def _places(loader: DataLoader[Any]) -> list[int]:
    """The indices of the samples that a loader gives in every epoch; empty where that cannot be known."""
    sampler = loader.sampler
    batches_of_its_own = loader.batch_size is None and loader.batch_sampler is not None
    if batches_of_its_own or not isinstance(sampler, SequentialSampler | RandomSampler | SubsetRandomSampler):
        return []
    if isinstance(sampler, SubsetRandomSampler):
        return sorted(sampler.indices)
    size = len(loader.dataset)  # type: ignore[arg-type]
    return list(range(size)) if len(sampler) == size and not getattr(sampler, "replacement", False) else []


def _fetched(loader: DataLoader[Any], places: Sequence[int], seed: int) -> Any:
    """Some samples as the loader would collate them, with random numbers of this seed."""
    with torch.random.fork_rng([]):
        python, numpy = random.getstate(), np.random.get_state()
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            samples = [loader.dataset[i] for i in places]
            return samples if loader.batch_size is None else loader.collate_fn(samples)
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def same(one: Any, other: Any) -> bool:
    """Whether two structures hold equal values."""
    ones, others = tree_leaves(one), tree_leaves(other)
    return len(ones) == len(others) and all(map(_equal, ones, others))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor | np.ndarray):
        return torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    return bool(one == other)
