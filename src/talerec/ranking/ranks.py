"""The loops of ranking: in one pass over the scores of a query, the place of one item and the first k items."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from talerec.data.histories import Histories
from talerec.ranking.first import First, Shown, before, in_rank_order, is_allowed, offer
from talerec.ranking.scores import Stack, borrowed_stack, sum_up
from talerec.ranking.stores import NOTHING, Sums, borrowed_sums, has_score
from talerec.ranking.tables import (
    IDENTITY,
    SPARSE,
    Blocks,
    block_at,
    row_length,
    run_around,
    runs_of,
    sparse_rows,
)
from talerec.runtime.addresses import borrowed
from talerec.runtime.arrays import Array, readonly
from talerec.runtime.jit import kernel, template, unsigned

_SPAN = 64  # scores that are compared with the least that matters at a time
_AT_ONCE = 2  # scores looked over in a row in the time that it takes to look one up


class QueryRows(NamedTuple):
    """Queries for kernels: query q has the sources source[ptr[q]:ptr[q+1]] and their shares."""

    ptr: Array
    source: Array
    share: Array


class Mask(NamedTuple):
    """What must not be in a list: items where `allowed` is 0, and where `hide` is true what query q has seen.

    allowed: uint8, one per item; empty means all. Query q has seen item[start[q]:stop[q]]; unknown items are -1.
    """

    allowed: Array
    start: Array
    stop: Array
    item: Array
    hide: bool

    @classmethod
    def make(cls, histories: Histories, *, hide_seen: bool, allowed: Array | None = None) -> Mask:
        """The mask of lists for these histories."""
        shown = _EVERY if allowed is None else allowed
        return cls(shown, histories.start, histories.stop, readonly(histories.item), hide_seen)

    def one(self, q: int) -> Mask:
        """What the list of query q must not have."""
        mine = slice(q, q + 1)
        return Mask(self.allowed, self.start[mine], self.stop[mine], self.item, self.hide)


_EVERY = np.empty(0, np.uint8)


@template
def borrowed_query(query: QueryRows) -> QueryRows:
    """Queries for the innermost loops (`borrowed`)."""
    return QueryRows(borrowed(query.ptr), borrowed(query.source), borrowed(query.share))


@template
def borrowed_mask(mask: Mask) -> Mask:
    """A mask for the innermost loops (`borrowed`)."""
    start, stop, item = borrowed(mask.start), borrowed(mask.stop), borrowed(mask.item)
    return Mask(borrowed(mask.allowed), start, stop, item, mask.hide)


class Scratch(NamedTuple):
    """A thread's work space: a store of scores, and two marks for every item. Between queries the marks are all 0.

    seen   marks what a query has seen
    marks  free to those who make queries
    """

    store: Any
    seen: Array
    marks: Array


class Ranked(NamedTuple):
    """What is found, one row per query: items and scores (k columns), how many there are of them, and the target's places.

    Places count from 1, 0 for none: with what was seen ranked like anything else, and with that hidden.
    """

    items: Array
    scores: Array
    counts: Array
    places: Array


class Target(NamedTuple):
    """The item whose place is asked for, and its score: infinity where it has none, so that nothing stands before it."""

    item: int
    score: float


@kernel
def rank_in_sums(
    weights: Stack,
    query: QueryRows,
    mask: Mask,
    targets: Array,
    scratch: Scratch,
    a: int,
    b: int,
    out: Ranked,
) -> None:
    """Rank queries a..b with one sum per item: their first k items, and where `targets` has entries, its places."""
    weights, query, mask = borrowed_stack(weights), borrowed_query(query), borrowed_mask(mask)
    store, seen = borrowed_sums(scratch.store), borrowed(scratch.seen)
    shown = Shown(mask.allowed, seen[: len(seen) if mask.hide else 0])
    for q in range(a, b):
        sources = query.source[query.ptr[q] : query.ptr[q + 1]]
        sum_up(weights, sources, query.share[query.ptr[q] : query.ptr[q + 1]], store)
        if mask.hide or len(targets):
            mark_seen(mask, q, seen, 1)
        target = _target_in_sums(store, shown, targets[q] if len(targets) else -1)
        known = _seen_before(store, target, mask, q, seen) if len(targets) else 0
        first = First(borrowed(out.items[q]), borrowed(out.scores[q]))
        if _by_rows(weights, sources, len(store.sums)):
            tally = _look_over_rows(weights.blocks, sources, store, target, first, shown)
        else:
            tally = _look_over_all(store, target, first, shown)
        out.counts[q] = in_rank_order(first, tally.size)
        if len(targets):
            write_places(out.places[q], target, tally.above, tally.above - known, seen)
        if mask.hide or len(targets):
            mark_seen(mask, q, seen, 0)


@template
def mark_seen(mask: Mask, q: int, seen: Array, value: int) -> None:
    """Mark what query q has seen."""
    for r in range(mask.start[q], mask.stop[q]):
        if mask.item[r] >= 0:
            seen[mask.item[r]] = value


@template
def _target_in_sums(store: Sums, shown: Shown, item: int) -> Target:
    """The target with its score."""
    sums = store.sums
    if (
        item < 0
        or not has_score(store, item)
        or np.isnan(sums[item])
        or not is_allowed(shown, item)
    ):
        return Target(-1, np.inf)
    return Target(item, sums[item])


@template
def _seen_before(store: Sums, target: Target, mask: Mask, q: int, seen: Array) -> int:
    """How many of the items that were seen stand before the target; each is counted once."""
    above = 0
    for r in range(mask.start[q], mask.stop[q]):
        j = mask.item[r]
        if j >= 0 and seen[j] == 1:
            seen[j] = 2
            allowed = len(mask.allowed) == 0 or mask.allowed[j] != 0
            above += (
                allowed
                and has_score(store, j)
                and before(store.sums[j], j, target.score, target.item)
            )
    return above


@template
def write_places(places: Array, target: Target, above: int, unseen: int, seen: Array) -> None:
    """The target's two places, given how many items stand before it, and how many of these were not seen."""
    places[:] = 0
    if target.item >= 0:
        places[0] = 1 + above
        places[1] = 0 if seen[target.item] else 1 + unseen


