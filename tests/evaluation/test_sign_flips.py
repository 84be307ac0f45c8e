"""p-values of the sign-flip test against lists of all signs, the binomial test, random signs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from talerec.evaluation.sign_flips import sign_flip_p_value

NDCG = np.concatenate([np.zeros(20), 1 / np.log2(np.arange(2, 12))])
MRR = np.concatenate([np.zeros(20), 1 / np.arange(1, 11)])


def draw(kind, n_users, rng):
    """Return differences of two equally good models for each user."""
    if kind == "normal":
        return rng.normal(0, 1, n_users)
    if kind == "hits of nine cases":
        return np.diff(rng.binomial(9, 0.3, (2, n_users)), axis=0)[0].astype(float)
    gains = {"ndcg": NDCG, "ndcg of nine cases": NDCG, "mrr": MRR}[kind]
    n_cases = 9 if "nine" in kind else 1
    return np.diff(rng.choice(gains, (2, n_users, n_cases)).sum(axis=2), axis=0)[0]


KINDS = ["ndcg", "ndcg of nine cases", "mrr", "hits of nine cases", "normal"]


def list_signs(differences):
    """Return the share of all assignments of signs whose sum is as far from 0."""
    signs = np.array(list(itertools.product((-1, 1), repeat=len(differences))))
    return np.mean(np.abs(signs @ differences) >= abs(differences.sum()) * (1 - 1e-9))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_users", [1, 2, 7, 13])
def test_few_users_have_the_share_of_all_assignments_of_signs(kind, n_users):
    differences = draw(kind, n_users, np.random.default_rng(n_users))
    assert sign_flip_p_value(differences) == pytest.approx(list_signs(differences), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_sum_over_frequencies_equals_the_list_of_all_signs(kind, monkeypatch):
    """The branch for many users, with few; differences on no grid are rounded to 1/1,024."""
    from talerec.evaluation import sign_flips

    monkeypatch.setattr(sign_flips, "_MAX_OUTCOMES", 1)
    is_exact = kind in ("mrr", "hits of nine cases")
    for seed in range(20):
        differences = draw(kind, 13, np.random.default_rng(seed))
        p = sign_flip_p_value(differences)
        expected = list_signs(differences)
        assert p == pytest.approx(expected, abs=1e-12 if is_exact else 0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_users", [60, 400])
def test_many_users_have_the_share_of_random_signs(kind, n_users):
    rng = np.random.default_rng(n_users)
    differences = draw(kind, n_users, rng)
    differences += (differences != 0) * rng.choice([0.0, 1.0], p=[0.9, 0.1], size=n_users)
    signs = rng.integers(0, 2, (20_000, n_users)) * 2 - 1
    expected = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) * (1 - 1e-9))
    error = np.sqrt(max(expected * (1 - expected), 1e-4) / 20_000)
    assert abs(sign_flip_p_value(differences) - expected) < 5 * error


@pytest.mark.parametrize(
    ("better", "worse"), [(30, 12), (400, 350), (5000, 5200), (60_000, 61_000)]
)
def test_equal_differences_are_a_binomial_test(better, worse):
    differences = np.repeat([0.25, -0.25, 0.0], [better, worse, 100])
    expected = stats.binomtest(better, better + worse).pvalue
    assert sign_flip_p_value(differences) == pytest.approx(expected, rel=1e-6)


def test_hits_of_many_cases_equal_the_convolution_of_their_distributions():
    differences = draw("hits of nine cases", 3000, np.random.default_rng(3)) + 0.0
    chances = np.ones(1)
    for size in np.abs(differences).astype(int):
        wider = np.zeros(len(chances) + 2 * size)
        wider[: len(chances)] += chances / 2
        wider[2 * size :] += chances / 2
        chances = wider
    sums = np.arange(len(chances)) - len(chances) // 2
    expected = chances[np.abs(sums) >= abs(differences.sum())].sum()
    assert sign_flip_p_value(differences) == pytest.approx(expected, abs=1e-12)


def test_clear_differences_have_the_smallest_p_value_and_none_has_1():
    rng = np.random.default_rng(0)
    assert sign_flip_p_value(np.full(3000, 0.1)) == 1e-12
    assert sign_flip_p_value(rng.normal(2, 1, 5000)) == 1e-12
    assert sign_flip_p_value(np.zeros(5)) == 1.0
    assert sign_flip_p_value(np.array([1.0, -1.0])) == 1.0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_p_values_depend_on_no_unit_and_on_no_order(scale):
    rng = np.random.default_rng(5)
    differences = rng.normal(0.1, 1, 300)
    p = sign_flip_p_value(differences)
    assert sign_flip_p_value(differences[::-1] * scale) == pytest.approx(p, rel=1e-3)
    assert sign_flip_p_value(-differences) == p


def test_one_user_with_a_huge_difference_decides_nothing():
    """With all others far smaller, both signs of this user are as likely."""
    differences = np.append(np.random.default_rng(1).normal(0, 1, 2000), 1e5)
    assert sign_flip_p_value(differences) == pytest.approx(0.5, abs=0.5)
    assert sign_flip_p_value(differences) > 0.4
