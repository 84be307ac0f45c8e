"""Intervals and paired tests: against the textbook, and against their own promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from talerec.errors import TalerecError
from talerec.evaluation import difference_intervals, sum_users
from talerec.evaluation.intervals import compare_pairs, mean_intervals

GAINS = 1 / np.log2(np.arange(2, 12))  # NDCG of a hit at ranks 1 to 10


def agresti_coull(hits: int, n: int) -> tuple[float, float]:
    """Return the interval of Agresti and Coull, with Student's t, as their paper defines it."""
    t = stats.t.ppf(0.975, n - 1)
    p = (hits + t**2 / 2) / (n + t**2)
    distance = t * math.sqrt(p * (1 - p) / (n + t**2))
    return max(0.0, p - distance), min(1.0, p + distance)


def slow_interval(users: list[list[float]]) -> tuple[float, float]:
    """Return the interval of a mean, from the values of each user's cases, step by step."""
    n_cases = sum(len(user) for user in users)
    mean = sum(sum(user) for user in users) / n_cases
    squares = sum((sum(user) - mean * len(user)) ** 2 for user in users)
    largest = sum(len(user) ** 2 for user in users) / n_cases
    effective = n_cases / largest  # users, if all had the same number of cases
    squares *= effective / (effective - 1) * (len(users) - 1) / len(users)
    design_effect = (squares + largest / 2) / (n_cases * mean * (1 - mean) + 1 / 2)
    t = stats.t.ppf(0.975, effective - 1)
    n = n_cases / design_effect
    middle = (n * mean + t**2 / 2) / (n + t**2)
    distance = t * math.sqrt(middle * (1 - middle) / (n + t**2))
    return max(0.0, middle - distance), min(1.0, middle + distance)


def draw_users(rng, n_users, rate, gains, alike=0.5, most=15):
    """Return sums and numbers of cases of users with 1 to 15 cases, which are partly alike.

    A case is a hit if its number is below `rate`; a share `alike` of a user's cases has the same.
    """
    cases = np.minimum(rng.geometric(0.3, n_users), most)
    number, sums = rng.random(n_users), np.zeros(n_users)
    for case in range(most):
        same = rng.random(n_users) < alike
        is_hit = np.where(same, number, rng.random(n_users)) < rate
        sums += np.where(is_hit & (case < cases), rng.choice(gains, n_users), 0.0)
    return sums, cases


# -- intervals of means ----------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "n"), [(0, 50), (1, 50), (10, 200), (200, 200), (700, 2000)])
def test_the_interval_of_a_hit_rate_is_that_of_agresti_and_coull(hits, n):
    values = np.zeros((n, 1))
    values[:hits] = 1.0
    ends = [float(end[0]) for end in mean_intervals(sum_users(values))]
    assert ends == pytest.approx(agresti_coull(hits, n), abs=1e-12)


def test_intervals_of_hit_rates_cover_for_few_and_many_hits():
    """Exact coverage, from the probability of every number of hits."""
    coverage = []
    for n in (50, 70, 100, 150, 200, 300, 500, 1000, 2000):
        hits = np.arange(n + 1)
        low, high = mean_intervals(sum_users((np.arange(n)[:, None] < hits).astype(float)))
        coverage += [
            stats.binom.pmf(hits[(low <= rate) & (rate <= high)], n, rate).sum()
            for rate in np.geomspace(0.01, 0.5, 40)
        ]
    assert min(coverage) >= 0.93
    assert 0.94 <= np.mean(coverage) <= 0.97


@pytest.mark.parametrize("gains", [np.ones(1), GAINS, 1 / np.arange(1, 11)])
@pytest.mark.parametrize(("n_users", "rate"), [(50, 0.1), (100, 0.02), (200, 0.01), (400, 0.3)])
def test_intervals_cover_where_users_have_several_cases_that_are_alike(gains, n_users, rate):
    rng = np.random.default_rng(11)
    truth, inside = rate * gains.mean(), 0
    for _ in range(500):
        sums, cases = draw_users(rng, n_users, rate, gains)
        low, high = mean_intervals(sum_users(sums[:, None], cases))
        inside += bool(low[0] <= truth <= high[0])
    assert inside / 500 >= 0.93 - 0.02  # two standard errors of 500 draws


def test_an_interval_is_computed_from_sums_as_step_by_step():
    rng = np.random.default_rng(4)
    users = [rng.choice([0.0, 0.0, *GAINS], rng.integers(1, 6)).tolist() for _ in range(70)]
    sums, cases = np.array([sum(u) for u in users]), np.array([len(u) for u in users])
    ends = [float(end[0]) for end in mean_intervals(sum_users(sums[:, None], cases))]
    assert ends == pytest.approx(slow_interval(users), rel=1e-12)


def test_with_many_users_the_interval_is_that_of_drawing_whole_users_again():
    rng = np.random.default_rng(3)
    sums, cases = draw_users(rng, 3000, 0.2, GAINS)
    low, high = mean_intervals(sum_users(sums[:, None], cases))
    picks = rng.integers(0, 3000, (2000, 3000))
    means = sums[picks].sum(axis=1) / cases[picks].sum(axis=1)
    width = np.quantile(means, 0.975) - np.quantile(means, 0.025)
    assert high[0] - low[0] == pytest.approx(width, rel=0.06)
    assert low[0] == pytest.approx(np.quantile(means, 0.025), abs=0.1 * width)


def test_equal_cases_of_a_user_are_one_observation():
    """Fifteen windows with the same outcome say no more than one."""
    hit = (np.random.default_rng(5).random((300, 1)) < 0.1).astype(float)
    alone = mean_intervals(sum_users(hit))
    repeated = mean_intervals(sum_users(15 * hit, np.full(300, 15)))
    np.testing.assert_allclose(repeated, alone, rtol=1e-12)


