"""Typical durations, learned."""

from collections import deque

HALF_LIFE = 10.0
"""Seconds after which half of what was slower than assumed is forgotten: a slow moment must not refuse requests for
ever."""


class Typical:
    """Seconds that something takes: the mean of the latest, without the slowest quarter.

    Args:
        first: what is assumed before anything is known.
        window: how many are looked at.

    Examples:
        >>> typical = Typical(first=1.0)
        >>> for _ in range(80):
        ...     typical.note(3.0, now=100.0)
        >>> typical.at(100.0), typical.at(110.0)
        (3.0, 2.0)
    """

    def __init__(self, first: float, window: int = 64) -> None:
        self.first, self._latest = first, deque([first] * 4, window)
        self._mean, self._moment = first, 0.0

    def note(self, seconds: float, now: float) -> None:
        """Add a measurement."""
        self._latest.append(seconds)
        most = max(1, int(0.75 * len(self._latest)))
        self._mean, self._moment = sum(sorted(self._latest)[:most]) / most, now

    def at(self, now: float) -> float:
        """The estimate at a moment."""
        if self._mean <= self.first:
            return self._mean
        share = 0.5 ** (max(now - self._moment, 0.0) / HALF_LIFE)
        return self.first + (self._mean - self.first) * share
