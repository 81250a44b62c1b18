"""The batches of each epoch: of a ``Data``, in an order that follows from the seed, or of any other loader."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from anytime import distributed
from anytime.batches import Batch, as_batch
from anytime.data.augmentation import mix
from anytime.data.dataset import Data
from anytime.data.images import Images, Take
from anytime.errors import AnytimeError
from anytime.network import Network
from anytime.training.recipe import Recipe


class BatchStep(NamedTuple):
    """What one update is made from."""

    parts: Sequence[Any]
    """This process's parts of the batch."""
    total: int
    """Number of samples in the batch, those of all processes together."""


class Epochs(Protocol):
    """Where the batches of a training come from."""

    steps: int | None
    """Steps per epoch; None if that is known only at its end."""
    samples: int | None
    """Samples per epoch; None if they are counted as they come."""
    expected: int | None
    """About how many samples an epoch has, for the progress bar."""
    unit: str
    """What a sample is called."""
    resumes: bool
    """Whether a run can go on within an epoch; otherwise an epoch can only be begun anew."""

    def from_step(self, epoch: int, position: int) -> Iterator["BatchStep"]:
        """The steps of an epoch from a position on."""
        ...

    def ready(self, part: Any) -> Batch:
        """A part as the network takes it, on its device."""
        ...

    def facts(self) -> dict[str, Any]:
        """What these batches are, for the run folder."""
        ...

    def capture(self) -> Any:
        """The state to go on from, besides epoch and position; None if there is none."""
        ...

    def restore(self, captured: Any) -> None:
        """Go on from what ``capture`` gave."""
        ...


