"""Easy samples leave early: each at the exit that is sure of it, taken out of the batch, under an average budget."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import exp, inf, log
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from anytime.cost import costs
from anytime.errors import AnytimeError
from anytime.files import read_json, write_json
from anytime.latency import profile
from anytime.network import AnytimeNetwork

FILE = "policy.json"
"""Where ``Policy.save`` writes, beside the model it is for."""

SCORES = ("confidence", "entropy", "margin", "patience")
UNITS = ("macs", "seconds", "fraction")


class Outputs(NamedTuple):
    """What every exit says to every sample, and what is right."""

    logits: Tensor
    """exits × samples × classes"""
    labels: Tensor

    @property
    def wrong(self) -> Tensor:
        """Which answers are wrong, exits × samples."""
        return self.logits.argmax(-1) != self.labels


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
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(x)):
            raise AnytimeError(f"got {x!r}; expected a batch: a tensor, or tensors in a dict, tuple or list")
        if net.training:
            raise AnytimeError(
                "the network is in training mode: its answers would depend on the batch; call net.eval()"
            )
        with torch.inference_mode():
            return self._predict(net, x)

    def _predict(self, net: AnytimeNetwork, x: Any) -> Answers:
        judge = _Judge(self.score, self.temperatures)
        first = next(leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor))
        inside = torch.arange(len(first))
        exits = torch.full_like(inside, net.exits - 1)
        logits = torch.empty(0)
        walk = net.walk(x)
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
        judge = _Judge(self.score, self.temperatures)
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
        write_json(path, asdict(self))
        return path

    @staticmethod
    def load(folder: str | Path) -> "Policy":
        """Read what ``save`` wrote."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise AnytimeError(f"{folder} has no {FILE}: anytime calibrate {folder} --budget 0.5 makes one")
        try:
            return Policy(**read_json(path))
        except (TypeError, ValueError) as error:
            raise AnytimeError(f"{path} is damaged: {error}") from error

    def __post_init__(self) -> None:
        lists = [self.temperatures, self.costs, self.shares, [t for t in self.thresholds if t is not None]]
        numbers = [*(number for each in lists for number in each), self.budget]
        if not all(isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < inf for n in numbers):
            raise AnytimeError("a policy's temperatures, thresholds, costs, shares and budget are numbers")
        if len({len(self.temperatures), len(self.costs), len(self.shares), len(self.thresholds) + 1}) > 1:
            raise AnytimeError(
                "a policy has a temperature, cost and share for every exit, a threshold for all but the last"
            )
        if self.score not in SCORES or self.unit not in UNITS or min([*self.temperatures, 1]) <= 0:
            raise AnytimeError(f"score={self.score!r}, unit={self.unit!r}: unknown, or a temperature is not above 0")


class _Judge:
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


@torch.inference_mode()
def collect(net: AnytimeNetwork, batches: Iterable[tuple[Any, Tensor]]) -> Outputs:
    """Run every exit on batches of inputs and labels.

    Args:
        net: the network; it runs in eval mode and is left in the mode it had.
        batches: a ``DataLoader``, ``data.batches(data.validation)`` or the like.
    """
    was_training = net.training
    net.eval()
    try:
        pairs = [_outputs(net, batch) for batch in batches]
    finally:
        net.train(was_training)
    if not pairs:
        raise AnytimeError("there are no batches: give some of (inputs, labels)")
    return Outputs(torch.cat([logits for logits, _ in pairs], 1), torch.cat([labels for _, labels in pairs]))


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


def calibrate(
    net: AnytimeNetwork,
    validation: Iterable[tuple[Any, Tensor]],
    budget: float,
    unit: str = "macs",
    score: str = "confidence",
    rule: str = "common",
) -> Policy:
    """Find per-exit thresholds on held-out data so that the average cost of a sample meets a budget.

    First each exit gets the temperature that makes its probabilities most likely (Guo et al. 2017), so that a score
    means the same at every exit. Then thresholds are set by one of two rules, either with one number to turn until
    the average cost meets the budget:

    - ``common``: the same threshold at every exit.
    - ``geometric``: as in MSDNet's budgeted batch classification (Huang et al. 2018), the shares of samples that leave
      at exits 1 … L are a series q, qr, qr², …; an exit's threshold is the score that lets its share of all samples
      leave, the surest of those that are still there. It sends its share to an exit however bad that exit is.

    Args:
        net: the network.
        validation: batches of inputs and labels that it was not trained on, as for ``collect``.
        budget: the average cost of a sample, all heads on its way included.
        unit: ``macs``; ``seconds``, as measured on the first batch; or ``fraction`` of the whole network's MACs.
        score: how sure an exit is of its answer; see ``Policy``.
        rule: how the thresholds are set, as above.

    Example:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> policy = anytime.calibrate(net, data.batches(data.validation), budget=0.7, unit="fraction")
        >>> len(policy.thresholds)              # everyone leaves at the third exit
        2
        >>> policy.predict(net.eval(), torch.zeros(4, 1, 8, 8)).logits.shape
        torch.Size([4, 10])
    """
    if unit not in UNITS:
        raise AnytimeError(f"unit={unit!r}; it is one of {', '.join(UNITS)}")
    some: list[Any] = []

    def batches() -> Iterator[Any]:
        for batch in validation:
            if not some and isinstance(batch, tuple | list) and batch and any(map(len, _tensors(batch[0]))):
                some.append(batch[0])
            yield batch

    outputs = collect(net, batches())
    if not some:
        raise AnytimeError("there are no samples to calibrate with")
    return fit_policy(outputs, _costs(net, some[0], unit), budget, unit, score, rule)


