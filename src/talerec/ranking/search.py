"""Ranking where only the items that were found are known (a `Table`), with a search that stops early.

Sources come newest first and count less and less. From time to time it is asked which items the sources that are left
could still lift among the first k; where it is cheaper to give the rest to these alone, that is done. The scores are
those of the whole query to the last bit, since what is added is added in the same order.
"""

from __future__ import annotations

import numpy as np

from talerec.ranking.first import First, Shown, in_rank_order, is_allowed, is_shown, offer
from talerec.ranking.ranks import (
    MaskRows,
    QueryRows,
    Ranked,
    Scratch,
    Target,
    borrowed_mask,
    borrowed_query,
    comes_before,
    least_that_matters,
    mark_seen,
    write_places,
)
from talerec.ranking.scores import Stack, add_to_table
from talerec.ranking.stores import Table, borrowed_table, empty_table, slot_of, table_size
from talerec.ranking.tables import (
    IDENTITY,
    SPARSE,
    BlockTable,
    block_at,
    borrowed_blocks,
    row_length,
    sparse_rows,
)
from talerec.runtime.addresses import borrowed, float32_at
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template, unsigned

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
    mask: MaskRows,
    targets: Array,
    scratch: Scratch,
    a: int,
    b: int,
    out: Ranked,
) -> None:
    """Rank queries a..b with a table of the items found: their first k items, and where `targets` has entries, its places."""
    blocks, query, mask = (
        borrowed_blocks(weights.blocks),
        borrowed_query(query),
        borrowed_mask(mask),
    )
    table, seen = borrowed_table(scratch.store), borrowed(scratch.seen)
    shown = Shown(mask.allowed, seen[: len(seen) if mask.hide else 0])
    for q in range(a, b):
        sources = query.source[query.ptr[q] : query.ptr[q + 1]]
        shares = query.share[query.ptr[q] : query.ptr[q + 1]]
        first = First(borrowed(out.items[q]), borrowed(out.scores[q]))
        mark_seen(mask, q, seen, 1)
        if len(targets) == 0 and _can_stop_early(blocks):
            found = _search(blocks, sources, shares, table, shown, first)
        else:
            for x in range(len(sources)):
                _add_source(blocks, sources[x : x + 1], shares[x : x + 1], table)
            found = table_size(table)
        target = _target_in_table(table, shown, targets[q] if len(targets) else -1)
        above, unseen, size = _look_over_table(table, found, target, first, shown, seen)
        out.counts[q] = in_rank_order(first, size)
        if len(targets):
            write_places(out.places[q], target, above, unseen, seen)
        empty_table(table)
        mark_seen(mask, q, seen, 0)


@template
def _can_stop_early(blocks: BlockTable) -> bool:
    """Is there a bound for what each source gives?"""
    bounded = True
    for b in range(len(blocks.kind)):
        bounded = bounded and (blocks.kind[b] == SPARSE or blocks.kind[b] == IDENTITY)
    return bounded


@template
def _add_source(blocks: BlockTable, source: Array, share: Array, table: Table) -> None:
    """Add what one source gives."""
    b = block_at(blocks, source[0])
    length = row_length(blocks, b, source[0] - blocks.first[b], len(table.items))
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
def _look_over_table(
    table: Table, found: int, target: Target, first: First, shown: Shown, seen: Array
) -> tuple[int, int, int]:
    """How many items stand before the target, how many of these were not seen, and how many there are of the first k."""
    items, scores = table.items, table.scores
    above, unseen, size = 0, 0, 0
    for start in range(0, found, _SPAN):
        stop = min(start + _SPAN, found)
        if not _reaches(scores, start, stop, least_that_matters(target, first, size)):
            continue
        for c in range(start, stop):
            if scores[c] >= least_that_matters(target, first, size):
                if comes_before(items[c], scores[c], target, shown):
                    above, unseen = above + 1, unseen + (not seen[items[c]])
                size = offer(first, size, items[c], scores[c], shown)
    return above, unseen, size


@template
def _reaches(scores: Array, start: int, stop: int, least: float) -> bool:
    """Is one of scores[start:stop] at least so much? (Without a branch: several are compared at once.)"""
    found = False
    for c in unsigned(start, stop):
        found |= scores[c] >= least
    return found


# -- stopping early --------------------------------------------------------------------------------


@template
def _search(
    blocks: BlockTable, sources: Array, shares: Array, table: Table, shown: Shown, first: First
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
def _what_is_left(
    blocks: BlockTable, sources: Array, shares: Array, items: int
) -> tuple[Array, Array]:
    """For every source, the most that it and those after it may give to any item, and how many weights they have."""
    rest, work = np.zeros(len(sources) + 1), np.zeros(len(sources) + 1, np.int64)
    for x in range(len(sources) - 1, -1, -1):
        b = block_at(blocks, sources[x])
        s = sources[x] - blocks.first[b]
        peak = 1.0 if blocks.kind[b] == IDENTITY else float32_at(blocks.peaks[b], s + 1)[s]
        rest[x] = rest[x + 1] + abs(shares[x] * blocks.weight[b]) * peak
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
    _, _, size = _look_over_table(table, found, target, first, shown, shown.hidden)
    size = in_rank_order(first, size)
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
def _given(blocks: BlockTable, source: int, share: float, j: int) -> float:
    """What a source gives to item j."""
    b = block_at(blocks, source)
    s = source - blocks.first[b]
    if blocks.kind[b] == IDENTITY:
        return share * blocks.weight[b] if s == j else 0.0
    rows = sparse_rows(blocks, b)
    e = place_in_row(rows.items, rows.bounds[s], rows.bounds[s + 1], j)
    return share * blocks.weight[b] * rows.values[e] if e >= 0 else 0.0


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
