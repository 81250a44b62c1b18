"""The anytime curve: the error of every exit against what it costs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anytime import distributed
from anytime.batches import Batch, Peeked, batches_of, check_batches, one_sample
from anytime.cost import Costs, check_known, costs
from anytime.data.dataset import Data
from anytime.data.images import Images, Take
from anytime.data.stream import Stream
from anytime.drawing import exit_axes, finish, new_axes
from anytime.errors import AnytimeError
from anytime.inputs import explained, like_weights, nan_cause
from anytime.losses import Function, by_exit, check_function, cross_entropy
from anytime.measuring import exit_seconds
from anytime.metrics import SHARES, error, wilson
from anytime.network import Network, eval_mode, tensors_of, weights_device
from anytime.tables import Table, share

FRACTIONS = (0.25, 0.5, 0.75, 1.0)
"""The parts of the total cost at which the paper compares (Table a)."""


@dataclass(frozen=True)
class Curve:
    """How good each exit is and what it costs; one entry per exit, shallow to deep.

    ``errors`` and ``losses`` are None at exits that were not evaluated; ``losses`` also where the loss is not finite.

    Examples:
        >>> print(Curve([0.33, 0.22], [1.0, 0.8], Costs([50, 100], [1, 2]), images=100))
        exit    cost   error
           1   50.0%  33.00%
           2  100.0%  22.00%
    """

    errors: list[float | None]
    """Mean of the metric; by default the share of wrong answers, 0 to 1."""
    losses: list[float | None]
    """Mean loss, by default the cross-entropy; None where there is no loss for the metric."""
    costs: Costs
    images: int
    """How many images, or other samples, it was measured on."""
    metric: str = "error"
    """The name of what ``errors`` are the means of."""
    seconds: list[float] | None = None
    """Of one sample up to each exit on this machine, if they were measured: they are the cost then."""

    def __str__(self) -> str:
        """One line per exit, with its share of the total cost."""
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table().html()

    def _table(self) -> Table:
        template = "{:.2%}" if self.metric in SHARES else "{:.4g}"
        errors = ["–" if error is None else template.format(error) for error in self.errors]
        cells = enumerate(zip(self.costs.fractions, errors, strict=True), start=1)
        rows = [[str(n), share(cost), error] for n, (cost, error) in cells]
        if self.seconds is None:
            return Table(["exit", "cost", self.metric], rows, f"{self.images:,} samples")
        rows = [[n, f"{1000 * s:.2f}", *rest] for (n, *rest), s in zip(rows, self.seconds, strict=True)]
        return Table(["exit", "ms", "MACs", self.metric], rows, f"{self.images:,} samples")

    def plot(self, ax: Any = None, *, label: str = "", color: str | None = None) -> Any:
        """Draw error against cost, with 95 % intervals of an error that is a share of samples.

        Args:
            ax: the axes to draw on, e.g. those of another curve; by default new ones, with the numbers of the exits.
            label: the curve's name in a legend.
            color: the color of the curve.

        Returns:
            The axes, for ``ax.set_title``, ``ax.legend`` or ``ax.figure.savefig``.
        """
        axis = new_axes() if ax is None else ax
        scale = 100 if self.metric in SHARES else 1
        known = [(cost, e) for cost, e in zip(self.spent, self.errors, strict=True) if e is not None]
        spent, errors = [cost for cost, _ in known], [scale * error for _, error in known]
        (line,) = axis.plot(spent, errors, "o-", markersize=4, label=label or None, color=color)
        if self.metric in SHARES:
            bounds = [wilson(error, self.images) for _, error in known]
            low, high = ([100 * each for each in side] for side in zip(*bounds, strict=True))
            axis.fill_between(spent, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axis.set_xlabel(f"cost up to the exit ({self.unit})")
        axis.set_ylabel(f"{self.metric} (%)" if self.metric in SHARES else self.metric)
        if ax is None:
            exit_axes(axis, self.spent, [error is not None for error in self.errors])
            finish(axis)
        return axis

    @property
    def spent(self) -> list[float]:
        """The cost up to each exit: milliseconds if they were measured, otherwise million multiply-accumulates."""
        return [macs / 1e6 for macs in self.costs.macs] if self.seconds is None else [1000 * s for s in self.seconds]

    @property
    def unit(self) -> str:
        """What ``spent`` counts."""
        return "million multiply-accumulates" if self.seconds is None else "milliseconds"

    def at(self, fraction: float) -> tuple[int, float | None]:
        """The exit chosen at a fraction of the total cost, above 0 and at most 1, and its error."""
        chosen = self.costs.exit_at(fraction)
        if self.seconds is not None:
            chosen = max((i for i, s in enumerate(self.seconds) if s <= fraction * self.seconds[-1]), default=0)
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
        """All of it as JSON holds it, with the exits chosen at the paper's fractions of the cost, from 0."""
        known = {"images": self.images, "errors": self.errors, "losses": self.losses, "macs": self.costs.macs}
        known |= {"params": self.costs.params} | ({"seconds": self.seconds} if self.seconds else {})
        chosen = {str(fraction): self.at(fraction) for fraction in FRACTIONS}
        used = [spent / self.spent[-1] for spent in self.spent]
        return known | {
            "fractions": {f: {"exit": i, "fraction_used": used[i], "error": e} for f, (i, e) in chosen.items()}
        }


