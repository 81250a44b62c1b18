"""The anytime curve: the error of every exit against what it costs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anytime import distributed
from anytime.cost import Costs, costs
from anytime.data.dataset import Data
from anytime.data.images import Images, Take
from anytime.data.stream import Stream
from anytime.errors import AnytimeError
from anytime.network import AnytimeNetwork, eval_mode

FRACTIONS = (0.25, 0.5, 0.75, 1.0)
"""The parts of the total cost at which the paper compares (Table a)."""


@dataclass(frozen=True)
class Curve:
    """How good each exit is and what it costs; one entry per exit, shallow to deep.

    ``errors`` and ``losses`` are None at exits that were not evaluated; ``losses`` also where the loss is not finite.
    """

    errors: list[float | None]
    """Share of wrong answers, 0 to 1."""
    losses: list[float | None]
    """Mean cross-entropy."""
    costs: Costs
    images: int
    """How many images it was measured on."""

    def at(self, fraction: float) -> tuple[int, float | None]:
        """The exit chosen at a fraction of the total cost, and its error."""
        chosen = self.costs.exit_at(fraction)
        return chosen, self.errors[chosen]

    def increase_over(self, opt: Mapping[int, float]) -> dict[int, float]:
        """Relative increase in error over OPT (Table a of the paper), as a share: 0.1 is 10 % more errors.

        Args:
            opt: by exit (0 is the shallowest), the error of a network that was trained for that exit alone.

        Examples:
            >>> curve = Curve([0.33, 0.22], [1.0, 0.8], Costs([50, 100], [1, 2]), images=100)
            >>> {exit: round(more, 3) for exit, more in curve.increase_over({1: 0.20}).items()}
            {1: 0.1}
        """
        increase = {}
        for exit, best in opt.items():
            if not 0 <= exit < len(self.errors) or not 0 < best <= 1:
                raise AnytimeError(
                    f"the OPT table gives exit {exit + 1} the error {best}: exits here are 1 to {len(self.errors)} and "
                    "an error is a share above 0 and at most 1"
                )
            error = self.errors[exit]
            if error is not None:
                increase[exit] = error / best - 1
        return increase

    def record(self) -> dict[str, Any]:
        """All of it as JSON holds it, with the exits chosen at the paper's fractions of the cost."""
        return {
            "images": self.images,
            "errors": self.errors,
            "losses": self.losses,
            "macs": self.costs.macs,
            "params": self.costs.params,
            "fractions": {
                str(fraction): {
                    "exit": self.at(fraction)[0] + 1,
                    "fraction_used": self.costs.fractions[self.at(fraction)[0]],
                    "error": self.at(fraction)[1],
                }
                for fraction in FRACTIONS
            },
        }


def evaluate(
    net: AnytimeNetwork,
    data: Data,
    images: Images | Stream | None = None,
    *,
    only: Iterable[int] | None = None,
    batch_size: int = 500,
    shared: bool = False,
) -> Curve:
    """Error, loss and cost of every exit. Images are normalized as in the network's training, if it knows how.

    Args:
        net: the network; it runs in eval mode and is left in the mode it had.
        data: the data set; its test images are used.
        images: other images of the same kind instead, e.g. ``data.validation``.
        only: the exits to evaluate, if not all.
        batch_size: how many images at once.
        shared: share the images out among the processes of a distributed run, all of which call this.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> curve = anytime.evaluate(net, anytime.load_data("digits"))
        >>> len(curve.errors), curve.images
        (3, 500)
    """
    check_arguments("evaluate", net, data)
    images = data.test if images is None else images
    if images is not None and not isinstance(images, Images | Stream):
        raise AnytimeError(
            f"got a {type(images).__name__} for the images; expected a split such as data.validation, or "
            "anytime.Images(pixels, labels)"
        )
    if images is None or not len(images):
        raise AnytimeError(f"data {data.name!r} has no test images: pass some as evaluate(net, data, images)")
    data = data.matching(net.preprocessing)
    exits = sorted(net.exit_indices(only))
    loss, error = measure(net, data, images, exits, batch_size, shared)
    losses, errors = spread_out(loss, exits, net.exits), spread_out(error, exits, net.exits)
    return Curve(errors, losses, costs(net, torch.empty(1, *data.shape, device="meta")), len(images))


@torch.inference_mode()
def measure(
    net: AnytimeNetwork,
    data: Data,
    images: Images | Stream,
    exits: list[int],
    batch_size: int = 500,
    shared: bool = False,
) -> tuple[list[float], list[float]]:
    """Mean loss and share of wrong answers of the given exits; ``shared``: among all ranks, each of which calls."""
    device = next(net.parameters()).device
    sums: list[Tensor] = []
    takes = [Take(indices) for indices in torch.arange(len(images)).split(batch_size)]
    with eval_mode(net):
        for batch in images.batches(takes[distributed.rank() :: distributed.world_size()] if shared else takes):
            labels = batch.labels.to(device)
            logits = stacked(net(data.normalize(batch.pixels.to(device)), exits), data)
            sums.append(torch.stack([exit_losses(logits, labels) * len(labels), wrong_answers(logits, labels)]))
    # Added up on the CPU, one batch after the other: in double precision, which not every device has.
    losses = torch.zeros(len(exits), dtype=torch.float64)
    wrong = torch.zeros(len(exits), dtype=torch.int64)
    for batch_losses, batch_wrong in torch.stack(sums).cpu() if sums else ():
        losses += batch_losses
        wrong += batch_wrong.long()
    if shared:
        distributed.total(losses, wrong, device=device)
    return (losses / len(images)).tolist(), (wrong.double() / len(images)).tolist()


