"""Two stores of scores with the same operations: `add`, `add_row`, and clearing as they are read.

Sums have one place per item. They are the faster store by far as long as they fit into the processor's cache.
A Table knows only the items that something was added to: for catalogues so large that most items get nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.runtime.addresses import borrowed
from talerec.runtime.arrays import Array
from talerec.runtime.jit import template, unsigned

#: An item that nothing was added to. No sum can be -0.0 once something was added to it, so it says "no score".
NOTHING = -0.0
_NOTHING_BITS = -(2**63)

#: A weight of a source above this, times the smallest float32, is not zero yet.
_LEAST = 2.0**-800


class Sums(NamedTuple):
    """One sum per item; `NOTHING` where an item has no score. Whoever reads the sums sets them back.

    bits: the same memory as int64, which tells `NOTHING` from a sum of zero
    """

    sums: Array
    bits: Array


@template
def borrowed_sums(store: Sums) -> Sums:
    """The sums for the innermost loops (`borrowed`)."""
    return Sums(borrowed(store.sums), borrowed(store.bits))


@template
def has_score(store: Sums, j: Any) -> bool:
    """Was anything added to item j?"""
    return bool(store.bits[j] != _NOTHING_BITS)


@template
def add(store: Sums, j: int, value: float) -> None:
    """Add a value to item j, which has a score from then on."""
    store.sums[j] += value + 0.0  # what is too small to be seen is 0.0, not -0.0


@template
def add_row(store: Sums, items: Array, values: Array, low: int, high: int, weight: float) -> None:
    """Add weight * values[low:high] to the scores of items[low:high]. A value of zero gives nothing."""
    sums = store.sums
    if abs(weight) > _LEAST:
        for e in unsigned(low, high):
            sums[np.uint32(items[e])] += weight * values[e] if values[e] != 0.0 else NOTHING
        return
    for e in unsigned(low, high):
        if values[e] != 0.0:
            add(store, items[e], weight * values[e])


@template
def add_dense_row(store: Sums, row: Array, weight: float) -> None:
    """Add weight times a value for every item. A value of zero gives nothing."""
    sums = store.sums
    for j in unsigned(0, len(row)):
        sums[j] += weight * row[j] + 0.0 if row[j] != 0.0 else NOTHING


# -- the table -------------------------------------------------------------------------------------


class Table(NamedTuple):
    """Items found so far with their scores, and a hash table that leads from an item to its place among them.

    slots   places from 1, 0 for none: a power of two of them is in use, and they are all 0 between queries
    items   the items found
    scores  their scores
    state   how many were found, and how many slots are in use
    """

    slots: Array
    items: Array
    scores: Array
    state: Array


_FOUND, _SLOTS = 0, 1  # places in `Table.state`
FEWEST_SLOTS = 16


@template
def borrowed_table(table: Table) -> Table:
    """The table for the innermost loops (`borrowed`)."""
    return Table(
        borrowed(table.slots), borrowed(table.items), borrowed(table.scores), borrowed(table.state)
    )


@template
def table_size(table: Table) -> int:
    """How many items were found."""
    found: int = table.state[_FOUND]
    return found


@template
def slot_of(table: Table, j: int) -> int:
    """Where item j stands among the slots, or the empty slot where it would."""
    return _slot(table, j, table.state[_SLOTS] - 1)


@template
def _slot(table: Table, j: int, last: int) -> int:
    """Where item j stands among the slots up to `last`."""
    slot: int = ((j * 2654435769) >> 7) & last
    while table.slots[slot] != 0 and table.items[table.slots[slot] - 1] != j:
        slot = (slot + 1) & last
    return slot


@template
def make_room(table: Table, more: int) -> None:
    """Use as many slots as `more` further items may need, and no more: a small table stays in the cache."""
    most = min(table.state[_FOUND] + more, len(table.items))
    size = table.state[_SLOTS]
    if size >= 2 * most or size == len(table.slots):
        return
    table.slots[:size] = 0
    while size < 2 * most and size < len(table.slots):
        size *= 2
    table.state[_SLOTS] = size
    for c in range(table.state[_FOUND]):
        table.slots[slot_of(table, table.items[c])] = c + 1


@template
def table_add(table: Table, j: int, value: float) -> None:
    """Add a value to item j, which has a score from then on."""
    slot = slot_of(table, j)
    if table.slots[slot] == 0:
        found = table.state[_FOUND]
        table.items[found], table.scores[found] = j, 0.0
        table.state[_FOUND] = found + 1
        table.slots[slot] = found + 1
    table.scores[table.slots[slot] - 1] += value


@template
def table_add_row(
    table: Table, items: Array, values: Array, low: int, high: int, weight: float
) -> None:
    """Add weight * values[low:high] to the scores of items[low:high], for which there is room (`make_room`)."""
    found, last = table.state[_FOUND], table.state[_SLOTS] - 1
    for e in unsigned(low, high):
        if values[e] == 0.0:
            continue
        slot = _slot(table, items[e], last)
        if table.slots[slot] == 0:
            table.items[found], table.scores[found] = items[e], 0.0
            found += 1
            table.slots[slot] = found
        table.scores[table.slots[slot] - 1] += weight * values[e]
    table.state[_FOUND] = found


@template
def empty_table(table: Table) -> None:
    """Forget every item."""
    table.slots[: table.state[_SLOTS]] = 0
    table.state[_FOUND] = 0
    table.state[_SLOTS] = FEWEST_SLOTS


def new_sums(items: int) -> Sums:
    """Sums of so many items, none of which has a score."""
    sums = np.full(items, NOTHING)
    return Sums(sums, sums.view(np.int64))


def new_table(items: int) -> Table:
    """An empty table with room for so many items."""
    slots = np.zeros(2 << items.bit_length(), np.int32)
    state = np.array([0, FEWEST_SLOTS], np.int64)
    return Table(slots, np.empty(items, np.int32), np.empty(items), state)
