"""Early exit per sample: each leaves the batch at the first exit that is sure of it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf, log
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anytime.drawing import OTHER_COLORS, finish, new_axes
from anytime.errors import AnytimeError, check_integer, check_number
from anytime.files import read_json, write_json
from anytime.inputs import as_input, check_outputs, explained
from anytime.losses import per_sample
from anytime.network import Network

FILE = "policy.json"
"""The file that ``Policy.save`` writes into the model's folder."""

SCORES = ("confidence", "entropy", "margin", "patience")
ScoreFunction = Callable[[Tensor], Tensor]
"""From the outputs of an exit to one number per sample; higher means surer."""
UNITS = ("macs", "seconds")
"""Of a policy's costs and budget."""


class Answers(NamedTuple):
    """The predictions for a batch, in the order of the batch."""

    logits: Tensor
    exits: Tensor
    """The exit at which each sample left; 0 is the shallowest."""


@dataclass(frozen=True)
class HeldOut:
    """Statistics of the calibration samples, with which a ``Monitor`` compares those after deployment."""

    samples: int
    differ: float
    """Share of those that the policy answers otherwise than the last exit does."""
    early: float
    """Share of those that leave before the last exit."""
    cutoffs: list[float]
    """Deciles of the first exit's score."""
    below: list[float]
    """Share of the samples whose score is at most each of them."""

    def __post_init__(self) -> None:
        check_integer("the number of held-out samples", self.samples)
        for share in (self.differ, self.early, *self.below):
            check_number("a share of held-out samples", share, most=1)
        for cutoff in self.cutoffs:
            check_number("a decile of held-out samples", cutoff, least=-inf)
        if len(self.cutoffs) != len(self.below):
            raise AnytimeError("held-out samples have a share for each decile")


