"""The one rule of ranking, for recommending and for judging alike.

Higher score first; equal scores by item position. An item without a score, or hidden, has no rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from talerec.arrays import Array, Arrays, Kernel
from talerec.histories import Histories
from talerec.jit import kernel, template, unsigned
from talerec.threads import even, run_chunks
from talerec.weights import (
    UNTOUCHED,
    Query,
    Weights,
    add_base,
    add_source,
    are_few,
    room_for,
    score_dense,
    score_runs,
    score_sparse,
    slots_for,
    sparse_reasons,
)

_BATCH = 256  # queries a thread takes at a time
_SMALL = 2.0**-6  # of all that a history could give: what is left is asked about from here on,
_SMALLER = 2.0**-2  # and each time again when it has become so much less
_LOOK_UP = 8  # weights added in the time in which one is looked up
_ROUNDING = 1 + 1e-9
_ROWS = (
    1  # weights for each of few items up to which they are looked over by the rows that hold them
)


@dataclass(frozen=True, eq=False)
class Mask:
    """What must not be ranked: items where `allowed` is 0, and for query q item[start[q]:stop[q]].

    allowed: uint8, one per item; empty means all. Unknown items (-1) hide nothing.
    """

    allowed: Array
    start: Array
    stop: Array
    item: Array

    @classmethod
    def make(cls, histories: Histories, *, hide_seen: bool, allowed: Array | None) -> Mask:
        stop = histories.stop if hide_seen else histories.start
        every = np.empty(0, np.uint8)
        return cls(every if allowed is None else allowed, histories.start, stop, histories.item)


@kernel
def before(score: float, item: int, other_score: float, other_item: int) -> bool:
    """The rule: does (score, item) stand before the other?"""
    return score > other_score or (score == other_score and item < other_item)


@template
def _sift(items: Array, scores: Array, root: int, size: int) -> None:
    """Restore a heap whose root is its last-ranked entry."""
    while True:
        last = root
        for child in (2 * root + 1, 2 * root + 2):
            if child < size and before(scores[last], items[last], scores[child], items[child]):
                last = child
        if last == root:
            return
        items[root], items[last] = items[last], items[root]
        scores[root], scores[last] = scores[last], scores[root]
        root = last


@template
def _visible(j: int, hidden: Array, allowed: Array) -> bool:
    return not hidden[j] and (len(allowed) == 0 or allowed[j] != 0)


@template
def _offer(
    j: int, score: float, hidden: Array, allowed: Array, items: Array, scores: Array, size: int
) -> int:
    """Put an item among the first len(items) so far, a heap once they are so many; how many there are now."""
    k = len(items)
    if size == k and not before(score, j, scores[0], items[0]):
        return size
    if np.isnan(score) or not _visible(j, hidden, allowed):
        return size
    if size == k:
        items[0], scores[0] = j, score
        _sift(items, scores, 0, k)
        return size
    items[size], scores[size] = j, score
    if size + 1 == k:
        _heap(items, scores, k)
    return size + 1


@template
def _heap(items: Array, scores: Array, size: int) -> None:
    for root in range(size // 2 - 1, -1, -1):
        _sift(items, scores, root, size)


@template
def _in_order(items: Array, scores: Array, size: int) -> int:
    """Those that were offered in rank order; the number that there are."""
    if size < len(items):
        _heap(items, scores, size)
    for last in range(size - 1, 0, -1):
        items[0], items[last] = items[last], items[0]
        scores[0], scores[last] = scores[last], scores[0]
        _sift(items, scores, 0, last)
    return size


@template
def _best(scratch: Arrays, found: int, allowed: Array, items: Array, scores: Array) -> int:
    """The first len(items) candidates in rank order; the number that there are."""
    candidates, score, _, _, _, hidden = scratch
    size = 0
    for c in range(found):
        size = _offer(candidates[c], score[c], hidden, allowed, items, scores, size)
    return _in_order(items, scores, size)


@template
def _best_few(
    arrays: Arrays, item: Array, scratch: Arrays, allowed: Array, items: Array, scores: Array
) -> int:
    """The same from the sums of few items, which are cleared."""
    indptr, indices = arrays[:2]
    sums, hidden = scratch[3], scratch[5]
    untouched = sums.view(np.int64)
    k, size = len(items), 0
    if _by_rows(arrays, item, scratch):
        for x in range(len(item)):
            for e in unsigned(indptr[item[x]], indptr[item[x] + 1]):
                i = np.uint32(indices[e])
                if (size < k or sums[i] >= scores[0]) and untouched[i] != UNTOUCHED:
                    size = _offer(indices[e], sums[i], hidden, allowed, items, scores, size)
                sums[i] = -0.0
        return _in_order(items, scores, size)
    for j in range(len(sums)):
        if (size < k or sums[j] >= scores[0]) and untouched[j] != UNTOUCHED:
            size = _offer(j, sums[j], hidden, allowed, items, scores, size)
    sums[:] = -0.0
    return _in_order(items, scores, size)


@template
def _by_rows(arrays: Arrays, item: Array, scratch: Arrays) -> bool:
    """Is it less work to go over the rows of the sources again than over all items?"""
    indptr, work = arrays[0], 0
    for x in range(len(item)):
        work += indptr[item[x] + 1] - indptr[item[x]]
    return work + len(arrays[3]) < _ROWS * len(scratch[3])


@template
def _place(scratch: Arrays, found: int, allowed: Array, target: int, ranks: Array) -> None:
    """The target's rank from 1 among the candidates, and the one where what is hidden has none; or 0."""
    candidates, score, _, _, _, hidden = scratch
    own = np.nan
    if target >= 0 and (len(allowed) == 0 or allowed[target] != 0):
        for c in range(found):
            if candidates[c] == target:
                own = score[c]
    if np.isnan(own):
        ranks[0] = ranks[1] = 0
        return
    above, visible = 0, 0
    for c in range(found):
        j = candidates[c]
        if np.isnan(score[c]) or not before(score[c], j, own, target):
            continue
        if len(allowed) == 0 or allowed[j] != 0:
            above += 1
            visible += not hidden[j]
    ranks[0] = 1 + above
    ranks[1] = 0 if hidden[target] else 1 + visible