class ImageEpochs(Epochs):
    """Epochs of a ``Data``: order and augmentation follow from seed, epoch and position; there is no state to keep."""

    unit = "images"
    resumes = True

    def __init__(self, data: Data, recipe: Recipe, seed: int, accumulate: int, device: torch.device) -> None:
        self.data, self.augmentation, self.seed, self.accumulate = data, recipe.augmentation, seed, accumulate
        self.device = device
        self.samples = self.expected = len(data.train)
        if not self.samples:
            raise AnytimeError(f"data {data.name!r} has no training images")
        self.steps = -(-self.samples // recipe.batch_size)
        processes = distributed.world_size()
        parts = processes * accumulate
        if self.samples // self.steps < parts:
            raise AnytimeError(
                f"a batch of {self.samples // self.steps} images cannot be split into {parts} parts "
                f"({processes} processes, accumulate {accumulate}): use a batch size of at least {parts}"
            )

    def from_step(self, epoch: int, position: int) -> Iterator[BatchStep]:
        """Images as they are stored, augmented."""
        takes = self.takes(epoch, position)
        images = self.data.train.batches((part for step in takes for part in step), self.augmentation)
        for step in takes:
            yield BatchStep([next(images) for _ in step], step[0].total)

    def takes(self, epoch: int, position: int) -> list[list[Take]]:
        """What is left of an epoch: for each step, this process's parts of its batch."""
        assert self.samples
        assert self.steps
        draw = torch.Generator().manual_seed(mix(self.seed, epoch, -1))
        order = torch.randperm(self.samples, generator=draw)
        result = []
        # Equal steps: no tiny batch at the end to upset batch norm.
        for step, batch in list(enumerate(order.tensor_split(self.steps)))[position:]:
            places = (
                torch.arange(len(batch))
                .tensor_split(distributed.world_size())[distributed.rank()]
                .tensor_split(self.accumulate)
            )
            seed = mix(self.seed, epoch, step)
            result.append([Take(batch[p], seed, int(p[0]), len(batch)) for p in places])
        return result

    def ready(self, part: Images) -> Batch:
        """Normalized: only now, since floats take four times the memory."""
        labels = part.labels.to(self.device, non_blocking=True)
        return Batch(self.data.normalize(part.pixels.to(self.device, non_blocking=True)), labels)

    def facts(self) -> dict[str, Any]:
        """Name, size and digest."""
        return {"name": self.data.name, "images": self.samples, "digest": self.data.digest()}

    def capture(self) -> None:
        """Nothing is needed."""

    def restore(self, captured: Any) -> None:
        """Nothing to do."""


class LoaderEpochs(Epochs):
    """Epochs of a loader: any iterable of batches that can be iterated once per epoch.

    Before each batch is fetched, torch's generator is seeded from seed, epoch and position. A ``DataLoader`` that
    shuffles, without a generator of its own, draws its order from there, so an epoch that is begun anew is the same.
    A loader with ``state_dict`` and ``load_state_dict`` (torchdata's ``StatefulDataLoader``) goes on within an epoch.
    """

    samples = None
    unit = "samples"

    def __init__(self, net: Network, loader: Any, seed: int, accumulate: int, device: torch.device) -> None:
        self.net, self.loader, self.seed, self.accumulate, self.device = net, loader, seed, accumulate, device
        self.steps = _length(loader)
        self.expected = _length(getattr(loader, "sampler", None)) or _length(getattr(loader, "dataset", None))
        self.resumes = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")

    def from_step(self, epoch: int, position: int) -> Iterator[BatchStep]:
        """The loader's batches; the first ``position`` of them are skipped by a loader that knows its state."""
        for owner in _owners(self.loader):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
        self._seed(epoch, position)
        batches = iter(self.loader)
        first = position
        while True:
            self._seed(epoch, position)
            try:
                item = next(batches)
            except StopIteration:
                break
            batch = as_batch(self.net, item)
            if not len(batch):
                continue
            # A scheme is called for each part, by several processes equally often.
            parts = min(self.accumulate, len(batch)) if distributed.world_size() == 1 else self.accumulate
            yield BatchStep(batch.parts(parts), len(batch) * distributed.world_size())
            position += 1
        if position == first == 0:
            again = "pass what can be iterated over many times, e.g. a list or a DataLoader"
            empty = "pass at least one; of a DataLoader, look at its data set, batch_size and drop_last"
            raise AnytimeError(f"there are no batches in epoch {epoch + 1}: {again if epoch else empty}")

    def _seed(self, epoch: int, position: int) -> None:
        torch.manual_seed(mix(self.seed, epoch, position, distributed.rank(), -1))

    def ready(self, part: Batch) -> Batch:
        """Moved to the device."""
        return part.to(self.device)

    def facts(self) -> dict[str, Any]:
        """What can be known of a loader."""
        return {"name": type(self.loader).__name__, "batches": self.steps}

    def capture(self) -> Any:
        """The loader's own state, if it has one."""
        return self.loader.state_dict() if self.resumes else None

    def restore(self, captured: Any) -> None:
        """Hand the loader its state; the next epoch's iteration then goes on from there."""
        if self.resumes:
            self.loader.load_state_dict(captured)


def _owners(loader: Any) -> list[Any]:
    """The loader and what it takes samples from: a ``DistributedSampler`` and streams want to know the epoch."""
    sampler, batch_sampler, dataset = (getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset"))
    return [loader, sampler, batch_sampler, getattr(batch_sampler, "sampler", None), dataset]


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except (TypeError, NotImplementedError, AttributeError):
        return None


def pack_state(state: Any, tensors: dict[str, Tensor]) -> Any:
    """A loader's state as JSON holds it; its tensors are put into ``tensors``."""
    if isinstance(state, Tensor):
        tensors[str(len(tensors))] = state
        return {"tensor": str(len(tensors) - 1)}
    if isinstance(state, dict) and all(isinstance(key, str) for key in state):
        return {"dict": {key: pack_state(value, tensors) for key, value in state.items()}}
    if isinstance(state, list | tuple):
        return [pack_state(value, tensors) for value in state]
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise AnytimeError(
        f"the loader's state contains a {type(state).__name__}, which a checkpoint cannot hold; it may contain "
        "numbers, strings, tensors, lists and dicts"
    )


def unpack_state(packed: Any, tensors: dict[str, Tensor]) -> Any:
    """What ``pack_state`` packed."""
    if isinstance(packed, list):
        return [unpack_state(value, tensors) for value in packed]
    if isinstance(packed, dict):
        if "tensor" in packed:
            return tensors[packed["tensor"]]
        return {key: unpack_state(value, tensors) for key, value in packed["dict"].items()}
    return packed