def test_one_user_and_no_users_leave_everything_possible():
    for values, cases in ((np.ones((1, 2)), None), (np.empty((0, 2)), np.empty(0))):
        low, high = mean_intervals(sum_users(values, cases))
        np.testing.assert_allclose(low, 0.0, atol=1e-5)
        np.testing.assert_allclose(high, 1.0)
        low, high = difference_intervals(sum_users(values, cases))
        np.testing.assert_array_equal([low, high], [[-1.0, -1.0], [1.0, 1.0]])


# -- paired tests ----------------------------------------------------------------------------------


def test_p_equals_the_count_over_every_assignment_of_signs():
    a = np.array([0.0, 0.2, 0.5, 0.1, 0.0, 0.3, 1.0, 0.0, 0.6, 0.4])
    b = np.array([0.4, 0.1, 0.9, 0.3, 0.0, 0.9, 1.0, 0.5, 0.5, 0.8])
    change = b - a
    worlds = [abs(np.dot(s, change)) for s in itertools.product((-1, 1), repeat=len(change))]
    exact = np.mean(np.array(worlds) >= abs(change.sum()) - 1e-12)
    assert compare_pairs(a, b).p == pytest.approx(exact, rel=1e-12)


def test_large_samples_agree_with_the_t_test():
    rng = np.random.default_rng(2)
    a = rng.random(500)
    b = a + rng.normal(0.02, 0.2, 500)
    found, known = compare_pairs(a, b), stats.ttest_rel(b, a)
    assert found.p == pytest.approx(known.pvalue, abs=0.01)
    interval = known.confidence_interval(0.95)
    np.testing.assert_allclose(found.interval, [interval.low, interval.high], atol=0.002)
    assert found.effect == pytest.approx(known.statistic / math.sqrt(500))


def test_p_values_are_uniform_where_nothing_differs():
    """For two models with equally distributed ranks, p is below x in a share x of draws."""
    rng = np.random.default_rng(2024)
    found = []
    for _ in range(500):
        base = rng.random(400)  # how hard each user is
        gains = rng.choice([0.3, 0.5, 1.0], (2, 400))
        a, b = np.where(rng.random((2, 400)) < 0.4 * base, gains, 0.0)
        found.append(compare_pairs(a, b).p)
    assert stats.kstest(found, "uniform").pvalue > 0.05
    assert 0.02 <= np.mean(np.array(found) < 0.05) <= 0.08


@pytest.mark.parametrize("better", range(2, 12))
def test_an_interval_of_few_users_who_differ_agrees_with_the_test(better):
    """All of them prefer B: with six users p is 2 / 64, and with five it is 2 / 32."""
    a, b = np.zeros(400), np.zeros(400)
    b[:better] = 1.0
    pair = compare_pairs(a, b)
    assert pair.p == pytest.approx(2 / 2**better, rel=1e-12)
    assert (pair.interval[0] > 0) == (pair.p < 0.05) == (better >= 6)


@pytest.mark.parametrize(("n_users", "up", "down"), [(50, 0.1, 0.05), (200, 0.02, 0.01)])
def test_intervals_of_differences_cover_with_few_users_who_differ(n_users, up, down):
    rng = np.random.default_rng(7)
    inside = 0
    for _ in range(500):
        number = rng.random((n_users, 1))
        change = (number < up) * 1.0 - (number > 1 - down)
        low, high = difference_intervals(sum_users(change))
        inside += bool(low[0] <= up - down <= high[0])
    assert inside / 500 >= 0.93


def test_a_model_against_itself_differs_in_nothing():
    a = np.random.default_rng(0).random(50)
    found = compare_pairs(a, a)
    assert (found.difference, found.p, found.effect, found.better, found.worse) == (0, 1, 0, 0, 0)
    assert found.interval[0] == -found.interval[1]  # other users may differ, if only a few
    assert 0 < found.interval[1] < 0.06


def test_users_with_several_cases_are_one_observation_of_a_difference():
    """Fifteen times the same difference of each user changes no figure of the comparison."""
    rng = np.random.default_rng(6)
    a, b = (rng.random((2, 200)) < 0.3).astype(float)
    cases = np.full(200, 15)
    alone, repeated = compare_pairs(a, b), compare_pairs(15 * a, 15 * b, cases)
    for name in ("a", "b", "difference", "interval", "effect", "p", "better", "worse", "users"):
        assert getattr(repeated, name) == pytest.approx(getattr(alone, name), rel=1e-12), name


@pytest.mark.parametrize("largest", [3000, 75])
def test_comparisons_hold_their_level_where_one_user_has_thousands_of_cases(largest):
    """Each user prefers one of two models, by a symmetric lot; one has up to 91 % of the cases."""
    rng, cases = np.random.default_rng(8), np.array([largest] + [5] * 60)
    n_rejected = n_covered = 0
    for _ in range(100):
        lead = rng.uniform(-0.3, 0.3, len(cases))
        a, b = (rng.binomial(cases, 0.5 + sign * lead / 2).astype(float) for sign in (-1, 1))
        pair = compare_pairs(a, b, cases)
        assert pair.users == 61
        n_rejected += pair.p < 0.05
        n_covered += pair.interval[0] <= 0 <= pair.interval[1]
    assert n_rejected <= 10  # of 100 at 5 %: more has a probability of 1.1 %
    assert n_covered >= 89


def test_one_user_and_no_users_of_a_comparison():
    assert compare_pairs(np.array([0.0]), np.array([1.0])).p == 1.0
    with pytest.raises(TalerecError, match="paired comparison"):
        compare_pairs(np.empty(0), np.empty(0))
