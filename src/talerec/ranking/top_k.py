"""The ranking order, and the top k items by it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime import Array, template

_SORTED = 64  # up to this k the top k are a sorted list; beyond, a heap, which is cheaper to change


class TopK(NamedTuple):
    """The top items so far and their scores, arrays of length k.

    Until k items are there, they are in any order; from then on the last-ranked is first, and the
    rest is sorted from last-ranked to best, or a heap if k is over 64.
    """

    items: Array
    scores: Array


class ItemFlags(NamedTuple):
    """Flags of the items that may be ranked and listed."""

    allowed: Array  # per item, 0: it may not be ranked at all; empty: all are allowed
    hidden: Array  # per item, not 0: it is ranked, but not listed; empty: none is hidden


@template
def ranks_before(score: float, item: int, other_score: float, other_item: int) -> bool:
    """Return whether an item ranks before another: by higher score, then by lower position.

    item, other_item: the positions of the items in the model's vocabulary.
    """
    return score > other_score or (score == other_score and item < other_item)


@template
def is_allowed(flags: ItemFlags, j: int) -> bool:
    """Return whether item j may be ranked at all, even if it is hidden from the list.

    flags.allowed has a number per item, 0 if it may not; empty: all items may.
    """
    return len(flags.allowed) == 0 or flags.allowed[j] != 0


@template
def is_listable(flags: ItemFlags, j: int) -> bool:
    """Return whether item j may be in the top k: it is allowed and not hidden.

    flags: `allowed` (0: not allowed) and `hidden` (not 0: hidden) per item; an empty array allows
    all items, or hides none.
    """
    return (len(flags.hidden) == 0 or flags.hidden[j] == 0) and is_allowed(flags, j)


@template
def push_item(top: TopK, size: int, j: int, score: float, flags: ItemFlags) -> int:
    """Put item j into the top k, in place, if it belongs there; return the new size.

    top: the top items so far, the last-ranked first once there are k. size: how many of the k
    entries are filled. A NaN score, or an item that `flags` do not allow or hide, never enters;
    when the top k are full, the last-ranked item drops out.
    """
    items, scores, k = top.items, top.scores, len(top.items)
    if size == k and (k == 0 or not ranks_before(score, j, scores[0], items[0])):
        return size
    if np.isnan(score) or not is_listable(flags, j):
        return size
    if size == k:
        items[0], scores[0] = j, score
        if k <= _SORTED:
            _slide(items, scores, 0, k)
        else:
            _sift(items, scores, 0, k)
        return size
    items[size], scores[size] = j, score
    if size + 1 == k:
        _make_heap(items, scores, k)
    return size + 1


@template
def sort_top_k(top: TopK, size: int) -> int:
    """Sort the first `size` top items in place, best first; return `size`.

    top: items and scores as `push_item` leaves them: once k are there, from last-ranked to best, or
    a heap if k is over 64; before that in any order.
    """
    items, scores = top.items, top.scores
    if size < len(items):
        _make_heap(items, scores, size)
    if size <= _SORTED:
        for x in range(size // 2):
            y = size - 1 - x
            items[x], items[y] = items[y], items[x]
            scores[x], scores[y] = scores[y], scores[x]
        return size
    for last in range(size - 1, 0, -1):
        items[0], items[last] = items[last], items[0]
        scores[0], scores[last] = scores[last], scores[0]
        _sift(items, scores, 0, last)
    return size


@template
def _make_heap(items: Array, scores: Array, size: int) -> None:
    """Order entries so that the last-ranked is first: sorted if they are few, else as a heap.

    A few are up to 64; they are sorted from last-ranked to best. The first `size` entries of items
    and scores are ordered in place.
    """
    if size <= _SORTED:
        for position in range(size - 2, -1, -1):
            _slide(items, scores, position, size)
        return
    for root in range(size // 2 - 1, -1, -1):
        _sift(items, scores, root, size)


@template
def _slide(items: Array, scores: Array, position: int, size: int) -> None:
    """Move the entry at `position` to where it belongs among the entries after it, in place.

    The entries position + 1..size of items and scores are sorted, the last-ranked first.
    """
    item, score = items[position], scores[position]
    while position + 1 < size and ranks_before(
        score, item, scores[position + 1], items[position + 1]
    ):
        items[position], scores[position] = items[position + 1], scores[position + 1]
        position += 1
    items[position], scores[position] = item, score


@template
def _sift(items: Array, scores: Array, root: int, size: int) -> None:
    """Restore a binary heap (last-ranked entry at the root) after the entry at `root` changed.

    The heap has `size` entries; the subtrees of `root` are heaps.
    """
    while True:
        last = root
        for child in (2 * root + 1, 2 * root + 2):
            if child < size and ranks_before(
                scores[last], items[last], scores[child], items[child]
            ):
                last = child
        if last == root:
            return
        items[root], items[last] = items[last], items[root]
        scores[root], scores[last] = scores[last], scores[root]
        root = last
