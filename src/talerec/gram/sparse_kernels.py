"""Compiled loops over compressed rows: sort them, merge them, compare them."""

from __future__ import annotations

import numpy as np

from talerec.runtime.arrays import Array, Arrays
from talerec.runtime.jit import kernel


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
        values[:] = spare[:n]
        shift += 8


@kernel
def fill_rows(indptr: Array, indices: Array, values: Array, out: Array) -> None:
    """Write compressed rows into a dense array."""
    for i in range(len(indptr) - 1):
        for x in range(indptr[i], indptr[i + 1]):
            out[i, indices[x]] = values[x]


@kernel
def squared_distance(left: Arrays, right: Arrays) -> float:
    """Sum of squared differences of two matrices by row (or both by column), each row ascending."""
    total = 0.0
    for i in range(len(left[0]) - 1):
        x, y = left[0][i], right[0][i]
        while x < left[0][i + 1] and y < right[0][i + 1]:
            first, second = left[1][x], right[1][y]
            apart = 0.0
            if first <= second:
                apart += left[2][x]
                x += 1
            if second <= first:
                apart -= right[2][y]
                y += 1
            total += apart * apart
        for z in range(x, left[0][i + 1]):
            total += left[2][z] ** 2
        for z in range(y, right[0][i + 1]):
            total += right[2][z] ** 2
    return total


@kernel
def both_ways(indptr: Array, indices: Array, M: Array) -> tuple[Array, Array, Array, Array]:
    """M and M' laid side by side: row i holds M's row, then M's column i, each by item; where each row's parts begin."""
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
    return start, middle, items, values


@kernel
def merge_rows(
    start: Array, middle: Array, items: Array, values: Array, a: int, b: int, count: Array
) -> None:
    """Merge the two sorted parts of each row a..b, in place, adding entries of the same item."""
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
def close_gaps(start: Array, count: Array, items: Array, values: Array) -> Array:
    """Move every row's first `count` entries up to the row before; the new bounds."""
    indptr = np.zeros(len(count) + 1, np.int64)
    for i in range(len(count)):
        to = indptr[i]
        for x in range(count[i]):
            items[to + x], values[to + x] = items[start[i] + x], values[start[i] + x]
        indptr[i + 1] = to + count[i]
    return indptr