@template
def _place_few(
    arrays: Arrays, query: Arrays, scratch: Arrays, seen: Array, target: int, ranks: Array
) -> None:
    """The same where every item has a sum and only what was seen is hidden: candidates need no list."""
    item, weight = query
    sums, hidden = scratch[3], scratch[5]
    untouched = sums.view(np.int64)
    for x in range(len(item)):
        add_source(arrays, item[x], weight[x], scratch, scratch[2], 0)
    known = target >= 0 and untouched[target] != UNTOUCHED
    own = sums[target] if known else np.inf
    shown, seen_above = True, 0
    for r in range(len(seen)):
        j = seen[r]
        if j >= 0 and not hidden[j]:
            hidden[j] = 1
            shown = shown and j != target
            seen_above += untouched[j] != UNTOUCHED and before(sums[j], j, own, target)
    for r in range(len(seen)):
        if seen[r] >= 0:
            hidden[seen[r]] = 0
    place = 1 + _count_and_clear(arrays, item, scratch, own, target)
    ranks[0] = place if known else 0
    ranks[1] = place - seen_above if known and shown else 0


@template
def _count_and_clear(arrays: Arrays, item: Array, scratch: Arrays, own: float, target: int) -> int:
    """How many sums stand before the target's; all are cleared, each when it has been counted."""
    indptr, indices = arrays[:2]
    sums, above = scratch[3], 0
    untouched = sums.view(np.int64)
    if _by_rows(arrays, item, scratch):
        for x in range(len(item)):
            for e in unsigned(indptr[item[x]], indptr[item[x] + 1]):
                i = np.uint32(indices[e])
                if sums[i] >= own and untouched[i] != UNTOUCHED:
                    above += before(sums[i], indices[e], own, target)
                sums[i] = -0.0
        return above
    for j in range(len(sums)):
        if sums[j] >= own and untouched[j] != UNTOUCHED:
            above += before(sums[j], j, own, target)
    sums[:] = -0.0
    return above


@template
def _hide(mask: Arrays, q: int, hidden: Array, value: int) -> None:
    _, start, stop, item = mask
    for r in range(start[q], stop[q]):
        if item[r] >= 0:
            hidden[item[r]] = value


@template
def _place_loop(
    fill: Kernel,
    arrays: Arrays,
    query: Arrays,
    mask: Arrays,
    a: int,
    b: int,
    scratch: Arrays,
    targets: Array,
    ranks: Array,
) -> None:
    ptr, item, weight = query
    allowed = mask[0]
    for q in range(a, b):
        found = fill(arrays, item[ptr[q] : ptr[q + 1]], weight[ptr[q] : ptr[q + 1]], scratch)
        _hide(mask, q, scratch[5], 1)
        _place(scratch, found, allowed, targets[q], ranks[q])
        _hide(mask, q, scratch[5], 0)


@template
def _top_loop(
    fill: Kernel,
    arrays: Arrays,
    query: Arrays,
    mask: Arrays,
    a: int,
    b: int,
    scratch: Arrays,
    out: Arrays,
) -> None:
    ptr, item, weight = query
    items, scores, counts = out
    for q in range(a, b):
        found = fill(arrays, item[ptr[q] : ptr[q + 1]], weight[ptr[q] : ptr[q + 1]], scratch)
        _hide(mask, q, scratch[5], 1)
        counts[q] = _best(scratch, found, mask[0], items[q], scores[q])
        _hide(mask, q, scratch[5], 0)


