"""Losses for training: each takes the outputs of one exit and the targets and returns one loss per sample.

Any callable of this kind can be passed to ``fit``. What returns one number is taken as the mean of the batch; of what
returns more than one number per sample, the mean is taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anytime.errors import AnytimeError
from anytime.network import tensors_of

Function = Callable[[Any, Any], Tensor]
"""From the outputs of one exit and the targets to one number per sample: a loss, or a metric."""

IGNORED = -100
"""Targets with this value do not count, as in PyTorch and Hugging Face: padding, pixels without a class."""


def cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of logits N × C; targets are N class numbers, or N × C probabilities.

    Examples:
        >>> cross_entropy(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 0])).round(decimals=2)
        tensor([0.6900, 0.0000])
    """
    if outputs.ndim != 2 or _shape(targets) not in (outputs.shape[:1], outputs.shape):
        raise _unfit("cross_entropy", outputs, targets, "logits N × C and N class numbers", _other(outputs))
    return _classes(outputs, targets, reduction="none", label_smoothing=label_smoothing)


def multi_label(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of N × C logits and as many zeros and ones, the mean over the C labels."""
    if outputs.shape != _shape(targets):
        raise _unfit("multi_label", outputs, targets, "logits N × C and N × C zeros and ones")
    each = F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none")
    return each.flatten(1).mean(1)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared error, the mean over all outputs of a sample. Targets of N numbers fit outputs of N × 1."""
    return (outputs - _like(outputs, targets, "squared")).square().flatten(1).mean(1)


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """Absolute error, the mean over all outputs of a sample. Targets of N numbers fit outputs of N × 1."""
    return (outputs - _like(outputs, targets, "absolute")).abs().flatten(1).mean(1)


def gaussian_nll(outputs: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood of a Gaussian per number, without the constant term.

    Outputs are N × 2K: K means, then the logarithms of K variances. It can be negative, and so does not suit AdaLoss,
    which divides by the losses; train with ``first-order``, ``const`` or ``linear``.

    Examples:
        >>> gaussian_nll(torch.tensor([[3.0, 0.0]]), torch.tensor([1.0]))
        tensor([2.])
    """
    if outputs.ndim != 2 or outputs.shape[1] % 2:
        raise _unfit("gaussian_nll", outputs, targets, "outputs N × 2K (means, log-variances) and targets N × K")
    mean, log_variance = outputs.chunk(2, 1)
    off = mean - _like(mean, targets, "gaussian_nll")
    return 0.5 * (log_variance + off.square() * (-log_variance).exp()).mean(1)


def pixel_cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy over the pixels of a sample, without those of class -100.

    Outputs are logits N × C × H × W (or one or three dimensions in place of two), targets class numbers N × H × W.
    Outputs of another size, as many models have them, are interpolated to that of the targets.
    """
    outputs = resized("pixel_cross_entropy", outputs, targets)
    each = _classes(outputs, targets, ignore_index=IGNORED, reduction="none", label_smoothing=label_smoothing)
    return mean_of_counted(each, targets)


def token_cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy over the tokens of a sample, without those of class -100 (padding).

    Outputs are logits N × T × C, targets class numbers N × T.

    Examples:
        >>> token_cross_entropy(torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]])).round(decimals=2)
        tensor([0.6900])
    """
    check_tokens("token_cross_entropy", outputs, targets)
    flat, wanted = outputs.flatten(0, 1), targets.flatten()
    each = _classes(flat, wanted, ignore_index=IGNORED, reduction="none", label_smoothing=label_smoothing)
    return mean_of_counted(each.view(targets.shape), targets)


def next_token(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """The loss of language models: mean cross-entropy of each token, given those before it; -100 does not count.

    Outputs are logits N × T × C at each token, targets are the N × T tokens themselves, as Hugging Face has them.
    """
    check_tokens("next_token", outputs, targets)
    return token_cross_entropy(outputs[:, :-1], targets[:, 1:], label_smoothing=label_smoothing)


@dataclass(frozen=True)
class Task:
    """A loss or a metric of a part of the outputs and of one of several targets.

    Args:
        function: the loss or metric, e.g. ``cross_entropy``.
        outputs: which outputs it is about: a slice of the second dimension.
        targets: which targets: a key if they are a dict, a number if they are a tuple.

    Examples:
        >>> digit = Task(cross_entropy, slice(0, 10), "digit")
        >>> digit(torch.zeros(4, 12), {"digit": torch.zeros(4, dtype=torch.long), "odd": torch.ones(4)}).shape
        torch.Size([4])
    """

    function: Function
    outputs: slice
    targets: str | int

    def __call__(self, outputs: Tensor, targets: Any) -> Tensor:
        """One number per sample."""
        try:
            chosen = targets[self.targets]
        except (LookupError, TypeError) as error:
            names = ", ".join(map(str, targets)) if isinstance(targets, dict) else f"a {type(targets).__name__}"
            raise AnytimeError(f"the targets are {names}; the task needs {self.targets!r} of them") from error
        return self.function(outputs[:, self.outputs], chosen)


class MultiTask:
    """Several losses at once: N × T, one for each sample and task. ``fit`` balances all exits × tasks.

    Args:
        tasks: the losses; :class:`Task` picks the outputs and targets of each.

    Examples:
        >>> loss = MultiTask(Task(cross_entropy, slice(0, 10), "digit"), Task(squared, slice(10, 11), "slant"))
        >>> targets = {"digit": torch.zeros(4, dtype=torch.long), "slant": torch.zeros(4)}
        >>> loss(torch.zeros(4, 11), targets).shape
        torch.Size([4, 2])
    """

    def __init__(self, *tasks: Function) -> None:
        if not tasks:
            raise AnytimeError("MultiTask(): expected at least one loss, e.g. MultiTask(Task(cross_entropy, …), …)")
        self.tasks = tasks

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """One loss per sample and task."""
        each = [task(outputs, targets) for task in self.tasks]
        samples = max(len(values) if values.ndim else 1 for values in each)
        return torch.stack([per_sample(values, samples, "the loss of a task") for values in each], 1)


def check_function(name: str, function: Any) -> None:
    """Refuse a loss or metric that cannot be called."""
    if not callable(function):
        raise AnytimeError(
            f"{name}={function!r}: expected a function of (outputs, targets) that returns one number per sample, e.g. "
            "anytime.losses.cross_entropy"
        )


def tasks_of(loss: Any) -> int:
    """How many losses a loss is."""
    return len(loss.tasks) if isinstance(loss, MultiTask) else 1


def per_sample(values: Any, samples: int, what: str) -> Tensor:
    """What a loss or metric returned, as one number per sample."""
    if not isinstance(values, Tensor) or (values.ndim and len(values) != samples):
        shown = (
            f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        )
        raise AnytimeError(
            f"{what} returned {shown} for {samples} samples; expected a tensor with one number per sample, e.g. "
            "torch.nn.CrossEntropyLoss(reduction='none')"
        )
    values = values if values.is_floating_point() else values.float()
    if values.ndim == 0:
        return values.expand(samples)
    return values if values.ndim == 1 else values.flatten(1).mean(1)


def by_exit(function: Function, outputs: Sequence[Any], targets: Any, what: str = "the loss") -> Tensor:
    """A loss or metric of every exit and sample: L × N, or L × N × T for several tasks.

    Outputs may be anything that the function takes; the first dimension of its first tensor is that of the samples.
    """
    outputs = stacked(outputs)
    if isinstance(outputs, Tensor) and getattr(function, "rowwise", False) and _one_each(targets, outputs.shape[1]):
        # All exits in one pass, which takes a fraction of the time of many small ones.
        exits, samples = outputs.shape[:2]
        return function(outputs.flatten(0, 1), targets.repeat(exits)).view(exits, samples)
    values = [function(output, targets) for output in outputs]
    if isinstance(function, MultiTask):
        return torch.stack(values)
    for value, output in zip(values, outputs, strict=True):
        _check_pairs(value, output, what)
    return torch.stack([per_sample(value, _samples(o), what) for value, o in zip(values, outputs, strict=True)])


def stacked(outputs: Sequence[Any]) -> Sequence[Any]:
    """Logits of the same shape N × C as one tensor; anything else is returned unchanged."""
    if isinstance(outputs, Tensor) or not all(isinstance(o, Tensor) and o.ndim == 2 for o in outputs):
        return outputs
    return torch.stack(list(outputs)) if len({o.shape for o in outputs}) == 1 else outputs  # type: ignore[return-value]


def _samples(output: Any) -> int:
    return len(next(iter(tensors_of(output)), output))


def _one_each(targets: Any, samples: int) -> bool:
    return isinstance(targets, Tensor) and targets.ndim == 1 and len(targets) == samples


def _check_pairs(values: Any, output: Any, what: str) -> None:
    """Refuse a number for each pair of samples, which comes of subtracting N targets from N × 1 outputs."""
    samples = _samples(output)
    pairs = isinstance(values, Tensor) and values.shape == (samples, samples) and samples > 1
    if pairs and isinstance(output, Tensor) and samples not in output.shape[1:]:
        raise AnytimeError(
            f"{what} returned {samples} × {samples} numbers for {samples} samples with outputs of shape "
            f"{tuple(output.shape)}: each output met every target; use outputs.squeeze(1), or anytime.losses.squared"
        )


cross_entropy.rowwise = True  # type: ignore[attr-defined]


def mean_of_counted(each: Tensor, targets: Tensor) -> Tensor:
    """The mean over the positions of each sample whose target counts; 0 for a sample that has none."""
    counted = (targets != IGNORED).flatten(1)
    return torch.where(counted, each.flatten(1), 0).sum(1) / counted.sum(1).clamp(min=1)


def resized(name: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Logits for each pixel, at the size of the targets."""
    shape = _shape(targets)
    if outputs.ndim < 3 or shape is None or len(shape) != outputs.ndim - 1 or shape[0] != len(outputs):
        raise _unfit(name, outputs, targets, "logits N × C × H × W and class numbers N × H × W")
    if outputs.shape[2:] == targets.shape[1:]:
        return outputs
    mode = {3: "linear", 4: "bilinear", 5: "trilinear"}[outputs.ndim]
    return F.interpolate(outputs, targets.shape[1:], mode=mode, align_corners=False)