def evaluate(
    net: Network,
    data: Any,
    images: Images | Stream | None = None,
    *,
    metric: Function | None = None,
    loss: Function | None = None,
    only: Iterable[int] | None = None,
    batch_size: int = 500,
    shared: bool = False,
    cost: str = "macs",
) -> Curve:
    """Error, loss and cost of every exit.

    Args:
        net: the network; it runs in eval mode and is left in the mode it had.
        data: batches: a ``DataLoader`` or any other iterable of (inputs, targets), or of dicts with the targets under
            ``labels``; they are moved to the network's device. Or a ``Data``, whose test images are used, normalized as
            in the network's training, if it knows how.
        images: other images of a ``Data`` instead, e.g. ``data.validation``.
        metric: from the outputs of an exit and the targets to one number per sample, smaller is better; see
            ``anytime.metrics``. ``errors`` are its means. Default: the share of wrong answers.
        loss: likewise, for ``losses``; see ``anytime.losses``. Default: cross-entropy, unless there is a metric.
        only: the exits to evaluate, if not all.
        batch_size: how many images of a ``Data`` at once.
        shared: share the images of a ``Data`` out among the processes of a distributed run, all of which call this;
            with other batches, every process has its own.
        cost: of an exit: ``macs``, or ``seconds`` of one sample, measured now; multiply-accumulates are there, too.

    Examples:
        >>> import anytime
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> curve = anytime.evaluate(net, anytime.load_data("digits"))
        >>> len(curve.errors), curve.images
        (3, 500)
        >>> batches = [(torch.zeros(4, 1, 8, 8), torch.ones(4, 10))]
        >>> len(anytime.evaluate(net, batches, metric=anytime.losses.squared).errors)
        3
    """
    check_arguments("evaluate", net, data)
    if cost not in ("macs", "seconds"):
        raise AnytimeError(f'cost={cost!r} must be "macs" or "seconds"')
    exits = sorted(net.exit_indices(only))
    if not exits:
        raise AnytimeError("only=[] leaves no exit to evaluate; leave it out for all of them")
    loss = cross_entropy if loss is None and metric in (None, error) else loss
    metric = error if metric is None else metric
    check_function("metric", metric)
    check_function("loss", loss or metric)
    if isinstance(data, Data):
        images = data.test if images is None else images
        if images is not None and not isinstance(images, Images | Stream):
            raise AnytimeError(
                f"got a {type(images).__name__} for the images; expected a split such as data.validation, or "
                "anytime.Images(pixels, labels)"
            )
        if images is None or not len(images):
            raise AnytimeError(f"data {data.name!r} has no test images: pass some as evaluate(net, data, images)")
        data = data.matching(net.preprocessing)
        example = like_weights(net, torch.empty(1, *data.shape, device="meta"))
        check_known(net, example)
        batches = image_batches(net, data, images, batch_size, shared)
        found = measure(net, batches, exits, loss, metric, shared, partial(check_classes, data=data))
    else:
        peeked = Peeked(net, data, partial(check_known, net))
        found = measure(net, peeked, exits, loss, metric, shared)
        example = one_sample(peeked.first)
    if found.nan:
        at = ", ".join(map(str, found.nan))
        raise AnytimeError(f"the network's outputs at exits of index {at} are NaN for some samples: {nan_cause(net)}")
    losses, errors = (spread_out(values, exits, net.exits) for values in (found.losses, found.errors))
    name = getattr(metric, "__name__", type(metric).__name__)
    seconds = exit_seconds(net, example) if cost == "seconds" else None
    return Curve(errors, losses, costs(net, example), found.samples, name, seconds)