@kernel
def _top_dense(
    arrays: Arrays, query: Arrays, mask: Arrays, a: int, b: int, scratch: Arrays, out: Arrays
) -> None:
    _top_loop(score_dense, arrays, query, mask, a, b, scratch, out)


@kernel
def _top_runs(
    arrays: Arrays, query: Arrays, mask: Arrays, a: int, b: int, scratch: Arrays, out: Arrays
) -> None:
    _top_loop(score_runs, arrays, query, mask, a, b, scratch, out)


@template
def _alive(
    scratch: Arrays, found: int, allowed: Array, rest: float, items: Array, scores: Array, most: int
) -> int:
    """Leave only the candidates that may still be among the first k, whatever scores change by up to `rest`.

    Returns how many these are; 0, and nothing is changed, where they are more than `most`, or where an
    item that has no score yet might come in. items and scores are work space for k.
    """
    candidates, score, _, _, _, hidden = scratch
    k = len(items)
    size = _best(scratch, found, allowed, items, scores)
    if size < k or scores[k - 1] - rest <= rest:
        return 0
    least, kept = scores[k - 1] - 2 * rest, 0
    for c in range(found):
        kept += score[c] >= least
    if kept > most:
        return 0
    kept = 0
    for c in range(found):
        if score[c] >= least and _visible(candidates[c], hidden, allowed):
            candidates[kept], score[kept] = candidates[c], score[c]
            kept += 1
    return kept


@template
def _finish(arrays: Arrays, item: Array, weight: Array, x: int, j: int, score: float) -> float:
    """The score of item j with what the sources from x on give, in their order."""
    indptr, indices, values, _ = arrays
    for y in range(x, len(item)):
        lo, hi = indptr[item[y]], indptr[item[y] + 1]
        e = lo + np.searchsorted(indices[lo:hi], j)
        if e < hi and indices[e] == j:
            score += weight[y] * values[e]
    return score


@template
def _search(
    arrays: Arrays,
    item: Array,
    weight: Array,
    rest: Array,
    work: Array,
    scratch: Arrays,
    allowed: Array,
    items: Array,
    scores: Array,
) -> int:
    """Scores of many items whose first k are those of the whole history; returns the number of candidates.

    Sources come newest first and weigh less and less. From time to time it is asked which candidates
    those that are left could still lift into the first k; where it is cheaper to give the rest to these
    alone, that is done. rest and work: what the sources from x on may give, and how many weights they have.
    """
    small = rest[0] * _SMALL
    slots = slots_for(len(arrays[3]), scratch)
    found = add_base(arrays, scratch, slots)
    for x in range(len(item)):
        if rest[x] < small and work[x] > found:
            small = rest[x] * _SMALLER
            most = work[x] // (_LOOK_UP * (len(item) - x))
            alive = _alive(scratch, found, allowed, rest[x] * _ROUNDING, items, scores, most)
            if alive > 0:
                for c in range(alive):
                    scratch[1][c] = _finish(arrays, item, weight, x, scratch[0][c], scratch[1][c])
                found = alive
                break
        slots = room_for(arrays, item[x], scratch, slots, found)
        found = add_source(arrays, item[x], weight[x], scratch, slots, found)
    slots[:] = 0
    return found


@kernel
def _top_sparse(
    arrays: Arrays,
    peaks: Array,
    query: Arrays,
    mask: Arrays,
    a: int,
    b: int,
    scratch: Arrays,
    out: Arrays,
) -> None:
    ptr, item, weight = query
    items, scores, counts = out
    indptr = arrays[0]
    for q in range(a, b):
        mine, weights = item[ptr[q] : ptr[q + 1]], weight[ptr[q] : ptr[q + 1]]
        if are_few(scratch):  # adding up is so quick that no search would save anything
            add_base(arrays, scratch, scratch[2])
            for x in range(len(mine)):
                add_source(arrays, mine[x], weights[x], scratch, scratch[2], 0)
            _hide(mask, q, scratch[5], 1)
            counts[q] = _best_few(arrays, mine, scratch, mask[0], items[q], scores[q])
            _hide(mask, q, scratch[5], 0)
            continue
        rest, work = np.zeros(len(mine) + 1), np.zeros(len(mine) + 1, np.int64)
        for x in range(len(mine) - 1, -1, -1):
            rest[x] = rest[x + 1] + abs(weights[x]) * peaks[mine[x]]
            work[x] = work[x + 1] + indptr[mine[x] + 1] - indptr[mine[x]]
        _hide(mask, q, scratch[5], 1)
        first = (items[q], scores[q])
        found = _search(arrays, mine, weights, rest, work, scratch, mask[0], *first)
        counts[q] = _best(scratch, found, mask[0], items[q], scores[q])
        _hide(mask, q, scratch[5], 0)


