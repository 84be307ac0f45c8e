"""Ranking where only the items that were found are known (a `Table`), with a search that stops early.

Sources come newest first and count less and less. From time to time it is asked which items the sources that are left
could still lift among the first k; where it is cheaper to give the rest to these alone, that is done. The scores are
those of the whole query to the last bit, since what is added is added in the same order.
"""

from __future__ import annotations

import numpy as np

from talerec.ranking.first import First, Shown, before, in_rank_order, is_allowed, is_shown
from talerec.ranking.ranks import (
    Mask,
    QueryRows,
    Ranked,
    Scratch,
    Tally,
    Target,
    borrowed_mask,
    borrowed_query,
    empty_tally,
    mark_seen,
    reaches,
    taken_in,
    write_places,
)
from talerec.ranking.scores import Stack, add_to_table
from talerec.ranking.stores import Table, borrowed_table, empty_table, slot_of, table_size
from talerec.ranking.tables import (
    IDENTITY,
    SPARSE,
    Blocks,
    block_at,
    row_length,
    sparse_rows,
)
from talerec.runtime.addresses import borrowed, float32_at
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template

_FIRST_CHECK = (
    2.0**-6
)  # when the rest can give so much of all that the query could, candidates are first checked,
_NEXT_CHECK = (
    2.0**-2
)  # and again each time that it can give so much of what it could at the last check
_LOOK_UP = 8  # weights that are added in the time that it takes to look one up
_ROUNDING = 1 + 1e-9  # bounds are sums of rounded numbers
_SPAN = 64  # scores that are compared with the last of the first k at a time


@kernel
def rank_in_table(
    weights: Stack,
    query: QueryRows,
    mask: Mask,
    targets: Array,
    scratch: Scratch,
    a: int,
    b: int,
    out: Ranked,
) -> None:
    """Rank queries a..b with a table of the items found: their first k items, and where `targets` has entries, its places."""
    blocks, query, mask = (
        borrowed(weights.blocks),
        borrowed_query(query),
        borrowed_mask(mask),
    )
    table, seen = borrowed_table(scratch.store), borrowed(scratch.seen)
    shown = Shown(mask.allowed, seen[: len(seen) if mask.hide else 0])
    for q in range(a, b):
        sources = query.source[query.ptr[q] : query.ptr[q + 1]]
        shares = query.share[query.ptr[q] : query.ptr[q + 1]]
        first = First(borrowed(out.items[q]), borrowed(out.scores[q]))
        if mask.hide or len(targets):
            mark_seen(mask, q, seen, 1)
        if len(targets) == 0 and _can_stop_early(blocks):
            found = _search(blocks, sources, shares, table, shown, first)
        else:
            for x in range(len(sources)):
                _add_source(blocks, sources[x : x + 1], shares[x : x + 1], table)
            found = table_size(table)
        target = _target_in_table(table, shown, targets[q] if len(targets) else -1)
        known = _seen_before(table, target, mask, q, seen) if len(targets) else 0
        tally = _look_over_table(table, found, target, first, shown)
        out.counts[q] = in_rank_order(first, tally.size)
        if len(targets):
            write_places(out.places[q], target, tally.above, tally.above - known, seen)
        empty_table(table)
        if mask.hide or len(targets):
            mark_seen(mask, q, seen, 0)


@template
def _can_stop_early(blocks: Blocks) -> bool:
    """Is there a bound for what each source gives?"""
    bounded = True
    for b in range(len(blocks)):
        bounded = bounded and (blocks[b].kind == SPARSE or blocks[b].kind == IDENTITY)
    return bounded


@template
def _add_source(blocks: Blocks, source: Array, share: Array, table: Table) -> None:
    """Add what one source gives."""
    b = block_at(blocks, source[0])
    length = row_length(blocks, b, source[0] - blocks[b].first, len(table.items))
    add_to_table(table, blocks, b, source, share, length)


@template
def _target_in_table(table: Table, shown: Shown, item: int) -> Target:
    """The target with its score."""
    if item < 0 or not is_allowed(shown, item):
        return Target(-1, np.inf)
    place = table.slots[slot_of(table, item)]
    if place == 0 or np.isnan(table.scores[place - 1]):
        return Target(-1, np.inf)
    return Target(item, table.scores[place - 1])