def check_arguments(caller: str, net: Any, data: Any) -> None:
    """Refuse other things than a network with exits and a data set, and say how to make them."""
    if not isinstance(net, AnytimeNetwork):
        raise AnytimeError(
            f"{caller} expects an AnytimeNetwork, not a {type(net).__name__}: anytime.convert(model, example) makes one"
        )
    if not isinstance(data, Data):
        raise AnytimeError(
            f"{caller} expects an anytime.Data, not a {type(data).__name__}: anytime.load_data(name_or_folder) makes "
            "one, and so does anytime.Data(anytime.Images(pixels, labels)) of tensors"
        )


def stacked(answers: Sequence[Tensor], data: Data) -> Tensor:
    """The exits' logits as one tensor, exits × samples × classes; refuses those with too few classes for the data."""
    shapes = {tuple(logits.shape) for logits in answers}
    needed = len(data.classes)
    if len(shapes) > 1 or any(len(shape) != 2 or shape[1] < needed for shape in shapes):
        raise AnytimeError(
            f"the exits answer with shapes {', '.join(map(str, sorted(shapes)))}; expected (samples, classes) at every "
            f"exit, with at least the {needed} classes of data {data.name!r}: build the network with "
            f"num_classes={needed}"
        )
    return torch.stack(list(answers))


def spread_out(values: list[float], exits: list[int], total: int) -> list[float | None]:
    """One value for each of all exits; None at those that are not among ``exits`` or have no finite value."""
    known = {exit: value for exit, value in zip(exits, values, strict=True) if isfinite(value)}
    return [known.get(i) for i in range(total)]


def exit_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy of each exit, from logits L × N × classes, in one pass over all exits."""
    exits, n, _ = logits.shape
    each = F.cross_entropy(logits.flatten(0, 1), labels.repeat(exits), reduction="none")
    return each.view(exits, n).mean(1)


def wrong_answers(logits: Tensor, labels: Tensor) -> Tensor:
    """How many answers of each exit are wrong, from logits L × N × classes."""
    return (logits.argmax(-1) != labels).sum(-1)


class Outputs(NamedTuple):
    """What every exit says to every sample, and what is right."""

    logits: Tensor
    """exits × samples × classes"""
    labels: Tensor

    @property
    def wrong(self) -> Tensor:
        """Which answers are wrong, exits × samples."""
        return self.logits.argmax(-1) != self.labels


@torch.inference_mode()
def collect(net: AnytimeNetwork, batches: Iterable[tuple[Any, Tensor]]) -> Outputs:
    """Run every exit on batches of inputs and labels.

    Args:
        net: the network; it runs in eval mode and is left in the mode it had.
        batches: a ``DataLoader``, ``data.batches(data.validation)`` or the like.
    """
    check_batches(batches)
    with eval_mode(net):
        pairs = [_outputs(net, batch) for batch in batches]
    if not pairs:
        raise AnytimeError("there are no batches: give some of (inputs, labels)")
    return Outputs(torch.cat([logits for logits, _ in pairs], 1), torch.cat([labels for _, labels in pairs]))


def check_batches(batches: Any) -> None:
    """Refuse a data set where its batches are expected, and anything else that does not have batches."""
    if isinstance(batches, Data | Images | Stream) or not isinstance(batches, Iterable):
        raise AnytimeError(
            f"got a {type(batches).__name__}; expected batches of (inputs, labels): a DataLoader, a list, or "
            "data.batches(data.validation)"
        )


def _outputs(net: AnytimeNetwork, batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        raise AnytimeError("expected batches of (inputs, labels); of a single batch make a list: [(inputs, labels)]")
    x, labels = batch
    answers = net(x)
    if len({logits.shape for logits in answers}) > 1:
        shapes = ", ".join(sorted({str(tuple(logits.shape)) for logits in answers}))
        raise AnytimeError(f"the exits' answers have different shapes: {shapes}; they must be for the same classes")
    logits = torch.stack(answers).float().cpu()
    if labels.shape != logits.shape[1:2] or labels.is_floating_point():
        raise AnytimeError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}; expected one class number for each of "
            f"{logits.shape[1]} samples"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < logits.shape[-1]:
        raise AnytimeError(
            f"labels from {int(labels.min())} to {int(labels.max())}: there are {logits.shape[-1]} classes"
        )
    if not logits.isfinite().all():
        raise AnytimeError("the network's answers are infinite or no numbers for some of these samples")
    return logits, labels.cpu()
