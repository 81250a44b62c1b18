"""Epochs of kept features: the heads of a frozen network are trained on features that are computed once."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anytime import distributed
from anytime.batches import Batch, as_batch
from anytime.data.augmentation import mix
from anytime.data.dataset import Data
from anytime.data.images import Images, Take
from anytime.errors import AnytimeError
from anytime.inputs import explained
from anytime.network import Network, eval_mode
from anytime.progress import counted
from anytime.training.epochs import BatchStep, Epochs
from anytime.training.features import FeatureStore, Group, unchanging
from anytime.training.recipe import Recipe

AT_ONCE = 50
"""How many images of a ``Data`` go through the frozen model together."""


@dataclass(frozen=True)
class GroupRows:
    """Some samples of a group."""

    group: Group
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)


class KeptEpochs(Epochs):
    """Epochs of features: order follows from seed, epoch and position; the features are computed anew on resuming.

    An epoch goes through all samples as often as the recipe's ``least_steps`` asks for.

    Args:
        net: the network, whose heads alone are trained.
        batches: gives all samples, the same in every epoch, in a fixed order.
        source: the epochs that these stand for.
        gigabytes: how much of the features is kept in memory; the rest is on disk.
    """

    resumes = True

    def __init__(
        self,
        net: Network,
        batches: Callable[[], Iterable[Batch]],
        source: Epochs,
        recipe: Recipe,
        seed: int,
        accumulate: int,
        device: torch.device,
        gigabytes: float,
    ) -> None:
        self.net, self.batches, self.source, self.recipe = net, batches, source, recipe
        self.seed, self.accumulate, self.device, self.gigabytes = seed, accumulate, device, gigabytes
        self.unit, self.groups, self.passes = source.unit, list[Group](), 1
        self.steps = self.samples = self.expected = None

    def prepare(self, show: bool) -> None:
        """Compute the features."""
        features = FeatureStore(self.gigabytes)
        with eval_mode(self.net):
            for batch in counted(self.batches(), self.source.steps or 0, "features of the frozen model, steps", show):
                if len(batch):
                    batch = batch.to(self.device)
                    with explained(self.net, batch.inputs):
                        features.add(self.net.features(batch.inputs), batch.targets)  # type: ignore[operator]
        self.groups = features.seal()
        if not self.groups:
            raise AnytimeError("there are no batches: expected some of (inputs, targets)")
        once = sum(-(-len(group) // self.recipe.batch_size) for group in self.groups)
        self.passes = max(1, -(-self.recipe.least_steps // (once * self.recipe.epochs)))
        self.steps = once * self.passes
        self.samples = self.expected = sum(map(len, self.groups)) * self.passes

    def from_step(self, epoch: int, position: int) -> Iterator[BatchStep]:
        """Batches of features, each of one group."""
        for part in self.takes(epoch)[position:]:
            rows = part.rows.tensor_split(min(self.accumulate, len(part)))
            yield BatchStep([GroupRows(part.group, each) for each in rows], len(part))

    def takes(self, epoch: int) -> list[GroupRows]:
        """All batches of an epoch."""
        found: list[GroupRows] = []
        for number in range(self.passes):
            generator = torch.Generator().manual_seed(mix(self.seed, epoch, number, -2))
            batches = [part for group in self.groups for part in self.split(group, generator)]
            found += [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
        return found

    def split(self, group: Group, generator: torch.Generator) -> Sequence[GroupRows]:
        """A group in random batches of about equal size."""
        order = torch.randperm(len(group), generator=generator)
        return [GroupRows(group, rows) for rows in order.tensor_split(-(-len(group) // self.recipe.batch_size))]

    def ready(self, part: GroupRows) -> Batch:
        """The features and targets, on the network's device."""
        return part.group.rows(part.rows).to(self.device)

    def facts(self) -> dict[str, Any]:
        """Those of the batches that the features are of."""
        return self.source.facts()

    def capture(self) -> None:
        """Nothing is needed."""

    def restore(self, captured: Any) -> None:
        """Nothing to do."""


def kept_epochs(
    net: Network,
    data: Any,
    source: Epochs,
    recipe: Recipe,
    seed: int,
    accumulate: int,
    device: torch.device,
    gigabytes: float,
) -> KeptEpochs | None:
    """The epochs of a frozen network's features, if they can be kept: if images are the same in every epoch."""
    if not gigabytes or not net.keeps_features or distributed.world_size() > 1:
        return None
    if isinstance(data, Data):
        if recipe.augmentation.changes(streamed=not isinstance(data.train, Images)):
            return None
        takes = [Take(rows) for rows in torch.arange(len(data.train)).split(AT_ONCE)]

        def batches() -> Iterator[Batch]:
            return map(source.ready, data.train.batches(takes))
    elif (loader := unchanging(data)) is not None:

        def batches() -> Iterator[Batch]:
            return (as_batch(net, item) for item in loader)
    else:
        return None
    return KeptEpochs(net, batches, source, recipe, seed, accumulate, device, gigabytes)