class Tally(NamedTuple):
    """What a pass over the scores has found so far.

    above  how many items stand before the target, with what was seen ranked too
    size   how many there are of the first k
    least  the lowest score that could still stand before the target or come among the first k
    """

    above: int
    size: int
    least: float


@template
def empty_tally(target: Target, first: First) -> Tally:
    """Nothing was looked at yet."""
    return Tally(0, 0, -np.inf if len(first.items) else target.score)


@template
def taken_in(
    tally: Tally, j: int, score: float, target: Target, first: First, shown: Shown
) -> Tally:
    """The tally with one item more, whose score is no less than `tally.least`."""
    above = tally.above + comes_before(j, score, target, shown)
    size = offer(first, tally.size, j, score, shown)
    least = tally.least
    if size > 0 and size == len(first.items):
        least = min(target.score, first.scores[0])
    return Tally(above, size, least)


@template
def _look_over_all(store: Sums, target: Target, first: First, shown: Shown) -> Tally:
    """Go over every sum, and clear it."""
    sums, tally = store.sums, empty_tally(target, first)
    for start in range(0, len(sums), _SPAN):
        stop = min(start + _SPAN, len(sums))
        if reaches(sums, start, stop, tally.least):
            for j in range(start, stop):
                if sums[j] >= tally.least and has_score(store, j):
                    tally = taken_in(tally, j, sums[j], target, first, shown)
        sums[start:stop] = NOTHING
    return tally


@template
def comes_before(j: int, score: float, target: Target, shown: Shown) -> bool:
    """Does item j stand before the target, with what was seen ranked too?"""
    return before(score, j, target.score, target.item) & is_allowed(shown, j)


@template
def reaches(sums: Array, start: int, stop: int, least: float) -> bool:
    """Is one of sums[start:stop] at least so much? (Without a branch: several are compared at once.)"""
    found = False
    for j in unsigned(start, stop):
        found |= sums[j] >= least
    return found


@template
def _by_rows(weights: Stack, sources: Array, items: int) -> bool:
    """Is it less work to look up what the sources gave to, row by row, than to go over all items?"""
    work = len(weights.base)
    for x in range(len(sources)):
        b = block_at(weights.blocks, sources[x])
        work += _AT_ONCE * row_length(
            weights.blocks, b, sources[x] - weights.blocks[b].first, items
        )
    return work < items


@template
def _look_over_rows(
    blocks: Blocks, sources: Array, store: Sums, target: Target, first: First, shown: Shown
) -> Tally:
    """Go over the items that the sources gave to, each once, and clear their sums."""
    tally = empty_tally(target, first)
    for x in range(len(sources)):
        b = block_at(blocks, sources[x])
        s = sources[x] - blocks[b].first
        if blocks[b].kind == SPARSE:
            rows = sparse_rows(blocks, b)
            for e in unsigned(rows.bounds[s], rows.bounds[s + 1]):
                tally = _look_at(rows.items[e], store, tally, target, first, shown)
        elif blocks[b].kind == IDENTITY:
            tally = _look_at(s, store, tally, target, first, shown)
        else:
            runs = runs_of(blocks, b)
            low, high = run_around(runs, s)
            for e in range(low, high):
                tally = _look_at(runs.items[e], store, tally, target, first, shown)
    return tally


@template
def _look_at(
    j: Any, store: Sums, tally: Tally, target: Target, first: First, shown: Shown
) -> Tally:
    """Take the sum of one item into account, and clear it: the item may be met again."""
    i: Any = np.uint32(j)
    score = store.sums[i]
    if score >= tally.least and has_score(store, i):
        tally = taken_in(tally, j, score, target, first, shown)
    store.sums[i] = NOTHING
    return tally
