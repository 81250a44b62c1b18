"""Metrics for evaluation: each takes the outputs of one exit and the targets and returns one number per sample.

The smaller the better. Any callable of this kind can be passed to ``evaluate`` and ``fit``; losses are metrics too, so
squared and absolute errors are in ``anytime.losses``.
"""

from math import sqrt

import torch
from torch import Tensor

from anytime import losses
from anytime.losses import IGNORED, Function, check_tokens, mean_of_counted, resized


def error(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest of the logits N × C is not that of the class, else 0; 0 for a class of -100.

    Of targets that are probabilities the largest counts.

    Examples:
        >>> error(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]))
        tensor([0., 1.])
    """
    wanted = targets.argmax(-1) if targets.shape == outputs.shape else targets
    return ((outputs.argmax(-1) != wanted) & (wanted != IGNORED)).float()


error.rowwise = True  # type: ignore[attr-defined]  # see losses.by_exit


def multi_label_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of the labels that are wrong: logits N × C above 0 mean yes."""
    return ((outputs > 0) != (targets > 0.5)).float().flatten(1).mean(1)


def pixel_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of a sample's pixels that are wrong; those of class -100 do not count."""
    outputs = resized("pixel_error", outputs, targets)
    return mean_of_counted((outputs.argmax(1) != targets).float(), targets)


def iou_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 minus the mean IoU of each sample: the mean over the classes that are in its targets or outputs.

    Outputs are logits N × C × H × W, targets class numbers N × H × W; pixels of class -100 do not count.

    Examples:
        >>> logits = torch.nn.functional.one_hot(torch.tensor([[[0, 0, 1, 1]]]), 2).movedim(-1, 1).float()
        >>> iou_error(logits, torch.tensor([[[0, 1, 1, 1]]]))      # 1/2 for class 0 and 2/3 for class 1
        tensor([0.4167])
    """
    outputs = resized("iou_error", outputs, targets)
    classes = outputs.shape[1]
    counted = (targets != IGNORED).flatten(1)
    said = torch.where(counted, outputs.argmax(1).flatten(1), classes)
    right = torch.where(counted, targets.flatten(1), classes)
    both = torch.where(said == right, said, classes)
    sizes = [torch.zeros(len(outputs), classes + 1, device=outputs.device) for _ in range(3)]
    for size, where in zip(sizes, (said, right, both), strict=True):
        size.scatter_add_(1, where, torch.ones_like(where, dtype=size.dtype))
    one, other, common = (size[:, :classes] for size in sizes)
    union = one + other - common
    there = union > 0
    iou = torch.where(there, common / union.clamp(min=1), 0).sum(1) / there.sum(1).clamp(min=1)
    return torch.where(there.any(1), 1 - iou, 0)


def token_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of a sample's tokens that are wrong, from logits N × T × C; those of class -100 do not count."""
    check_tokens("token_error", outputs, targets)
    return mean_of_counted((outputs.argmax(-1) != targets).float(), targets)


def next_token_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of the tokens that are not the most likely one, given those before them; -100 does not count."""
    check_tokens("next_token_error", outputs, targets)
    return token_error(outputs[:, :-1], targets[:, 1:])


SHARES = frozenset(
    {f.__name__ for f in (error, multi_label_error, pixel_error, iou_error, token_error, next_token_error)}
)
"""The names of the metrics that are shares, which are shown in percent."""

_FOR_LOSS: dict[Function, Function] = {
    losses.cross_entropy: error,
    losses.multi_label: multi_label_error,
    losses.pixel_cross_entropy: pixel_error,
    losses.token_cross_entropy: token_error,
    losses.next_token: next_token_error,
}


def metric_for(loss: Function) -> Function:
    """The metric that belongs to a loss: the share of wrong answers if it is about classes, else the loss itself."""
    return next((metric for known, metric in _FOR_LOSS.items() if known is loss), loss)


def wilson(share: float, samples: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share of independent samples, by default the 95 % interval.

    Examples:
        >>> [round(bound, 3) for bound in wilson(0.1, 100)]
        [0.055, 0.174]
    """
    middle, room = share + z * z / (2 * samples), z * sqrt(share * (1 - share) / samples + z * z / (4 * samples**2))
    return max(0.0, (middle - room) / (1 + z * z / samples)), min(1.0, (middle + room) / (1 + z * z / samples))
