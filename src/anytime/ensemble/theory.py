"""What an ensemble of exponentially growing networks costs more than the one network that knew the budget (Sec. 4).

Networks cost 1, b, b², …, and run one after the other. A budget B is spent in the network of cost bⁿ once the n before
it are done: z = B − (bⁿ − 1)/(b − 1) of it has been computed. The answer there is as good as the best network of cost
B′, and **C = B/B′** is the inflation: how many times cheaper that network would have been.

- EANN: a network that is anytime is assumed to be near-optimal at depths above 1/b of its own. So B′ = bⁿ⁻¹ while
  z ≤ bⁿ⁻¹ (the answer is that of the network before), and B′ = z after.
- Plain networks answer at their ends only: B′ = bⁿ⁻¹ throughout.

With M workers that take the networks first in, first out, those of one worker grow by bᴹ, which takes b's place.
"""

from math import ceil, log

import torch
from torch import Tensor

from anytime.errors import AnytimeError

LARGEST = 1e100
"""Of bases and budgets: beyond it numbers lose their sense."""


def inflation(budget: float, base: float, workers: int = 1, plain: bool = False) -> float:
    """C = B/B′ at a budget B, in units of the first network's cost; 1 within the first network.

    Args:
        budget: B, above 0.
        base: b, by which each network costs more than the one before; above 1.
        workers: M; b is then bᴹ.
        plain: of networks that answer at their ends only.

    Examples:
        >>> inflation(1.0, base=2), inflation(4.999, base=2)        # 1 + 2 are done, and just not half of the third
        (1.0, 2.4995)
        >>> round(inflation(6.0, base=2), 3)                        # 3 of the third's 4
        2.0
    """
    b = _effective(base, workers)
    if not 0 < budget <= LARGEST:
        raise AnytimeError(f"budget={budget}: it is a number above 0, in units of the first network's cost")
    return _inflation(torch.tensor([budget], dtype=torch.float64), b, plain).item()


def sup_inflation(base: float, workers: int = 1, plain: bool = False) -> float:
    """The supremum of C over all budgets: 2 + 1/(b−1) for an EANN, b²/(b−1) for plain networks.

    Examples:
        >>> sup_inflation(2), sup_inflation(2, plain=True)
        (3.0, 4.0)
    """
    b = _effective(base, workers)
    return b**2 / (b - 1) if plain else 2 + 1 / (b - 1)


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
    """The largest C and the mean C over budgets spread evenly up to the end of so many networks.

    Args:
        base: b.
        workers: M; b is then bᴹ.
        plain: of networks that answer at their ends only.
        networks: how many; by default enough for the last to be 10⁵ times as large as the first.
        budgets: how many are tried in each of the networks.

    Examples:
        >>> largest, mean = simulate_inflation(2)
        >>> 2.97 < largest <= 3, 2.41 < mean <= 2.45
        (True, True)
    """
    b = _effective(base, workers)
    if budgets < 1 or (networks is not None and networks < 1):
        raise AnytimeError(f"networks={networks}, budgets={budgets}: both are whole numbers from 1")
    if networks is None:
        networks = max(3, ceil(5 * log(10) / log(b)) + 1)
    largest = total = done = 0.0
    for n in range(networks):
        cost = b**n
        z = (torch.arange(budgets, dtype=torch.float64) + 0.5) / budgets
        if n:  # the worst moments: the end of the reuse, and that of the network
            z = torch.cat([z, torch.tensor([1.0 if plain else 1 / b], dtype=torch.float64)])
        values = _inflation(done + z * cost, b, plain)
        largest = max(largest, values.max().item())
        total += values[:budgets].mean().item() * cost
        done += cost
    return largest, total / done


def _effective(base: float, workers: int) -> float:
    if not 1 < base <= LARGEST:
        raise AnytimeError(f"base={base}: networks grow, so it is a number above 1")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise AnytimeError(f"workers={workers!r}: it is a whole number from 1")
    if log(base) * workers > log(LARGEST):
        raise AnytimeError(f"base {base} with {workers} workers: too large a number")
    return base**workers


def _inflation(budgets: Tensor, b: float, plain: bool) -> Tensor:
    # The network that is running, n: the ends of the networks are at (bⁿ⁺¹ − 1)/(b − 1).
    n = (torch.log1p(budgets * (b - 1)) / log(b) - 1e-12).floor().clamp(min=0)
    before = (b**n - 1) / (b - 1)
    last, z = b ** (n - 1), budgets - before
    best = last if plain else torch.maximum(last, z)
    return torch.where(n == 0, 1.0, budgets / best)


def schedule(base: float, workers: int, networks: int) -> list[tuple[float, float]]:
    """When each network of cost 1, b, b², … begins and ends on so many workers, first in, first out.

    Examples:
        >>> schedule(2, workers=2, networks=3)
        [(0.0, 1.0), (0.0, 2.0), (1.0, 5.0)]
    """
    _effective(base, workers)
    if networks < 1:
        raise AnytimeError(f"networks={networks}: it is a whole number from 1")
    free = [0.0] * workers
    times = []
    for n in range(networks):
        begins = min(free)
        free[free.index(begins)] = begins + base**n
        times.append((begins, begins + base**n))
    return times
