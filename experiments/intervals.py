"""95 % confidence intervals of a mean over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

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
