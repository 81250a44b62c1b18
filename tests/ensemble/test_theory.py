import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import anytime
from anytime.ensemble import expected_inflation, inflation, sup_inflation
from anytime.ensemble.theory import schedule, simulate_inflation, sup_schedule

bases = pytest.mark.parametrize("base", [1.5, 2, 3, 8])
workers = pytest.mark.parametrize("workers", [1, 2, 3])


@bases
@workers
def test_an_ensembles_inflation_reaches_its_bounds(base, workers):
    b = base**workers
    largest, mean = simulate_inflation(base, workers)
    assert 0.99 * (2 + 1 / (b - 1)) < largest <= (2 + 1 / (b - 1)) * (1 + 1e-9)
    expected = 1 - 1 / (2 * b) + (1 + math.log(b)) / (b - 1)
    assert 0.99 * expected < mean <= expected * (1 + 1e-4)  # budgets are tried at points, not everywhere
    assert sup_inflation(base, workers) == pytest.approx(2 + 1 / (b - 1))
    assert expected_inflation(base, workers) == pytest.approx(expected)


@bases
@workers
def test_plain_networks_inflation_reaches_its_bounds(base, workers):
    b = base**workers
    largest, mean = simulate_inflation(base, workers, plain=True)
    assert largest == pytest.approx(b**2 / (b - 1), rel=0.01)
    assert mean == pytest.approx(1.5 + (b - 1) / 2 + 1 / (b - 1), rel=0.01)
    assert sup_inflation(base, workers, plain=True) == pytest.approx(b**2 / (b - 1))
    assert expected_inflation(base, workers, plain=True) == pytest.approx(1.5 + (b - 1) / 2 + 1 / (b - 1))


def by_the_clock(budget, base, workers, plain, networks=100):
    """Play the schedule: what has each network reached, and is it good there?"""
    best = 0.0
    for n, (begins, ends) in enumerate(schedule(base, workers, networks)):
        reached = min(budget, ends) - begins
        if reached > (base ** (n - 1) if not plain and n else 0) and (not plain or budget >= ends or n == 0):
            best = max(best, reached)
    return budget / best


@given(st.floats(0.01, 1e6), st.floats(1.2, 10), st.booleans())
def test_inflation_is_what_the_schedule_gives(budget, base, plain):
    ends = [end for _, end in schedule(base, 1, 100)]
    moments = [*ends, *(begin + base ** (n - 1) for n, (begin, _) in enumerate(schedule(base, 1, 100)))]
    if all(abs(budget / moment - 1) > 1e-9 for moment in moments):  # on the edge rounding decides
        assert inflation(budget, base, plain=plain) == pytest.approx(by_the_clock(budget, base, 1, plain))


@given(st.floats(0.01, 1e6), st.floats(1.2, 10), st.integers(2, 4))
def test_more_workers_inflate_no_more_than_the_formula(budget, base, workers):
    """The schedule itself is even better: at most 1 + b/(b^M - 1)."""
    actual = by_the_clock(budget, base, workers, plain=False)
    assert actual <= 1 + base / (base**workers - 1) + 1e-9 <= sup_inflation(base, workers) + 1e-9


@bases
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_the_schedules_supremum_is_reached_and_never_exceeded(base, workers):
    """Just before each network becomes better than the one before, when the inflation is largest."""
    times = schedule(base, workers, 40)
    late = [n for n in range(workers, 40) if base**n < 1e9]
    worst = [by_the_clock((times[n][0] + base ** (n - 1)) * (1 - 1e-9), base, workers, plain=False) for n in late]
    supremum = sup_schedule(base, workers)
    assert 0.999 * supremum < max(worst) <= supremum * (1 + 1e-6)
    moments = [ends * (1 + i / 50) for _, ends in times[: len(late)] for i in range(50)]
    assert max(by_the_clock(moment, base, workers, plain=False) for moment in moments) <= supremum * (1 + 1e-6)
    assert supremum <= sup_inflation(base, workers) * (1 + 1e-12)


def test_the_schedule_is_first_in_first_out():
    times = schedule(2, 2, 3)
    assert times[-1][1] == 5  # of 1 + 2 + 4 = 7 on one worker
    assert all(a[0] <= b[0] for a, b in itertools.pairwise(schedule(1.7, 3, 20)))


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 2),
        (1, 1),
        (1, 0.5),
        (float("nan"), 2),
        (1, 2, 0),
        (1, 2, 1.5),
        (float("inf"), 2),
        (1, float("inf")),
        (1, 2, 9999),
    ],
)
def test_what_makes_no_sense_is_refused(arguments):
    with pytest.raises(anytime.AnytimeError):
        inflation(*arguments)