@kernel
def _place_dense(
    arrays: Arrays,
    query: Arrays,
    mask: Arrays,
    a: int,
    b: int,
    scratch: Arrays,
    targets: Array,
    ranks: Array,
) -> None:
    _place_loop(score_dense, arrays, query, mask, a, b, scratch, targets, ranks)


@kernel
def _place_runs(
    arrays: Arrays,
    query: Arrays,
    mask: Arrays,
    a: int,
    b: int,
    scratch: Arrays,
    targets: Array,
    ranks: Array,
) -> None:
    _place_loop(score_runs, arrays, query, mask, a, b, scratch, targets, ranks)


@kernel
def _place_sparse(
    arrays: Arrays,
    query: Arrays,
    mask: Arrays,
    a: int,
    b: int,
    scratch: Arrays,
    targets: Array,
    ranks: Array,
) -> None:
    if not are_few(scratch) or len(arrays[3]) > 0 or len(mask[0]) > 0:
        _place_loop(score_sparse, arrays, query, mask, a, b, scratch, targets, ranks)
        return
    ptr, item, weight = query
    _, start, stop, seen = mask
    for q in range(a, b):
        x = (item[ptr[q] : ptr[q + 1]], weight[ptr[q] : ptr[q + 1]])
        _place_few(arrays, x, scratch, seen[start[q] : stop[q]], targets[q], ranks[q])


@kernel
def _answer_sparse(
    arrays: Arrays, peaks: Array, query: Arrays, mask: Arrays, scratch: Arrays, k: int, most: int
) -> tuple[Array, Array, Array, Array]:
    items, scores, counts = np.empty((1, k), np.int32), np.empty((1, k)), np.zeros(1, np.int64)
    _top_sparse(arrays, peaks, query, mask, 0, 1, scratch, (items, scores, counts))
    found = items[0, : counts[0]]
    sources, given = sparse_reasons(arrays[:3], peaks, query[1], query[2], found, most)
    return found, scores[0, : counts[0]], sources, given


def top(weights: Weights, query: Query, mask: Mask, k: int) -> tuple[Array, Array, Array]:
    """The first k items of every query: (items, scores), both queries x k, and how many of the k there are."""
    items = np.full((len(query), k), -1, np.int32)
    scores = np.full((len(query), k), np.nan)
    counts = np.zeros(len(query), np.int64)
    arrays, parts = weights.arrays, _parts(query, mask)

    def work(a: int, b: int) -> None:
        rest = (*parts, a, b, weights.scratch(), (items, scores, counts))
        if weights.fade is not None:
            _top_runs(arrays, *rest)
        elif weights.is_sparse:
            _top_sparse(arrays, weights.peaks, *rest)
        else:
            _top_dense(arrays, *rest)

    if len(query) == 1:  # needs no parts, threads or bars
        work(0, 1)
    else:
        run_chunks("rank", work, even(len(query), _BATCH))
    return items, scores, counts


def answer(
    weights: Weights, query: Query, mask: Mask, k: int, most: int
) -> tuple[Array, Array, Array, Array]:
    """The first k items of one query and their scores; for each, the sources that give it most, and what."""
    if weights.is_sparse and weights.fade is None:  # in one call: a service asks thousands a second
        parts = (*_parts(query, mask), weights.scratch(), k, most)
        found: tuple[Array, Array, Array, Array] = _answer_sparse(
            weights.arrays, weights.peaks, *parts
        )
        return found
    items, scores, counts = top(weights, query, mask, k)
    return (
        items[0, : counts[0]],
        scores[0, : counts[0]],
        *weights.reasons(query, items[0, : counts[0]], most),
    )


def ranks(weights: Weights, query: Query, mask: Mask, targets: Array) -> Array:
    """The rank (from 1) of one target for every query under full ranking; 0 where it has none.

    Two columns: with the items of item[start[q]:stop[q]] ranked too, and with those hidden.
    """
    out = np.zeros((len(query), 2), np.int64)
    run = _place_sparse if weights.is_sparse else _place_dense
    if weights.fade is not None:
        run = _place_runs
    parts = _parts(query, mask)
    run_chunks(
        "rank",
        lambda a, b: run(weights.arrays, *parts, a, b, weights.scratch(), targets, out),
        even(len(query), _BATCH),
    )
    return out


def _parts(query: Query, mask: Mask) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    return (query.ptr, query.item, query.weight), (
        mask.allowed,
        mask.start,
        mask.stop,
        mask.item,
    )
