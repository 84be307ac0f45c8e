"""Compiled loops over the rows of a log: arrays in, arrays out.

Rows are sorted by user and time: user u has rows ptr[u]..ptr[u + 1]. Times are int64 microseconds.
Nothing here knows about ids, files or models.
"""

from __future__ import annotations

import numpy as np

from talerec.runtime import Array, copy_range, kernel


@kernel
def group_rows(code: Array, groups: int) -> tuple[Array, Array]:
    """Return rows grouped by code, in row order within a group: (ptr, row numbers).

    `code` has the group 0..groups-1 of each row. Group g has the row numbers rows[ptr[g] : ptr[g +
    1]], where `rows` is the second array returned.
    """
    ptr = np.zeros(groups + 1, np.int64)
    for c in code:
        ptr[c + 1] += 1
    for g in range(groups):
        ptr[g + 1] += ptr[g]
    rows = np.empty(len(code), np.int64)
    slot = ptr[:-1].copy()
    for r in range(len(code)):
        rows[slot[code[r]]] = r
        slot[code[r]] += 1
    return ptr, rows


@kernel
def sort_rows(rows: Array, key: Array, a: int, b: int, spare: Array) -> None:
    """Sort the row numbers rows[a:b] by key[row], stably and in place (merge sort).

    `spare` is workspace of the length of `rows`; its content does not matter.
    """
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
            copy_range(spare, rows, low, out)
        width *= 2


@kernel
def sort_groups(ptr: Array, rows: Array, key: Array) -> None:
    """Sort the row numbers of each group by key[row], stably and in place.

    Group g is rows[ptr[g] : ptr[g + 1]].
    """
    spare = np.empty_like(rows)
    for g in range(len(ptr) - 1):
        sort_rows(rows, key, ptr[g], ptr[g + 1], spare)


@kernel
def last_row_mask(ptr: Array, item: Array, items: int) -> Array:
    """Return a mask of the rows that are their user's last row of their item.

    User u has rows ptr[u]..ptr[u + 1], oldest first; `item` has each row's item, one of 0..items-1.
    """
    user_of = np.full(items, -1, np.int64)
    keep = np.zeros(len(item), np.bool_)
    for u in range(len(ptr) - 1):
        for r in range(ptr[u + 1] - 1, ptr[u] - 1, -1):
            if user_of[item[r]] != u:
                user_of[item[r]] = u
                keep[r] = True
    return keep


@kernel
def user_end_per_row(ptr: Array) -> Array:
    """Return, for every row, the row number at which its user's rows end (int32).

    User u has rows ptr[u]..ptr[u + 1], the last excluded.
    """
    stop = np.empty(ptr[-1], np.int32)
    for u in range(len(ptr) - 1):
        stop[ptr[u] : ptr[u + 1]] = ptr[u + 1]
    return stop


@kernel
def reverse_rows(ptr: Array) -> Array:
    """Return row numbers with each user's rows, ptr[u]..ptr[u + 1], from last to first.

    The array has all rows; users stay in their order.
    """
    rows = np.empty(ptr[-1], np.int64)
    for u in range(len(ptr) - 1):
        for r in range(ptr[u], ptr[u + 1]):
            rows[r] = ptr[u] + ptr[u + 1] - 1 - r
    return rows


@kernel
def order_simultaneous(ptr: Array, time: Array, key: Array) -> Array:
    """Return row numbers (int64) with each user's rows of one time ordered by `key`.

    User u has rows ptr[u]..ptr[u + 1], in time order. `key` has a number per row; rows with equal
    keys keep their order. Entry x of the result is the old number of row x in the new order.
    """
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
def count_within_window(ptr: Array, time: Array, before: int, after: int) -> Array:
    """Return, per row, how many rows of its item lie within [t - before, t + after].

    This is the trend count of Eq. 14 in the paper of TALE, a linear model with time-aware weights.
    t is the row's time, in microseconds, as are `before` and `after`. Item g has the entries
    ptr[g]..ptr[g + 1] of `time`, in time order; the row itself counts.
    """
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
def update_trend_counts(
    ptr: Array, rows: Array, time: Array, chosen: Array, before: int, after: int, out: Array
) -> None:
    """Write the trend counts of the chosen rows to `out`, and leave its other entries.

    The trend count of a row at time t is the number of rows of its item within [t - before, t +
    after], in microseconds. Item g has the rows rows[ptr[g] : ptr[g + 1]] in any order; `time`,
    `chosen` (a mask) and `out` are by row number. Only the chosen rows, which are few, are sorted:
    each row of the item counts for chosen rows from `after` before it to `before` after it.
    """
    selected, spare = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for g in range(len(ptr) - 1):
        n_selected = 0
        for x in range(ptr[g], ptr[g + 1]):
            if chosen[rows[x]]:
                selected[n_selected] = rows[x]
                n_selected += 1
        if n_selected == 0:
            continue
        sort_rows(selected, time, 0, n_selected, spare)
        selected_times, changes = time[selected[:n_selected]], np.zeros(n_selected + 1, np.int64)
        for x in range(ptr[g], ptr[g + 1]):
            changes[np.searchsorted(selected_times, time[rows[x]] - after)] += 1
            changes[np.searchsorted(selected_times, time[rows[x]] + before, side="right")] -= 1
        count = 0
        for x in range(n_selected):
            count += changes[x]
            out[selected[x]] = count
