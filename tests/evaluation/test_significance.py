"""Intervals and paired tests: against the textbook, and against their own promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from talerec.errors import TalerecError
from talerec.evaluation import bootstrap_means
from talerec.evaluation.intervals import compare_pairs


def test_the_bootstrap_interval_is_the_normal_one_where_there_are_many_cases():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=(4000, 2))
    low, high = bootstrap_means(values)
    half = 1.96 * values.std(axis=0) / math.sqrt(len(values))
    np.testing.assert_allclose(low, values.mean(axis=0) - half, atol=0.15 * half.max())
    np.testing.assert_allclose(high, values.mean(axis=0) + half, atol=0.15 * half.max())


def test_drawing_distinct_rows_together_equals_drawing_row_by_row():
    rng = np.random.default_rng(5)
    values = rng.choice([0.0, 0.0, 0.0, 0.5, 1.0], size=(300, 1))
    means = [values[rng.integers(0, 300, 300)].mean() for _ in range(4000)]
    low, high = bootstrap_means(values)
    assert low[0] == pytest.approx(np.quantile(means, 0.025), abs=0.01)
    assert high[0] == pytest.approx(np.quantile(means, 0.975), abs=0.01)


def test_nineteen_of_twenty_intervals_hold_the_truth():
    rng = np.random.default_rng(11)
    inside = 0
    for _ in range(400):
        low, high = bootstrap_means((rng.random((400, 1)) < 0.1).astype(float))
        inside += bool(low[0] <= 0.1 <= high[0])
    assert 0.91 <= inside / 400 <= 0.98


def test_p_equals_the_count_over_every_assignment_of_signs():
    a = np.array([0.0, 0.2, 0.5, 0.1, 0.0, 0.3, 1.0, 0.0, 0.6, 0.4])
    b = np.array([0.4, 0.1, 0.9, 0.3, 0.0, 0.9, 1.0, 0.5, 0.5, 0.8])
    change = b - a
    worlds = [abs(np.dot(s, change)) for s in itertools.product((-1, 1), repeat=len(change))]
    exact = np.mean(np.array(worlds) >= abs(change.sum()) - 1e-12)
    assert compare_pairs(a, b).p == pytest.approx(exact, abs=0.006)


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
    for seed in range(500):
        base = rng.random(400)  # how hard each user is
        gains = rng.choice([0.3, 0.5, 1.0], (2, 400))
        a, b = np.where(rng.random((2, 400)) < 0.4 * base, gains, 0.0)
        found.append(compare_pairs(a, b, seed=seed).p)
    assert stats.kstest(found, "uniform").pvalue > 0.05
    assert 0.02 <= np.mean(np.array(found) < 0.05) <= 0.08


def test_a_model_against_itself_differs_in_nothing():
    a = np.random.default_rng(0).random(50)
    found = compare_pairs(a, a)
    assert (found.difference, found.p, found.effect, found.better, found.worse) == (0, 1, 0, 0, 0)
    assert found.interval == (0.0, 0.0)


def test_one_user_and_no_users():
    assert compare_pairs(np.array([0.0]), np.array([1.0])).p == 1.0
    with pytest.raises(TalerecError, match="paired comparison"):
        compare_pairs(np.empty(0), np.empty(0))
    low, high = bootstrap_means(np.empty((0, 3)))
    assert np.isnan(low).all()
    assert np.isnan(high).all()


def test_users_with_several_cases_are_drawn_whole():
    """Three cases of one user are drawn together; the mean is over cases, as reported."""
    rng = np.random.default_rng(3)
    cases = rng.integers(1, 4, 300).astype(float)
    sums = np.where(rng.random(300) < 0.2, cases, 0.0)
    low, high = bootstrap_means(sums[:, None], cases)
    picks = rng.integers(0, 300, (4000, 300))
    means = sums[picks].sum(axis=1) / cases[picks].sum(axis=1)
    assert low[0] == pytest.approx(np.quantile(means, 0.025), abs=0.01)
    assert high[0] == pytest.approx(np.quantile(means, 0.975), abs=0.01)
    assert low[0] < sums.sum() / cases.sum() < high[0]
