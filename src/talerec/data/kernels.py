"""Compiled loops over rows of a log: arrays in, arrays out.

Rows are sorted by user and time, so a user is a run of rows `start..stop`. Times are int64
microseconds. Nothing here knows of ids, files or models.

A Gram is built one target item at a time. For every row q of that item, a *pairs* function
gives two coefficients for each row s of the same user:

    half[s]   the share of the unordered pair (s, q), s <= q, in G = M + M'   (s = q: one half)
    cross[s]  the weight of source s for the target q, the entry of K

and the accumulator adds them up per item of s. An item's row belongs to one thread and its
rows are visited in one order, so sums do not depend on the number of threads. Where only one of
the two is wanted, the array for the other has no room. The models' pairs are in `pairs`.
"""

from __future__ import annotations

import numpy as np

from talerec.runtime.arrays import Array, Arrays, Kernel
from talerec.runtime.jit import kernel, template

# -- rows ------------------------------------------------------------------------------------------


@kernel
def group_rows(code: Array, groups: int) -> tuple[Array, Array]:
    """Rows by group, in row order within a group: (ptr, row numbers)."""
    ptr = np.zeros(groups + 1, np.int64)
    for c in code:
        ptr[c + 1] += 1
    for g in range(groups):
        ptr[g + 1] += ptr[g]
    rows = np.empty(len(code), np.int64)
    place = ptr[:-1].copy()
    for r in range(len(code)):
        rows[place[code[r]]] = r
        place[code[r]] += 1
    return ptr, rows


@kernel
def sort_rows(rows: Array, key: Array, a: int, b: int, spare: Array) -> None:
    """Put rows[a:b] into the order of key[row], equal keys as they stand: a merge sort, in place."""
    width = 1
    while width < b - a:
        for low in range(a, b - width, 2 * width):
            left, right, out = low, low + width, low
            middle, high = low + width, min(low + 2 * width, b)
            if key[rows[middle - 1]] <= key[rows[middle]]:
                continue
            while left < middle and right < high:
                if key[rows[right]] < key[rows[left]]:
                    spare[out] = rows[right]
                    right += 1
                else:
                    spare[out] = rows[left]
                    left += 1
                out += 1
            while left < middle:
                spare[out] = rows[left]
                left, out = left + 1, out + 1
            rows[low:out] = spare[low:out]
        width *= 2


@kernel
def sort_groups(ptr: Array, rows: Array, key: Array) -> None:
    """Put each group's rows into the order of `key`, equal keys as they stand. In place."""
    spare = np.empty_like(rows)
    for g in range(len(ptr) - 1):
        sort_rows(rows, key, ptr[g], ptr[g + 1], spare)


@kernel
def last_rows(ptr: Array, item: Array, items: int) -> Array:
    """Mask of the rows that are their user's last of their item."""
    user_of = np.full(items, -1, np.int64)
    keep = np.zeros(len(item), np.bool_)
    for u in range(len(ptr) - 1):
        for r in range(ptr[u + 1] - 1, ptr[u] - 1, -1):
            if user_of[item[r]] != u:
                user_of[item[r]] = u
                keep[r] = True
    return keep


@kernel
def ends(ptr: Array) -> Array:
    """For every row, the end of its user's run."""
    stop = np.empty(ptr[-1], np.int32)
    for u in range(len(ptr) - 1):
        stop[ptr[u] : ptr[u + 1]] = ptr[u + 1]
    return stop


@kernel
def order_within_instants(ptr: Array, time: Array, key: Array) -> Array:
    """Row numbers with the rows of one user at one instant ordered by `key` (equal keys as they stand)."""
    rows = np.arange(len(time))
    spare = np.empty_like(rows)
    for u in range(len(ptr) - 1):
        a = ptr[u]
        while a < ptr[u + 1]:
            b = a + 1
            while b < ptr[u + 1] and time[b] == time[a]:
                b += 1
            sort_rows(rows, key, a, b, spare)
            a = b
    return rows


# -- trend -----------------------------------------------------------------------------------------