class Measured(NamedTuple):
    """Means over all samples, for each of some exits; of what was not measured, None; of NaN outputs, NaN."""

    losses: list[float | None]
    errors: list[float | None]
    samples: int
    nan: list[int]
    """The exits with outputs that are NaN."""


@torch.inference_mode()
def measure(
    net: Network,
    batches: Iterable[Batch],
    exits: list[int],
    loss: Function | None,
    metric: Function,
    shared: bool = False,
    check: Callable[[Sequence[Tensor]], None] | None = None,
) -> Measured:
    """Mean loss and metric of the given exits; ``shared``: of the batches of all ranks, each of which calls."""
    device = weights_device(net)
    found: list[Tensor] = []
    samples = 0
    with eval_mode(net):
        for batch in batches:
            n = len(batch)
            if not n:
                continue
            with explained(net, batch.inputs):
                outputs = net(batch.inputs, exits)
            outputs = [_precise(output) if isinstance(output, Tensor) else output for output in outputs]
            if check is not None:
                check(outputs)
            lost = torch.zeros(len(exits), device=device) if loss is None else means(loss, outputs, batch.targets)
            nan = [torch.as_tensor(sum(t.isnan().sum() for t in tensors_of(each)), device=device) for each in outputs]
            found.append(
                torch.stack([lost.float() * n, sums(metric, outputs, batch.targets), torch.stack(nan).float()])
            )
            samples += n
    # Added up on the CPU, one batch after the other: in double precision, which not every device has.
    totals = torch.zeros(3, len(exits), dtype=torch.float64)
    for batch_sums in torch.stack(found).cpu() if found else ():
        totals += batch_sums
    count = torch.tensor([samples])
    if shared:
        distributed.total(totals, count, device=device)
    if not count.item():
        raise AnytimeError("there are no batches: expected some of (inputs, targets)")
    losses, errors = (totals[:2] / count).where(totals[2] == 0, torch.nan).tolist()
    nan = [exit for exit, values in zip(exits, totals[2], strict=True) if values]
    return Measured([None] * len(exits) if loss is None else losses, errors, int(count), nan)


def _precise(output: Tensor) -> Tensor:
    """In 32 bits at least: losses are not computed in 16."""
    return output.to(torch.promote_types(output.dtype, torch.float32))


def means(loss: Function, outputs: Sequence[Any], targets: Any) -> Tensor:
    """The mean loss of each exit over the samples of a batch, and over all tasks."""
    each = by_exit(loss, outputs, targets)
    return each.mean(1) if each.ndim == 2 else each.mean((1, 2))


def sums(metric: Function, outputs: Sequence[Any], targets: Any) -> Tensor:
    """The metric of each exit, added up over the samples of a batch; of several tasks, their mean."""
    each = by_exit(metric, outputs, targets, "the metric").float()
    return each.sum(1) if each.ndim == 2 else each.mean(2).sum(1)


