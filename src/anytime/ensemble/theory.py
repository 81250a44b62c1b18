"""How much more an ensemble of exponentially growing networks costs than one network made for the budget (Sec. 4).

Networks cost 1, b, b², …, and run one after another. A budget B ends in the network of cost bⁿ if the n networks
before it are finished: z = B − (bⁿ − 1)/(b − 1) of its cost has been spent. The answer at that moment is as good as
that of the best network of cost B′; **C = B/B′** is the inflation: how many times cheaper that network is.

- EANN: an anytime network is assumed to be near-optimal at depths above 1/b of its own. So B′ = bⁿ⁻¹ while z ≤ bⁿ⁻¹
  (the answer is that of the network before), and B′ = z after.
- Plain networks answer only at their ends: B′ = bⁿ⁻¹ throughout.

With M workers that take the networks first in, first out, those of one worker grow by bᴹ, which replaces b: the
paper's formula, sup C = 2 + 1/(bᴹ − 1). It is an upper bound. The supremum of the schedule itself is lower:

- Network n begins when network n − M ends, since networks end in their order. So it begins at
  Tₙ = bⁿ⁻ᴹ + bⁿ⁻²ᴹ + … < bⁿ/(bᴹ − 1), and comes near that bound as n grows.
- At Tₙ + bⁿ⁻¹ it becomes better than the network before, which has ended: Tₙ₋₁ ≤ Tₙ. Just before, B = Tₙ + bⁿ⁻¹ and
  B′ = bⁿ⁻¹, so C = 1 + Tₙ/bⁿ⁻¹. From then on C falls, since B grows as fast as B′ and C > 1.
- So **sup C = 1 + b/(bᴹ − 1)**, which for M = 1 is 2 + 1/(b − 1).
"""

from math import ceil, log

import torch
from torch import Tensor

from anytime.errors import AnytimeError, check_integer

LARGEST = 1e100
"""Upper limit of bases and budgets, far below the overflow of floats."""


def inflation(budget: float, base: float, workers: int = 1, plain: bool = False) -> float:
    """C = B/B′ at a budget B, in units of the first network's cost; 1 within the first network.

    Args:
        budget: B, above 0.
        base: b, the ratio of the costs of two consecutive networks; above 1.
        workers: M; bᴹ replaces b.
        plain: for networks that answer only at their ends.

    Examples:
        >>> inflation(1.0, base=2), inflation(4.999, base=2)        # 1 + 2 are finished, and almost half of the third
        (1.0, 2.4995)
        >>> round(inflation(6.0, base=2), 3)                        # 3 of the third network's 4
        2.0
    """
    b = _effective(base, workers)
    if not 0 < budget <= LARGEST:
        raise AnytimeError(f"budget={budget} must be a finite number above 0, in units of the first network's cost")
    return _inflation(torch.tensor([budget], dtype=torch.float64), b, plain).item()


def sup_inflation(base: float, workers: int = 1, plain: bool = False) -> float:
    """The supremum of C over all budgets: 2 + 1/(b−1) for an EANN, b²/(b−1) for plain networks.

    Examples:
        >>> sup_inflation(2), sup_inflation(2, plain=True)
        (3.0, 4.0)
    """
    b = _effective(base, workers)
    return b**2 / (b - 1) if plain else 2 + 1 / (b - 1)


def sup_schedule(base: float, workers: int) -> float:
    """The supremum of C over all budgets for the schedule itself of several workers: 1 + b/(bᴹ − 1).

    Examples:
        >>> sup_schedule(2, workers=1), sup_schedule(2, workers=2), round(sup_inflation(2, workers=2), 2)
        (3.0, 1.6666666666666665, 2.33)
    """
    return 1 + base / (_effective(base, workers) - 1)


def expected_inflation(base: float, workers: int = 1, plain: bool = False) -> float:
    """The expectation of C at a budget drawn uniformly from (0, L), as L grows.

    1 − 1/(2b) + (1 + ln b)/(b−1) for an EANN, 1.5 + (b−1)/2 + 1/(b−1) for plain networks.

    Examples:
        >>> round(expected_inflation(2), 2), round(expected_inflation(2, plain=True), 2)
        (2.44, 3.0)
    """
    b = _effective(base, workers)
    if plain:
        return 1.5 + (b - 1) / 2 + 1 / (b - 1)
    return 1 - 1 / (2 * b) + (1 + log(b)) / (b - 1)


def simulate_inflation(
    base: float, workers: int = 1, plain: bool = False, networks: int | None = None, budgets: int = 200_000
) -> tuple[float, float]:
    """The largest C and the mean C over evenly spaced budgets up to the end of the last network.

    Args:
        base: b.
        workers: M; bᴹ replaces b.
        plain: for networks that answer only at their ends.
        networks: number of networks; by default the last costs at least 10⁵ times as much as the first.
        budgets: number of budgets within each network.

    Examples:
        >>> largest, mean = simulate_inflation(2)
        >>> 2.97 < largest <= 3, 2.41 < mean <= 2.45
        (True, True)
    """
    b = _effective(base, workers)
    budgets = check_integer("budgets", budgets)
    if networks is None:
        networks = max(3, ceil(5 * log(10) / log(b)) + 1)
    networks = check_integer("networks", networks)
    largest = total = done = 0.0
    for n in range(networks):
        cost = b**n
        z = (torch.arange(budgets, dtype=torch.float64) + 0.5) / budgets
        if n:  # the worst moments: where this network becomes better than the one before, and its end
            z = torch.cat([z, torch.tensor([1.0 if plain else 1 / b], dtype=torch.float64)])
        values = _inflation(done + z * cost, b, plain)
        largest = max(largest, values.max().item())
        total += values[:budgets].mean().item() * cost
        done += cost
    return largest, total / done


def _effective(base: float, workers: int) -> float:
    if not 1 < base <= LARGEST:
        raise AnytimeError(f"base={base} must be a number above 1 and at most {LARGEST:g}")
    workers = check_integer("workers", workers)
    if log(base) * workers > log(LARGEST):
        raise AnytimeError(f"base={base} to the power of workers={workers} must be at most {LARGEST:g}")
    return base**workers


def _inflation(budgets: Tensor, b: float, plain: bool) -> Tensor:
    # n is the network that runs at that budget: network n ends at (bⁿ⁺¹ − 1)/(b − 1).
    n = (torch.log1p(budgets * (b - 1)) / log(b) - 1e-12).floor().clamp(min=0)
    before = (b**n - 1) / (b - 1)
    last, z = b ** (n - 1), budgets - before
    best = last if plain else torch.maximum(last, z)
    return torch.where(n == 0, 1.0, budgets / best)


def schedule(base: float, workers: int, networks: int) -> list[tuple[float, float]]:
    """Begin and end of each network of cost 1, b, b², … on ``workers`` workers, first in, first out.

    Examples:
        >>> schedule(2, workers=2, networks=3)
        [(0.0, 1.0), (0.0, 2.0), (1.0, 5.0)]
    """
    _effective(base, workers)
    networks = check_integer("networks", networks)
    free = [0.0] * workers
    times = []
    for n in range(networks):
        begins = min(free)
        free[free.index(begins)] = begins + base**n
        times.append((begins, begins + base**n))
    return times
