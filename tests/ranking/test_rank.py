"""One ranking rule, tested against sorting, for dense and sparse weights alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import oracle
from talerec.data import Histories
from talerec.ranking import (
    Mask,
    Query,
    SparseBlock,
    Weights,
    explain_queries,
    rank_queries,
    recency_query,
    top_items,
)

#: Few values, so that equal scores and missing weights are common.
entries = st.sampled_from([0.0, 0.0, 0.0, 1.0, 1.0, 0.5, -1.0, 2.0])


@st.composite
def problems(draw):
    n = draw(st.integers(1, 9))
    B = np.array([[draw(entries) for _ in range(n)] for _ in range(n)], np.float32)
    base = None
    if draw(st.booleans()):
        base = np.array([draw(st.sampled_from([math.nan, 0.0, 1.0, 3.0])) for _ in range(n)])
    histories = draw(st.lists(st.lists(st.integers(-1, n - 1), max_size=6), min_size=1, max_size=5))
    allowed = draw(st.none() | st.sets(st.integers(0, n - 1)))
    return B, base, histories, allowed, draw(st.booleans())


PADDED = {"some": 500, "many": 200_000}  # items: a sum for each; beyond, those result are listed
FORMS = ("dense", "few", *PADDED)


def make_weights(form, B, base=None):
    """Return the same weights dense, sparse, or sparse with many more items without weights."""
    if form == "dense":
        return Weights(B, base)
    matrix = sparse.csr_array(B)
    if form == "few":
        return Weights(matrix, base)
    items = PADDED[form]
    more = None if base is None else np.concatenate([base, np.full(items - len(base), np.nan)])
    parts = (matrix.data, matrix.indices, matrix.indptr)
    return Weights(sparse.csr_array(parts, shape=(len(B), items)), more)


def as_histories(rows):
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    item = np.array([i for row in rows for i in row], np.int32)
    return Histories(ptr[:-1], ptr[1:], item, np.arange(len(item)))


def ask(weights, rows, allowed, hide_seen):
    histories = as_histories(rows)
    query = recency_query(weights, histories, histories.time, 2.0, 2500)
    flags = None
    if allowed is not None:
        flags = np.zeros(weights.items, np.uint8)
        flags[list(allowed)] = 1
    return query, Mask.make(histories, hide_seen=hide_seen, allowed=flags)


def ranks(weights, query, mask, targets):
    return rank_queries(weights, query, mask, 0, targets).ranks


def expected(row, B, base, allowed, hide_seen):
    x = oracle.history_weights(row, list(range(len(row))), 2.0, joint=False)
    return oracle.ranking(x, B, base=base, hidden=set(row) if hide_seen else (), allowed=allowed)


@given(problems(), st.sampled_from(FORMS), st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_top_k_equals_sorting_all_items(problem, form, k):
    B, base, rows, allowed, hide_seen = problem
    weights = make_weights(form, B, base)
    query, mask = ask(weights, rows, allowed, hide_seen)
    items, scores, counts = top_items(weights, query, mask, k)
    for q, row in enumerate(rows):
        expected_items = expected(row, B, base, allowed, hide_seen)[:k]
        assert counts[q] == len(expected_items)
        assert items[q, : counts[q]].tolist() == [item for item, _ in expected_items]
        np.testing.assert_allclose(
            scores[q, : counts[q]], [s for _, s in expected_items], atol=1e-12
        )


@pytest.mark.parametrize("k", [1, 10, 64, 65, 200, 300])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.01, 0.4])
def test_hundreds_of_candidates_are_sorted_too(share, form, k):
    """More items than are compared at a time, more than a sorted top k; many equal scores."""
    rng = np.random.default_rng(7)
    B = np.where(rng.random((300, 300)) < share, rng.integers(-3, 9, (300, 300)), 0)
    B = B.astype(np.float32)
    rows = [rng.integers(0, 300, 12).tolist() for _ in range(6)]
    weights = make_weights(form, B)
    for hide_seen in (False, True):
        query, mask = ask(weights, rows, None, hide_seen)
        items, scores, counts = top_items(weights, query, mask, k)
        for q, row in enumerate(rows):
            expected_items = expected(row, B, None, None, hide_seen)[:k]
            np.testing.assert_allclose(
                scores[q, : counts[q]], [s for _, s in expected_items], atol=1e-9
            )
            assert counts[q] == len(expected_items)
            assert items[q, : counts[q]].tolist() == [item for item, _ in expected_items]


@pytest.mark.parametrize("form", FORMS)
def test_a_stored_zero_is_no_weight(form):
    weights = make_weights(form, np.array([[0, 2.0, 1.0], [0, 0, 0], [0, 0, 0]], np.float32))
    if form != "dense":
        weights.blocks[0].values[0] = 0.0
    else:
        weights.blocks[0].values[0, 1] = 0.0
    query, mask = ask(weights, [[0]], None, False)
    items, _, counts = top_items(weights, query, mask, 3)
    assert items[0, : counts[0]].tolist() == [2]
    assert ranks(weights, query, mask, np.array([1], np.int32)).tolist() == [[0, 0]]


@given(problems(), st.sampled_from(FORMS))
@settings(max_examples=300, deadline=None)
def test_a_targets_rank_is_its_position_in_the_sorted_list(problem, form):
    B, base, rows, allowed, hide_seen = problem
    weights = make_weights(form, B, base)
    query, mask = ask(weights, rows, allowed, hide_seen)
    for target in range(-1, len(B)):
        result = ranks(weights, query, mask, np.full(len(rows), target, np.int32))
        for q, row in enumerate(rows):
            for column, hidden in enumerate((False, True)):
                order = [item for item, _ in expected(row, B, base, allowed, hidden)]
                assert result[q, column] == (order.index(target) + 1 if target in order else 0)


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 3)), max_size=12), st.booleans())
@settings(max_examples=200, deadline=None)
def test_history_weights_count_the_last_row_of_an_item_and_places_by_instant(rows, joint):
    rows = sorted(rows, key=lambda row: row[1])
    items, times = [i for i, _ in rows], [t for _, t in rows]
    histories = Histories(
        np.array([0]), np.array([len(rows)]), np.array(items, np.int32), np.array(times, np.int64)
    )
    weights = Weights(np.zeros((6, 6), np.float32))
    query = recency_query(weights, histories, histories.moments(joint=joint), 3.0, 2500)
    expected_items = oracle.history_weights(items, times, 3.0, joint=joint)
    assert dict(zip(query.source.tolist(), query.weight.tolist(), strict=True)) == pytest.approx(
        expected_items
    )


def test_a_cancelled_score_of_zero_is_still_a_score():
    B = np.array([[0, 0, 1.0], [0, 0, -1.0], [0, 0, 0]], np.float32)
    for form in FORMS:
        weights = make_weights(form, B)
        query = Query(np.array([0, 2]), np.array([0, 1]), np.array([1.0, 1.0]))
        mask = Mask.make(as_histories([[0, 1]]), hide_seen=False, allowed=None)
        items, scores, counts = top_items(weights, query, mask, 3)
        assert counts[0] == 1
        assert items[0, 0] == 2
        assert scores[0, 0] == 0.0


def test_many_queries_in_batches_equal_one_by_one():
    rng = np.random.default_rng(0)
    B = rng.normal(size=(40, 40)).astype(np.float32)
    weights = Weights(B)
    rows = [rng.integers(0, 40, rng.integers(1, 9)).tolist() for _ in range(1000)]
    query, mask = ask(weights, rows, None, True)
    items, scores, _ = top_items(weights, query, mask, 5)
    for q in range(0, 1000, 97):
        single, single_mask = ask(weights, [rows[q]], None, True)
        single_items, score, _ = top_items(weights, single, single_mask, 5)
        np.testing.assert_array_equal(items[q], single_items[0])
        np.testing.assert_array_equal(scores[q], score[0])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("hide_seen", [False, True])
def test_a_search_that_stops_early_gives_what_a_full_one_gives(seed, hide_seen):
    """With long histories and sparse weights; dense weights are always searched in full."""
    rng = np.random.default_rng(seed)
    n = 300
    B = (rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.1)).astype(np.float32)
    base = None if seed % 2 else np.where(rng.random(n) < 0.3, rng.random(n), np.nan)
    rows = [rng.integers(0, n, 80).tolist() for _ in range(40)]
    allowed = None if seed < 3 else set(rng.choice(n, 40, replace=False).tolist())
    for k in (1, 10, 250):
        results = []
        for form in FORMS:
            weights = make_weights(form, B, base)
            query, mask = ask(weights, rows, allowed, hide_seen)
            results.append(top_items(weights, query, mask, k))
        for full, *early in zip(*results, strict=True):
            for other in early:
                np.testing.assert_array_equal(full, other)


def test_a_weight_that_is_lost_in_rounding_still_gives_a_score():
    """exp(-800) is 0.0, and -0.0 times a negative weight: a score of zero, not none."""
    B = np.array([[0, 0, 1.0], [0, -1.0, 0], [0, 0, 0]], np.float32)
    for form in FORMS:
        weights = make_weights(form, B)
        query = Query(np.array([0, 2]), np.array([0, 1]), np.array([1.0, 0.0]))
        mask = Mask.make(as_histories([[1, 0]]), hide_seen=False, allowed=None)
        items, scores, counts = top_items(weights, query, mask, 3)
        assert items[0, : counts[0]].tolist() == [2, 1]
        assert scores[0, : counts[0]].tolist() == [1.0, 0.0]


@given(problems(), st.sampled_from(FORMS), st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_explained_lists_are_the_top_items_with_their_largest_contributions(problem, form, most):
    B, base, rows, allowed, hide_seen = problem
    weights = make_weights(form, B, base)
    every = np.arange(len(B), dtype=np.int32)
    for row in rows:
        query, mask = ask(weights, [row], allowed, hide_seen)
        contributions = weights.contributions(query, every)
        np.testing.assert_array_equal(
            contributions, query.weight * B[query.source].T.astype(np.float64)
        )
        items, scores, counts = top_items(weights, query, mask, len(B))
        result = explain_queries(weights, query, mask, len(B), most)
        assert result.items == items[0, : counts[0]].tolist()
        assert result.scores == scores[0, : counts[0]].tolist()
        begins = [0, *result.ends]
        assert result.counts == counts.tolist()
        assert begins[-1] == len(result.sources) == len(result.shares)
        for position, target in enumerate(result.items):
            score, span = result.scores[position], slice(begins[position], result.ends[position])
            order = np.argsort(-np.abs(contributions[target]), kind="stable")
            expected_items = [c for c in order if contributions[target, c] and score][:most]
            assert result.sources[span] == query.source[expected_items].tolist()
            assert result.shares[span] == [contributions[target, c] / score for c in expected_items]


def test_a_search_does_stop_early():
    """The row of an old source, which holds NaN, is not read: it would spoil the scores."""
    n = 60
    B = sparse.csr_array(
        np.triu(np.ones((n, n), np.float32)) * np.arange(1, n + 1, dtype=np.float32)
    )
    peaks = np.full(n, 60.0, np.float32)
    B.data[B.indptr[0] : B.indptr[1] - 5] = np.nan
    for items in (n, PADDED["many"]):
        rows = {"indptr": B.indptr, "indices": B.indices, "values": B.data, "stored_peaks": peaks}
        weights = Weights(SparseBlock(items=items, **rows))
        query, mask = ask(weights, [list(range(n - 1))], None, False)
        items, scores, _ = top_items(weights, query, mask, 3)
        assert np.isfinite(scores).all()
        assert items[0].tolist() == [59, 58, 57]
