"""The package's one type of compressed matrix, and compiled loops over compressed rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime.arrays import Array, Matrix, is_sparse, sparse
from talerec.runtime.jit import kernel
from talerec.runtime.kernels import copy_range
from talerec.runtime.threads import balanced_chunks, run_chunks

_CHUNKS = 128  # pieces of work: more than any number of cores, so that all stay busy


class CSR(NamedTuple):
    """A compressed sparse matrix: row i has indices[indptr[i]:indptr[i + 1]] and their values.

    The same three arrays hold a matrix by column (CSC): then `indptr` has an entry per column and
    `indices` are row numbers.
    """

    indptr: Array  # rows + 1 bounds, from 0
    indices: Array  # column numbers of the stored entries
    values: Array  # the stored entries, parallel to `indices`


def csr_rows(matrix: Matrix) -> CSR:
    """Return a SciPy CSR array (not copied) or a dense matrix as compressed rows."""
    rows = matrix if is_sparse(matrix) else sparse.csr_array(matrix)
    return CSR(rows.indptr, rows.indices, rows.data)


def csr_columns(matrix: Matrix) -> CSR:
    """Return a SciPy CSC array (not copied) or a dense matrix as compressed columns."""
    columns = matrix if is_sparse(matrix) else sparse.csc_array(matrix)
    return CSR(columns.indptr, columns.indices, columns.data)


@kernel
def sort_indices(values: Array, bound: int, spare: Array) -> None:
    """Sort integers from 0 to `bound` (included) in place.

    Up to 48 are sorted by insertion, more by radix sort.

    values: the integers, 1-D. spare: work space of the length of `values`; its content is
    overwritten.
    """
    n = len(values)
    if n <= 48:
        for x in range(1, n):
            value, y = values[x], x
            while y > 0 and values[y - 1] > value:
                values[y] = values[y - 1]
                y -= 1
            values[y] = value
        return
    offset = np.empty(257, np.int64)
    shift = 0
    while bound >> shift > 0:
        offset[:] = 0
        for x in range(n):
            offset[((values[x] >> shift) & 255) + 1] += 1
        for digit in range(256):
            offset[digit + 1] += offset[digit]
        for x in range(n):
            digit = (values[x] >> shift) & 255
            spare[offset[digit]] = values[x]
            offset[digit] += 1
        copy_range(spare, values, 0, n)
        shift += 8


@kernel
def fill_dense(matrix: CSR, out: Array) -> None:
    """Write the stored entries of compressed rows into `out` (rows x columns).

    Other entries of `out` keep their values.
    """
    indptr, indices, values = matrix
    for i in range(len(indptr) - 1):
        for x in range(indptr[i], indptr[i + 1]):
            out[i, indices[x]] = values[x]


@kernel
def squared_distances(left: CSR, right: CSR) -> Array:
    """Return, for each row, the sum of squared differences of two matrices of equal shape.

    Indices must be ascending in each row; entries that are not stored are 0.
    """
    totals = np.zeros(len(left.indptr) - 1)
    for i in range(len(totals)):
        x, x_end = left.indptr[i], left.indptr[i + 1]
        y, y_end = right.indptr[i], right.indptr[i + 1]
        while x < x_end and y < y_end:
            first, second = left.indices[x], right.indices[y]
            difference = 0.0
            if first <= second:
                difference += left.values[x]
                x += 1
            if second <= first:
                difference -= right.values[y]
                y += 1
            totals[i] += difference * difference
        for z in range(x, x_end):
            totals[i] += left.values[z] ** 2
        for z in range(y, y_end):
            totals[i] += right.values[z] ** 2
    return totals


# -- M + M' ----------------------------------------------------------------------------------------


class _Concatenated(NamedTuple):
    """Row i of a matrix M followed by column i of M, for every i, in one pair of arrays.

    The row is indices[start[i]:middle[i]] with the same range of `values`; the column is
    [middle[i]:start[i + 1]].
    """

    start: Array  # n + 1, for a matrix of n rows
    middle: Array  # n
    indices: Array
    values: Array


def add_transpose(matrix: CSR) -> CSR:
    """Return M + M' of a square matrix, with no more memory than M and M' take together.

    Indices must be ascending in each row, and are so in the result. Runs on all cores; progress is
    reported as part of the stage "gram".
    """
    both = _concatenate_transpose(matrix)
    count = np.empty(len(matrix.indptr) - 1, np.int64)
    chunks = balanced_chunks(both.start, _CHUNKS)
    run_chunks("gram", lambda a, b: _merge_rows(both, a, b, count), chunks)
    indptr = _close_gaps(both, count)
    return CSR(indptr, both.indices[: indptr[-1]], both.values[: indptr[-1]])


@kernel
def _concatenate_transpose(matrix: CSR) -> _Concatenated:
    """Return each row i of a square matrix M followed by column i of M, in one pair of arrays.

    Indices must be ascending in each row of M; they are so in each row and each column returned.
    """
    indptr, indices, M = matrix
    n = len(indptr) - 1
    start, middle = np.zeros(n + 1, np.int64), np.empty(n, np.int64)
    for x in range(len(indices)):
        start[indices[x] + 1] += 1
    for i in range(n):
        start[i + 1] += start[i] + indptr[i + 1] - indptr[i]
        middle[i] = start[i] + indptr[i + 1] - indptr[i]
    out_indices, values = np.empty(start[n], np.int32), np.empty(start[n], M.dtype)
    free = middle.copy()
    for j in range(n):
        for x in range(indptr[j], indptr[j + 1]):
            i = indices[x]
            out_indices[start[j] + x - indptr[j]], values[start[j] + x - indptr[j]] = i, M[x]
            out_indices[free[i]], values[free[i]] = j, M[x]
            free[i] += 1
    return _Concatenated(start, middle, out_indices, values)


@kernel
def _merge_rows(both: _Concatenated, a: int, b: int, count: Array) -> None:
    """Merge the two ascending parts of rows a..b in place; equal indices are added up.

    The parts, in `both`, are row i and column i of M. count[i] becomes the number of entries of row
    i after merging; they lie from both.start[i] on.
    """
    start, middle, indices, values = both
    for i in range(a, b):
        lo, mid, hi = start[i], middle[i], start[i + 1]
        left_indices, left_values = indices[lo:mid].copy(), values[lo:mid].copy()
        left, right, out = 0, mid, lo
        while left < len(left_indices) or right < hi:
            first = left_indices[left] if left < len(left_indices) else np.int32(2**31 - 1)
            second = indices[right] if right < hi else np.int32(2**31 - 1)
            total = values[0] * 0
            if first <= second:
                total += left_values[left]
                left += 1
            if second <= first:
                total += values[right]
                right += 1
            indices[out], values[out] = min(first, second), total
            out += 1
        count[i] = out - lo


@kernel
def _close_gaps(both: _Concatenated, count: Array) -> Array:
    """Move the first count[i] entries of each row next to the previous row's, in place.

    Row i of `both` begins at both.start[i]. Returns the `indptr` of the result.
    """
    start, _, indices, values = both
    indptr = np.zeros(len(count) + 1, np.int64)
    for i in range(len(count)):
        to = indptr[i]
        for x in range(count[i]):
            indices[to + x], values[to + x] = indices[start[i] + x], values[start[i] + x]
        indptr[i + 1] = to + count[i]
    return indptr