def check_tokens(name: str, outputs: Tensor, targets: Tensor) -> None:
    """Refuse other shapes than N × T × C and N × T."""
    if outputs.ndim != 3 or _shape(targets) != outputs.shape[:2]:
        raise _unfit(name, outputs, targets, "logits N × T × C and class numbers N × T")


def _like(outputs: Tensor, targets: Tensor, name: str) -> Tensor:
    if not isinstance(targets, Tensor):
        raise _unfit(name, outputs, targets, "as many targets as outputs, in a tensor")
    targets = targets[:, None] if targets.ndim == 1 and outputs.ndim == 2 else targets
    if targets.shape != outputs.shape:
        raise _unfit(name, outputs, targets, "as many targets as outputs")
    return targets.to(outputs.dtype)


def _classes(outputs: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Cross-entropy; class numbers may be integers of any type, and so may probabilities (one-hot)."""
    if targets.is_floating_point() and targets.shape != outputs.shape:
        raise AnytimeError(
            f"the targets are {targets.dtype}; expected class numbers, which are integers: targets.long(); for numbers "
            "to predict use anytime.losses.squared or absolute"
        )
    kind = outputs.dtype if targets.shape == outputs.shape else torch.long
    try:
        return F.cross_entropy(outputs, targets.to(kind), **options)
    except IndexError as error:  # on a CPU; a GPU says so in its own words
        raise AnytimeError(
            f"the targets are class numbers from {targets.min()} to {targets.max()}, and the network has "
            f"{outputs.shape[1]} outputs: classes are numbered from 0, and there must be an output for each"
        ) from error


def _shape(targets: Any) -> Any:
    return targets.shape if isinstance(targets, Tensor) else None


def _other(outputs: Tensor) -> str:
    return {3: "; for tokens: token_cross_entropy", 4: "; for pixels: pixel_cross_entropy"}.get(outputs.ndim, "")


def _unfit(name: str, outputs: Tensor, targets: Any, wanted: str, hint: str = "") -> AnytimeError:
    shown = tuple(targets.shape) if isinstance(targets, Tensor) else f"in a {type(targets).__name__}"
    hint = hint if isinstance(targets, Tensor) else "; make them a tensor: torch.tensor(targets)"
    return AnytimeError(
        f"{name} got outputs of shape {tuple(outputs.shape)} and targets {shown}; it takes {wanted}{hint}"
    )
