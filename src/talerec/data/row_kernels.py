"""Compiled loops over rows of a log: arrays in, arrays out.

Rows are sorted by user and time, so a user is a run of rows `start..stop`. Times are int64
microseconds. Nothing here knows of ids, files or models.
"""

from __future__ import annotations

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.runtime.loops import copy_part


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
            copy_part(spare, rows, low, out)
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
def backwards(ptr: Array) -> Array:
    """Row numbers with every user's rows from the last to the first."""
    rows = np.empty(ptr[-1], np.int64)
    for u in range(len(ptr) - 1):
        for r in range(ptr[u], ptr[u + 1]):
            rows[r] = ptr[u] + ptr[u + 1] - 1 - r
    return rows


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


@kernel
def trend_counts_of(
    ptr: Array, rows: Array, time: Array, chosen: Array, before: int, after: int, out: Array
) -> None:
    """`trend_counts` of the chosen rows alone, for rows grouped by item in any order; the others of `out` are left.

    A row counts for the chosen ones from `after` before it to `before` after it: those are sorted, and few.
    """
    mine, spare = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for g in range(len(ptr) - 1):
        found = 0
        for x in range(ptr[g], ptr[g + 1]):
            if chosen[rows[x]]:
                mine[found] = rows[x]
                found += 1
        if found == 0:
            continue
        sort_rows(mine, time, 0, found, spare)
        moments, more = time[mine[:found]], np.zeros(found + 1, np.int64)
        for x in range(ptr[g], ptr[g + 1]):
            more[np.searchsorted(moments, time[rows[x]] - after)] += 1
            more[np.searchsorted(moments, time[rows[x]] + before, side="right")] -= 1
        count = 0
        for x in range(found):
            count += more[x]
            out[mine[x]] = count
