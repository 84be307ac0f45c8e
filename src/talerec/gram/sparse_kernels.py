"""Compiled loops over compressed rows: sort them, merge them, compare them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.runtime.loops import copy_part


class Entries(NamedTuple):
    """The stored entries of a sparse matrix, by row (CSR) or by column (CSC), each ascending."""

    indptr: Array
    indices: Array
    values: Array


class SideBySide(NamedTuple):
    """M and M' row by row: row i holds M's row from start[i] on, and M's column i from middle[i] on."""

    start: Array
    middle: Array
    items: Array
    values: Array


@kernel
def sort_positions(values: Array, bound: int, spare: Array) -> None:
    """Sort whole numbers 0..bound in place: by insertion while they are few, else digit by digit."""
    n = len(values)
    if n <= 48:
        for x in range(1, n):
            value, y = values[x], x
            while y > 0 and values[y - 1] > value:
                values[y] = values[y - 1]
                y -= 1
            values[y] = value
        return
    place = np.empty(257, np.int64)
    shift = 0
    while bound >> shift > 0:
        place[:] = 0
        for x in range(n):
            place[((values[x] >> shift) & 255) + 1] += 1
        for digit in range(256):
            place[digit + 1] += place[digit]
        for x in range(n):
            digit = (values[x] >> shift) & 255
            spare[place[digit]] = values[x]
            place[digit] += 1
        copy_part(spare, values, 0, n)
        shift += 8


@kernel
def fill_rows(indptr: Array, indices: Array, values: Array, out: Array) -> None:
    """Write compressed rows into a dense array."""
    for i in range(len(indptr) - 1):
        for x in range(indptr[i], indptr[i + 1]):
            out[i, indices[x]] = values[x]


@kernel
def squared_distance(left: Entries, right: Entries) -> float:
    """Sum of squared differences of two matrices, both by row or both by column."""
    total = 0.0
    for i in range(len(left.indptr) - 1):
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
            total += difference * difference
        for z in range(x, x_end):
            total += left.values[z] ** 2
        for z in range(y, y_end):
            total += right.values[z] ** 2
    return total


@kernel
def side_by_side(indptr: Array, indices: Array, M: Array) -> SideBySide:
    """M and M' side by side in one array, so that their sum needs no third."""
    n = len(indptr) - 1
    start, middle = np.zeros(n + 1, np.int64), np.empty(n, np.int64)
    for x in range(len(indices)):
        start[indices[x] + 1] += 1
    for i in range(n):
        start[i + 1] += start[i] + indptr[i + 1] - indptr[i]
        middle[i] = start[i] + indptr[i + 1] - indptr[i]
    items, values = np.empty(start[n], np.int32), np.empty(start[n], M.dtype)
    place = middle.copy()
    for j in range(n):
        for x in range(indptr[j], indptr[j + 1]):
            i = indices[x]
            items[start[j] + x - indptr[j]], values[start[j] + x - indptr[j]] = i, M[x]
            items[place[i]], values[place[i]] = j, M[x]
            place[i] += 1
    return SideBySide(start, middle, items, values)


@kernel
def merge_rows(both: SideBySide, a: int, b: int, count: Array) -> None:
    """Merge the two sorted parts of each row a..b, in place, adding entries of the same item."""
    start, middle, items, values = both
    for i in range(a, b):
        lo, mid, hi = start[i], middle[i], start[i + 1]
        left_items, left_values = items[lo:mid].copy(), values[lo:mid].copy()
        left, right, out = 0, mid, lo
        while left < len(left_items) or right < hi:
            first = left_items[left] if left < len(left_items) else np.int32(2**31 - 1)
            second = items[right] if right < hi else np.int32(2**31 - 1)
            total = values[0] * 0
            if first <= second:
                total += left_values[left]
                left += 1
            if second <= first:
                total += values[right]
                right += 1
            items[out], values[out] = min(first, second), total
            out += 1
        count[i] = out - lo


@kernel
def close_gaps(both: SideBySide, count: Array) -> Array:
    """Move every row's first `count` entries up to the row before; the new bounds of the rows."""
    start, _, items, values = both
    indptr = np.zeros(len(count) + 1, np.int64)
    for i in range(len(count)):
        to = indptr[i]
        for x in range(count[i]):
            items[to + x], values[to + x] = items[start[i] + x], values[start[i] + x]
        indptr[i + 1] = to + count[i]
    return indptr
