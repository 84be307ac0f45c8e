"""The loops that add up scores, and that find what a score is made of.

score_*(weights, sources, weights of the sources, work space) -> number of candidates: their items and scores
stand at the front of the work space (`Weights.scratch`), NaN stands for none.
"""

from __future__ import annotations

import numpy as np

from talerec.runtime.arrays import Array, Arrays
from talerec.runtime.jit import kernel, template, unsigned

UNTOUCHED = -(2**63)  # the bits of -0.0
LEAST = 2.0**-800  # times the smallest float32 this is no zero yet


@template
def score_dense(arrays: Arrays, item: Array, weight: Array, scratch: Arrays) -> int:
    B, base = arrays
    scores, n = scratch[1], len(scratch[1]) - 1
    for j in range(n):
        scores[j] = 0.0 if len(base) == 0 or np.isnan(base[j]) else base[j]
    for x in range(len(item)):
        row, w = B[item[x]], weight[x]
        for j in range(n):
            scores[j] += w * row[j]
    for j in range(n):
        if scores[j] == 0.0:
            stored = len(base) > 0 and not np.isnan(base[j])
            for x in range(len(item)):
                stored = stored or B[item[x], j] != 0.0
            if not stored:
                scores[j] = np.nan
    return n


@template
def score_sparse(arrays: Arrays, item: Array, weight: Array, scratch: Arrays) -> int:
    slots = slots_for(len(arrays[3]), scratch)
    found = add_base(arrays, scratch, slots)
    for x in range(len(item)):
        slots = room_for(arrays, item[x], scratch, slots, found)
        found = add_source(arrays, item[x], weight[x], scratch, slots, found)
    return settle(scratch, slots, found)


@template
def score_runs(arrays: Arrays, entry: Array, weight: Array, scratch: Arrays) -> int:
    """Scores from histories: each source is an entry of one, and its neighbours there get the fading of their distance."""
    indptr, indices, fade, base = arrays
    slots = slots_for(len(base), scratch)
    found = add_base(arrays, scratch, slots)
    given = np.empty(len(fade))
    for x in range(len(entry)):
        history = np.searchsorted(indptr, entry[x], side="right") - 1
        lo, hi = indptr[history], indptr[history + 1]
        for e in range(lo, hi):
            given[e - lo] = fade[abs(e - entry[x])]
        slots = room_for(arrays, history, scratch, slots, found)
        near = (indices[lo:hi], given, 0, hi - lo)
        found = add_row(*near, weight[x], scratch, slots, found)
    return settle(scratch, slots, found)


# How a candidate is found by its item. Few items have a sum each; -0.0, which no sum that something was
# added to can be, says that an item is no candidate. Of many items, only candidates stand in a table of slots.


@template
def are_few(scratch: Arrays) -> bool:
    return len(scratch[3]) > 0


@template
def sum_up(arrays: Arrays, item: Array, weight: Array, scratch: Arrays) -> None:
    """The sums of few items; whoever reads them clears them."""
    add_base(arrays, scratch, scratch[2])
    for x in range(len(item)):
        add_source(arrays, item[x], weight[x], scratch, scratch[2], 0)


@template
def settle(scratch: Arrays, slots: Array, found: int) -> int:
    """Put the candidates and their scores to the front, and empty what found them; how many there are."""
    candidates, scores, _, sums = scratch[:4]
    slots[:] = 0
    if not are_few(scratch):
        return found
    place, untouched = np.uint64(0), sums.view(np.int64)
    # there is one place more than items: each is written before it is known whether it counts
    for j in range(len(sums)):
        candidates[place], scores[place] = j, sums[j]
        place += np.uint64(untouched[j] != UNTOUCHED)
    sums[:] = -0.0
    return int(np.int64(place))


@template
def room_for(arrays: Arrays, i: int, scratch: Arrays, slots: Array, found: int) -> Array:
    """Slots for what has been found and all of row i: these, or more of them."""
    indptr, candidates = arrays[0], scratch[0]
    wider = slots_for(found + indptr[i + 1] - indptr[i], scratch)
    if len(wider) <= len(slots):
        return slots
    slots[:] = 0
    for c in range(found):
        wider[slot_of(candidates[c], wider, candidates)] = c + 1
    return wider


@template
def slots_for(most: int, scratch: Arrays) -> Array:
    """Slots for so many candidates, and no more: a small table stays in the cache."""
    most = min(most, len(scratch[0]))
    size = 16
    while size < 2 * most:
        size *= 2
    slots: Array = scratch[2][: min(size, len(scratch[2]))]
    return slots


@template
def slot_of(j: int, slots: Array, candidates: Array) -> int:
    """Where item j stands in the table, or the empty slot where it would."""
    last = len(slots) - 1
    slot = ((j * 2654435769) >> 7) & last
    while slots[slot] != 0 and candidates[slots[slot] - 1] != j:
        slot = (slot + 1) & last
    return slot


@template
def add_base(arrays: Arrays, scratch: Arrays, slots: Array) -> int:
    """Start with the items that have a base score; how many candidates that makes."""
    base = arrays[3]
    candidates, scores, _, sums = scratch[:4]
    found = 0
    for j in range(len(base)):
        if np.isnan(base[j]):
            continue
        if are_few(scratch):
            sums[j] = base[j] + 0.0
        else:
            candidates[found], scores[found] = j, base[j]
            found += 1
            slots[slot_of(j, slots, candidates)] = found
    return found