def _tensors(x: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor)]


def _costs(net: AnytimeNetwork, batch: Any, unit: str) -> list[float]:
    """What it costs a sample to leave at each exit."""
    if unit == "seconds":
        size = next(len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        return [seconds / size for seconds in profile(net, batch, repeats=10, warmup=2).through]
    one = tree_map(lambda leaf: leaf[:1] if isinstance(leaf, Tensor) else leaf, batch)
    return [float(macs) for macs in costs(net, one).macs]


def fit_policy(
    outputs: Outputs,
    costs: list[float],
    budget: float,
    unit: str = "macs",
    score: str = "confidence",
    rule: str = "common",
) -> Policy:
    """What ``calibrate`` does once the network has answered."""
    if score not in SCORES:
        raise AnytimeError(f"score={score!r}; it is one of {', '.join(SCORES)}")
    if rule not in RULES:
        raise AnytimeError(f"rule={rule!r}; it is one of {', '.join(RULES)}")
    if isinstance(budget, bool) or not isinstance(budget, int | float):
        raise AnytimeError(f"budget={budget!r}: it must be a number")
    if outputs.logits.shape[-1] < 2:
        raise AnytimeError("the network has one class: no exit can be more or less sure of it")
    whole = costs[-1] if unit == "fraction" else 1.0
    least, most = costs[0] / whole, costs[-1] / whole
    if not least <= budget <= (most if unit == "fraction" else inf) or budget == inf:
        raise AnytimeError(
            f"a budget of {budget:.4g} ({unit} a sample): the first exit takes {least:.4g}, the last {most:.4g}"
        )
    budget, unit = budget * whole, "macs" if unit == "fraction" else unit
    temperatures = _temperatures(outputs)
    judge = _Judge(score, temperatures)
    scores = torch.stack([judge.score(exit, logits) for exit, logits in enumerate(outputs.logits)])
    each = torch.tensor(costs, dtype=torch.float64)
    thresholds_by = RULES[rule]
    # The dial, from all at the first exit to all at the last: a threshold, or the logarithm of the series' ratio.
    low, high = (scores.min().item(), scores.max().item() + 1) if rule == "common" else (-30.0, 30.0)
    for _ in range(60):
        middle = (low + high) / 2
        _, left = thresholds_by(scores, middle)
        low, high = (middle, high) if each[left].mean() <= budget else (low, middle)
    thresholds, left = thresholds_by(scores, low)
    shares = (left.bincount(minlength=len(costs)) / len(left)).tolist()
    return Policy(score, thresholds, temperatures, costs, shares, budget, unit)


@dataclass(frozen=True)
class Budgeted:
    """What a policy reached on images that it was not calibrated with."""

    budget: float
    cost: float
    error: float
    shares: list[float]


def sweep(
    validation: Outputs,
    test: Outputs,
    costs: list[float],
    points: int = 12,
    score: str = "confidence",
    rule: str = "common",
) -> list[Budgeted]:
    """Error against average cost, for budgets from the first exit's cost to the last's."""
    reached = []
    for i in range(points):
        budget = costs[0] + (costs[-1] - costs[0]) * i / (points - 1)
        policy = fit_policy(validation, costs, budget, score=score, rule=rule)
        exits = policy.exits(test.logits)
        error = test.wrong[exits, torch.arange(len(exits))].double().mean().item()
        shares = (exits.bincount(minlength=len(costs)) / len(exits)).tolist()
        reached.append(Budgeted(budget, policy.cost(exits), error, shares))
    return reached


def _common(scores: Tensor, threshold: float) -> tuple[list[float | None], Tensor]:
    """The same threshold at every exit but the last, and where each sample then leaves."""
    sure = scores >= threshold
    sure[-1] = True
    left = sure.int().argmax(0)
    exit = torch.arange(len(scores))[:, None]
    before_last = exit < len(scores) - 1
    threshold = _between(scores[(exit == left) & before_last], scores[exit < left], threshold)
    return [threshold] * (len(scores) - 1), left


def _between(leaving: Tensor, staying: Tensor, threshold: float) -> float:
    """A threshold halfway between those who leave and those who stay, so that rounding moves nobody across."""
    if not len(leaving) or not len(staying):
        return threshold
    return (leaving.min().item() + staying.max().item()) / 2


def _geometric(scores: Tensor, log_ratio: float) -> tuple[list[float | None], Tensor]:
    """Thresholds that make the shares of the exits a geometric series, and where each sample then leaves."""
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


def _temperatures(outputs: Outputs) -> list[float]:
    """For each exit the temperature of least cross-entropy, by bisection: it is convex in 1/temperature."""
    logits = outputs.logits.double()
    right = logits.gather(-1, outputs.labels.expand(len(logits), -1)[..., None]).squeeze(-1)
    low, high = (torch.full((len(logits),), bound, dtype=torch.float64) for bound in (-5.0, 5.0))
    for _ in range(40):
        middle = (low + high) / 2
        expected = ((logits * middle.exp()[:, None, None]).softmax(-1) * logits).sum(-1)
        too_cold = (expected - right).mean(-1) > 0  # the slope of the cross-entropy in 1/temperature
        low, high = torch.where(too_cold, low, middle), torch.where(too_cold, middle, high)
    return [exp(-log_inverse) for log_inverse in low.tolist()]
