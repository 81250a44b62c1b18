"""Rules that set the thresholds of all exits by one parameter: the larger it is, the later samples leave."""

import torch
from torch import Tensor


def _common(scores: Tensor, threshold: float) -> tuple[list[float | None], Tensor]:
    """The same threshold at every exit but the last, and the exit at which each sample then leaves."""
    sure = scores >= threshold
    sure[-1] = True
    left = sure.int().argmax(0)
    exit = torch.arange(len(scores))[:, None]
    before_last = exit < len(scores) - 1
    threshold = _between(scores[(exit == left) & before_last], scores[exit < left], threshold)
    return [threshold] * (len(scores) - 1), left


def _between(leaving: Tensor, staying: Tensor, threshold: float) -> float:
    """A threshold halfway between those that leave and those that stay, so that rounding errors do not matter."""
    if not len(leaving) or not len(staying):
        return threshold
    return (leaving.min().item() + staying.max().item()) / 2


def _geometric(scores: Tensor, log_ratio: float) -> tuple[list[float | None], Tensor]:
    """Thresholds that make the shares of the exits a geometric series, and the exit at which each sample leaves."""
    exits, samples = scores.shape
    series = torch.tensor([log_ratio * exit for exit in range(exits)], dtype=torch.float64).softmax(0)
    left = torch.full((samples,), exits - 1)
    inside = torch.arange(samples)
    thresholds: list[float | None] = []
    for exit in range(exits - 1):
        wanted = min(round(series[: exit + 1].sum().item() * samples) - (samples - len(inside)), len(inside))
        if wanted <= 0:
            thresholds.append(None)
            continue
        mine = scores[exit, inside]
        leaves = mine >= mine.kthvalue(len(inside) - wanted + 1).values
        thresholds.append(_between(mine[leaves], mine[~leaves], mine[leaves].min().item()))
        left[inside[leaves]] = exit
        inside = inside[~leaves]
    return thresholds, left


RULES = {"common": _common, "geometric": _geometric}
