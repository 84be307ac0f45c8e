"""Inference: the only way to ask a fitted model, in positions of items.

`rank_top` gives recommendation lists, `rank_targets` the ranks of held-out items, and
`rank_with_reasons` lists with the history items that explain them. Commands, evaluation, Spark and
the service all use these functions; a model defines the operations of `Scorer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from talerec.data import Histories, Log
from talerec.errors import TalerecError
from talerec.models.core.boosts import BoostSpec, ItemBoosts, boosts_of_item, check_boosts
from talerec.models.core.filters import ColumnLimit, ItemFilter, both, item_table
from talerec.models.core.scorer import Scorer, TopItems
from talerec.models.core.slots import PlaceCandidates, fill_places, fill_ranking
from talerec.ranking import ExplainedLists, Mask, Ranked
from talerec.runtime import Array, kernel, sized_chunks

_SMALL = 64  # histories that are ranked together, however long they are
_GROWTH = 4  # times longer: the next attempt at lists of which limits or boosts use up too much
_MAX_ENTRIES = 2**22  # entries of such longer lists in memory at a time
RANGE_DEPTH = 100  # a list's score range: its first score less the score at this rank

NO_FILTER = ItemFilter()


def check_k(model: Scorer, k: int) -> None:
    """Raise TalerecError unless the list length k is from 1 to the model's number of items."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise TalerecError(f"`k` is {k!r}; it takes a whole number from 1", "k")
    if k > len(model.fitted.items):
        raise TalerecError(f"`k` is {k}, but the model knows {len(model.fitted.items)} items", "k")


def rank_top(
    model: Scorer, histories: Histories, k: int, item_filter: ItemFilter = NO_FILTER
) -> TopItems:
    """Return the top k items of each history under a filter: item positions, scores, lengths.

    The filter has the allowed items, whether history items are hidden, limits per column value, and
    boosts (additions to scores). TalerecError if k is not from 1 to the number of items.
    """
    check_k(model, k)
    if item_filter.keeps_order:
        return _rank_allowed(model, histories, k, item_filter.hide_seen, item_filter.allowed)
    return _rank_limited(model, histories, k, item_filter)[0]


def rank_targets(
    model: Scorer, histories: Histories, targets: Array, k: int = 0, *, hide_seen: bool = False
) -> Ranked:
    """Return the ranks of each history's target among all items, and the top k items.

    targets: an item position per history, -1 for none. Both come from one pass over the scores.
    Ranks count from 1, in two columns: with the items of the history ranked, and with them hidden.
    A rank is 0 for an item without a score, for target -1, and, in the second column, for a target
    that is in the history. `hide_seen` says which of the two the top k follow.
    """

    def work(part: Histories, a: int, b: int) -> Ranked:
        mask = Mask.make(part, hide_seen=hide_seen)
        return model.rank_masked(part, mask, k, targets[a:b])

    return _rank_blocks(histories, work, k)


def rank_with_reasons(
    model: Scorer,
    histories: Histories,
    k: int,
    item_filter: ItemFilter = NO_FILTER,
    n_reasons: int = 3,
) -> tuple[ExplainedLists, list[float] | None]:
    """Return the top k items of each history with reasons, and the scores that boosts added.

    The reasons of an item are the `n_reasons` history items that contribute most to its score. A
    boost adds a fraction of a list's score range to some items; the second value has what it added
    to each listed item, list after list, and is None without boosts.
    """
    check_k(model, k)
    if item_filter.keeps_order:
        mask = Mask.make(histories, hide_seen=item_filter.hide_seen, allowed=item_filter.allowed)
        return model.rank_masked_with_reasons(histories, mask, k, n_reasons), None
    lists, score_range = _rank_limited(model, histories, k, item_filter)
    hide_seen = item_filter.hide_seen
    if item_filter.boosts is None:
        return model.explain_lists(histories, lists, n_reasons, hide_seen=hide_seen), None
    boosts = item_filter.boosts.fractions[lists.items] * score_range[:, None]  # beyond a list: any
    answer = model.explain_lists(histories, lists, n_reasons, boosts, hide_seen=hide_seen)
    is_listed = np.arange(lists.items.shape[1]) < lists.counts[:, None]
    added: list[float] = boosts[is_listed].tolist()
    return answer, added


