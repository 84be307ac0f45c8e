"""The loops of ranking: the first k of a history, and the place of one item, by the one rule (`before`).

What is hidden has no rank: items that `allowed` says no to, and those of the history where they are to be hidden.
"""

from __future__ import annotations

import numpy as np

from talerec.ranking.score_kernels import (
    UNTOUCHED,
    add_base,
    add_source,
    are_few,
    found_at,
    give_to_items,
    room_for,
    score_dense,
    score_runs,
    score_sparse,
    slots_for,
    sparse_parts,
    strongest,
    sum_up,
)
from talerec.runtime.arrays import Array, Arrays, Kernel
from talerec.runtime.jit import kernel, template, unsigned

_SMALL = 2.0**-6  # of all that a history could give: what is left is asked about from here on,
_SMALLER = 2.0**-2  # and each time again when it has become so much less
_LOOK_UP = 8  # weights added in the time in which one is looked up
_ROUNDING = 1 + 1e-9
_AT_ONCE = 2  # items in a row that are looked over in the time of one weight that is looked up
_SHORT = 64  # entries that are kept in order; more are a heap
_SPAN = 64  # sums that are compared with the last of the first k at a time


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
        if k <= _SHORT:
            _slide(items, scores, 0, k)
        else:
            _sift(items, scores, 0, k)
        return size
    items[size], scores[size] = j, score
    if size + 1 == k:
        _heap(items, scores, k)
    return size + 1


@template
def _slide(items: Array, scores: Array, place: int, size: int) -> None:
    """Move an entry up to where it belongs in a row that is in order, the last-ranked first (a heap, too)."""
    item, score = items[place], scores[place]
    while place + 1 < size and before(score, item, scores[place + 1], items[place + 1]):
        items[place], scores[place] = items[place + 1], scores[place + 1]
        place += 1
    items[place], scores[place] = item, score


@template
def _heap(items: Array, scores: Array, size: int) -> None:
    if size <= _SHORT:
        for place in range(size - 2, -1, -1):
            _slide(items, scores, place, size)
        return
    for root in range(size // 2 - 1, -1, -1):
        _sift(items, scores, root, size)


@template
def _in_order(items: Array, scores: Array, size: int) -> int:
    """Those that were offered in rank order; the number that there are."""
    if size < len(items):
        _heap(items, scores, size)
    if size <= _SHORT:
        items[:size], scores[:size] = items[:size][::-1].copy(), scores[:size][::-1].copy()
        return size
    for last in range(size - 1, 0, -1):
        items[0], items[last] = items[last], items[0]
        scores[0], scores[last] = scores[last], scores[0]
        _sift(items, scores, 0, last)
    return size


@kernel
def _best(scratch: Arrays, found: int, allowed: Array, items: Array, scores: Array) -> int:
    """The first len(items) candidates in rank order; the number that there are."""
    candidates, score, _, _, _, hidden = scratch
    k, size = len(items), 0
    for start in range(0, found, _SPAN):
        stop = min(start + _SPAN, found)
        if size < k or _reach(score, start, stop, scores[0]):
            for c in range(start, stop):
                # asked here: to offer every one would take longer than all the rest
                if size < k or score[c] >= scores[0]:
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
    for start in range(0, len(sums), _SPAN):
        stop = min(start + _SPAN, len(sums))
        if size < k or _reach(sums, start, stop, scores[0]):
            for j in range(start, stop):
                if (size < k or sums[j] >= scores[0]) and untouched[j] != UNTOUCHED:
                    size = _offer(j, sums[j], hidden, allowed, items, scores, size)
        sums[start:stop] = -0.0
    return _in_order(items, scores, size)


@template
def _reach(sums: Array, start: int, stop: int, least: float) -> bool:
    """Is one of sums[start:stop] at least so much? (Without a branch: several are compared at once.)"""
    found = False
    for j in unsigned(start, stop):
        found |= sums[j] >= least
    return found


@kernel
def _top_few(
    arrays: Arrays,
    item: Array,
    weight: Array,
    scratch: Arrays,
    allowed: Array,
    items: Array,
    scores: Array,
) -> int:
    """The first len(items) of few; a function of its own, since its loops are a third slower within another."""
    sum_up(arrays, item, weight, scratch)
    return _best_few(arrays, item, scratch, allowed, items, scores)


@template
def _by_rows(arrays: Arrays, item: Array, scratch: Arrays) -> bool:
    """Is it less work to go over the rows of the sources again than over all items, several at once?"""
    indptr, work = arrays[0], 0
    for x in range(len(item)):
        work += indptr[item[x] + 1] - indptr[item[x]]
    return _AT_ONCE * work + len(arrays[3]) < len(scratch[3])


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
    sum_up(arrays, item, weight, scratch)
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
def top_dense(
    arrays: Arrays, query: Arrays, mask: Arrays, a: int, b: int, scratch: Arrays, out: Arrays
) -> None:
    _top_loop(score_dense, arrays, query, mask, a, b, scratch, out)


@kernel
def top_runs(
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
        e = found_at(indices, indptr[item[y]], indptr[item[y] + 1], j)
        if e >= 0:
            score += weight[y] * values[e]
    return score


@kernel
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
def top_sparse(
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
            _hide(mask, q, scratch[5], 1)
            first = (items[q], scores[q])
            counts[q] = _top_few(arrays, mine, weights, scratch, mask[0], *first)
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
def place_dense(
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
def place_runs(
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
def place_sparse(
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
def answer_sparse(
    arrays: Arrays, peaks: Array, query: Arrays, mask: Arrays, scratch: Arrays, k: int, most: int
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """The columns of `rank.Answer`."""
    ptr, item, weight = query
    asked = len(ptr) - 1
    items, scores, counts = (
        np.empty((asked, k), np.int32),
        np.empty((asked, k)),
        np.zeros(asked, np.int64),
    )
    room, size, end = asked * k, 0, 0
    found, own, ends = np.empty(room, np.int32), np.empty(room), np.empty(room, np.int64)
    sources, shares = np.empty(room * most, np.int32), np.empty(room * most)
    for q in range(asked):
        top_sparse(arrays, peaks, query, mask, q, q + 1, scratch, (items, scores, counts))
        mine, n = item[ptr[q] : ptr[q + 1]], counts[q]
        parts = sparse_parts(arrays[:3], mine, weight[ptr[q] : ptr[q + 1]], items[q, :n])
        give_to_items(parts, mine, len(scratch[4]))
        upto, columns, given = strongest(parts, scores[q, :n], most)
        found[size : size + n], own[size : size + n] = items[q, :n], scores[q, :n]
        ends[size : size + n] = upto + end
        for c in range(len(columns)):
            sources[end + c], shares[end + c] = mine[columns[c]], given[c]
        size, end = size + n, end + len(columns)
    return counts, found[:size], own[:size], ends[:size], sources[:end], shares[:end]
