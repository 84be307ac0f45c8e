"""Contributions of a history's items to scores that neighbors give."""

from __future__ import annotations

import numpy as np

from talerec.runtime import Array, Arrays, as_readonly, borrow, kernel

_BITS = 4096  # bits of item positions that are looked up before a search
_ITEM, _TARGET = 1, 2  # what may have them


def divide_among_shared(
    sequences: Arrays, neighbors: Arrays, items: Array, weights: Array, targets: Array, out: Array
) -> None:
    """Add each neighbor's part of the targets' scores to the history items that it shares.

    A neighbor is a training user; an entry is the number of one of its items in the index.
    sequences: indptr, indices and decay of the users' items, as in a `SequenceBlock`. neighbors:
    of each one the entry from which distances count, the user, and the similarity. items, weights:
    different items of a history, and how much of a neighbor's part each gets. targets: item
    positions. out: target x item.
    """
    order = [np.argsort(array, kind="stable") for array in (items, targets)]
    ordered = [np.ascontiguousarray(items[order[0]]), np.ascontiguousarray(targets[order[1]])]
    looked_up = (as_readonly(ordered[0].astype(np.int64)), as_readonly(ordered[1].astype(np.int64)))
    _divide(tuple(map(as_readonly, sequences)), neighbors, looked_up, tuple(order), weights, out)


@kernel
def _divide(
    sequences: Arrays, neighbors: Arrays, ordered: Arrays, order: Arrays, weights: Array, out: Array
) -> None:
    """Add parts of scores to `out` (target x item); see `divide_among_shared`.

    ordered, order: the items and the targets in ascending order, and their numbers. Most entries of
    neighbors are neither: a table of the last bits of item positions tells which need no search.
    """
    (indptr, indices, decay), (entries, users, similarity) = sequences, neighbors
    (items, targets), (item_order, target_order) = ordered, order
    indices, users = borrow(indices), borrow(users)
    is_shared, may_occur = np.zeros(len(items), np.bool_), np.zeros(_BITS, np.uint8)
    hit, part = np.empty(len(targets), np.int64), np.empty(len(targets))
    for c in range(len(items)):
        may_occur[items[c] % _BITS] |= _ITEM
    for t in range(len(targets)):
        may_occur[targets[t] % _BITS] |= _TARGET
    for n in range(len(entries)):
        low, high, n_hits = indptr[users[n]], indptr[users[n] + 1], 0
        is_shared[:] = False
        for e in range(low, high):
            item = np.int64(indices[e])
            kind = may_occur[item % _BITS]
            if kind == 0:
                continue
            at = np.searchsorted(items, item) if kind & _ITEM else len(items)
            if at < len(items) and items[at] == item:
                is_shared[item_order[at]] = True
            at = np.searchsorted(targets, item) if kind & _TARGET else len(targets)
            while at < len(targets) and targets[at] == item and n_hits < len(hit):
                hit[n_hits] = target_order[at]
                part[n_hits] = similarity[n] * decay[abs(entries[n] - e)]
                n_hits, at = n_hits + 1, at + 1
        if n_hits == 0:
            continue
        total = 0.0
        for c in range(len(weights)):
            total += weights[c] if is_shared[c] else 0.0
        for x in range(n_hits):
            for c in range(len(weights)):
                if is_shared[c]:
                    out[hit[x], c] += part[x] * (weights[c] / total)