def explain_boosts(
    model: Scorer, history: Histories, target: int, boost: BoostSpec, item_filter: ItemFilter
) -> list[tuple[str, Any, float]]:
    """Return (column, value, score added) of each boost of an item, after one history.

    boost: column -> value -> fraction of the list's score range (its first score less the
    hundredth). target: an item position; without a score after the history it is not boosted.
    `item_filter` is that of the list whose score range is meant.
    """
    table = item_table(model, "boost")
    check_boosts(table, boost)
    if not rank_targets(model, history, np.array([target])).ranks[0, 0]:
        return []
    size = min(RANGE_DEPTH, len(model.fitted.items))
    lists = _rank_allowed(model, history, size, item_filter.hide_seen, item_filter.allowed)
    score_range = float(find_score_ranges(lists)[0])
    boosts = boosts_of_item(table, boost, target)
    return [(column, value, fraction * score_range) for column, value, fraction in boosts]


def user_histories(log: Log, users: Array, request_time: int | None) -> Histories:
    """Return the histories of a log's users (positions) as they were at a request time.

    request_time: microseconds since 1970; rows that are not before it are left out. None: the
    histories have all rows, and no request time. A log without times keeps all rows.
    """
    histories = Histories.of_users(log, users)
    is_timed = log.unit != "none"
    return histories.before(request_time) if is_timed else histories.as_of(request_time)


def _rank_allowed(
    model: Scorer, histories: Histories, k: int, hide_seen: bool, allowed: Array | None
) -> TopItems:
    """Return the top k allowed items of each history, in the model's order.

    `allowed` holds a flag (uint8) per item; None allows all. `hide_seen` leaves out history items.
    """

    def work(part: Histories, a: int, b: int) -> Ranked:
        mask = Mask.make(part, hide_seen=hide_seen, allowed=allowed)
        return model.rank_masked(part, mask, k)

    return TopItems(*_rank_blocks(histories, work, k)[:3])


def _rank_blocks(
    histories: Histories, work: Callable[[Histories, int, int], Ranked], k: int
) -> Ranked:
    """Rank histories in blocks of limited size, and return the results joined.

    `work(part, a, b)` ranks `part`, the histories from a to b - 1. `k` is the length of the lists.
    """
    if 0 < len(histories) <= _SMALL:
        return work(histories, 0, len(histories))
    empty = (np.empty((0, k), np.int32), np.empty((0, k)), np.empty(0, np.int64))
    blocks = [Ranked(*empty, np.empty((0, 2), np.int64))]
    blocks += [work(histories.slice(a, b), a, b) for a, b in histories.chunks()]
    return Ranked(*(np.concatenate(columns) for columns in zip(*blocks, strict=True)))


# -- lists with column limits and boosts -----------------------------------------------------------


class _Prefix(NamedTuple):
    """The beginning of each history's list, ordered by boosted scores.

    lists         `counts` items of a row are certain: no item outside the row ranks before them
    has_more      per history: whether other items may follow the certain ones
    score_ranges  per history: first score less the hundredth (or last) of its list without boosts
    """

    lists: TopItems
    has_more: Array
    score_ranges: Array

    def candidates(self, n: int) -> PlaceCandidates:
        """Return the certain items of history number n, for the places of its list."""
        count = int(self.lists.counts[n])
        rows = self.lists.items[n, :count], self.lists.scores[n, :count]
        return PlaceCandidates(*rows, has_more=bool(self.has_more[n]))


