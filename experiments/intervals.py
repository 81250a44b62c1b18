"""95 % confidence intervals of a mean over seeds, and tests of several means."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Test = TypeVar("Test", bound=Hashable)
# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """A mean and where it lies with 95 % confidence; of one value, the value alone."""

    mean: float
    low: float
    high: float
    n: int

    @staticmethod
    def of(values: Sequence[float]) -> "Interval":
        """Student's t interval of the mean of these values.

        Example:
            >>> Interval.of([1.0, 2.0, 3.0])
            Interval(mean=2.0, low=-0.48..., high=4.48..., n=3)
        """
        mean, n = statistics.mean(values), len(values)
        if n == 1:
            return Interval(mean, -math.inf, math.inf, 1)
        half = _T[min(n - 1, len(_T)) - 1] * statistics.stdev(values) / math.sqrt(n)
        return Interval(mean, mean - half, mean + half, n)

    def percent(self) -> str:
        """For a table, in percent: 1.20 [0.40, 2.00]."""
        mean = number(100 * self.mean)
        return mean if self.n == 1 else f"{mean} [{number(100 * self.low)}, {number(100 * self.high)}]"

    @property
    def sign(self) -> str:
        """What can be said of the mean's sign: ``positive``, ``negative`` or ``open``."""
        return "positive" if self.low > 0 else "negative" if self.high < 0 else "open"


def p_value(interval: Interval) -> float:
    """Two-sided p of Student's t test that the mean is 0.

    Example:
        >>> round(p_value(Interval.of([1.0, 2.0, 3.0])), 4)
        0.0742
    """
    degrees, half = interval.n - 1, interval.high - interval.mean
    if half == 0:
        return 0.0 if interval.mean else 1.0
    t = abs(interval.mean) / half * _T[min(degrees, len(_T)) - 1]
    # With x = √d tan(a) the density becomes a power of cos(a), which is integrated from t to infinity.
    start, steps = math.atan(t / math.sqrt(degrees)), 1000
    width = (math.pi / 2 - start) / steps
    tail = sum(math.cos(start + (i + 0.5) * width) ** (degrees - 1) for i in range(steps)) * width
    constant = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    return min(1.0, 2 * constant * tail)


def holm(tests: Mapping[Test, Interval], planned: int, level: float = 0.05) -> dict[Test, bool]:
    """Which means differ from 0 by Holm's step-down procedure, with all planned tests counted, also unfinished ones.

    Example:
        >>> holm({"a": Interval.of([1.0, 1.1, 0.9]), "b": Interval.of([1.0, 2.0, 3.0])}, planned=2)
        {'a': True, 'b': False}
    """
    result, holds = {}, True
    for rank, (name, p) in enumerate(sorted(((n, p_value(i)) for n, i in tests.items()), key=lambda pair: pair[1])):
        holds = holds and p <= level / (planned - rank)
        result[name] = holds
    return result


def smallest_effect(values: Sequence[float]) -> float:
    """The mean difference that as many values with this spread would have shown in 4 of 5 cases, at the 5 % level.

    Example:
        >>> round(smallest_effect([1.0, 2.0, 3.0]), 2)
        3.26
    """
    error, low, high = statistics.stdev(values) / math.sqrt(len(values)), 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, len(values)) >= POWER else (middle, high)
    return high * error


POWER = 0.8


def power(effect: float, n: int) -> float:
    """The probability that Student's t test of n values, two-sided at 5 %, shows a mean of so many standard errors.

    The estimated standard error is s times the true one, where n − 1 times s² has a χ² distribution; for each s
    the mean is normal.

    Example:
        >>> round(power(0.0, 5), 3), round(power(3.76, 5), 2)
        (0.05, 0.8)
    """
    degrees, limit, steps = n - 1, _T[min(n - 1, len(_T)) - 1], 2000
    density = [
        (s, math.exp((degrees - 1) * math.log(s) - degrees * s * s / 2))
        for s in ((i + 0.5) * 6 / steps for i in range(steps))
    ]
    whole = sum(weight for _, weight in density)
    normal = statistics.NormalDist().cdf
    return sum(weight * (normal(effect - limit * s) + normal(-effect - limit * s)) for s, weight in density) / whole


def log2_slope(doses: Sequence[float], responses: Sequence[float]) -> float:
    """The least-squares slope of the responses over log₂ of the doses.

    Example:
        >>> log2_slope([1, 2, 4], [0.0, 3.0, 6.0])
        3.0
    """
    return statistics.linear_regression([math.log2(dose) for dose in doses], responses).slope


def number(value: float, digits: int = 2) -> str:
    """For people: a true minus sign, and none before a zero.

    Example:
        >>> number(-1.234), number(-0.001)
        ('−1.23', '0.00')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def compare(ours: str, theirs: str, difference: Interval, what: str = "test error") -> str:
    """A clause about ``theirs`` minus ``ours``, where lower is better, from its interval.

    Example:
        >>> compare("AdaLoss", "CONST", Interval(0.011, 0.004, 0.018, 10))
        'the test error of AdaLoss is 1.10 points below that of CONST (95 % interval 0.40 to 1.80, n = 10): better'
    """
    side = "below" if difference.mean >= 0 else "above"
    said = f"the {what} of {ours} is {100 * abs(difference.mean):.2f} points {side} that of {theirs}"
    if difference.n == 1:
        return f"{said} (one seed: no interval)"
    low, high = sorted(100 * bound * (1 if side == "below" else -1) for bound in (difference.low, difference.high))
    verdict = {"positive": "better", "negative": "worse", "open": "inconclusive"}
    return f"{said} (95 % interval {number(low)} to {number(high)}, n = {difference.n}): {verdict[difference.sign]}"
