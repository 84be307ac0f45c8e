"""Updates of a lower triangle, and residuals of old weights, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from logs import quick
from talerec.gram import Gram
from talerec.runtime import csr_columns
from talerec.solvers import (
    LowerTriangle,
    StoredProblem,
    lower_triangle,
    solve_stored,
    target_residuals,
    update_triangle,
)
from talerec.solvers.local import solve_local


def symmetric(n: int, seed: int, density: float = 0.4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    S = rng.random((2 * n, n)) * (rng.random((2 * n, n)) < density)
    G: np.ndarray = S.T @ S
    return G


def whole(triangle: LowerTriangle) -> np.ndarray:
    """Return the symmetric matrix of a triangle, by item."""
    n, item = triangle.items, triangle.item
    indptr, indices, values = triangle.lower
    full = np.diag(triangle.diagonal)
    for row in range(n):
        for x in range(indptr[row], indptr[row + 1]):
            assert indices[x] < row
            i, j = item[row], item[indices[x]]
            assert full[i, j] == 0.0  # each pair is stored once
            full[i, j] = full[j, i] = values[x]
    return full


@quick
@given(st.integers(1, 12), st.integers(0, 4), st.integers(0, 99), st.sampled_from([0.1, 0.5]))
def test_an_update_adds_the_change_and_new_items(
    n: int, new: int, seed: int, density: float
) -> None:
    G, change = symmetric(n, seed, density), symmetric(n + new, seed + 1, density)
    triangle, more = update_triangle(lower_triangle(sparse.csr_array(G)), sparse.csr_array(change))
    expected = change.copy()
    expected[:n, :n] += G
    np.testing.assert_allclose(whole(triangle), expected, rtol=1e-14)
    np.testing.assert_allclose(whole(more), change, rtol=1e-14)
    assert np.array_equal(triangle.rank[n:], np.arange(n, n + new))


def test_subtracting_an_entry_leaves_no_rounding_error() -> None:
    first, second = symmetric(9, 3), symmetric(9, 4)
    triangle, _ = update_triangle(lower_triangle(sparse.csr_array(first)), sparse.csr_array(second))
    back, _ = update_triangle(triangle, sparse.csr_array(first - (first + second)))
    only = np.array([[1.0, 0.1], [0.1, 1.0]])
    third = 0.1 + 0.2 - 0.3  # rounding
    assert third != 0
    left, _ = update_triangle(
        lower_triangle(sparse.csr_array(only + np.array([[0, 0.2], [0.2, 0]]))),
        sparse.csr_array(np.array([[0, -0.3], [-0.3, 0]])),
    )
    assert whole(left)[0, 1] == 0.0
    np.testing.assert_allclose(whole(back), first, rtol=1e-12)


def residual_by_hand(
    dG: np.ndarray, diagonal: np.ndarray, dK: np.ndarray, B: np.ndarray, step: np.ndarray
) -> np.ndarray:
    """Return the largest relative step of any source of each target."""
    changed = dG - np.diag(np.diag(dG)) + np.diag(diagonal)
    result = np.zeros(len(step))
    for j in range(len(step)):
        can = (B[:, j] != 0) | (dK[:, j] != 0)
        steps = np.abs(dK[:, j] - changed @ B[:, j]) * step
        worst, largest = steps[can].max(initial=0.0), np.abs(B[:, j]).max()
        result[j] = 0.0 if worst == 0 else worst / largest if largest else np.inf
    return result


@quick
@given(st.integers(1, 14), st.integers(0, 99))
def test_the_worst_step_is_that_of_dense_matrices(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dG = symmetric(n, seed, 0.15)
    dK, B = (rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.3) for _ in range(2))
    step, diagonal = rng.random(n), np.diag(dG) + rng.random(n)
    columns_by_target = (csr_columns(sparse.csc_array(m)) for m in (dK, B))
    result = target_residuals(
        lower_triangle(sparse.csr_array(dG)), diagonal, *columns_by_target, step
    )
    np.testing.assert_allclose(result, residual_by_hand(dG, diagonal, dK, B, step), rtol=1e-10)


@pytest.mark.parametrize("neighbors", [3, 50])
def test_targets_from_a_stored_triangle_are_those_of_the_gram(neighbors: int) -> None:
    G, K = symmetric(20, 5), np.random.default_rng(1).random((20, 20))
    targets = np.arange(20) % 3 == 0
    gram = Gram(sparse.csr_array(G), sparse.csc_array(K))
    expected = solve_local(gram, np.ones(20), neighbors, targets=targets)[0]
    columns = sparse.csc_array(np.where(targets, K, 0.0))
    triangle, order = lower_triangle(gram.G), np.arange(20)
    problem = StoredProblem(triangle, np.ones(20), neighbors, gram.k_entries, order)
    result = solve_stored(problem, columns)
    assert np.array_equal(result.toarray(), expected.toarray())
    assert not result.toarray()[:, ~targets].any()
