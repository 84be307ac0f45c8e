"""A confidence sequence: right at every look, and as wide as its formula says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from talerec.evaluation import OutcomeSums, describe_difference, difference_sequence
from talerec.runtime import Array

USERS = 50  # of each group, before the sequence starts


def intervals_after_each_user(first: Array, second: Array) -> tuple[Array, Array]:
    """Return both ends after each pair of users, from row 50 on: the formula, in arrays.

    `first` and `second` have a row per run and a column per user.
    """
    n = np.arange(1, first.shape[1] + 1)
    ends = []
    for outcomes in (first, second):
        total, squares = outcomes.cumsum(1), (outcomes**2).cumsum(1)
        ends.append((total / n, (squares - total**2 / n + 1) / n**2))
    (mean_1, variance_1), (mean_2, variance_2) = ends
    logs = -2 * math.log(0.05)
    scaled = 2 * n * (logs + math.log(logs) + 1) / 5000
    boundary = 2 * (scaled + 1) / scaled * np.log(np.sqrt(scaled + 1) / 0.05)
    distance = np.sqrt((variance_1 + variance_2) * boundary)
    difference = mean_2 - mean_1
    return (difference - distance)[:, USERS - 1 :], (difference + distance)[:, USERS - 1 :]


def sums(outcomes: Array) -> OutcomeSums:
    return OutcomeSums(len(outcomes), float(outcomes.sum()), float((outcomes**2).sum()))


def test_the_interval_is_that_of_its_formula() -> None:
    chance = np.random.default_rng(0)
    first, second = chance.random((1, 3000)) ** 3, chance.random((1, 3000))
    lows, highs = intervals_after_each_user(first, second)
    for n in (USERS, 51, 500, 3000):
        interval = difference_sequence(sums(first[0, :n]), sums(second[0, :n]))
        assert interval == pytest.approx((lows[0, n - USERS], highs[0, n - USERS]))


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5])
def test_looking_after_every_user_errs_rarely(rate: float) -> None:
    """Of 400 comparisons of equal groups, looked at 2,951 times each, few ever exclude 0."""
    chance = np.random.default_rng(1)
    groups = [(chance.random((400, 3000)) < rate).astype(float) for _ in range(2)]
    lows, highs = intervals_after_each_user(*groups)
    wrong = ((lows > 0) | (highs < 0)).any(1)
    assert wrong.mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)
    n = np.arange(1, 3001)
    variance = sum(group.cumsum(1) - group.cumsum(1) ** 2 / n for group in groups)
    differences = np.abs((groups[1] - groups[0]).cumsum(1))
    usual = (differences > 1.96 * np.sqrt(variance))[:, USERS - 1 :].any(1)
    assert usual.mean() > 0.2  # what the sequence prevents


def test_a_difference_is_seen_and_few_users_see_nothing() -> None:
    chance = np.random.default_rng(2)
    first, second = ((chance.random(20_000) < rate).astype(float) for rate in (0.05, 0.07))
    interval = difference_sequence(sums(first), sums(second))
    assert interval is not None
    assert 0 < interval[0] < 0.02 < interval[1]
    assert difference_sequence(sums(first[:49]), sums(second)) is None
    zeros = np.zeros(50)
    low, high = difference_sequence(sums(zeros), sums(zeros)) or (0, 0)
    assert low < -0.1
    assert high > 0.1


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (None, "too few users"),
        ((0.004, 0.011), "better by 0.4 to 1.1 points"),
        ((0.000873, 0.0198), "better by 0.087 to 1.98 points"),
        ((0.1, 1.0), "better by 10 to 100 points"),
        ((-0.011, -0.004), "worse by 0.4 to 1.1 points"),
        ((-0.011, 0.004), "between 1.1 points worse and 0.4 points better"),
    ],
)
def test_advice_says_what_the_interval_says(
    interval: tuple[float, float] | None, words: str
) -> None:
    assert words in describe_difference(interval)