@template
def _look_over_table(table: Table, found: int, target: Target, first: First, shown: Shown) -> Tally:
    """Go over the first `found` items of the table."""
    items, scores, tally = table.items, table.scores, empty_tally(target, first)
    for start in range(0, found, _SPAN):
        stop = min(start + _SPAN, found)
        if reaches(scores, start, stop, tally.least):
            for c in range(start, stop):
                if scores[c] >= tally.least:
                    tally = taken_in(tally, items[c], scores[c], target, first, shown)
    return tally


@template
def _seen_before(table: Table, target: Target, mask: Mask, q: int, seen: Array) -> int:
    """How many of the items that were seen stand before the target; each is counted once."""
    above = 0
    for r in range(mask.start[q], mask.stop[q]):
        j = mask.item[r]
        if j >= 0 and seen[j] == 1:
            seen[j] = 2
            place = table.slots[slot_of(table, j)]
            allowed = len(mask.allowed) == 0 or mask.allowed[j] != 0
            above += (
                allowed
                and place > 0
                and before(table.scores[place - 1], j, target.score, target.item)
            )
    return above


# -- stopping early --------------------------------------------------------------------------------


@template
def _search(
    blocks: Blocks, sources: Array, shares: Array, table: Table, shown: Shown, first: First
) -> int:
    """Add sources until the first k are certain to be among a few items, which get the rest; how many items are left."""
    rest, work = _what_is_left(blocks, sources, shares, len(table.items))
    check = rest[0] * _FIRST_CHECK
    for x in range(len(sources)):
        if rest[x] < check and work[x] > table_size(table):
            check = rest[x] * _NEXT_CHECK
            most = work[x] // (_LOOK_UP * (len(sources) - x))
            left = _leave_possible(table, shown, rest[x] * _ROUNDING, first, most)
            if left > 0:
                for c in range(left):
                    for y in range(x, len(sources)):
                        table.scores[c] += _given(blocks, sources[y], shares[y], table.items[c])
                return left
        _add_source(blocks, sources[x : x + 1], shares[x : x + 1], table)
    return table_size(table)


@template
def _what_is_left(blocks: Blocks, sources: Array, shares: Array, items: int) -> tuple[Array, Array]:
    """For every source, the most that it and those after it may give to any item, and how many weights they have."""
    rest, work = np.zeros(len(sources) + 1), np.zeros(len(sources) + 1, np.int64)
    for x in range(len(sources) - 1, -1, -1):
        b = block_at(blocks, sources[x])
        s = sources[x] - blocks[b].first
        peak = 1.0 if blocks[b].kind == IDENTITY else float32_at(blocks[b].peaks, s + 1)[s]
        rest[x] = rest[x + 1] + abs(shares[x] * blocks[b].weight) * peak
        work[x] = work[x + 1] + row_length(blocks, b, s, items)
    return rest, work


@template
def _leave_possible(table: Table, shown: Shown, rest: float, first: First, most: int) -> int:
    """Leave only the items that may still be among the first k, whatever scores change by up to `rest`.

    Returns how many these are; 0, and nothing is changed, where they are more than `most`, or where an item that
    has no score yet might come in. What the table's slots lead to is then wrong: nothing may be added any more.
    """
    items, scores, found, k = table.items, table.scores, table_size(table), len(first.items)
    target = Target(-1, np.inf)
    size = in_rank_order(first, _look_over_table(table, found, target, first, shown).size)
    if size < k or first.scores[k - 1] - rest <= rest:
        return 0
    least, left = first.scores[k - 1] - 2 * rest, 0
    for c in range(found):
        left += scores[c] >= least
    if left > most:
        return 0
    left = 0
    for c in range(found):
        if scores[c] >= least and is_shown(shown, items[c]):
            items[left], scores[left] = items[c], scores[c]
            left += 1
    return left


@template
def _given(blocks: Blocks, source: int, share: float, j: int) -> float:
    """What a source gives to item j."""
    b = block_at(blocks, source)
    s = source - blocks[b].first
    if blocks[b].kind == IDENTITY:
        return share * blocks[b].weight if s == j else 0.0
    rows = sparse_rows(blocks, b)
    e = place_in_row(rows.items, rows.bounds[s], rows.bounds[s + 1], j)
    return share * blocks[b].weight * rows.values[e] if e >= 0 else 0.0


@template
def place_in_row(items: Array, low: int, high: int, j: int) -> int:
    """Where j stands in the ascending items[low:high], -1 where it does not. (No branch depends on what is found.)"""
    if low == high:
        return -1
    size = high - low
    while size > 1:
        half = size >> 1
        low += half * (items[np.uint64(low + half)] <= j)
        size -= half
    return low if items[low] == j else -1
