"""Half of G that grows, and how far old weights are from new equations: against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from logs import quick
from talerec.gram.gram import Gram
from talerec.solvers.compressed import by_column
from talerec.solvers.local import local_kept, local_some
from talerec.solvers.residuals import worst_steps
from talerec.solvers.triangle import Half, halved
from talerec.solvers.triangle_update import grown


def symmetric(n: int, seed: int, density: float = 0.4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    S = rng.random((2 * n, n)) * (rng.random((2 * n, n)) < density)
    found: np.ndarray = S.T @ S
    return found


def whole(half: Half) -> np.ndarray:
    """The matrix that a half is of, by item."""
    n, item = half.items, half.item
    starts, indices, values = half.lower
    full = np.diag(half.diagonal)
    for row in range(n):
        for x in range(starts[row], starts[row + 1]):
            assert indices[x] < row
            i, j = item[row], item[indices[x]]
            assert full[i, j] == 0.0  # each pair stands once
            full[i, j] = full[j, i] = values[x]
    return full


@quick
@given(st.integers(1, 12), st.integers(0, 4), st.integers(0, 99), st.sampled_from([0.1, 0.5]))
def test_a_half_grows_by_what_is_added_and_by_new_items(
    n: int, new: int, seed: int, density: float
) -> None:
    G, change = symmetric(n, seed, density), symmetric(n + new, seed + 1, density)
    half, more = grown(halved(sparse.csr_array(G)), sparse.csr_array(change))
    expected = change.copy()
    expected[:n, :n] += G
    np.testing.assert_allclose(whole(half), expected, rtol=1e-14)
    np.testing.assert_allclose(whole(more), change, rtol=1e-14)
    assert np.array_equal(half.rank[n:], np.arange(n, n + new))


def test_what_is_taken_away_leaves_nothing_over() -> None:
    one, other = symmetric(9, 3), symmetric(9, 4)
    half, _ = grown(halved(sparse.csr_array(one)), sparse.csr_array(other))
    back, _ = grown(half, sparse.csr_array(one - (one + other)))
    only = np.array([[1.0, 0.1], [0.1, 1.0]])
    third = 0.1 + 0.2 - 0.3  # rounding
    assert third != 0
    left, _ = grown(
        halved(sparse.csr_array(only + np.array([[0, 0.2], [0.2, 0]]))),
        sparse.csr_array(np.array([[0, -0.3], [-0.3, 0]])),
    )
    assert whole(left)[0, 1] == 0.0
    np.testing.assert_allclose(whole(back), one, rtol=1e-12)


def residual_by_hand(
    dG: np.ndarray, own: np.ndarray, dK: np.ndarray, B: np.ndarray, step: np.ndarray
) -> np.ndarray:
    """What one step would add to the worst source of each target, of those that it can have."""
    changed = dG - np.diag(np.diag(dG)) + np.diag(own)
    found = np.zeros(len(step))
    for j in range(len(step)):
        can = (B[:, j] != 0) | (dK[:, j] != 0)
        steps = np.abs(dK[:, j] - changed @ B[:, j]) * step
        worst, largest = steps[can].max(initial=0.0), np.abs(B[:, j]).max()
        found[j] = 0.0 if worst == 0 else worst / largest if largest else np.inf
    return found


@quick
@given(st.integers(1, 14), st.integers(0, 99))
def test_the_worst_step_is_that_of_dense_matrices(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dG = symmetric(n, seed, 0.15)
    dK, B = (rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.3) for _ in range(2))
    step, own = rng.random(n), np.diag(dG) + rng.random(n)
    lines = (by_column(sparse.csc_array(m)) for m in (dK, B))
    found = worst_steps(halved(sparse.csr_array(dG)), own, *lines, step)
    np.testing.assert_allclose(found, residual_by_hand(dG, own, dK, B, step), rtol=1e-10)


@pytest.mark.parametrize("neighbors", [3, 50])
def test_targets_from_a_half_that_was_kept_are_those_of_the_gram(neighbors: int) -> None:
    G, K = symmetric(20, 5), np.random.default_rng(1).random((20, 20))
    wanted = np.arange(20) % 3 == 0
    gram = Gram(sparse.csr_array(G), sparse.csc_array(K))
    expected = local_some(gram, np.ones(20), neighbors, wanted)
    columns = sparse.csc_array(np.where(wanted, K, 0.0))
    found = local_kept(halved(gram.G), columns, np.ones(20), neighbors, gram.K.nnz)
    assert np.array_equal(found.toarray(), expected.toarray())
    assert not found.toarray()[:, ~wanted].any()
