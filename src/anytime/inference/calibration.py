"""Thresholds of a policy from held-out data, for a budget of the average cost or a bound on what is lost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor, inf, log10
from typing import Any

import torch
from torch import Tensor

from anytime.batches import TARGETS, Batch, Peeked, as_batch, check_batches, one_sample, samples
from anytime.cost import check_known, costs
from anytime.errors import AnytimeError, check_integer, check_number, shown
from anytime.evaluation import Outputs, collect
from anytime.inference.latency import profile
from anytime.inference.policy import SCORES, UNITS, Policy, ScoreFunction, Scorer, shares
from anytime.inference.risk import control_risk
from anytime.inference.temperature import fit_temperatures
from anytime.inference.thresholds import RULES
from anytime.inputs import explained, nan_cause
from anytime.network import Network, eval_mode, tensors_of

BUDGET_UNITS = (*UNITS, "fraction")
"""Of the budget that is asked for; a fraction of the MACs becomes MACs."""


def calibrate(
    net: Network,
    validation: Iterable[Any],
    budget: float | None = None,
    unit: str | None = None,
    score: str | ScoreFunction = "confidence",
    rule: str = "common",
    *,
    risk: float | None = None,
    delta: float | None = None,
    labels: bool = True,
    batch_size: int | None = None,
) -> Policy:
    """Find per-exit thresholds on held-out data, for a budget of the average cost or for a bound on what it costs.

    With ``risk=0.02, delta=0.05``, answers lose at most 2 points of accuracy against the last exit with probability
    95 %, for any network, if the held-out samples are drawn as the new ones will be; without ``delta``, on average. The
    thresholds of least cost that keep this are found by ``anytime.inference.control_risk``, which has the details.

    With a budget, each exit gets the temperature that minimizes its cross-entropy (Guo et al. 2017), so that scores of
    different exits can be compared. Then the thresholds are set by one of two rules. Each has one parameter, found by
    bisection so that the average cost meets the budget:

    - ``common``: the same threshold at every exit.
    - ``geometric``: as in MSDNet's budgeted batch classification (Huang et al. 2018), the shares of samples that leave
      at exits 1 … L are a series q, qr, qr², …; the threshold of an exit is the score that lets its share of all
      samples leave, the surest of those that remain. An exit gets its share even if it is a bad one.

    Args:
        net: the network.
        validation: batches that it was not trained on: a ``DataLoader`` or any other iterable of (inputs, labels), or
            of dicts with the labels under ``labels``; labels are class numbers, unless the score is a function.
        budget: the average cost of a sample, including all heads up to its exit; either this or ``risk``.
        unit: of the budget: ``fraction`` of the MACs of the whole network; ``macs``; or ``seconds``, as measured on one
            sample at a time. Without it, a budget up to 1 is a fraction, and a larger one MACs.
        score: how sure an exit is of its prediction; see ``Policy``. Or, for a budget, any function from the outputs of
            an exit to one number per sample, higher for surer: for outputs that are not logits of classes.
        rule: how the thresholds are set for a budget, as above.
        risk: the accuracy that may be lost against the last exit, as a share.
        delta: the chance that more is lost.
        labels: False: the batches are inputs alone, or with labels that do not count, and the risk is the share of
            samples that are answered otherwise than by the last exit.
        batch_size: for ``seconds``: how many samples are predicted together, 1 by default. Their time is divided by
            their number, so the seconds of a sample in a batch of 100 are a fraction of those of a sample alone.

    Examples:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1)
        >>> policy = anytime.calibrate(net, data.batches(data.validation), budget=0.7)
        >>> len(policy.thresholds)              # all remaining samples leave at the third exit
        2
        >>> policy.predict(net.eval(), torch.zeros(4, 1, 8, 8)).logits.shape
        torch.Size([4, 10])
        >>> anytime.calibrate(net, data.batches(data.validation), risk=0.05, delta=0.1).risk
        0.05
    """
    if budget is not None:
        budget = check_number("budget", budget)
    if unit is None:
        unit = "fraction" if budget is not None and budget <= 1 else "macs"
    if unit not in BUDGET_UNITS:
        raise AnytimeError(f"unit={unit!r} must be one of {', '.join(BUDGET_UNITS)}")
    if (budget is None) == (risk is None) or (risk is None and not (delta is None and labels)):
        raise AnytimeError(
            "calibrate takes either a budget, or a risk with or without delta and labels=False: "
            "calibrate(net, batches, budget=0.5) or calibrate(net, batches, risk=0.02, delta=0.05)"
        )
    if batch_size is not None and unit != "seconds":
        raise AnytimeError(f'batch_size={shown(batch_size)} counts for seconds alone: pass unit="seconds" too')
    batch_size = check_integer("batch_size", 1 if batch_size is None else batch_size)
    check_batches("calibrate", validation)
    check = None if unit == "seconds" else partial(check_known, net)
    peeked = Peeked(net, validation if labels else map(partial(_without_labels, net), validation), check)
    if callable(score):
        if budget is None:
            raise AnytimeError(f"a risk needs a score by name: one of {', '.join(SCORES)}")
        scores = _scores(net, peeked, score)
        return _meet(scores, _costs(net, peeked.first, unit, batch_size), budget, unit, score, rule, [1.0] * net.exits)
    outputs = collect(net, peeked)
    spent = _costs(net, peeked.first, unit, batch_size)
    if budget is not None:
        return fit_policy(outputs, spent, budget, unit, score, rule)
    assert risk is not None
    if not labels:
        outputs = outputs._replace(labels=outputs.logits[-1].argmax(-1))
    policy = control_risk(outputs, spent, risk, delta, score)
    return replace(policy, labels=labels, unit="seconds" if unit == "seconds" else "macs")


def _without_labels(net: Network, item: Any) -> Batch:
    """A batch of inputs alone, or of inputs and labels that do not count, with placeholders for the labels."""
    if isinstance(item, Batch):
        item = item.inputs, None
    elif isinstance(item, Mapping):
        item = item if any(name in item for name in TARGETS) else {**item, TARGETS[0]: None}
    elif not (isinstance(item, tuple | list) and len(item) == 2):
        item = item[0] if isinstance(item, tuple | list) and len(item) == 1 else item, None
    inputs = as_batch(net, item).inputs
    return Batch(inputs, torch.zeros(len(Batch(inputs, None)), dtype=torch.int64))


def _costs(net: Network, first: Any, unit: str, batch_size: int) -> list[float]:
    """The cost of one sample that leaves at each exit; seconds are those in a batch of this size."""
    if unit != "seconds":
        return [float(macs) for macs in costs(net, one_sample(first)).macs]
    there = len(tensors_of(first)[0])
    if there < batch_size:
        raise AnytimeError(
            f"batch_size={batch_size}: the first batch has {there} samples, and seconds are measured on as many as "
            "are predicted together; pass larger batches"
        )
    return [seconds / batch_size for seconds in profile(net, samples(first, batch_size), repeats=10, warmup=2).through]


@torch.inference_mode()
def _scores(net: Network, batches: Iterable[Batch], score: ScoreFunction) -> Tensor:
    """How sure each exit is of each sample; the outputs are not kept."""
    scorer = Scorer(score, [1.0] * net.exits)
    each = []
    with eval_mode(net):
        for batch in filter(len, batches):
            with explained(net, batch.inputs):
                answers = net(batch.inputs)
            each.append(torch.stack([scorer.score(exit, outputs) for exit, outputs in enumerate(answers)]))
            if each[-1].isnan().any():
                raise AnytimeError(f"the score is NaN for some of these samples: {nan_cause(net, batch.inputs)}")
    if not each:
        raise AnytimeError("there are no batches: give some of (inputs, targets)")
    return torch.cat(each, 1)


def fit_policy(
    outputs: Outputs,
    costs: list[float],
    budget: float,
    unit: str = "macs",
    score: str = "confidence",
    rule: str = "common",
) -> Policy:
    """The policy for the outputs of a network; see ``calibrate``."""
    scores, temperatures = _fit_scores(outputs, score)
    return _meet(scores, costs, budget, unit, score, rule, temperatures).remembering(outputs.logits)


def _fit_scores(outputs: Outputs, score: str) -> tuple[Tensor, list[float]]:
    """How sure each exit is of each sample, and the temperatures fitted for that."""
    if score not in SCORES:
        raise AnytimeError(f"score={score!r} must be one of {', '.join(SCORES)}")
    temperatures = fit_temperatures(outputs)
    scorer = Scorer(score, temperatures)
    return torch.stack([scorer.score(exit, logits) for exit, logits in enumerate(outputs.logits)]), temperatures


def _meet(
    scores: Tensor,
    costs: list[float],
    budget: float,
    unit: str,
    score: str | ScoreFunction,
    rule: str,
    temperatures: list[float],
) -> Policy:
    """The policy that meets a budget, given the score of every exit and sample."""
    if rule not in RULES:
        raise AnytimeError(f"rule={rule!r} must be one of {', '.join(RULES)}")
    budget = check_number("budget", budget)
    whole = costs[-1] if unit == "fraction" else 1.0
    least, most = costs[0] / whole, costs[-1] / whole
    if not least <= budget <= (most if unit == "fraction" else inf):
        raise AnytimeError(
            f"budget={budget:.4g} ({unit} per sample): the first exit takes {least:.4g}, the last {most:.4g}; choose a "
            f"budget between {_rounded_up(least):.4g} and {most:.4g}{_meant(budget, unit)}"
        )
    budget, unit = budget * whole, "macs" if unit == "fraction" else unit
    each = torch.tensor(costs, dtype=torch.float64)
    thresholds_by = RULES[rule]
    # The parameter of the rule: a threshold, or the logarithm of the ratio of the series. At its lower end all samples
    # leave at the first exit, at its upper end at the last.
    low, high = (scores.min().item(), scores.max().item() + 1) if rule == "common" else (-30.0, 30.0)
    for _ in range(60):
        middle = (low + high) / 2
        _, left = thresholds_by(scores, middle)
        low, high = (middle, high) if each[left].mean() <= budget else (low, middle)
    thresholds, left = thresholds_by(scores, low)
    return Policy(score, thresholds, temperatures, costs, shares(left, len(costs)), budget, unit)


def _rounded_up(least: float) -> float:
    """To the four digits that are shown, so that what is shown is enough."""
    digit = 10.0 ** (floor(log10(least)) - 3) if least > 0 else 1.0
    return ceil(least / digit) * digit


def _meant(budget: float, unit: str) -> str:
    """What a budget that is out of range was probably meant to be."""
    if unit == "macs" and 0 < budget <= 1:
        return '; for a share of the cost, pass unit="fraction"'
    if unit != "seconds" and 1 < budget <= 100:
        return f"; {budget:g} % of the cost is budget={budget / 100:g}"
    return ""


@dataclass(frozen=True)
class Budgeted:
    """Cost and error of a policy on samples that it was not calibrated with."""

    budget: float
    cost: float
    error: float
    shares: list[float]


def sweep(
    validation: Outputs,
    test: Outputs,
    costs: list[float],
    score: str = "confidence",
    rule: str = "common",
) -> list[Budgeted]:
    """Error against average cost, for budgets of the first exit's cost and of 5 %, 10 %, … of the whole cost."""
    scores, temperatures = _fit_scores(validation, score)
    reached = []
    for budget in (costs[0], *(costs[-1] * i / 20 for i in range(1, 21) if costs[-1] * i / 20 > costs[0])):
        policy = _meet(scores, costs, budget, "macs", score, rule, temperatures)
        exits = policy.choose_exits(test.logits)
        error = test.wrong[exits, torch.arange(len(exits))].double().mean().item()
        reached.append(Budgeted(budget, policy.cost(exits), error, shares(exits, len(costs))))
    return reached
