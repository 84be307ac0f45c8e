"""From histories to queries: the items of a history, each once, and how far from its end."""

from __future__ import annotations

import numpy as np

from talerec.data.histories import Histories
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array, readonly
from talerec.runtime.jit import kernel


def recency(
    weights: Weights, histories: Histories, moments: Array, places: float, longest: int
) -> Query:
    """x_i = exp(-place / places) for the items of each history; see `last_places`."""
    x = Query(*_recency(*_rows(histories, moments), longest, weights.marks(), places))
    return x if histories.weight is None else x.times(row_worth(weights, histories, longest))


def row_worth(weights: Weights, histories: Histories, longest: int) -> Array:
    """What the last row of each item of each history is worth, in the order of `last_places`."""
    assert histories.weight is not None
    rows = (histories.start, histories.stop, readonly(histories.item), readonly(histories.weight))
    found: Array = _row_worth(*rows, longest, weights.marks())
    return found


@kernel
def _row_worth(
    start: Array, stop: Array, item: Array, weight: Array, longest: int, marks: Array
) -> Array:
    """See `row_worth`. `marks`: a 0 for every item, left as found."""
    room = 0
    for q in range(len(start)):
        room += min(stop[q] - start[q], longest)
    worth = np.empty(room)
    found = 0
    for q in range(len(start)):
        lo = max(start[q], stop[q] - longest)
        for r in range(stop[q] - 1, lo - 1, -1):
            if item[r] >= 0 and not marks[item[r]]:
                marks[item[r]] = 1
                worth[found] = weight[r]
                found += 1
        for r in range(lo, stop[q]):
            if item[r] >= 0:
                marks[item[r]] = 0
    return worth[:found]


def last_places(
    weights: Weights, histories: Histories, moments: Array, longest: int
) -> tuple[Array, Array, Array]:
    """The items of each history, newest first, each once, and the place of its last row: (ptr, item, place).

    A row's place is the number of rows strictly later in `moments` (one time per row); where that is empty, every row
    is a moment of its own. Rows beyond the last `longest`, and items that are not known (-1), are left out, but
    keep their places.
    """
    found: tuple[Array, Array, Array] = _last_places(
        *_rows(histories, moments), longest, weights.marks()
    )
    return found


def _rows(histories: Histories, moments: Array) -> tuple[Array, Array, Array, Array]:
    return histories.start, histories.stop, readonly(histories.item), readonly(moments)


@kernel
def _recency(
    start: Array, stop: Array, item: Array, time: Array, longest: int, marks: Array, places: float
) -> tuple[Array, Array, Array]:
    ptr, items, place = _last_places(start, stop, item, time, longest, marks)
    return ptr, items, np.exp(-place / places)


@kernel
def _last_places(
    start: Array, stop: Array, item: Array, time: Array, longest: int, marks: Array
) -> tuple[Array, Array, Array]:
    """See `last_places`. `marks`: a 0 for every item, left as found."""
    room = 0
    for q in range(len(start)):
        room += min(stop[q] - start[q], longest)
    ptr = np.zeros(len(start) + 1, np.int64)
    items, places = np.empty(room, np.int64), np.empty(room, np.int64)
    found = 0
    for q in range(len(start)):
        place = 0
        for r in range(stop[q] - 1, max(start[q], stop[q] - longest) - 1, -1):
            if r + 1 < stop[q] and (len(time) == 0 or time[r] < time[r + 1]):
                place = stop[q] - 1 - r
            i = item[r]
            if i >= 0 and not marks[i]:
                marks[i] = 1
                items[found], places[found] = i, place
                found += 1
        for x in range(ptr[q], found):
            marks[items[x]] = 0
        ptr[q + 1] = found
    return ptr, items[:found], places[:found]
