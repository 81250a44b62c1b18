"""How much slower the machine is than when the stages were measured."""

from collections import deque
from typing import NamedTuple

FRESH = 8
"""Stages until the slow-down is computed anew: each time it looks at all of the latest."""
WRONG = 0.2
"""A stage faster than this share of the expected time shows that the times are wrong: the window is cleared."""


class Pace(NamedTuple):
    """The slow-down that a worker reported last."""

    mean: float = 1.0
    high: float = 1.5
    batch: float = 1.0
    """The usual batch."""
    moment: float = 0.0
    """The moment of the report."""

    def at(self, now: float) -> "Pace":
        """The estimate for a later moment: a report decays with a half-life of half a second.

        Otherwise one bad moment could make an engine refuse everything, and it would never learn that it has passed.
        That stages are faster than measured does not age: what was measured was a bad moment.

        Examples:
            >>> Pace(mean=3.0, high=9.0, batch=4.0, moment=10.0).at(10.5)
            Pace(mean=2.0, high=5.0, batch=4.0, moment=10.0)
        """
        share = 0.5 ** (2 * max(now - self.moment, 0.0))
        mean, high = (1 + (ratio - 1) * (share if ratio > 1 else 1) for ratio in (self.mean, self.high))
        return self._replace(mean=mean, high=high)


class SlowDown:
    """The ratios of measured to expected seconds of the latest stages: their 95th percentile and the mean below it.

    Args:
        window: how many of the latest are kept.

    Examples:
        >>> slow = SlowDown()
        >>> for _ in range(200):
        ...     slow.note(expected=1.0, measured=2.0)
        >>> slow.mean, slow.high
        (2.0, 2.0)
    """

    def __init__(self, window: int = 128) -> None:
        # Until something is known: as measured, and half as long again at the 95th percentile.
        self._latest = deque([1.0] * 15 + [1.5], window)
        self._fresh = 0
        self._update()

    def note(self, expected: float, measured: float) -> None:
        """Add the measurement of one stage."""
        ratio = measured / max(expected, 1e-9)
        if ratio < WRONG * min(self.mean, 1.0):
            self._latest.clear()
            self._fresh = FRESH - 1
        self._latest.append(ratio)
        self._fresh += 1
        if self._fresh == FRESH:
            self._update()

    def _update(self) -> None:
        ratios, self._fresh = sorted(self._latest), 0
        most = max(1, int(0.95 * len(ratios)))
        # An interrupted stage may take a hundred times as long: the mean leaves out the largest 5 %.
        self.mean = sum(ratios[:most]) / most
        self.high = max(self.mean, ratios[most - 1])
        # Twice as far from the mean: for the last stage before a deadline, where nothing can be made up for.
        self.safe = 2 * self.high - self.mean


class Ahead:
    """How long before its deadline an answer should be ready, learned from those that waited for theirs.

    What a deadline is missed by has many reasons: a stage that was interrupted, the way of the answer to whoever
    asked. Late answers add to the time, those in time take a little of it, so that about three in a thousand are late.

    Examples:
        >>> ahead = Ahead()
        >>> for _ in range(10_000):
        ...     ahead.note(late=ahead.seconds < 0.003)
        >>> 0.0028 < ahead.seconds < 0.0033
        True
    """

    least, most = 0.0005, 0.004

    def __init__(self) -> None:
        self.seconds = 0.0025

    def note(self, late: bool) -> None:
        """Add a group of answers: whether one of them was late."""
        step = 0.00025
        self.seconds = min(max(self.seconds + (step if late else -0.003 * step), self.least), self.most)
