"""Whether a calibrated policy still keeps its promise after deployment: tests and bounds that are valid at all times.

**Given** x_1, x_2, …, one number for each audited sample: 1 if its answer differs from the last exit's, else 0; or,
where its label is known, ℓ = 1[ŷ ≠ y] − 1[ŷ_L ≠ y]. **Wanted**: an alarm if their expectation exceeds what was
promised, which without a shift is raised with probability δ at most however long one watches; and an interval for it.

| symbol | meaning |
|---|---|
| m | the largest expectation that is allowed |
| a | the smallest value of x: 0, or −1 for ℓ |
| c | a bet, the share of a gambler's capital that is at stake; 0 < c < 1 |
| f_c(x) = 1 − c + c (x − a) / (m − a) | what x multiplies the capital by |

**Method**: a gambler bets against "no x has an expectation above m, whatever came before". Then E f_c(x) ≤ 1, so the
capital is a nonnegative supermartingale, and the chance that it ever grows to 1/δ is δ at most (Ville 1939). Capital is
spread over many bets c, since the best one is not known (Waudby-Smith & Ramdas, "Estimating means of bounded random
variables by betting", JRSS-B 2024).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import torch
from torch import Tensor

from anytime.errors import AnytimeError, check_number
from anytime.inference.policy import Policy, Scorer
from anytime.inference.risk import CANDIDATES

BETS = np.geomspace(1e-4, 0.9, 24)
"""The bets c: the best one is about (p − m) / (1 − m) if x is 1 with probability p."""


class Evidence:
    """Evidence that some expectation is above what is allowed: the capital of gamblers who bet against each bound.

    A gambler who has lost for long would notice a shift late, so capital is invested little by little: half at once,
    and of the other half the share 1 / (1 + ln(1 + t)) is still kept after t samples. (Shin, Ramdas & Rinaldo,
    "E-detectors", NEJSDS 2024, start a gambler at every sample; here they share a capital of 1.) A mixture of
    supermartingales is one too.

    Args:
        allowed: the largest expectation of each value.
        low: the smallest value.

    Examples:
        >>> evidence = Evidence([0.05])
        >>> for i in range(1000):                       # 4 %: as allowed
        ...     evidence.note([i % 25 == 0])
        >>> evidence.peak < 1 / 0.05
        True
        >>> for i in range(200):                        # 20 %
        ...     evidence.note([i % 5 == 0])
        >>> evidence.capital > 1 / 0.05
        True
    """

    def __init__(self, allowed: Sequence[float], low: float = 0.0) -> None:
        self.low, self.count = low, 0
        self.peak = 1.0
        """The largest capital so far."""
        self._room = np.maximum(np.asarray(allowed, np.float64) - low, 1e-9)[:, None]
        self._kept = 0.5
        self._invested = np.full((len(allowed), len(BETS)), 0.5 / (len(allowed) * len(BETS)))

    @property
    def capital(self) -> float:
        """At present; 1 in the beginning."""
        return self._kept + float(self._invested.sum())

    def note(self, values: Sequence[float]) -> None:
        """Take one sample into account: a value for each bound."""
        gains = (np.asarray(values, np.float64) - self.low)[:, None] / self._room
        self._invested = np.minimum(self._invested * (1 + BETS * (gains - 1)), 1e12)
        self.count += 1
        kept, self._kept = self._kept, 0.5 / (1 + log(1 + self.count))
        self._invested += (kept - self._kept) / self._invested.size
        self.peak = max(self.peak, self.capital)


def interval(counts: dict[int, int], delta: float) -> tuple[float, float]:
    """Bounds on an expectation: with probability 1 − δ they contain it after every sample, if it stays the same.

    Each bound is where the capital of the gamblers who bet against it from the first sample on is 2/δ: with n_v the
    number of samples of value v, it is the mean over c of Π_v f_c(v)^n_v, which falls as m rises.

    Args:
        counts: how many samples had each value; the smallest and the largest possible value are among them.
        delta: δ.

    Examples:
        >>> low, high = interval({0: 970, 1: 30}, delta=0.05)
        >>> low < 0.03 < high, high - low < 0.05
        (True, True)
        >>> interval({0: 0, 1: 0}, delta=0.05)
        (0.0, 1.0)
    """
    low, high = min(counts), max(counts)
    mirrored = {-value: count for value, count in counts.items()}
    return max(_lower(counts, delta / 2), low), min(-_lower(mirrored, delta / 2), high)


def _lower(counts: dict[int, int], delta: float) -> float:
    """The lower bound alone."""
    total, low = sum(counts.values()), float(min(counts))
    if not total:
        return low
    high = sum(value * count for value, count in counts.items()) / total
    refuted = low
    for _ in range(40):
        middle = (refuted + high) / 2
        gains = [(value - low) / max(middle - low, 1e-12) for value in counts]
        logs = sum(n * np.log1p(BETS * (gain - 1)) for n, gain in zip(counts.values(), gains, strict=True) if n)
        most = float(np.max(logs))
        capital = most + log(float(np.exp(logs - most).mean()))
        refuted, high = (middle, high) if capital >= log(1 / delta) else (refuted, middle)
    return refuted


def share_at_most(share: float, samples: int, delta: float) -> float:
    """A bound on a probability, exceeded with probability δ at most, given the share among samples drawn once.

    The largest u with n · KL(share ‖ u) ≤ ln(1/δ) (Chernoff).
    """
    if not samples:
        return 1.0

    def divergence(u: float) -> float:
        parts = ((share, u), (1 - share, 1 - u))
        return sum(p * log(p / max(q, 1e-300)) for p, q in parts if p > 0)

    low, high = share, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if samples * divergence(middle) <= log(1 / delta) else (low, middle)
    return high


@dataclass(frozen=True)
class Report:
    """What a ``Monitor`` knows at one moment. Of each pair the first is the lower bound, the second the upper one."""

    seen: int
    """Samples whose score at the first exit is known."""
    audited: int
    """Those whose early and last answers were compared."""
    labeled: int
    """Those of them whose label came back."""
    disagreement: tuple[float, float]
    """Share of the samples that are answered otherwise than by the last exit."""
    allowed: float
    """The largest share that the calibration allows."""
    early: tuple[float, float]
    """The same share of the samples that left early."""
    early_allowed: float
    """The largest such share that the calibration allows."""
    risk: tuple[float, float]
    """The accuracy lost by leaving early."""
    promised: float | None
    """The risk that was promised."""
    alarm: str | None
    """Why the promise no longer holds."""
    warning: str | None
    """What is unlike the calibration, though the promise may hold."""
    evidence: dict[str, float]
    """Of ``disagreement``, ``risk`` and ``inputs``: the capital divided by that which raises the alarm or warning."""
    shares: list[float]
    """Of the latest 1,000 samples, the share between each two deciles of the calibration's first scores: a tenth each
    if they are alike."""


class Monitor:
    """Tells whether the promise of a calibrated policy still holds for the samples that come after deployment.

    Give it the first exit's score of every sample, and of a random few, whatever their answers were, the outputs of all
    exits. It needs no labels; with labels it also bounds the accuracy that is lost.

    - **Alarm**: more samples are answered otherwise than by the last exit than the calibration allows, or, of those
      with labels, more accuracy is lost than ``calibrate(risk=…)`` promised. Without a shift it is raised with
      probability δ at most, half of it for each of the two, at any time.
    - **Warning**: something is unlike the calibration, though the promise may hold, since unsure samples go deeper.
      Either, of the samples that leave early, more are answered otherwise than by the last exit. Or the first exit's
      scores are distributed otherwise: with F their distribution function, F̂ that of n held-out samples and q_1 … q_9
      their deciles, |F(q_j) − F̂(q_j)| exceeds √(ln(8/δ) / 2n) for some j with probability δ/4 at most (Massart 1990),
      and gamblers bet against each of these 18 bounds for another δ/4.

    Without a shift means: each sample, given those before it, is drawn as the held-out ones were. What is allowed is
    the policy's risk where that is about the last exit's answers (``labels=False``); else the share among the held-out
    samples and a margin for their number, which counts with the thresholds being chosen among 100 with these samples.

    Args:
        policy: that ``calibrate`` made.
        delta: δ, the chance that an alarm, and that a warning, is ever raised without a shift.

    Examples:
        >>> import anytime
        >>> data = anytime.load_data("digits")
        >>> net = anytime.create_model("resann-1-8", in_channels=1).eval()
        >>> policy = anytime.calibrate(net, data.batches(data.validation), risk=0.1, delta=0.1)
        >>> monitor = Monitor(policy)
        >>> outputs = torch.stack(net(data.normalize(data.test.pixels[:100])))      # exits × samples × classes
        >>> monitor.audit(outputs.detach())
        >>> monitor.report().audited, monitor.alarm
        (100, None)
    """

    def __init__(self, policy: Policy, delta: float = 0.05) -> None:
        check_number("delta", delta, above=0, below=1)
        if policy.held_out is None:
            raise AnytimeError(
                "this policy does not say what its held-out samples looked like, so that later ones cannot be compared "
                "with them: make it again with anytime.calibrate(net, validation, risk=0.02, delta=0.05)"
            )
        self.policy, self.delta = policy, delta
        self.held_out = held_out = policy.held_out
        self.alarm: str | None = None
        self.warning: str | None = None
        if policy.risk is not None and not policy.labels:
            self.allowed, self._limit = policy.risk, 2 / delta
        else:
            self.allowed = share_at_most(held_out.differ, held_out.samples, delta / 4 / CANDIDATES)
            self._limit = 4 / delta
        early = max(held_out.early, 1e-9)
        share, number = min(held_out.differ / early, 1.0), round(early * held_out.samples)
        self.early_allowed = share_at_most(share, number, delta / 4 / CANDIDATES)
        margin = sqrt(log(8 / delta) / (2 * held_out.samples))
        bounds = [min(share + margin, 1.0) for below in held_out.below for share in (below, 1 - below)]
        self._differs = Evidence([self.allowed])
        self._loses = Evidence([1.0 if policy.risk is None else policy.risk], low=-1.0)
        self._early, self._unlike = Evidence([self.early_allowed]), Evidence(bounds)
        self._compared, self._left, self._lost = {0: 0, 1: 0}, {0: 0, 1: 0}, {-1: 0, 0: 0, 1: 0}
        self._latest: deque[int] = deque(maxlen=1000)

    def see(self, score: float) -> None:
        """Note the first exit's score of a sample."""
        place = bisect_left(self.held_out.cutoffs, score)
        self._latest.append(place)
        self._unlike.note([is_below for j in range(9) for is_below in (place <= j, place > j)])
        if self.warning is None and self._unlike.capital >= 4 / self.delta:
            self.warning = (
                f"after {self._unlike.count:,} samples: the first exit's scores are distributed unlike those of the "
                "calibration; the inputs may have changed"
            )

    def compare(self, early: int, last: int, left: bool = True) -> None:
        """Note the answer that the policy gave to an audited sample, and the last exit's.

        Args:
            early: the number of the class that the policy's exit gave.
            last: that of the last exit.
            left: whether the sample left before the last exit.
        """
        self._compared[int(early != last)] += 1
        if left:
            self._left[int(early != last)] += 1
            self._early.note([early != last])
            if self.warning is None and self._early.capital >= 4 / self.delta:
                self.warning = (
                    f"after {self._early.count:,} audited samples that left early: more than {self.early_allowed:.2%} "
                    "of such are answered otherwise than by the last exit"
                )
        self._differs.note([early != last])
        if self.alarm is None and self._differs.capital >= self._limit:
            self.alarm = (
                f"after {self._differs.count:,} audited samples: more than {self.allowed:.2%} of all are answered "
                "otherwise than by the last exit; calibrate again with samples as they come now"
            )

    def label(self, early: int, last: int, label: int) -> None:
        """Note the label of an audited sample, with its answers."""
        loss = int(early != label) - int(last != label)
        self._lost[loss] += 1
        self._loses.note([loss])
        if self.alarm is None and self._loses.capital >= 2 / self.delta:
            self.alarm = (
                f"after {self._loses.count:,} labels: leaving early costs more than {self.policy.risk:.2%} accuracy; "
                "calibrate again with samples as they come now"
            )

    def audit(self, logits: Tensor, labels: Tensor | None = None) -> None:
        """Note samples of which the outputs of all exits are known, and maybe the labels.

        Args:
            logits: exits × samples × classes.
            labels: of the samples.
        """
        exits = self.policy.choose_exits(logits)
        chosen, left = logits[exits, torch.arange(len(exits))].argmax(-1).tolist(), exits < len(logits) - 1
        last = logits[-1].argmax(-1).tolist()
        for i, (early, late) in enumerate(zip(chosen, last, strict=True)):
            self.compare(early, late, bool(left[i]))
            if labels is not None:
                self.label(early, late, int(labels[i]))

    def score(self, logits: Tensor) -> list[float]:
        """The scores of samples for ``see``, from the first exit's outputs: samples × classes."""
        return Scorer(self.policy.score, self.policy.temperatures).score(0, logits).tolist()

    def report(self) -> Report:
        """What is known by now."""
        promised, latest = self.policy.risk, list(self._latest)
        evidence = {
            "disagreement": self._differs.capital / self._limit,
            "risk": self._loses.capital * self.delta / 2,
            "early": self._early.capital * self.delta / 4,
            "inputs": self._unlike.capital * self.delta / 4,
        }
        shares = [latest.count(place) / max(len(latest), 1) for place in range(len(self.held_out.cutoffs) + 1)]
        return Report(
            seen=self._unlike.count,
            audited=self._differs.count,
            labeled=self._loses.count,
            disagreement=interval(self._compared, self.delta),
            allowed=self.allowed,
            early=interval(self._left, self.delta),
            early_allowed=self.early_allowed,
            risk=interval(self._lost, self.delta),
            promised=promised,
            alarm=self.alarm,
            warning=self.warning,
            evidence=evidence,
            shares=shares,
        )
