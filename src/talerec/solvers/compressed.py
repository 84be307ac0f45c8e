"""Compressed sparse matrices as the solvers' kernels take them."""

from __future__ import annotations

from typing import NamedTuple

from talerec.runtime.arrays import Array, Matrix, is_sparse
from talerec.runtime.lazy import sparse


class Compressed(NamedTuple):
    """A sparse matrix by row, or by column: line i holds the entries starts[i]..starts[i + 1]."""

    starts: Array
    indices: Array
    values: Array


def by_row(matrix: Matrix) -> Compressed:
    """A CSR or dense matrix by row; what is in CSR form is not copied."""
    return _parts(matrix if is_sparse(matrix) else sparse.csr_array(matrix))


def by_column(matrix: Matrix) -> Compressed:
    """A CSC or dense matrix by column; what is in CSC form is not copied."""
    return _parts(matrix if is_sparse(matrix) else sparse.csc_array(matrix))


def _parts(matrix: Matrix) -> Compressed:
    return Compressed(matrix.indptr, matrix.indices, matrix.data)