@kernel
def trend_counts(ptr: Array, time: Array, before: int, after: int) -> Array:
    """Eq. 14: rows of the same item within [t - before, t + after], for rows grouped by item in time order."""
    count = np.empty(len(time), np.int64)
    for g in range(len(ptr) - 1):
        low = high = ptr[g]
        for r in range(ptr[g], ptr[g + 1]):
            while time[r] - time[low] > before:
                low += 1
            while high < ptr[g + 1] and time[high] - time[r] <= after:
                high += 1
            count[r] = high - low
    return count


# -- accumulators ----------------------------------------------------------------------------------


@kernel
def count_pattern(log: Arrays, a: int, b: int, out: Array) -> None:
    """How many items share a pair with each target item a..b (the item itself always counts)."""
    ptr, rows, item, begin, after = log
    seen = np.full(len(ptr) - 1, -1, np.int32)
    for j in range(a, b):
        seen[j] = j
        found = 1
        for x in range(ptr[j], ptr[j + 1]):
            q = rows[x]
            for s in range(begin[q], after[q]):
                if seen[item[s]] != j:
                    seen[item[s]] = j
                    found += 1
        out[j] = found


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


@template
def _add_target(
    pairs: Kernel, args: Arrays, log: Arrays, j: int, scratch: Arrays, sums: Array
) -> None:
    """Add every pair whose later row holds item j to `sums[item of s]` = (M, K)."""
    ptr, rows, item, begin, after = log
    half, cross, work = scratch
    for x in range(ptr[j], ptr[j + 1]):
        q = rows[x]
        pairs(args, q, half, cross, work)
        for s in range(begin[q], after[q]):
            i = item[s]
            sums[i, 0] += half[s - begin[q]]
            sums[i, 1] += cross[s - begin[q]]


@template
def _scratch(longest: int) -> Arrays:
    return np.empty(longest), np.empty(longest), np.empty((longest + 1, 2))


@template
def accumulate_dense(
    pairs: Kernel, args: Arrays, log: Arrays, longest: int, a: int, b: int, M: Array, K: Array
) -> None:
    """Rows a..b of dense M and K'."""
    n = max(M.shape[1], K.shape[1])
    scratch = _scratch(longest)
    sums = np.empty((n, 2))
    for j in range(a, b):
        sums[:] = 0.0
        _add_target(pairs, args, log, j, scratch, sums)
        if len(M) > 0:
            M[j] = sums[:, 0]
        if len(K) > 0:
            K[j] = sums[:, 1]


@template
def accumulate_sparse(
    pairs: Kernel,
    args: Arrays,
    log: Arrays,
    longest: int,
    a: int,
    b: int,
    where: Arrays,
    M: Array,
    K: Array,
) -> None:
    """Rows a..b of sparse M and K', both with the pattern that `count_pattern` counted."""
    indptr, indices = where
    ptr, rows, item, begin, after = log
    n = len(ptr) - 1
    half, cross, work = _scratch(longest)
    sums = np.zeros((n, 2))
    seen = np.full(n, -1, np.int32)
    order = np.empty(n, np.int32)
    for j in range(a, b):
        lo, hi = indptr[j], indptr[j + 1]
        seen[j] = j
        indices[lo] = j
        found = lo + 1
        for x in range(ptr[j], ptr[j + 1]):
            q = rows[x]
            pairs(args, q, half, cross, work)
            for s in range(begin[q], after[q]):
                i = item[s]
                if seen[i] != j:
                    seen[i] = j
                    indices[found] = i
                    found += 1
                sums[i, 0] += half[s - begin[q]]
                sums[i, 1] += cross[s - begin[q]]
        sort_positions(indices[lo:hi], n, order)
        for x in range(lo, hi):
            i = indices[x]
            if len(M) > 0:
                M[x] = sums[i, 0]
            if len(K) > 0:
                K[x] = sums[i, 1]
            sums[i, 0] = sums[i, 1] = 0.0


@kernel
def symmetrise(M: Array, a: int, b: int) -> None:
    """M + M', in place: the pairs (i, j), j <= i, of rows a..b, in tiles that fit the cache."""
    tile = 64
    for low in range(0, b, tile):
        for top in range(a, b, tile):
            for i in range(max(top, low), min(top + tile, b)):
                for j in range(low, min(low + tile, i + 1)):
                    M[i, j] = M[j, i] = M[i, j] + M[j, i]


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