def _rank_limited(
    model: Scorer, histories: Histories, k: int, item_filter: ItemFilter
) -> tuple[TopItems, Array]:
    """Return the top k items under limits and boosts, and each list's score range.

    Limits (items of a list that may share a column's value) leave out items, and boosts (fractions
    of the score range added to items) move up items from far behind; so longer lists are ranked
    until the top k are certain or no more items are left. The score range is the first score less
    the hundredth, without boosts.
    """
    if item_filter.slots:
        return _rank_with_slots(model, histories, k, item_filter)
    n_items, n_histories = len(model.fitted.items), len(histories)
    score_ranges, lists = np.zeros(n_histories), TopItems.empty(n_histories, k)
    unfinished, attempt = np.arange(n_histories), 0
    size = max(_GROWTH * k, 0 if item_filter.boosts is None else RANGE_DEPTH)
    while unfinished.size:
        size, short = min(size, n_items), []
        for a, b in sized_chunks(unfinished.size, max(1, _MAX_ENTRIES // size)):
            rows = unfinished[a:b]
            ranges = score_ranges[rows] if attempt else None
            prefix = _rank_prefix(model, histories.take(rows), size, item_filter, ranges)
            top = _apply_limits(prefix.lists, item_filter.limits, k)
            lists.items[rows], lists.scores[rows], lists.counts[rows] = top
            score_ranges[rows] = prefix.score_ranges
            short.append(rows[(top.counts < k) & prefix.has_more])
        unfinished, attempt = np.concatenate(short), attempt + 1
        size *= 1 if attempt == 1 and item_filter.boosts is not None else _GROWTH
    return lists, score_ranges


def _rank_with_slots(
    model: Scorer, histories: Histories, k: int, item_filter: ItemFilter
) -> tuple[TopItems, Array]:
    """Return the top k items with slots filled (`fill_places`), and each list's score range.

    The items of a slot are ranked by themselves, with the boosts of the whole list. Longer lists
    are ranked until all places of a history are filled, or no more items are left.
    """
    n_items, n_histories = len(model.fitted.items), len(histories)
    score_ranges, lists = np.zeros(n_histories), TopItems.empty(n_histories, k)
    plain, slots = replace(item_filter, limits=(), slots=()), item_filter.slots
    of_slots = [replace(plain, allowed=both(plain.allowed, slot.allowed)) for slot in slots]
    limits = [(limit.codes, limit.limit) for limit in item_filter.limits]
    unfinished, size = np.arange(n_histories), max(_GROWTH * k, RANGE_DEPTH)
    while unfinished.size:
        size, is_first, short = min(size, n_items), unfinished.size == n_histories, []
        for a, b in sized_chunks(unfinished.size, max(1, _MAX_ENTRIES // size // (1 + len(slots)))):
            rows = unfinished[a:b]
            part, ranges = histories.take(rows), None if is_first else score_ranges[rows]
            first = _rank_prefix(model, part, size, plain, ranges)
            score_ranges[rows] = first.score_ranges
            others = (_rank_prefix(model, part, size, f, first.score_ranges) for f in of_slots)
            prefixes = [first, *others]
            for n, row in enumerate(rows.tolist()):
                all_items, *slot_items = (prefix.candidates(n) for prefix in prefixes)
                filled = fill_places(all_items, slots, slot_items, limits, k)
                n_filled = lists.counts[row] = len(filled.items)
                lists.items[row, :n_filled] = filled.items
                lists.scores[row, :n_filled] = filled.scores
                if filled.is_open:
                    short.append(row)
        unfinished, size = np.array(short, np.int64), _GROWTH * size
    return lists, score_ranges


def _rank_prefix(
    model: Scorer,
    histories: Histories,
    size: int,
    item_filter: ItemFilter,
    score_ranges: Array | None,
) -> _Prefix:
    """Return the first items of each list by boosted scores, from lists of `size` items.

    score_ranges: first score less the hundredth of each list, of which boosts add a fraction. At
    the first attempt it is None: one list per history gives it too. Later, the raised items and the
    others are ranked apart, `size` of each.
    """
    boosts, n_items = item_filter.boosts, len(model.fitted.items)
    hide_seen, allowed = item_filter.hide_seen, item_filter.allowed
    if boosts is None or score_ranges is None:
        lists = _rank_allowed(model, histories, size, hide_seen, allowed)
        if boosts is None:
            has_more = (lists.counts == size) & (size < n_items)
            return _Prefix(lists, has_more, np.zeros(len(histories)))
        largest = max(fraction for _, fraction in boosts.groups)
        return _merge_boosted([(lists, largest)], boosts, find_score_ranges(lists), n_items)
    groups = []
    for flags, fraction in boosts.groups:
        group = flags if allowed is None else flags & allowed
        groups.append((_rank_allowed(model, histories, size, hide_seen, group), fraction))
    return _merge_boosted(groups, boosts, score_ranges, n_items)


def find_score_ranges(lists: TopItems) -> Array:
    """Return each list's score range: its first score less its hundredth (or last).

    lists: scores, best first, and the length of each list. 0 for a list of fewer than two items, or
    if a score is not finite.
    """
    rows = np.arange(len(lists.scores))
    last = lists.scores[rows, np.clip(lists.counts, 1, RANGE_DEPTH) - 1]
    score_range = np.where(lists.counts > 1, lists.scores[:, 0] - last, 0.0)
    score_range[~np.isfinite(score_range)] = 0.0
    return score_range


def _merge_boosted(
    groups: list[tuple[TopItems, float]], boosts: ItemBoosts, score_ranges: Array, n_items: int
) -> _Prefix:
    """Merge lists of disjoint groups of items into one order by boosted scores.

    A boost adds an item's fraction of the list's score range. Each group comes with its items'
    largest fraction: an item outside its list scores at most the list's last score plus that boost.
    Items above this bound in all groups are certain: the returned `counts` count them, and
    `has_more` says which histories have other items. n_items: of the model.
    """
    items = np.concatenate([lists.items for lists, _ in groups], axis=1)
    scores = np.concatenate([lists.scores for lists, _ in groups], axis=1)
    fractions = np.where(items >= 0, boosts.fractions[items], 0.0)
    scores = scores + fractions * score_ranges[:, None]
    bound = np.full(len(items), -np.inf)
    for lists, largest in groups:
        size = lists.items.shape[1]
        is_cut = (lists.counts == size) & (size < n_items)
        limit = lists.scores[:, -1] + largest * score_ranges
        bound = np.where(is_cut, np.maximum(bound, limit), bound)
    order = np.lexsort((items, -scores), axis=-1)
    items, scores = (np.take_along_axis(part, order, axis=1) for part in (items, scores))
    counts = (scores > bound[:, None]).sum(axis=1)  # NaN is above nothing
    return _Prefix(TopItems(items, scores, counts), np.isfinite(bound), score_ranges)


def filter_ranking(
    items: Array, scores: Array, k: int, item_filter: ItemFilter
) -> tuple[Array, Array, Array]:
    """Return the top k items of one ranking that a filter allows: items, scores, boosts added.

    `items` (positions) and `scores` are best first. The filter has allowed items, boosts (fractions
    of the score range added to items) and limits (items that may share a column's value). Returned
    scores include the boosts.
    """
    if item_filter.allowed is not None:
        is_allowed = item_filter.allowed[items] != 0
        items, scores = items[is_allowed], scores[is_allowed]
    added = np.zeros(len(items))
    n_left = np.array([len(items)])
    if item_filter.boosts is not None and len(items):
        score_range = find_score_ranges(TopItems(items[None], scores[None], n_left))[0]
        added = item_filter.boosts.fractions[items] * score_range
        order = np.argsort(-(scores + added), kind="stable")
        items, scores, added = items[order], (scores + added)[order], added[order]
    if item_filter.slots:
        pairs = [(limit.codes, limit.limit) for limit in item_filter.limits]
        left = fill_ranking(items, scores, item_filter.slots, pairs, k)
        items, scores, added = items[left], scores[left], added[left]
    elif item_filter.limits:
        ranking = TopItems(np.arange(len(items), dtype=np.int32)[None], scores[None], n_left)
        limits = tuple(ColumnLimit(each.codes[items], each.limit) for each in item_filter.limits)
        ranks, _, counts = _apply_limits(ranking, limits, min(k, len(items)))
        left = ranks[0, : counts[0]]
        items, scores, added = items[left], scores[left], added[left]
    return items[:k], scores[:k], added[:k]


def _apply_limits(lists: TopItems, limits: tuple[ColumnLimit, ...], k: int) -> TopItems:
    """Return the first k items of each list that stay within the limits per column value.

    A limit has a code of each item's value in a column of the item table (-1: none), and how many
    items of a list may have the same code.
    """
    if not limits:
        return TopItems(lists.items[:, :k], lists.scores[:, :k], np.minimum(lists.counts, k))
    top = TopItems.empty(len(lists.items), k)
    codes = np.stack([limit.codes for limit in limits])
    max_counts = np.array([limit.limit for limit in limits])
    used = np.zeros((len(limits), int(codes.max(initial=0)) + 1), np.int64)
    _take_within_limits(lists, codes, max_counts, used, top)
    return top


@kernel
def _take_within_limits(
    lists: TopItems, codes: Array, max_counts: Array, used: Array, top: TopItems
) -> None:
    """Fill `top` from the front of each list with items within the limits.

    lists : item positions, scores and lengths, a row per list, best first
    codes : limits x items, the code of each item's value in a column; -1 is not limited
    max_counts : of each limit, how many items of a list may share a value
    used  : limits x values, counts of the items taken; all 0 on entry and on return
    top   : the result; its number of columns is the longest list to fill
    """
    for h in range(len(lists.items)):
        n = 0
        for position in range(lists.counts[h]):
            if n == top.items.shape[1]:
                break
            item = lists.items[h, position]
            fits = True
            for c in range(len(max_counts)):
                fits = fits and (codes[c, item] < 0 or used[c, codes[c, item]] < max_counts[c])
            if fits:
                top.items[h, n], top.scores[h, n] = item, lists.scores[h, position]
                n += 1
                for c in range(len(max_counts)):
                    used[c, max(codes[c, item], 0)] += codes[c, item] >= 0
        top.counts[h] = n
        for x in range(n):
            for c in range(len(max_counts)):
                used[c, max(codes[c, top.items[h, x]], 0)] = 0
