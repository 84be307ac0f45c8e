"""The linear score from which the ranker's trees start, and the choice between shapes of orders."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from talerec.errors import TalerecError
from talerec.models.ranker import learning
from talerec.models.ranker.examples import Examples, gain_at_rank
from talerec.models.ranker.learning import Shape
from talerec.models.ranker.linear import LinearScore, fit_linear
from talerec.models.ranker.second_stage import start_scores

N_QUERIES = 400


@pytest.fixture(scope="module")
def queries():
    """Rows of features, targets, sizes of queries, start scores, and the true scores.

    Features: 0 and 2 count, linearly and by the logarithm; 3 counts if it is missing; 4 is equal
    for all candidates of a query; 5 is always missing; 1 is noise.
    """
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 30, N_QUERIES)
    n = int(sizes.sum())
    rows = rng.normal(size=(n, 6)).astype(np.float32)
    rows[:, 1] = rng.integers(0, 200, n)  # as ranks are
    rows[:, 2] = np.exp(2 * rows[:, 2])
    rows[rng.random(n) < 0.3, 3] = np.nan
    rows[:, 4] = np.repeat(rng.normal(size=N_QUERIES), sizes)
    rows[:, 5] = np.nan
    start = 0.3 * rng.normal(size=n)
    true = 2.0 * rows[:, 0] + np.log1p(rows[:, 2]) + 1.5 * np.isnan(rows[:, 3]) + start
    target = np.zeros(n, np.int8)
    drawn = true + rng.gumbel(size=n)
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for a, size in zip(first.tolist(), sizes.tolist(), strict=True):
        target[a + int(drawn[a : a + size].argmax())] = 1
    return rows, target, sizes, start, true


@pytest.fixture(scope="module")
def score(queries) -> LinearScore:
    return fit_linear(*queries[:4])


def slow_fit(rows, target, sizes, start) -> np.ndarray:
    """Return the scores of rows by softmax regression, one query after the other."""
    blocks = []
    for values in rows.T.astype(float):
        present = values[~np.isnan(values)]
        if present.size:
            clipped = np.clip(values, *np.percentile(present, [1, 99]))
            for column in (clipped, np.log1p(np.maximum(clipped, 0)), np.isnan(values) * 1.0):
                scale = np.nanstd(column)
                if scale > 1e-6:
                    blocks.append(np.nan_to_num((column - np.nanmean(column)) / scale))
    x, ends = np.column_stack(blocks), np.cumsum(sizes)

    def loss(weights):
        value, gradient = 1e-2 * weights @ weights, 2e-2 * weights
        for a, b in zip(ends - sizes, ends, strict=True):
            odds = np.exp(x[a:b] @ weights + start[a:b])
            chances = odds / odds.sum()
            value -= np.log(chances[target[a:b] > 0][0]) / len(sizes)
            gradient = gradient + (chances - target[a:b]) @ x[a:b] / len(sizes)
        return value, gradient

    return x @ minimize(loss, np.zeros(x.shape[1]), jac=True, method="BFGS").x


def test_the_score_is_that_of_softmax_regression_query_by_query(queries, score):
    rows, target, sizes, start, _ = queries
    mine, theirs = score.predict(rows), slow_fit(rows, target, sizes, start)
    query = np.repeat(np.arange(N_QUERIES), sizes)
    for scores in (mine, theirs):  # what all candidates of a query share decides nothing
        scores -= (np.bincount(query, scores) / sizes)[query]
    np.testing.assert_allclose(mine, theirs, atol=0.02)
    assert np.abs(theirs).max() > 3


def test_the_score_follows_the_planted_one(queries, score):
    rows, _, _, start, true = queries
    assert np.corrcoef(score.predict(rows), true - start)[0, 1] > 0.97


def test_contributions_add_up_and_what_orders_nothing_has_none(queries, score):
    rows = queries[0]
    contributions = score.contributions(rows)
    np.testing.assert_allclose(contributions.sum(axis=1), score.predict(rows), atol=1e-12)
    assert not contributions[:, 4:].any()
    assert abs(contributions.mean()) < 1e-6  # 0 is the mean of training rows
    assert np.abs(contributions.sum(axis=1)).max() <= score.bound


def test_values_are_clipped_and_missing_ones_have_a_contribution_of_their_own():
    low, high, slope, log_slope, shift, missing = [-1.0], [3.0], [2.0], [0.5], [0.1], [7.0]
    score = LinearScore(np.array([low, high, slope, log_slope, shift, missing]))
    rows = np.array([[-9], [-0.5], [2], [99], [np.inf], [np.nan]], np.float32)
    top = 6 + 0.5 * np.log(4) + 0.1
    expected = [-1.9, -0.9, 4 + 0.5 * np.log(3) + 0.1, top, top, 7]
    np.testing.assert_allclose(score.predict(rows), expected)


def test_the_score_does_not_depend_on_the_number_of_threads(queries, monkeypatch):
    tables = []
    for n_threads in ("1", "3"):
        monkeypatch.setenv("TALEREC_THREADS", n_threads)
        tables.append(fit_linear(*queries[:4]).table)
    np.testing.assert_array_equal(*tables)


def test_features_that_are_all_missing_or_equal_give_a_score_of_nothing(queries):
    _, target, sizes, start, _ = queries
    for value in (np.nan, 1.0):
        rows = np.full((len(target), 3), value, np.float32)
        assert fit_linear(rows, target, sizes, start).is_zero


def test_infinite_features_count_as_the_largest_finite_one(queries):
    rows, target, sizes, start, _ = queries
    rows = rows.copy()
    rows[rows[:, 0] > 1.5, 0] = np.inf  # more than the percentile that clips
    score = fit_linear(rows, target, sizes, start)
    assert np.array_equal(LinearScore.restore(score.table, 6).table, score.table)
    assert np.isfinite(score.predict(rows)).all()


def test_a_sample_of_many_queries_has_whole_queries(queries, monkeypatch):
    rows, target, sizes, _, _ = queries
    monkeypatch.setattr(learning, "_LINEAR_QUERIES", N_QUERIES // 4)
    half = int(sizes[: N_QUERIES // 2].sum())
    data = learning._TrainingRows([rows[:half], rows[half:]], target, sizes, np.arange(N_QUERIES))
    learns = np.arange(N_QUERIES) % 2 == 0
    score = learning._fit_linear(data, learns)
    chosen = np.flatnonzero(learns)[np.linspace(0, N_QUERIES // 2 - 1, N_QUERIES // 4).astype(int)]
    is_chosen = np.repeat(np.isin(np.arange(N_QUERIES), chosen), sizes)
    expected = fit_linear(
        rows[is_chosen], target[is_chosen], sizes[chosen], start_scores(rows[is_chosen])
    )
    np.testing.assert_array_equal(score.table, expected.table)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[:, 1:],
        lambda t: t[:5],
        lambda t: t.astype(np.float32),
        lambda t: t * np.nan,
        lambda t: np.where(t == t[2], np.inf, t),
        lambda t: t[[1, 0, 2, 3, 4, 5]],
        lambda t: np.where(t == t[2], 1e308, t),
    ],
)
def test_a_damaged_table_is_refused(score, change):
    assert np.array_equal(LinearScore.restore(score.table, 6).table, score.table)
    with pytest.raises(TalerecError, match="the linear score"):
        LinearScore.restore(change(score.table), 6)


# -- the choice between shapes, and the guard ------------------------------------------------------


def test_gains_by_which_the_number_of_trees_is_chosen_are_those_of_the_scores(queries):
    pytest.importorskip("lightgbm")
    rows, target, sizes, _, _ = queries
    names = [f"f{n}" for n in range(6)]
    data = learning._TrainingRows([rows], target, sizes, np.arange(N_QUERIES))
    bins = data.to_bins(names, learning._params(4))
    is_check = np.arange(N_QUERIES) % 3 == 0
    splits = [learning._Split(~is_check, is_check), learning._Split(is_check, ~is_check)]
    for shape in (Shape(True, 4), Shape(False, 7)):
        run = learning._grow_trees(data, bins, splits, shape)
        for number, split in enumerate(splits):
            for step in (0, run.gains.shape[1] - 1):
                scores = run.score(number, step + 1, rows, names)
                gains = examples_of(queries).gains(scores)[split.checks]
                assert gains.mean() == pytest.approx(run.gains[number, step], abs=2e-3)


def examples_of(queries) -> Examples:
    rows, target, sizes, _, _ = queries
    row_ptr = np.concatenate([[0], np.cumsum(sizes)])
    users = np.arange(N_QUERIES)
    return Examples(users, np.zeros((N_QUERIES, 1)), row_ptr, rows, target)


def test_a_guard_fold_has_no_say_in_the_choice():
    splits = [learning._Split(np.array([n != 0]), np.array([True])) for n in range(3)]
    small = learning._Run(Shape(True, 4), [], [], np.array([[0.1, 0.2], [0.1, 0.2], [0.9, 0.0]]))
    large = learning._Run(Shape(False, 7), [], [], np.array([[0.3, 0.0], [0.0, 0.1], [0.0, 0.0]]))
    assert learning._choose_shape([small, large], splits, [0, 1, 2]) == (small, 1)
    assert learning._choose_shape([small, large], splits, [0, 1]) == (small, 2)
    assert learning._choose_shape([small, large], splits, [0]) == (large, 1)


def test_errors_count_users_and_are_raised_where_orders_share_what_they_learned_from():
    user, difference = np.array([4, 4, 7, 9, 9]), np.array([1.0, 3.0, 2.0, 0.0, -1.0])
    sums = np.array([4.0, 2.0, -1.0])
    z = sums.mean() / (sums.std() / np.sqrt(3))
    assert learning._z_score(user, difference, 1) == pytest.approx(z)
    assert learning._z_score(user, difference, 5) == pytest.approx(z / np.sqrt(1.25))
    repeated = learning._z_score(np.repeat(user, 3), np.repeat(difference, 3), 1)
    assert repeated == pytest.approx(z)
    assert learning._z_score(user, np.zeros(5), 5) == 0


def test_best_part_is_the_first_unless_another_is_clearly_ahead():
    gains = gain_at_rank(np.array([[3, 2], [1, 1], [2, 0], [4, 3]] * 50))
    assert learning._best_part(gains) == 0
    assert learning._best_part(gains[:, ::-1]) == 1
