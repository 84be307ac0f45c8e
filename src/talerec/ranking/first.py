"""The one rule of ranking, and the first k items by it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from talerec.runtime.arrays import Array
from talerec.runtime.jit import template

_IN_ORDER = 64  # up to so many entries are kept in order; more are kept as a heap, which costs less to change


class First(NamedTuple):
    """The first items so far and their scores. Once they are as many as there is room for, the last of them stands first."""

    items: Array
    scores: Array


class Shown(NamedTuple):
    """Which items may be in a list: those with a 1 in `allowed` (all where it is empty) and a 0 in `hidden` (none is hidden where it is empty)."""

    allowed: Array
    hidden: Array


@template
def before(score: float, item: int, other_score: float, other_item: int) -> bool:
    """The rule: a higher score stands before a lower one, and of equal scores the item with the lower position."""
    return score > other_score or (score == other_score and item < other_item)


@template
def is_allowed(shown: Shown, j: int) -> bool:
    """May item j be ranked at all?"""
    return len(shown.allowed) == 0 or shown.allowed[j] != 0


@template
def is_shown(shown: Shown, j: int) -> bool:
    """May item j be in the list?"""
    return (len(shown.hidden) == 0 or shown.hidden[j] == 0) and is_allowed(shown, j)


@template
def offer(first: First, size: int, j: int, score: float, shown: Shown) -> int:
    """Put an item where it belongs among the first ones; how many there are then."""
    items, scores, k = first.items, first.scores, len(first.items)
    if size == k and (k == 0 or not before(score, j, scores[0], items[0])):
        return size
    if np.isnan(score) or not is_shown(shown, j):
        return size
    if size == k:
        items[0], scores[0] = j, score
        if k <= _IN_ORDER:
            _slide(items, scores, 0, k)
        else:
            _sift(items, scores, 0, k)
        return size
    items[size], scores[size] = j, score
    if size + 1 == k:
        _make_heap(items, scores, k)
    return size + 1


@template
def in_rank_order(first: First, size: int) -> int:
    """Put the first items into rank order; how many there are."""
    items, scores = first.items, first.scores
    if size < len(items):
        _make_heap(items, scores, size)
    if size <= _IN_ORDER:
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
    """Bring entries into an order in which the last-ranked stands first."""
    if size <= _IN_ORDER:
        for place in range(size - 2, -1, -1):
            _slide(items, scores, place, size)
        return
    for root in range(size // 2 - 1, -1, -1):
        _sift(items, scores, root, size)


@template
def _slide(items: Array, scores: Array, place: int, size: int) -> None:
    """Move an entry to where it belongs among entries in order, the last-ranked first."""
    item, score = items[place], scores[place]
    while place + 1 < size and before(score, item, scores[place + 1], items[place + 1]):
        items[place], scores[place] = items[place + 1], scores[place + 1]
        place += 1
    items[place], scores[place] = item, score


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
