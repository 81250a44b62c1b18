"""Easy samples leave early: each at the exit that is sure of it, taken out of the batch, under an average budget."""

from dataclasses import asdict, dataclass
from math import inf, log
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from anytime.errors import AnytimeError, check_number
from anytime.files import read_json, write_json
from anytime.inference.inputs import as_input, explained
from anytime.network import AnytimeNetwork

FILE = "policy.json"
"""Where ``Policy.save`` writes, beside the model it is for."""

SCORES = ("confidence", "entropy", "margin", "patience")
UNITS = ("macs", "seconds", "fraction")


class Answers(NamedTuple):
    """A batch's answers, in the order of the batch."""

    logits: Tensor
    exits: Tensor
    """The exit at which each sample left; 0 is the shallowest."""


@dataclass(frozen=True)
class Policy:
    """When a sample may leave: at the first exit that is sure enough of it. ``calibrate`` makes one.

    Args:
        score: how sure an exit is: ``confidence`` (the largest probability), ``entropy`` (1 less the entropy over its
            maximum), ``margin`` (between the two largest probabilities), ``patience`` (how many exits in a row agree,
            then the confidence).
        thresholds: of every exit but the last, the least score to leave with; None: nobody leaves there.
        temperatures: of every exit, what its logits are divided by before their softmax.
        costs: of leaving at each exit, for one sample, in the budget's unit.
        shares: of the samples of the validation set that left at each exit.
        budget: the average cost that was asked for.
        unit: of the budget: ``macs`` or ``seconds``.
    """

    score: str
    thresholds: list[float | None]
    temperatures: list[float]
    costs: list[float]
    shares: list[float]
    budget: float
    unit: str = "macs"

    def predict(self, net: AnytimeNetwork, x: Any) -> Answers:
        """Answer a batch; samples that have left are taken out of it, the rest go on.

        Args:
            net: the network that the policy was made for, in eval mode.
            x: a batch; every tensor in it has the samples along its first dimension.
        """
        if net.exits != len(self.temperatures):
            raise AnytimeError(f"this policy is for a network of {len(self.temperatures)} exits, not of {net.exits}")
        x = as_input(net, x)
        if net.training:
            raise AnytimeError(
                "the network is in training mode: its answers would depend on the batch; call net.eval()"
            )
        with torch.inference_mode():
            return self._predict(net, x)

    def _predict(self, net: AnytimeNetwork, x: Any) -> Answers:
        judge = Judge(self.score, self.temperatures)
        first = next(leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor))
        inside = torch.arange(len(first))
        exits = torch.full_like(inside, net.exits - 1)
        logits = torch.empty(0)
        walk = net.walk(x)
        with explained(net, x):
            head = next(walk)
        for exit in range(net.exits):
            while head is None:
                head = next(walk)
            answers = head()
            if exit == 0:
                logits = answers.new_empty(answers.shape)
            leaves = self.leaves(exit, judge.score(exit, answers))
            logits[inside[leaves]] = answers[leaves]
            exits[inside[leaves]] = exit
            rows = (~leaves).nonzero().squeeze(1)
            if not len(rows):
                break
            narrowed = len(rows) < len(inside)
            if narrowed:
                inside = inside[rows]
                judge.keep(rows)
            head = walk.send(rows.to(first.device) if narrowed else None)
        return Answers(logits, exits)

    def leaves(self, exit: int, scores: Tensor) -> Tensor:
        """Who leaves with these scores; at the last exit everyone does, whatever the score."""
        if exit == len(self.thresholds):
            return torch.ones_like(scores, dtype=torch.bool)
        threshold = self.thresholds[exit]
        return scores >= (inf if threshold is None else threshold)

    def exits(self, logits: Tensor) -> Tensor:
        """Where each sample leaves, given what every exit says (exits × samples × classes): ``predict`` on paper."""
        judge = Judge(self.score, self.temperatures)
        left = torch.full(logits.shape[1:2], len(logits) - 1)
        inside = torch.ones_like(left, dtype=torch.bool)
        for exit, answers in enumerate(logits):
            leaves = inside & self.leaves(exit, judge.score(exit, answers))
            left[leaves] = exit
            inside &= ~leaves
        return left

    def cost(self, exits: Tensor) -> float:
        """The average cost of a sample, given where each left."""
        return torch.tensor(self.costs, dtype=torch.float64)[exits.cpu()].mean().item()

    def save(self, folder: str | Path) -> Path:
        """Write it beside a model, as ``policy.json``."""
        path = Path(folder) / FILE
        write_json(path, asdict(self), sealed=True)
        return path

    @staticmethod
    def load(folder: str | Path) -> "Policy":
        """Read what ``save`` wrote."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise AnytimeError(f"{folder} has no {FILE}: anytime calibrate {folder} --budget 0.5 makes one")
        try:
            return Policy(**read_json(path, sealed=True))
        except (TypeError, ValueError) as error:
            raise AnytimeError(f"{path} is damaged ({error}): make it again with anytime calibrate {folder}") from error

    def __post_init__(self) -> None:
        lists = [self.temperatures, self.costs, self.shares, [t for t in self.thresholds if t is not None]]
        for number in (*(number for each in lists for number in each), self.budget):
            check_number("a policy's temperature, threshold, cost, share or budget", number, least=-inf)
        if len({len(self.temperatures), len(self.costs), len(self.shares), len(self.thresholds) + 1}) > 1:
            raise AnytimeError(
                "a policy has a temperature, cost and share for every exit, a threshold for all but the last"
            )
        if self.score not in SCORES or self.unit not in UNITS or min([*self.temperatures, 1]) <= 0:
            raise AnytimeError(f"score={self.score!r}, unit={self.unit!r}: unknown, or a temperature is not above 0")


class Judge:
    """Scores one exit after the other; higher is surer. Patience remembers the exits before."""

    def __init__(self, score: str, temperatures: list[float]) -> None:
        self.kind, self.temperatures = score, temperatures
        self.answer: Tensor | None = None
        self.streak: Tensor | None = None

    def score(self, exit: int, logits: Tensor) -> Tensor:
        """How sure the exit is of each sample."""
        # In float32 scores would be full of ties near 1, where most samples are; and not every device has float64.
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
        """Forget those that have left."""
        if self.answer is not None and self.streak is not None:
            self.answer, self.streak = self.answer[rows], self.streak[rows]
