"""A line when steps have become far slower than the first ones."""

import warnings
from collections import deque
from statistics import median

WINDOW = 10
"""Steps whose median is compared."""
SLOWER = 5.0
"""How many times as long as the first ones they take."""


class SlowerSteps:
    """Compares the last steps of a training with its first ones, and warns once.

    The first step of all does not count: it allocates and compiles. On accelerators steps are not timed, since they
    only wait in a queue.

    Args:
        threads: how many the training computes with, for the warning.
    """

    def __init__(self, threads: int) -> None:
        self.threads, self.count, self.warned = threads, 0, False
        self.first: float | None = None
        self.last = deque[float](maxlen=WINDOW)

    def step(self, seconds: float, samples: int) -> None:
        """Note the time of a step, which depends on how many samples it is on."""
        self.count += 1
        if self.count == 1 or self.warned:
            return
        self.last.append(seconds / samples)
        if len(self.last) < WINDOW:
            return
        now = median(self.last)
        if self.first is None:
            self.first = now
            self.last.clear()
        elif now > SLOWER * self.first:
            self.warned = True
            fewer = "; one thread suffers least: --threads 1, torch.set_num_threads(1)" if self.threads > 1 else ""
            warnings.warn(
                f"the last {WINDOW} steps took {now / self.first:.0f} times as long as the first ones: "
                f"{1 / now:,.0f} samples per second instead of {1 / self.first:,.0f}, with {self.threads} thread"
                f"{'s' * (self.threads > 1)}. Something else may be using the processor{fewer}"
            )
