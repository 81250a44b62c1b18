"""Learning-rate schedules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytime import AnytimeError, Recipe

shares = st.floats(0, 0.9)


@given(st.sampled_from(["linear", "cosine"]), shares, st.integers(1, 300), st.floats(0, 1))
def test_the_learning_rate_rises_once_and_falls_to_zero(schedule, warmup, epochs, place):
    recipe = Recipe(epochs=epochs, schedule=schedule, warmup=warmup)
    assert recipe.lr_at(epochs) == pytest.approx(0, abs=1e-12)
    assert recipe.lr_at(warmup * epochs) == pytest.approx(recipe.lr)
    points = [recipe.lr_at(place * epochs + step * 0.01) for step in range(2)]
    assert all(-1e-12 <= lr <= recipe.lr * (1 + 1e-12) for lr in points[:1])
    rising = place * epochs + 0.01 <= warmup * epochs
    falling = place * epochs >= warmup * epochs and place * epochs + 0.01 <= epochs
    assert not rising or points[0] <= points[1]
    assert not falling or points[0] >= points[1]


@given(st.integers(1, 300), st.floats(0, 1, exclude_max=True), st.lists(shares, max_size=3))
def test_steps_change_between_epochs_only(epochs, part, drops):
    recipe = Recipe(epochs=epochs, drops=tuple(drops))
    for epoch in {0, epochs // 2, epochs - 1}:
        assert recipe.lr_at(epoch + part) == recipe.lr_at(epoch) or epoch + part == epoch + 1
        assert recipe.lr_at(epoch) == 0.1 * 0.1 ** sum(epoch >= drop * epochs for drop in drops)


@pytest.mark.parametrize("wrong", [{"schedule": "exponential"}, {"warmup": 1.0}, {"warmup": -0.1}])
def test_impossible_schedules_are_refused(wrong):
    with pytest.raises(AnytimeError, match=" must be "):
        Recipe(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"epochs": 1.5}, {"epochs": "3"}, {"batch_size": True}, {"pad": -1}, {"lr": -1}, {"lr": "0.1"},
     {"lr": float("nan")}, {"momentum": float("inf")}, {"blur": None}, {"drops": ("half",)},
     {"flip": "yes"}, {"flip": 2}, {"flip": None}, {"flip": 1}],
)  # fmt: skip
def test_a_recipe_of_wrong_numbers_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(AnytimeError, match=f"{name}=.* must be"):
        Recipe(**wrong)