def image_batches(
    net: Network, data: Data, images: Images | Stream, batch_size: int = 500, shared: bool = False
) -> Iterator[Batch]:
    """Images as the network sees them, on its device, in its precision; ``shared``: this process's part of them."""
    device = weights_device(net)
    takes = [Take(indices) for indices in torch.arange(len(images)).split(batch_size)]
    for batch in images.batches(takes[distributed.rank() :: distributed.world_size()] if shared else takes):
        yield Batch(like_weights(net, data.normalize(batch.pixels.to(device))), batch.labels.to(device))


def check_arguments(caller: str, net: Any, data: Any) -> None:
    """Refuse other things than a network with exits and batches or a data set, and say how to make them."""
    if not isinstance(net, Network):
        raise AnytimeError(
            f"{caller} expects an AnytimeNetwork, not a {type(net).__name__}: anytime.convert(model, example) makes one"
        )
    if not isinstance(data, Data):
        check_batches(caller, data)


def check_classes(answers: Sequence[Tensor], data: Data) -> None:
    """Refuse logits with too few classes for the data."""
    shapes = {tuple(logits.shape) for logits in answers}
    needed = len(data.classes)
    if len(shapes) > 1 or any(len(shape) != 2 or shape[1] < needed for shape in shapes):
        raise AnytimeError(
            f"the exits answer with shapes {', '.join(map(str, sorted(shapes)))}; expected (samples, classes) at every "
            f"exit, with at least the {needed} classes of data {data.name!r}: build the network with "
            f"num_classes={needed}"
        )


def spread_out(values: Sequence[float | None], exits: list[int], total: int) -> list[float | None]:
    """One value for each of all exits; None at those that are not among ``exits`` or have no finite value."""
    known = {exit: value for exit, value in zip(exits, values, strict=True) if value is not None and isfinite(value)}
    return [known.get(i) for i in range(total)]


class Outputs(NamedTuple):
    """What every exit says to every sample, and what is right."""

    logits: Tensor
    """exits × samples × classes"""
    labels: Tensor

    @property
    def wrong(self) -> Tensor:
        """Which answers are wrong, exits × samples."""
        return self.logits.argmax(-1) != self.labels

    def of_truth(self, values: Tensor) -> Tensor:
        """Of values for each exit, sample and class those of the true class, exits × samples."""
        return values.gather(-1, self.labels.expand(len(values), -1)[..., None]).squeeze(-1)


@torch.inference_mode()
def collect(net: Network, batches: Iterable[Any]) -> Outputs:
    """Run every exit on batches of inputs and labels.

    Args:
        net: the network; it runs in eval mode and is left in the mode it had.
        batches: a ``DataLoader``, ``data.batches(data.validation)`` or the like; targets are class numbers.
    """
    with eval_mode(net):
        pairs = [_outputs(net, batch) for batch in batches_of(net, batches)]
    if not any(len(labels) for _, labels in pairs):
        raise AnytimeError("there are no batches, or no samples in them: give some of (inputs, labels)")
    return Outputs(torch.cat([logits for logits, _ in pairs], 1), torch.cat([labels for _, labels in pairs]))


def _outputs(net: Network, batch: Batch) -> tuple[Tensor, Tensor]:
    with explained(net, batch.inputs):
        answers, labels = net(batch.inputs), batch.targets
    if not isinstance(labels, Tensor):
        raise AnytimeError(f"the targets are a {type(labels).__name__}; expected a tensor of class numbers")
    if len({logits.shape for logits in answers}) > 1:
        shapes = ", ".join(sorted({str(tuple(logits.shape)) for logits in answers}))
        raise AnytimeError(f"the exits' answers have different shapes: {shapes}; they must be for the same classes")
    logits = torch.stack(answers).float().cpu()
    if logits.ndim != 3 or logits.shape[-1] < 2:
        raise AnytimeError(
            f"the exits answer with shape {tuple(logits.shape[1:])}; expected logits, samples × classes, of at least "
            "two classes"
        )
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
        raise AnytimeError("the network's logits are infinite or NaN for some of these samples")
    return logits, labels.cpu().long()
