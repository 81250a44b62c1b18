"""Conformal sets: at every exit, classes that contain the true one with a given probability."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anytime.errors import AnytimeError, check_number
from anytime.evaluation import Outputs, collect
from anytime.files import read_json, write_json
from anytime.inputs import nan_rows
from anytime.network import Network

FILE = "sets.json"
"""The file that ``ConformalSets.save`` writes into the model's folder."""


@dataclass(frozen=True)
class ConformalSets:
    """Which classes are in the set of an exit; ``conformal_sets`` makes one.

    Args:
        coverage: the probability that the true class is in a set.
        cutoffs: for each exit, the least probability of a class in the set.
        together: whether the sets of all exits contain the true class at once with that probability.
    """

    coverage: float
    cutoffs: list[float]
    together: bool = False

    def __call__(self, prediction: Any) -> Tensor:
        """The sets of a prediction or of a policy's answers: samples × classes, True for the classes in the set.

        Args:
            prediction: what ``predict``, ``start`` or a policy returned.
        """
        exits = prediction.exits if hasattr(prediction, "exits") else prediction.exit
        return self.of(prediction.logits, exits)

    def of(self, logits: Tensor, exits: int | Tensor) -> Tensor:
        """The sets for logits of an exit, or of one exit for each sample. The likeliest class is always in the set."""
        if logits.ndim != 2:
            raise AnytimeError(f"logits have the shape {tuple(logits.shape)}; expected samples × classes")
        if (torch.as_tensor(exits) >= len(self.cutoffs)).any():
            raise AnytimeError(f"the sets are for a network of {len(self.cutoffs)} exits; the answer is of a later one")
        cutoffs = torch.tensor(self.cutoffs, dtype=torch.float64)[exits]
        p = logits.cpu().double().softmax(-1)
        if p.isnan().any():
            raise AnytimeError(f"the probabilities are NaN for {nan_rows(p)}: its logits are infinite or NaN")
        return (p >= cutoffs[..., None]) | (p == p.amax(-1, keepdim=True))

    def save(self, folder: str | Path) -> Path:
        """Write them beside a model, as ``sets.json``."""
        path = Path(folder) / FILE
        write_json(path, asdict(self), sealed=True)
        return path

    @staticmethod
    def load(folder: str | Path) -> "ConformalSets":
        """Read what ``save`` wrote."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise AnytimeError(f"{folder} has no {FILE}: make it with conformal_sets(net, batches).save(folder)")
        try:
            return ConformalSets(**read_json(path, sealed=True))
        except (TypeError, ValueError) as error:
            raise AnytimeError(f"{path} is damaged ({error}): make it again with conformal_sets") from error

    def __post_init__(self) -> None:
        check_number("coverage", self.coverage, above=0, below=1)
        for cutoff in self.cutoffs:
            check_number("a cutoff", cutoff, most=1)


def conformal_sets(
    net: Network, batches: Iterable[tuple[Any, Tensor]], coverage: float = 0.95, *, together: bool = False
) -> ConformalSets:
    """Sets of classes that contain the true one with probability 95 %, at every exit.

    Split conformal prediction (Vovk et al. 2005; Sadinle et al. 2019): with p_e(y) the probability that exit e gives to
    class y, the set is {y : p_e(y) ≥ c_e}. c_e is such that ⌈(n + 1) · coverage⌉ of the n held-out samples have their
    true class in the set. Then so has a new sample with at least that probability, if it is drawn as they were: on
    average over all samples, whatever the network. Surer exits have smaller sets.

    This holds at each exit for itself: for a limit that does not look at the sample. A policy does; with ``together``
    the true class is in the sets of all exits at once with that probability, so that it is in the set of whichever exit
    answers, and in what the sets of all exits so far have in common, which only shrinks. For this, half of the samples
    give each exit's distribution of p_e(y), and the others the share of it that must be let in at all exits.

    Args:
        net: the network.
        batches: inputs and labels that it was not trained on.
        coverage: the probability.
        together: whether it holds for all exits at once.

    Examples:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> sets = conformal_sets(net, data.batches(data.validation), coverage=0.9)
        >>> sets(anytime.predict(net.eval(), torch.zeros(4, 1, 8, 8), exits=1)).shape
        torch.Size([4, 10])
    """
    return fit_sets(collect(net, batches), coverage, together)


def fit_sets(outputs: Outputs, coverage: float = 0.95, together: bool = False) -> ConformalSets:
    """The sets for the outputs of a network; see ``conformal_sets``."""
    check_number("coverage", coverage, above=0, below=1)
    truth = outputs.of_truth(outputs.logits.double().softmax(-1))
    if not together:
        return ConformalSets(coverage, [_cutoff(each, coverage) for each in truth])
    order = torch.randperm(len(outputs.labels), generator=torch.Generator().manual_seed(0))
    first, second = order.tensor_split(2)
    known = truth[:, first].sort(-1).values
    # For each sample the smallest share, over the exits, of known samples that are no likelier than it.
    ranks = torch.stack([torch.searchsorted(*pair, right=True) for pair in zip(known, truth[:, second], strict=True)])
    rank = int(_cutoff(ranks.amin(0).double(), coverage))
    return ConformalSets(coverage, [each[rank - 1].item() if rank else 0.0 for each in known], together=True)


def _cutoff(values: Tensor, coverage: float) -> float:
    """The largest number that at least ⌈(n + 1) · coverage⌉ of the values reach; 0 if there are too few."""
    wanted = ceil((len(values) + 1) * coverage - 1e-9)
    return values.sort(descending=True).values[wanted - 1].item() if wanted <= len(values) else 0.0