@template
def add_source(arrays: Arrays, i: int, w: float, scratch: Arrays, slots: Array, found: int) -> int:
    """Add w times row i of B; how many candidates there are now."""
    indptr, indices, values, _ = arrays
    lo, hi = indptr[i], indptr[i + 1]
    if are_few(scratch) and abs(w) > LEAST:  # no weight is zero, so that no product is
        sums = scratch[3]
        for e in unsigned(lo, hi):
            sums[np.uint32(indices[e])] += w * values[e]
        return found
    return add_row(indices, values, lo, hi, w, scratch, slots, found)


@template
def add_row(
    items: Array,
    values: Array,
    lo: int,
    hi: int,
    w: float,
    scratch: Arrays,
    slots: Array,
    found: int,
) -> int:
    """Add w times values[lo:hi] to the scores of items[lo:hi]; how many candidates are in the table now."""
    candidates, scores, _, sums = scratch[:4]
    if are_few(scratch):
        for e in unsigned(lo, hi):
            if values[e] != 0.0:  # and what is too small to be seen is 0.0, not -0.0
                sums[np.uint32(items[e])] += w * values[e] + 0.0
        return found
    for e in unsigned(lo, hi):
        if values[e] == 0.0:
            continue
        slot = slot_of(items[e], slots, candidates)
        if slots[slot] == 0:
            candidates[found], scores[found] = items[e], 0.0
            found += 1
            slots[slot] = found
        scores[slots[slot] - 1] += w * values[e]
    return found


@template
def found_at(indices: Array, lo: int, hi: int, j: int) -> int:
    """Where j stands in the ascending indices[lo:hi], -1 where it does not. (No branch depends on what is found.)"""
    if lo == hi:
        return -1
    size = hi - lo
    while size > 1:
        half = size >> 1
        lo += half * (indices[np.uint64(lo + half)] <= j)
        size -= half
    return lo if indices[lo] == j else -1


@kernel
def sparse_parts(arrays: Arrays, item: Array, weight: Array, targets: Array) -> Array:
    """What each source (column) gives to each target (row)."""
    indptr, indices, values = arrays
    parts = np.zeros((len(targets), len(item)))
    at = np.empty(len(targets), np.uint64)
    for x in range(len(item)):
        lo, size = np.uint64(indptr[item[x]]), np.uint64(indptr[item[x] + 1] - indptr[item[x]])
        if size == 0:
            continue
        at[:] = lo
        while size > np.uint64(
            1
        ):  # `found_at` of all targets, step by step: memory is asked for many at once
            half = size >> np.uint64(1)
            for t in range(len(targets)):
                at[t] += half * np.uint64(indices[at[t] + half] <= targets[t])
            size -= half
        for t in range(len(targets)):
            if indices[at[t]] == targets[t]:
                parts[t, x] = weight[x] * values[at[t]]
    return parts


@kernel
def give_to_items(parts: Array, sources: Array, n: int) -> None:
    """Leave parts (targets x sources) to items alone: source n + i speaks for item i, whose column is there; later ones
    for none."""
    for x in range(len(sources)):
        for t in range(len(parts) if sources[x] >= n else 0):
            part, parts[t, x] = parts[t, x], 0.0
            for y in range(len(sources) if part != 0.0 else 0):
                if sources[y] + n == sources[x]:
                    parts[t, y] += part


@template
def _put_in(value: float, what: int, values: Array, names: Array, size: int) -> int:
    """Put a value where it belongs among the `size` largest so far, by absolute value; how many there are now.

    Zero belongs nowhere.
    """
    most = len(values)
    m = min(size, most)
    if value == 0.0 or (m == most and (most == 0 or abs(values[m - 1]) >= abs(value))):
        return size
    while m > 0 and abs(values[m - 1]) < abs(value):
        if m < most:
            values[m], names[m] = values[m - 1], names[m - 1]
        m -= 1
    values[m], names[m] = value, what
    return min(size + 1, most)


@kernel
def strongest(parts: Array, scores: Array, most: int) -> tuple[Array, Array, Array]:
    """Of each row, the columns of its `most` largest parts (absolute values), and their shares of the row's score.

    Row r has the entries from ends[r - 1] to ends[r]. Equal parts come in column order, zeros are left out, and
    a score of zero has no shares.
    """
    rows, size = parts.shape
    ends = np.empty(rows, np.int64)
    columns, shares = np.empty(rows * most, np.int64), np.empty(rows * most)
    end = 0
    for r in range(rows):
        mine, found = slice(end, end + most), 0
        for c in range(size if scores[r] != 0.0 else 0):
            found = _put_in(parts[r, c], c, shares[mine], columns[mine], found)
        for n in range(end, end + found):
            shares[n] /= scores[r]
        end += found
        ends[r] = end
    return ends, columns[:end], shares[:end]


@kernel
def row_peaks(indptr: Array, values: Array) -> Array:
    """The largest absolute value of each compressed row."""
    peaks = np.zeros(len(indptr) - 1, np.float32)
    for i in range(len(peaks)):
        for e in range(indptr[i], indptr[i + 1]):
            peaks[i] = max(peaks[i], abs(values[e]))
    return peaks
