"""Loops over compressed rows, against NumPy on dense arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from talerec.gram import assembly, sparse_kernels
from talerec.gram.sparse_kernels import Entries


def matrix(seed, shape=(30, 30), density=0.2, dtype=np.float64):
    rng = np.random.default_rng(seed)
    made = sparse.random_array(shape, density=density, rng=rng, dtype=dtype, format="csr")
    made.sort_indices()
    return made


def entries(made):
    return Entries(made.indptr, made.indices, made.data)


@given(st.lists(st.integers(0, 70_000), max_size=300))
@settings(max_examples=50, deadline=None)
def test_positions_are_sorted(values):
    array = np.array(values, np.int32)
    sparse_kernels.sort_positions(array, 70_001, np.empty(70_001, np.int32))
    assert array.tolist() == sorted(values)


@pytest.mark.parametrize("seeds", [(1, 2), (3, 3), (4, 5)])
def test_the_squared_distance_is_that_of_the_dense_matrices(seeds):
    left, right = (matrix(seed) for seed in seeds)
    expected = ((left.toarray() - right.toarray()) ** 2).sum()
    found = sparse_kernels.squared_distance(entries(left), entries(right))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rows_are_written_into_a_dense_array():
    made, out = matrix(6), np.zeros((30, 30))
    sparse_kernels.fill_rows(*entries(made), out)
    np.testing.assert_array_equal(out, made.toarray())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
def test_a_matrix_and_its_transpose_are_merged_into_their_sum(density, dtype):
    made = matrix(7, density=density, dtype=dtype)
    total = assembly._symmetric(made.indptr.astype(np.int64), made.indices, made.data)
    np.testing.assert_array_equal(total.toarray(), made.toarray() + made.toarray().T)
    assert total.dtype == dtype
    assert all((np.diff(row) > 0).all() for row in np.split(total.indices, total.indptr[1:-1]))
