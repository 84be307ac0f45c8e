"""Queries from histories: the items of each history, weighted by how recent they are."""

from __future__ import annotations

import math

import numpy as np

from talerec.data import Histories
from talerec.ranking.weights import Query, Weights
from talerec.runtime import Array, as_readonly, interpret_small, kernel, template


def recency_query(
    weights: Weights, histories: Histories, times: Array, recency: float, max_history: int
) -> Query:
    """Return queries with x_i = exp(-lag / recency) for the items of each history.

    A query x weights the rows (items) of the model's weights B; scores are x @ B. The lag of an
    item is the number of rows later than its last row by `times` (one per row; empty: rows are in
    order). Only the last `max_history` rows are read. If rows have weights, x_i is multiplied by
    the weight of that row. `weights` lends the thread's work space.
    """
    arrays = (*_history_arrays(histories), as_readonly(times))
    build = interpret_small(_recency_query, len(histories.start))
    x = Query(*build(*arrays, max_history, weights.marks(), recency))
    if histories.weight is None:
        return x
    return x.times(latest_row_weights(weights, histories, max_history))


def latest_lags(
    weights: Weights, histories: Histories, times: Array, max_history: int
) -> tuple[Array, Array, Array]:
    """Return the distinct items of each history, newest first, with their lags.

    The result is (ptr, item, lag); history h has the entries ptr[h]..ptr[h + 1]. The lag of an item
    is the number of rows strictly later than its last row by `times` (one per row); if `times` is
    empty, every row has a time of its own. Rows before the last `max_history` and unknown items
    (-1) are left out, but count in lags. `weights` lends the thread's work space.
    """
    arrays = (*_history_arrays(histories), as_readonly(times))
    list_lags = interpret_small(_latest_lags, len(histories.start))
    lags: tuple[Array, Array, Array] = list_lags(*arrays, max_history, weights.marks())
    return lags


def latest_row_weights(weights: Weights, histories: Histories, max_history: int) -> Array:
    """Return the weight of the last row of each distinct item of each history.

    One history after the other, newest items first, from the last `max_history` rows; unknown items
    (-1) are left out. `histories` must have row weights. `weights` (of the model) lends the
    thread's work space.
    """
    assert histories.weight is not None
    list_rows = interpret_small(_latest_rows, len(histories.start))
    _, rows = list_rows(*_history_arrays(histories), max_history, weights.marks())
    weights_of_rows: Array = histories.weight[rows]
    return weights_of_rows


def _history_arrays(histories: Histories) -> tuple[Array, Array, Array]:
    """Return (start, stop, item): history h has the rows item[start[h]:stop[h]]."""
    return histories.start, histories.stop, as_readonly(histories.item)


@template
def list_latest_rows(
    item: Array, start: int, stop: int, marks: Array, rows: Array, size: int
) -> int:
    """Append the last row of each known item among a history's rows start..stop, newest first.

    item: of every row; unknown items are -1. Writes row numbers to `rows` from `size` on and
    returns the new size. marks: a 0 for every item, left so.
    """
    first = size
    for r in range(stop - 1, start - 1, -1):
        i = item[r]
        if i >= 0 and not marks[i]:
            marks[i] = 1
            rows[size] = r
            size += 1
    for x in range(first, size):
        marks[item[rows[x]]] = 0
    return size


@kernel
def _latest_rows(
    start: Array, stop: Array, item: Array, max_history: int, marks: Array
) -> tuple[Array, Array]:
    """Return (ptr, rows): the last row of each known item of each history, newest first.

    History q has the rows start[q]..stop[q] of `item` (-1: unknown), of which the last
    `max_history` are read, and the result's entries ptr[q]..ptr[q + 1]. marks: a 0 for every item,
    left so.
    """
    capacity = 0
    for q in range(len(start)):
        capacity += min(stop[q] - start[q], max_history)
    ptr, rows = np.zeros(len(start) + 1, np.int64), np.empty(capacity, np.int64)
    for q in range(len(start)):
        low = max(start[q], stop[q] - max_history)
        ptr[q + 1] = list_latest_rows(item, low, stop[q], marks, rows, ptr[q])
    return ptr, rows[: ptr[len(start)]]


@kernel
def _latest_lags(
    start: Array, stop: Array, item: Array, time: Array, max_history: int, marks: Array
) -> tuple[Array, Array, Array]:
    """Return (ptr, item, lag): the distinct items of each history, newest first.

    History q has the rows start[q]..stop[q] of `item` (-1: unknown) and `time` (empty: every row
    has a time of its own), and the result's entries ptr[q]..ptr[q + 1]. lag: the number of rows
    strictly later than the item's last row. Only the last `max_history` rows are read. marks: a 0
    for every item, left so.
    """
    ptr, rows = _latest_rows(start, stop, item, max_history, marks)
    items, lags = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for q in range(len(start)):
        lag, r = 0, stop[q] - 1
        for x in range(ptr[q], ptr[q + 1]):
            while r > rows[x]:
                r -= 1
                if len(time) == 0 or time[r] < time[r + 1]:
                    lag = stop[q] - 1 - r
            items[x], lags[x] = item[rows[x]], lag
    return ptr, items, lags


@kernel
def _recency_query(
    start: Array,
    stop: Array,
    item: Array,
    time: Array,
    max_history: int,
    marks: Array,
    recency: float,
) -> tuple[Array, Array, Array]:
    """Return (ptr, source, weight): the items of each history, weighted exp(-lag / recency).

    History q has the rows start[q]..stop[q] of `item` (-1: unknown) and `time` (empty: every row
    has a time of its own), and the result's entries ptr[q]..ptr[q + 1]. lag: the number of rows
    strictly later than the item's last row. Only the last `max_history` rows are read. marks: a 0
    for every item, left so.
    """
    ptr, items, lags = _latest_lags(start, stop, item, time, max_history, marks)
    x = np.empty(len(lags))
    for e in range(len(lags)):
        x[e] = math.exp(-lags[e] / recency)  # the same bits compiled and not, unlike np.exp
    return ptr, items, x