@dataclass(frozen=True)
class Policy:
    """When a sample leaves: at the first exit whose score reaches its threshold. ``calibrate`` makes one.

    Args:
        score: how sure an exit is: ``confidence`` (the largest probability), ``entropy`` (1 minus the entropy divided
            by its maximum), ``margin`` (the difference of the two largest probabilities), ``patience`` (the number of
            exits in a row that agree, then the confidence). Or a function of the outputs of an exit that returns one
            number per sample.
        thresholds: the least score to leave with, for every exit but the last; None: no sample leaves there.
        temperatures: what the logits of each exit are divided by before the softmax.
        costs: the cost of one sample that leaves at each exit, in the unit of the budget.
        shares: the share of the validation samples that left at each exit.
        budget: the average cost of a sample that was asked for; with a risk, that found on held-out samples.
        unit: the unit of the budget: ``macs`` or ``seconds``.
        risk: the accuracy that leaving early may cost, if ``calibrate`` was asked for one.
        delta: the chance that it costs more; None: it does not on average.
        labels: whether the risk is about right answers; False: about answers that equal the last exit's.
        held_out: what the held-out samples looked like; None if it is not known.

    Examples:
        >>> policy = Policy("confidence", [0.9], [1.0, 1.0], costs=[1.0, 3.0], shares=[0.5, 0.5], budget=2.0)
        >>> logits = torch.tensor([[[4.0, 0.0], [1.0, 0.0]], [[5.0, 0.0], [0.0, 5.0]]])     # exits × samples × classes
        >>> policy.choose_exits(logits)                 # the first exit is 98 % sure of one sample, 73 % of the other
        tensor([0, 1])
        >>> policy.cost(policy.choose_exits(logits))
        2.0
    """

    score: str | ScoreFunction
    thresholds: list[float | None]
    temperatures: list[float]
    costs: list[float]
    shares: list[float]
    budget: float
    unit: str = "macs"
    risk: float | None = None
    delta: float | None = None
    labels: bool = True
    held_out: HeldOut | None = None

    def predict(self, net: Network, x: Any) -> Answers:
        """Predictions for a batch; samples that leave are removed from it before the next stage.

        Args:
            net: the network that the policy was made for, in eval mode.
            x: a batch: tensors or NumPy arrays with the samples along their first dimension.
        """
        if not isinstance(net, Network):
            raise AnytimeError(f"expected an AnytimeNetwork, not a {type(net).__name__}")
        if net.exits != len(self.temperatures):
            raise AnytimeError(f"the policy is for a network of {len(self.temperatures)} exits, not of {net.exits}")
        x = as_input(net, x)
        if net.training:
            raise AnytimeError("the network is in training mode: its predictions depend on the batch; call net.eval()")
        with torch.inference_mode():
            return self._predict(net, x)

    def _predict(self, net: Network, x: Any) -> Answers:
        scorer = Scorer(self.score, self.temperatures)
        first = next(leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor))
        inside = torch.arange(len(first))
        exits = torch.full_like(inside, net.exits - 1)
        logits = torch.empty(0)
        walk = net.walk(x)
        with explained(net, x):
            reached = next(walk)
        for exit in range(net.exits):
            while reached is None:
                reached = next(walk)
            answers = reached()
            if exit == 0:
                logits = answers.new_empty(answers.shape)
            leaves = self.leaves(exit, scorer.score(exit, answers))
            logits[inside[leaves]] = answers[leaves]
            exits[inside[leaves]] = exit
            rows = (~leaves).nonzero().squeeze(1)
            if not len(rows):
                break
            narrowed = len(rows) < len(inside)
            if narrowed:
                inside = inside[rows]
                scorer.keep(rows)
            reached = walk.send(rows.to(first.device) if narrowed else None)
        check_outputs(net, x, logits)
        return Answers(logits, exits)

    def leaves(self, exit: int, scores: Tensor) -> Tensor:
        """Which samples leave with these scores; at the last exit all do."""
        if exit == len(self.thresholds):
            return torch.ones_like(scores, dtype=torch.bool)
        threshold = self.thresholds[exit]
        return scores >= (inf if threshold is None else threshold)

    def choose_exits(self, logits: Tensor) -> Tensor:
        """The exit at which each sample leaves, given the logits of all exits (exits × samples × classes)."""
        scorer = Scorer(self.score, self.temperatures)
        left = torch.full(logits.shape[1:2], len(logits) - 1)
        inside = torch.ones_like(left, dtype=torch.bool)
        for exit, answers in enumerate(logits):
            leaves = inside & self.leaves(exit, scorer.score(exit, answers))
            left[leaves] = exit
            inside &= ~leaves
        return left

    def cost(self, exits: Tensor) -> float:
        """The average cost of a sample, given the exit at which each left."""
        return torch.tensor(self.costs, dtype=torch.float64)[exits.cpu()].mean().item()

    def remembering(self, logits: Tensor) -> "Policy":
        """The same policy with what these held-out samples look like, given as exits × samples × classes."""
        exits = self.choose_exits(logits)
        chosen, early = logits[exits, torch.arange(logits.shape[1])], exits < len(logits) - 1
        scores = Scorer(self.score, self.temperatures).score(0, logits[0])
        cutoffs = scores.quantile(torch.arange(1, 10, dtype=scores.dtype) / 10)
        below = (scores[:, None] <= cutoffs).double().mean(0)
        differ = (chosen.argmax(-1) != logits[-1].argmax(-1)).double().mean().item()
        share = early.double().mean().item()
        return replace(self, held_out=HeldOut(len(scores), differ, share, cutoffs.tolist(), below.tolist()))

    def plot(self, ax: Any = None) -> Any:
        """Draw which share of the held-out samples left at each exit, with the least score that it takes to leave.

        Args:
            ax: the axes to draw on; by default new ones.

        Returns:
            The axes.
        """
        axis = new_axes() if ax is None else ax
        exits = range(1, len(self.costs) + 1)
        bars = axis.bar(exits, [100 * share for share in self.shares], color=OTHER_COLORS[0])
        least = ["" if threshold is None else f"≥ {threshold:.3g}" for threshold in (*self.thresholds, None)]
        axis.bar_label(bars, least, fontsize="x-small")
        axis.set_xticks(exits, [f"{n}\n{cost / self.costs[-1]:.0%}" for n, cost in zip(exits, self.costs, strict=True)])
        mean = sum(share * cost for share, cost in zip(self.shares, self.costs, strict=True)) / self.costs[-1]
        score = self.score if isinstance(self.score, str) else getattr(self.score, "__name__", "score")
        axis.set(xlabel="exit, and its share of the cost", ylabel="samples that leave (%)")
        finish(axis, f"threshold of the {score} above each exit; mean cost {mean:.0%}")
        return axis

    def save(self, folder: str | Path) -> Path:
        """Write it beside a model, as ``policy.json``."""
        if callable(self.score):
            raise AnytimeError("a policy whose score is a function cannot be saved: calibrate again where it is used")
        path = Path(folder) / FILE
        write_json(path, asdict(self), sealed=True)
        return path

    @staticmethod
    def load(folder: str | Path) -> "Policy":
        """Read a saved policy."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise AnytimeError(
                f"{folder} has no {FILE}: make one with anytime.calibrate(net, validation, budget).save(folder)"
            )
        try:
            return Policy.of(read_json(path, sealed=True))
        except (TypeError, ValueError) as error:
            raise AnytimeError(f"{path} is damaged ({error}): make it again with anytime.calibrate") from error

    @staticmethod
    def of(content: Mapping[str, Any]) -> "Policy":
        """The policy that JSON describes."""
        held_out = content.get("held_out")
        return Policy(**{**content, "held_out": None if held_out is None else HeldOut(**held_out)})

    def __post_init__(self) -> None:
        lists = [self.temperatures, self.costs, self.shares, [t for t in self.thresholds if t is not None]]
        promised = [number for number in (self.risk, self.delta) if number is not None]
        for number in (*(number for each in lists for number in each), self.budget, *promised):
            check_number("a policy's temperature, threshold, cost, share, budget or risk", number, least=-inf)
        if len({len(self.temperatures), len(self.costs), len(self.shares), len(self.thresholds) + 1}) > 1:
            raise AnytimeError(
                "a policy has a temperature, cost and share for every exit, a threshold for all but the last"
            )
        known = callable(self.score) or self.score in SCORES
        if not known or self.unit not in UNITS or min([*self.temperatures, 1]) <= 0:
            raise AnytimeError(f"score={self.score!r}, unit={self.unit!r}: unknown, or a temperature is not above 0")


def shares(left: Tensor, exits: int) -> list[float]:
    """The share of the samples that left at each exit."""
    return (left.bincount(minlength=exits) / len(left)).tolist()


class Scorer:
    """Scores one exit after the other; a higher score means surer. ``patience`` depends on the exits before."""

    def __init__(self, score: str | ScoreFunction, temperatures: list[float]) -> None:
        self.kind, self.temperatures = score, temperatures
        self.answer: Tensor | None = None
        self.streak: Tensor | None = None

    def score(self, exit: int, logits: Tensor) -> Tensor:
        """How sure the exit is of each sample."""
        if callable(self.kind):
            return per_sample(self.kind(logits), len(logits), "the score").cpu().double()
        # In float32 many scores near 1 would be equal. Not every device has float64, hence the CPU.
        logp = (logits.cpu().double() / self.temperatures[exit]).log_softmax(-1)
        if self.kind == "entropy":
            return 1 + (logp.exp() * logp).sum(-1) / log(logits.shape[-1])
        if self.kind == "margin":
            top = logp.exp().topk(2, -1).values
            return top[:, 0] - top[:, 1]
        best, answer = logp.max(-1)
        if self.kind == "confidence":
            return best.exp()
        if self.answer is None or self.streak is None:
            self.streak = torch.zeros_like(answer)
        else:
            self.streak = torch.where(answer == self.answer, self.streak + 1, 0)
        self.answer = answer
        return self.streak + best.exp()

    def keep(self, rows: Tensor) -> None:
        """Keep these samples only: the others have left."""
        if self.answer is not None and self.streak is not None:
            self.answer, self.streak = self.answer[rows], self.streak[rows]
