"""Loops over compressed rows, against NumPy on dense arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from talerec.runtime import CSR, csr


def random_matrix(seed, shape=(30, 30), density=0.2, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return sparse.csr_array(
        np.where(rng.random(shape) < density, rng.random(shape), 0).astype(dtype)
    )


@given(st.lists(st.integers(0, 70_000), max_size=300))
@settings(max_examples=50, deadline=None)
def test_indices_are_sorted(values):
    array = np.array(values, np.int32)
    csr.sort_indices(array, 70_001, np.empty(70_001, np.int32))
    assert array.tolist() == sorted(values)


@pytest.mark.parametrize("seeds", [(1, 2), (3, 3), (4, 5)])
def test_squared_distances_of_rows_are_those_of_the_dense_matrices(seeds):
    left, right = (random_matrix(seed) for seed in seeds)
    expected = ((left.toarray() - right.toarray()) ** 2).sum(axis=1)
    distances = csr.squared_distances(csr.csr_rows(left), csr.csr_rows(right))
    np.testing.assert_allclose(distances, expected, rtol=1e-12)


def test_rows_are_written_into_a_dense_array():
    matrix, out = random_matrix(6), np.zeros((30, 30))
    csr.fill_dense(csr.csr_rows(matrix), out)
    np.testing.assert_array_equal(out, matrix.toarray())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_a_matrix_and_its_transpose_are_merged_into_their_sum(density, dtype):
    matrix = random_matrix(7, density=density, dtype=dtype)
    total = csr.add_transpose(CSR(matrix.indptr.astype(np.int64), matrix.indices, matrix.data))
    array = sparse.csr_array((total.values, total.indices, total.indptr), shape=matrix.shape)
    np.testing.assert_array_equal(array.toarray(), matrix.toarray() + matrix.toarray().T)
    assert total.values.dtype == dtype
    assert all((np.diff(row) > 0).all() for row in np.split(total.indices, total.indptr[1:-1]))
