"""Stacked blocks of every form, against the product with the matrix that they stand for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import oracle
import talerec as tr
from talerec.data import Histories
from talerec.models.core import ItemFilter, rank_with_reasons
from talerec.ranking import (
    Block,
    GroupedQueries,
    IdentityBlock,
    Mask,
    Query,
    SequenceBlock,
    Weights,
    add_group_contributions,
    make_block,
    rank_queries,
    top_items,
)

MANY = 200_000  # items: more than have a dense score each

#: Sums of products of these are exact in any order, so results can be compared exactly.
entries = st.sampled_from([0.0, 0.0, 0.0, 1.0, 1.0, 0.5, -1.0, 2.0])


def padded(block: Block, items: int) -> Block:
    """Return the block with more items, to which it has no weights."""
    return replace(block, items=items)


def dense_of(block: Block, n: int) -> np.ndarray:
    """Return the matrix that a block stands for, built by hand."""
    if not isinstance(block, SequenceBlock):
        matrix = block.matrix
        matrix = matrix.toarray() if sparse.issparse(matrix) else np.asarray(matrix)
        return block.weight * matrix[:, :n].astype(np.float64)
    matrix = np.zeros((block.sources, n))
    for sequence in range(block.sequences):
        low, high = int(block.indptr[sequence]), int(block.indptr[sequence + 1])
        for entry in range(low, high):
            for e in range(low, high):
                matrix[entry, block.indices[e]] = block.decay[abs(e - entry)]
    return block.weight * matrix


@st.composite
def stacks(draw, *, dense=True):
    """Blocks, base scores, queries with targets and what each has seen."""
    n = draw(st.integers(2, 6))
    blocks: list[Block] = []
    kinds = ["sparse", "identity", "runs", *(["dense"] if dense else [])]
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4)):
        weight = draw(st.sampled_from([1.0, 0.5, -2.0]))
        rows = draw(st.integers(1, 4))
        if kind == "identity":
            blocks.append(IdentityBlock(items=n, weight=weight))
        elif kind == "runs":
            runs = [draw(st.permutations(range(n)))[: draw(st.integers(1, n))] for _ in range(rows)]
            ptr = np.cumsum([0, *map(len, runs)]).astype(np.int32)
            items = np.array([i for run in runs for i in run], np.int32)
            fade = np.array([1.0, 0.5, 0.0, 0.25, 0.25, 0.25])
            blocks.append(
                SequenceBlock(items=n, indptr=ptr, indices=items, decay=fade, weight=weight)
            )
        else:
            B = np.array([[draw(entries) for _ in range(n)] for _ in range(rows)], np.float32)
            blocks.append(make_block(sparse.csr_array(B) if kind == "sparse" else B, weight=weight))
    total = sum(block.sources for block in blocks)
    queries = []
    for _ in range(draw(st.integers(1, 3))):
        sources = draw(st.lists(st.integers(0, total - 1), unique=True, max_size=6))
        queries.append([(s, draw(st.sampled_from([1.0, 0.5, 2.0, -1.0]))) for s in sources])
    seen = [draw(st.lists(st.integers(-1, n - 1), max_size=4)) for _ in queries]
    return n, blocks, queries, seen


def as_query(queries) -> Query:
    ptr = np.cumsum([0, *map(len, queries)]).astype(np.int64)
    flat = [pair for query in queries for pair in query]
    return Query(
        ptr, np.array([s for s, _ in flat], np.int64), np.array([w for _, w in flat], np.float64)
    )


def as_histories(rows) -> Histories:
    ptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    item = np.array([i for row in rows for i in row], np.int32)
    return Histories(ptr[:-1], ptr[1:], item, np.arange(len(item)))


@given(stacks(), st.booleans(), st.integers(0, 6))
@settings(max_examples=200, deadline=None)
def test_lists_and_ranks_of_stacked_blocks_are_those_of_the_matrix_they_stand_for(
    stack, hide_seen, k
):
    n, blocks, queries, seen = stack
    check(Weights(blocks), blocks, n, queries, seen, hide_seen, k)


@given(stacks(), st.data())
@settings(max_examples=100, deadline=None)
def test_contributions_of_groups_add_up_the_rows_of_the_matrix(stack, data):
    n, blocks, queries, _ = stack
    matrix = np.concatenate([dense_of(block, n) for block in blocks])
    query = as_query(queries)
    group = np.array([data.draw(st.integers(0, 2)) for _ in query.source], np.int64)
    counts = np.array([data.draw(st.integers(0, n)) for _ in queries])
    items = np.array([data.draw(st.permutations(range(n))) for _ in queries], np.int32)
    sums, expected = np.zeros((2, 3, len(queries), n), np.float32)
    grouped = GroupedQueries(query.ptr, query.source, query.weight, group)
    weights = Weights(blocks).kernel_weights
    add_group_contributions(weights, grouped, items, counts, n, 0, len(queries), sums)
    for q in range(len(queries)):
        for x in range(query.ptr[q], query.ptr[q + 1]):
            row = query.weight[x] * matrix[query.source[x]]
            expected[group[x], q, : counts[q]] += row[items[q, : counts[q]]]
    np.testing.assert_array_equal(sums, expected)


@given(stacks(dense=False), st.booleans(), st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_hash_scores_give_what_dense_scores_give(stack, hide_seen, k):
    n, blocks, queries, seen = stack
    if any(isinstance(block, IdentityBlock) for block in blocks[:-1]):
        return  # its sources are as many as items: those after it would be other ones
    weights = Weights([padded(block, MANY) for block in blocks])
    assert not weights.uses_dense_scores
    check(weights, blocks, n, queries, seen, hide_seen, k)


def check(weights, blocks, n, queries, seen, hide_seen, k):
    matrix = np.vstack([dense_of(block, n) for block in blocks])
    query, mask = as_query(queries), Mask.make(as_histories(seen), hide_seen=hide_seen)
    for target in range(-1, n):
        targets = np.full(len(queries), target, np.int32)
        result = rank_queries(weights, query, mask, k, targets)
        for q, (x, history) in enumerate(zip(queries, seen, strict=True)):
            order = oracle.ranking(dict(x), matrix, hidden=history if hide_seen else ())[:k]
            count = result.counts[q]
            assert result.items[q, :count].tolist() == [item for item, _ in order]
            assert result.scores[q, :count].tolist() == [score for _, score in order]
            for column, hidden in enumerate(((), history)):
                items = [item for item, _ in oracle.ranking(dict(x), matrix, hidden=hidden)]
                rank = items.index(target) + 1 if target in items else 0
                assert result.ranks[q, column] == rank


@pytest.mark.parametrize("length", range(1, 14))
def test_rows_of_dense_blocks_are_added_one_after_the_other_to_the_last_bit(length):
    """However many rows one pass adds: sums of rounded numbers depend on their order."""
    rng, n = np.random.default_rng(length), 30
    matrices = [rng.choice([0.0, 1.0], (n, n)) * rng.normal(size=(n, n)) for _ in range(2)]
    weights = Weights([make_block(matrix) for matrix in matrices])
    source = np.sort(rng.choice(2 * n, length, replace=False))  # of both blocks
    share = rng.normal(size=length)
    expected = np.zeros(n)
    for place, number in enumerate(source):
        expected += share[place] * np.vstack(matrices)[number].astype(np.float32).astype(float)
    mask = Mask.make(as_histories([[]]), hide_seen=False)
    query = Query(np.array([0, length]), source, share)
    items, scores, counts = top_items(weights, query, mask, n)
    shown = dict(zip(items[0, : counts[0]].tolist(), scores[0, : counts[0]].tolist(), strict=True))
    is_scored = (np.vstack(matrices)[source] != 0).any(axis=0)
    assert shown == {j: expected[j] for j in np.flatnonzero(is_scored)}


@given(stacks())
@settings(max_examples=100, deadline=None)
def test_contributions_are_the_entries_of_the_matrix_times_the_query(stack):
    n, blocks, queries, _ = stack
    weights, matrix = Weights(blocks), np.vstack([dense_of(block, n) for block in blocks])
    for x in queries:
        query = as_query([x])
        result = weights.contributions(query, np.arange(n))
        np.testing.assert_array_equal(result, (query.weight[:, None] * matrix[query.source]).T)


@given(stacks())
@settings(max_examples=50, deadline=None)
def test_what_is_stored_comes_back(stack):
    n, blocks, _, _ = stack
    named = [
        replace(block, source_item=np.full(block.sources, -1, np.int32)) for block in blocks[:1]
    ]
    weights = Weights([*named, *blocks[1:]], np.arange(n, dtype=np.float64), {"x": np.arange(3)})
    facts, arrays = weights.stored()
    restored = Weights.restored(facts, arrays, n)
    assert [type(block) for block in restored.blocks] == [type(block) for block in weights.blocks]
    for ours, theirs in zip(weights.blocks, restored.blocks, strict=True):
        np.testing.assert_array_equal(dense_of(ours, n), dense_of(theirs, n))
    np.testing.assert_array_equal(restored.base, weights.base)
    np.testing.assert_array_equal(restored.query_arrays["x"], weights.query_arrays["x"])
    if not isinstance(blocks[0], SequenceBlock):
        np.testing.assert_array_equal(restored.blocks[0].source_item, named[0].source_item)


def test_a_form_of_weights_that_is_not_known_is_refused_by_name():
    with pytest.raises(tr.TalerecError, match="form 'cubic', which this version does not know"):
        Weights.restored([{"kind": "cubic", "weight": 1.0}], {}, 3)


def test_rows_of_a_block_are_its_rows():
    B = np.arange(12, dtype=np.float32).reshape(4, 3)
    for matrix in (B, sparse.csr_array(B)):
        part = make_block(matrix).rows(1, 3)
        np.testing.assert_array_equal(dense_of(part, 3), B[1:3])


def test_a_query_may_mix_blocks_in_any_order_and_adds_in_that_order():
    """0.1 + 0.2 + 0.3 depends on the order of adding."""
    B = np.array([[0.1], [0.2]], np.float64)
    blocks = [make_block(B.astype(np.float32)), IdentityBlock(items=1)]
    weights = Weights(blocks)
    mask = Mask.make(as_histories([[]]), hide_seen=False)
    shares = [(2, 0.3), (0, 1.0), (1, 1.0)]
    for order in (shares, shares[::-1]):
        total = -0.0
        for source, weight in order:
            total += weight * (1.0 if source == 2 else float(np.float32(B[source, 0])))
        _, scores, _ = top_items(weights, as_query([order]), mask, 1)
        assert scores[0, 0] == total


def test_old_names_work_and_warn():
    from talerec.ranking import blocks

    with pytest.warns(DeprecationWarning, match="RunsBlock is now SequenceBlock"):
        assert blocks.RunsBlock is SequenceBlock
    query = as_query([[(2, 0.3)], [(0, 1.0), (1, 1.0)]])
    with pytest.warns(DeprecationWarning, match=r"Query.one is now Query.select"):
        selected = query.one(1)
    assert selected.source.tolist() == query.select(1).source.tolist() == [0, 1]


# -- tempo -----------------------------------------------------------------------------------------


def many_times() -> tr.Log:
    """Return a log with so many times that sources of times outnumber those of items."""
    return tr.synthetic_log(users=300, items=40)


@pytest.mark.parametrize("solver", ["exact", "local"])
def test_tempo_stores_neither_seen_items_nor_dense_times(solver):
    model = tr.Tempo(solver=solver).fit(many_times())
    facts, arrays = model.fitted.weights.stored()
    assert [fact["kind"] for fact in facts][1:] == ["identity", "sparse"]
    assert not any(name.endswith("_1") for name in arrays)


@pytest.mark.parametrize("solver", ["exact", "local"])
def test_what_is_popular_is_the_reason_of_no_item(solver):
    log = many_times()
    model = tr.Tempo(solver=solver).fit(log)
    histories = Histories.of_users(log, np.arange(len(log.users)))
    assert model.fitted.weights.first_source(3) > 3 * len(log.items)
    result, _ = rank_with_reasons(model, histories, 5, ItemFilter(hide_seen=True), 2500)
    begins, n = [0, *result.ends], 0
    for user, count in enumerate(result.counts):
        history = histories.slice(user, user + 1)
        x = model.query(history)
        for _ in range(count):
            target, score = result.items[n], result.scores[n]
            contributions = model.contributions(x, history, np.array([target]))[0]
            shares = result.shares[begins[n] : begins[n + 1]]
            assert math.isclose(sum(shares) * score, contributions.sum(), abs_tol=1e-9)
            n += 1
