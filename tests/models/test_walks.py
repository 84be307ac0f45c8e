"""Random walks against power iteration in float64, and S-Walk against SLIT and SLIS."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

import talerec as tr
from logs import logs, quick, tiny_log
from talerec.models.linear.swalk import normalize_rows, walk
from talerec.runtime import VARIABLE
from talerec.solvers import solve_gram

# -- slow versions --------------------------------------------------------------------------------


def filled(matrix):
    return np.asarray(matrix.toarray() if sparse.issparse(matrix) else matrix, np.float64)


def normalised(B):
    """Rows without what is negative, with a sum of 1 where anything is left."""
    rows = [[max(value, 0.0) for value in row] for row in filled(B).tolist()]
    return np.array([[v / math.fsum(row) if math.fsum(row) else 0.0 for v in row] for row in rows])


def power(R, T, alpha, steps, width=None):
    """M <- alpha M R + (1 - alpha) T from I, with the `width` largest entries of each row."""
    R, T = filled(R), filled(T)
    M = np.eye(len(R))
    for _ in range(steps):
        M = alpha * M @ R + (1 - alpha) * T
        if width is not None:
            for row in M:
                row[np.argsort(-row)[width:]] = 0.0
    return M


def graph(seed, n=12, share=0.4):
    """Transitions with some empty rows and no two alike."""
    rng = np.random.default_rng(seed)
    B = rng.random((n, n)) * (rng.random((n, n)) < share)
    B[rng.random(n) < 0.2] = 0.0
    return normalize_rows(B.astype(np.float32))


FORMS = {"dense": np.asarray, "sparse": sparse.csr_array}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))

# -- rows with a sum of 1 --------------------------------------------------------------------------

values = st.sampled_from([0.0, 0.0]) | st.floats(-100, 100, width=32).filter(
    lambda x: x == 0 or abs(x) > 1e-30
)
squares = st.integers(1, 6).flatmap(lambda n: arrays.arrays(np.float32, (n, n), elements=values))


@forms
@given(B=squares)
@quick
def test_rows_lose_what_is_negative_and_have_a_sum_of_one_or_nothing(form, B):
    result = normalize_rows(form(B))
    assert sparse.issparse(result) == (form is sparse.csr_array)
    assert result.dtype == np.float32
    dense = filled(result)
    assert (dense >= 0).all()
    assert (dense[B <= 0] == 0).all()
    sums = dense.sum(axis=1)
    np.testing.assert_allclose(sums, (B > 0).any(axis=1), atol=1e-6)
    np.testing.assert_allclose(dense, normalised(B), rtol=1e-5, atol=1e-30)


@forms
def test_what_was_given_is_left_alone(form):
    B = form(np.array([[1, -2], [3, 1]], np.float32))
    normalize_rows(B)
    np.testing.assert_array_equal(filled(B), [[1, -2], [3, 1]])


def test_no_zeros_are_stored():
    result = normalize_rows(sparse.csr_array(np.array([[1, -2], [0, -1]], np.float32)))
    assert result.nnz == 1


@forms
@pytest.mark.parametrize("small", [1e-30, 1e-38, 1e-40, 1e-44])
def test_rows_of_very_small_weights_have_a_sum_of_one_too(form, small):
    result = filled(normalize_rows(form(np.array([[small, small], [1, 0]], np.float32))))
    np.testing.assert_allclose(result, [[0.5, 0.5], [1, 0]], rtol=1e-6)


# -- walks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [(a, b) for a in FORMS for b in FORMS], ids="/".join)
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_walk_is_the_power_iteration(kinds, alpha, steps):
    for seed in range(4):
        R, T = graph(seed), graph(seed + 50, share=0.2)
        on, restart = (FORMS[kind](M) for kind, M in zip(kinds, (R, T), strict=True))
        M = walk(on, restart, alpha, steps, 12)
        assert sparse.issparse(M) == (kinds == ("sparse", "sparse"))
        assert M.dtype == np.float32
        np.testing.assert_allclose(filled(M), power(R, T, alpha, steps), atol=1e-6)


@given(squares, squares, st.floats(0, 1), st.integers(1, 6), st.integers(0, 3))
@quick
def test_sparse_and_dense_walks_agree(B, C, alpha, steps, more):
    n = min(len(B), len(C))
    R, T = normalize_rows(B[:n, :n]), normalize_rows(C[:n, :n])
    expected = power(R, T, alpha, steps)
    dense = walk(R, T, alpha, steps, n)
    loose = walk(sparse.csr_array(R), sparse.csr_array(T), alpha, steps, n + more)
    np.testing.assert_allclose(dense, expected, atol=1e-6)
    np.testing.assert_allclose(filled(loose), expected, atol=1e-6)


@forms
@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_long_walks_reach_the_closed_form(form, alpha):
    R, T = graph(1), graph(2)
    limit = (1 - alpha) * filled(T) @ np.linalg.inv(np.eye(12) - alpha * filled(R))
    errors = [
        np.abs(filled(walk(form(R), form(T), alpha, steps, 12)) - limit).max()
        for steps in (1, 4, 80)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


@forms
def test_a_walk_leaves_its_graphs_alone(form):
    R, T = form(graph(1)), form(graph(2))
    walk(R, T, 0.5, 5, 3)
    np.testing.assert_array_equal(filled(R), filled(graph(1)))
    np.testing.assert_array_equal(filled(T), filled(graph(2)))


@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_a_narrow_walk_keeps_the_largest_entries_of_every_step(width, steps):
    for seed in range(5):
        R, T = graph(seed, n=20), graph(seed + 50, n=20)
        M = walk(sparse.csr_array(R), sparse.csr_array(T), 0.6, steps, width)
        assert np.diff(M.indptr).max() <= width
        expected = power(R, T, 0.6, steps, width)
        np.testing.assert_array_equal(filled(M) > 0, expected > 0)
        np.testing.assert_allclose(filled(M), expected, atol=1e-6)


def test_of_equal_entries_no_more_than_the_width_stay():
    R = sparse.csr_array(np.full((9, 9), 1 / 9, np.float32))
    M = walk(R, R, 0.5, 4, 4)
    assert np.diff(M.indptr).tolist() == [4] * 9
    assert M.has_sorted_indices


def test_the_columns_of_a_row_ascend_and_none_is_twice():
    M = walk(sparse.csr_array(graph(3, n=40)), sparse.csr_array(graph(4, n=40)), 0.5, 5, 11)
    for i in range(40):
        columns = M.indices[M.indptr[i] : M.indptr[i + 1]]
        assert (np.diff(columns) > 0).all()
    assert (M.data > 0).all()


def test_an_item_that_leads_nowhere_has_an_empty_row():
    nowhere = sparse.csr_array((3, 3), dtype=np.float32)
    M = walk(nowhere, nowhere, 0.5, 3, 3)
    assert M.nnz == 0
    assert (walk(nowhere.toarray(), nowhere.toarray(), 0.5, 3, 3) == 0).all()


def test_threads_do_not_change_a_bit(monkeypatch):
    R, T = (sparse.csr_array(graph(seed, n=900, share=0.02)) for seed in (1, 2))
    runs = []
    for threads in ("1", "2"):
        monkeypatch.setenv(VARIABLE, threads)
        runs.append(walk(R, T, 0.5, 6, 40))
    for part in ("indptr", "indices", "data"):
        first, two = (getattr(M, part) for M in runs)
        assert first.tobytes() == two.tobytes()
    np.testing.assert_allclose(filled(runs[0])[:9], power(R, T, 0.5, 6, 40)[:9], atol=1e-6)


# -- S-Walk ----------------------------------------------------------------------------------------


def by_hand(model, log, solver, neighbors=100):
    """The power iteration over what SLIT and SLIS solve."""
    common = ("reg", "decay_user", "norm", "max_history")
    shared = {name: getattr(model, name) for name in common}
    slit = tr.SLIT(**shared, position=model.position, targets=model.targets)
    results = [
        solve_gram(m.gram(log), model.reg, solver=solver, neighbors=neighbors).weights
        for m in (slit, tr.SLIS(**shared))
    ]
    R, similar = (normalised(B) for B in results)
    T = model.beta * similar + (1 - model.beta) * np.eye(len(R))
    return power(R, T, model.alpha, model.steps)


parts = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@st.composite
def walkers(draw, **fixed):
    return tr.SWalk(
        reg=draw(st.sampled_from([0.1, 1.0, 50.0])),
        alpha=draw(parts),
        beta=draw(parts),
        steps=draw(st.integers(1, 9)),
        position=draw(st.sampled_from([0.5, 1.0, 4.0])),
        targets=draw(st.sampled_from(["single", "multi"])),
        norm=draw(st.sampled_from(["none", "l1"])),
        max_history=draw(st.sampled_from([3, 2500])),
        **fixed,
    )


@given(logs(), walkers(solver="exact"))
@quick
def test_swalk_is_the_walk_over_slit_that_starts_again_from_slis(log, model):
    result = filled(model.fit(log).weights)
    assert model.fitted.solver == "exact"
    np.testing.assert_allclose(result, by_hand(model, log, "exact"), atol=1e-5)


@given(logs(), walkers(solver="local", neighbors=9, width=9))
@quick
def test_swalk_is_that_walk_with_the_local_solver_too(log, model):
    result = model.fit(log).weights
    assert sparse.issparse(result)
    assert model.fitted.solver == "local"
    np.testing.assert_allclose(filled(result), by_hand(model, log, "local", 9), atol=1e-5)


def shop():
    rng = np.random.default_rng(3)
    rows = [
        (u, int(rng.integers(0, 5) + u % 20), 1e9 + 60 * s) for u in range(200) for s in range(7)
    ]
    return tiny_log(rows)


def test_both_solvers_agree_when_nothing_is_left_out():
    exact = tr.SWalk(reg=5.0, solver="exact").fit(shop())
    local = tr.SWalk(reg=5.0, solver="local", neighbors=24, width=24).fit(shop())
    np.testing.assert_allclose(filled(local.weights), filled(exact.weights), atol=1e-4)


def test_a_narrow_swalk_keeps_no_more_than_its_width():
    model = tr.SWalk(reg=5.0, solver="local", neighbors=24, width=6).fit(shop())
    assert np.diff(model.weights.indptr).max() <= 6


def test_scores_are_those_of_the_walk_from_every_item_of_a_history():
    model = tr.SWalk(reg=5.0, recency=2.0).fit(shop())
    M = by_hand(model, shop(), "exact")
    expected = M[7] + math.exp(-1 / 2) * M[3]
    frame = model.recommend_histories([[3, 7]], k=10)
    np.testing.assert_allclose(frame["score"], expected[frame["item_id"].to_numpy()], atol=1e-5)
    np.testing.assert_allclose(frame["score"], np.sort(expected)[::-1][:10], atol=1e-5)


@pytest.mark.parametrize("solver", ["exact", "local"])
@pytest.mark.parametrize("days", [80, 86, 90, 95, 100, 110])
def test_users_of_long_ago_leave_weights_that_are_numbers(solver, days):
    """Each weighs exp(-days): little enough for a weight that float32 can hardly hold."""
    old = [("old", item, 1e9 + item) for item in (1, 2)]
    new = [("new", item, 1e9 + item + 86_400 * days) for item in (3, 4)]
    model = tr.SWalk(reg=1.0, decay_user=1.0, solver=solver).fit(tiny_log(old + new))
    result = filled(model.weights)
    assert np.isfinite(result).all()
    assert (result.sum(axis=1) < 1 + 1e-5).all()
