"""The first stage: candidate items from the lists of several models, and their features."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from talerec.data import Histories
from talerec.features import (
    ContextState,
    FeatureInputs,
    FeatureSources,
    ItemContent,
    ItemTimes,
    PartScores,
    build_features,
    empty_content,
    empty_context,
)
from talerec.models.core import Model
from talerec.models.ranker.content import ContentStage
from talerec.models.ranker.parts import build_views, name_scorers
from talerec.ranking import (
    ItemFlags,
    Mask,
    Query,
    StackQueries,
    StackScratch,
    StackTable,
    TopK,
    WeightsStack,
    borrow_mask,
    borrow_scratch,
    borrow_stack,
    clear_model,
    hide_values,
    is_listable,
    list_top,
    mark_seen,
    model_score,
    push_item,
    rank_target,
    score_model,
    sort_top_k,
)
from talerec.runtime import Array, as_readonly, kernel, template

_LIST = 100  # items of each part's list that may become candidates
_RANKED = 200  # items of each part's list whose rank is a feature
_RANK_OFFSET = 10.0  # rank at which an entry of a list counts half as much as the first one
_RECENT = 50  # different items of a history, newest first, that may become candidates
_NO_TARGETS = np.empty(0, np.int64)
_NO_CONTENT = ItemContent(*map(as_readonly, empty_content()))


class Requests(NamedTuple):
    """Histories with request times, and the time until which the model knows rows.

    now, known_until: int64 microseconds, one per history.
    """

    histories: Histories
    now: Array
    known_until: Array

    def take(self, which: Array) -> Requests:
        """Return the requests at positions `which` (integers or a mask), in that order."""
        return Requests(self.histories.take(which), self.now[which], self.known_until[which])


class CandidateItems(NamedTuple):
    """Candidate items of each request, and what parts and their views say of them.

    items: int32, request x column; the first counts[q] of a row are the candidates of request q, in
    the order in which the parts' lists were joined. target_ranks, target_scores: request x part, of
    one target per request in the part's own list: rank from 1, 0 for none, and score, NaN for none;
    no rows without targets. queries: those of each part and view.
    """

    items: Array
    counts: Array
    parts: PartScores
    target_ranks: Array
    target_scores: Array
    queries: list[Query]

    def take(self, which: Array) -> CandidateItems:
        """Return the candidates of the requests `which` (positions), without targets.

        The queries stay those of all requests.
        """
        parts = PartScores(*(np.take(array, which, axis=1) for array in self.parts))
        none = self.target_ranks[:0], self.target_scores[:0]
        return CandidateItems(self.items[which], self.counts[which], parts, *none, self.queries)


@dataclass(frozen=True, eq=False)
class FirstStage:
    """The fitted models whose lists are joined (parts), and the times of the rows they know.

    joins_history: whether recent items of a history are candidates too, because users repeat items.
    size: the largest number of candidates. context: encoders of context columns, and their rows.
    content: of the items; None for a ranker that knows none.
    """

    parts: list[Model]
    log: ItemTimes
    joins_history: bool
    size: int
    context: ContextState = field(default_factory=empty_context)
    content: ContentStage | None = None

    @cached_property
    def _stack(self) -> WeightsStack:
        """The weights of all parts and views, for kernels."""
        return WeightsStack([scorer.fitted.weights for scorer in self._scorers])

    @cached_property
    def _scorers(self) -> list[Model]:
        """The parts, then views: other queries of their weights, which propose no candidates."""
        return [*self.parts, *build_views(self.parts)]

    @cached_property
    def names(self) -> list[str]:
        """The names of parts and views, each once."""
        return name_scorers(self.parts)

    @property
    def sources(self) -> FeatureSources:
        """What the features are named after: parts, views, and columns of context and of items."""
        content = None if self.content is None else self.content.columns
        return FeatureSources(self.names, self.context.names, content)

    def find_candidates(
        self, histories: Histories, mask: Mask, targets: Array | None = None
    ) -> CandidateItems:
        """Return up to `size` candidates of each history that a mask allows.

        They are the items with the largest sum of 1 / (rank + 10) over the first 100 of each part's
        list (ranks from 0). If users repeat items and the mask does not hide seen ones, the newest
        50 items of the history (which the mask carries) are one more list. So are, if the ranker
        uses item features, the best and the freshest of the new items. targets: an item position
        per history, -1 for none, whose ranks in the parts' lists are computed.
        """
        n_items = self._stack.items
        n_recent = _RECENT if self.joins_history and not mask.hide_seen else 0
        size, k = min(self.size, n_items), min(_LIST, n_items)
        items, counts = np.full((len(histories), size), -1, np.int32), np.zeros(len(histories), int)
        limits = _Limits(len(self.parts), k, min(_RANKED, n_items), n_recent)
        return self._score_parts(histories, mask, items, counts, targets, limits)

    def score_candidates(self, histories: Histories, items: Array, counts: Array) -> CandidateItems:
        """Return given items of each history as its candidates, with what the parts say of them.

        items: int32, history x column, of which the first counts[h] of row h are candidates.
        """
        limits = _Limits(len(self.parts), 0, min(_RANKED, self._stack.items), 0)
        mask = Mask.make(histories, hide_seen=False)
        return self._score_parts(histories, mask, items, counts, None, limits)

    def _score_parts(
        self, histories: Histories, mask: Mask, items: Array, counts: Array,
        targets: Array | None, limits: _Limits,
    ) -> CandidateItems:  # fmt: skip
        """Return candidates with their scores and ranks by each part and view.

        items, counts: the candidates, which are found, and written, if limits.listed is above 0.
        """
        queries = [scorer.query(histories) for scorer in self._scorers]
        proposed = np.empty((len(histories), 0), np.int32)
        if self.content is not None and limits.listed > 0:
            query = queries[self.content.part]
            proposed = self.content.propose(query, histories.now, mask.allowed)
        n_parts, n_targets = len(queries), 0 if targets is None else len(histories)
        shape = (n_parts, *items.shape)
        parts = PartScores(
            np.full(shape, np.nan), np.full(shape, np.nan, np.float32),
            np.full((n_parts, len(histories), 2), np.nan),
        )  # fmt: skip
        ranks = np.zeros((n_targets, n_parts), np.int64)
        scores = np.full(ranks.shape, np.nan)
        candidates = CandidateItems(items, counts, parts, ranks, scores, queries)
        _fill_candidates(
            self._stack.table, StackQueries.join(queries), mask,
            _NO_TARGETS if targets is None else targets.astype(np.int64, copy=False), proposed,
            limits, self._stack.scratch(), _Output(*candidates[:-1]),
        )  # fmt: skip
        return candidates

    def build_features(self, requests: Requests, candidates: CandidateItems) -> tuple[Array, Array]:
        """Return indptr and a row of features per candidate (float32).

        Candidates of request q have the rows indptr[q]..indptr[q + 1]. Features depend on the
        request (its history, its time `now`, and `known_until`, the end of the rows that the models
        know), on the item, and on `self.log`, the times of all rows by item; not on the filter that
        chose the candidates.
        """
        histories = requests.histories
        inputs = FeatureInputs(
            histories.start, histories.stop, as_readonly(histories.item),
            as_readonly(histories.time), requests.now, requests.known_until,
            candidates.items, candidates.counts, candidates.parts,
            ItemTimes(*map(as_readonly, self.log)), self.context.build_inputs(histories),
            _NO_CONTENT if self.content is None else self.content.items,
        )  # fmt: skip
        return build_features(inputs, self.sources)


class _Limits(NamedTuple):
    """How many models propose candidates, and lengths of lists.

    The lists are of items that may become candidates (listed 0: candidates are given, and none are
    looked for), of items with ranks, and of history items.
    """

    proposers: int
    listed: int
    ranked: int
    recent: int


class _Output(NamedTuple):
    """The arrays of `CandidateItems` that the kernel fills."""

    items: Array
    counts: Array
    parts: PartScores
    target_ranks: Array
    target_scores: Array


class _Lists(NamedTuple):
    """Lists of one request, part x rank, and work space to join them.

    ranked, scores, n_ranked: the list of all items. listed, n_listed: that of allowed items. sums:
    of 1 / (rank + 10) by item, 0 between requests; touched: the items with a sum; order: an entry
    per candidate; rank_of: by item, NaN between parts.
    """

    ranked: Array
    scores: Array
    n_ranked: Array
    listed: Array
    n_listed: Array
    sums: Array
    touched: Array
    order: Array
    rank_of: Array


@kernel
def _fill_candidates(
    table: StackTable, queries: StackQueries, mask: Mask, targets: Array, proposed: Array,
    limits: _Limits, scratch: StackScratch, out: _Output,
) -> None:  # fmt: skip
    """Fill `out`: find each request's candidates unless they are given, score and rank them.

    table, queries: the weights and the queries of all parts. mask: the items that may be
    candidates, and the histories. targets: an item per request, or none. proposed: further items of
    each request, two lists, -1 for none. limits: lengths of lists; listed 0: candidates are given.
    scratch: the thread's work space, without scores before and after. out: `CandidateItems` as
    arrays, filled here.
    """
    table, scratch, mask = borrow_stack(table), borrow_scratch(scratch), borrow_mask(mask)
    n_parts, n_items, seen = len(table.base_row), len(scratch.seen), scratch.seen
    flags = ItemFlags(mask.allowed, seen[: n_items if mask.hide_seen else 0])
    lists = _Lists(
        np.empty((n_parts, limits.ranked), np.int32), np.empty((n_parts, limits.ranked)),
        np.zeros(n_parts, np.int64), np.empty((n_parts, limits.listed), np.int32),
        np.zeros(n_parts, np.int64), np.zeros(n_items),
        np.empty(n_parts * limits.listed + limits.recent + proposed.shape[1], np.int32),
        np.empty(out.items.shape[1]), np.full(n_items, np.nan),
    )  # fmt: skip
    spare = np.empty(limits.listed)
    for q in range(len(out.counts)):
        mark_seen(mask, q, seen, 1)
        for p in range(n_parts):
            score_model(table, queries, p, q, scratch)
            _list_part(scratch, p, flags, limits, lists, spare)
            if len(targets):
                out.target_ranks[q, p] = rank_target(scratch, p, flags, targets[q])
                if targets[q] >= 0:
                    out.target_scores[q, p] = model_score(scratch, p, targets[q])
        if limits.listed > 0:
            _join_lists(lists, mask, q, limits, proposed, seen, out)
        for p in range(n_parts):
            _look_up_candidates(scratch, p, q, lists, out)
            clear_model(scratch, p)
        mark_seen(mask, q, seen, 0)


@template
def _list_part(
    scratch: StackScratch, p: int, flags: ItemFlags, limits: _Limits, lists: _Lists, spare: Array
) -> None:
    """Write the lists of part p, which was scored last: of all items, and of the allowed ones.

    A view, after the parts, has no second list. flags: which items are allowed. The second list is
    the beginning of the first one without the items that are not allowed, or else is ranked apart.
    spare: work space, as long as a list.
    """
    every = ItemFlags(flags.allowed[:0], flags.hidden[:0])
    n = list_top(scratch, p, every, TopK(lists.ranked[p], lists.scores[p]))
    lists.n_ranked[p], lists.n_listed[p], size = n, 0, 0
    if p >= limits.proposers:
        return
    for r in range(n):
        if size == limits.listed:
            break
        if is_listable(flags, lists.ranked[p, r]):
            lists.listed[p, size] = lists.ranked[p, r]
            size += 1
    if size < limits.listed and n == limits.ranked:
        hide_values(scratch, p, flags)
        size = list_top(scratch, p, flags, TopK(lists.listed[p], spare))
    lists.n_listed[p] = size


@template
def _join_lists(
    lists: _Lists, mask: Mask, q: int, limits: _Limits, proposed: Array, seen: Array, out: _Output
) -> None:
    """Write the items of request q that rank best in several lists, and their number.

    Items are ordered, best first, by the sum of 1 / (rank + 10) over the parts' lists, the two
    lists of proposed items and, if limits.recent is not 0, the newest different items of the
    history; equal sums by position. seen: not 0 for items of the history.
    """
    end = 0
    for p in range(len(lists.n_listed)):
        for r in range(lists.n_listed[p]):
            end = _add_entry(lists, lists.listed[p, r], r, end)
    for x in range(proposed.shape[1]):
        item = proposed[q, x]
        if item >= 0 and not (mask.hide_seen and seen[item]):
            end = _add_entry(lists, item, x % (proposed.shape[1] // 2), end)
    rank, r = 0, mask.stop[q] - 1
    while rank < limits.recent and r >= mask.start[q]:
        item = mask.item[r]
        if item >= 0 and seen[item] == 1:
            seen[item] = 2  # so that it counts once
            if is_listable(ItemFlags(mask.allowed, seen[:0]), item):
                end = _add_entry(lists, item, rank, end)
                rank += 1
        r -= 1
    best, size = TopK(out.items[q], lists.order), 0
    every = ItemFlags(mask.allowed[:0], seen[:0])
    for x in range(end):
        item = lists.touched[x]
        size = push_item(best, size, item, lists.sums[item], every)
        lists.sums[item] = 0.0
    out.counts[q] = sort_top_k(best, size)


@template
def _add_entry(lists: _Lists, item: int, rank: int, end: int) -> int:
    """Add an item at a rank (from 0) of a list to the sums; return how many items have one.

    end: how many items had a sum before.
    """
    if lists.sums[item] == 0.0:
        lists.touched[end] = item
        end += 1
    lists.sums[item] += 1.0 / (rank + _RANK_OFFSET)
    return end


@template
def _look_up_candidates(scratch: StackScratch, p: int, q: int, lists: _Lists, out: _Output) -> None:
    """Write scores and ranks of request q's candidates by part p, and its highest scores.

    An unseen candidate's rank counts unseen items only, that of a seen one all items. The highest
    scores are those of all items, and of unseen ones.
    """
    ranks, tops, n_unseen = out.parts.ranks, out.parts.tops, 0
    for r in range(lists.n_ranked[p]):
        item = lists.ranked[p, r]
        if r == 0:
            tops[p, q, 0] = lists.scores[p, 0]
        if scratch.seen[item]:
            lists.rank_of[item] = r
        else:
            if n_unseen == 0:
                tops[p, q, 1] = lists.scores[p, r]
            lists.rank_of[item] = n_unseen
            n_unseen += 1
    for c in range(out.counts[q]):
        item = out.items[q, c]
        out.parts.scores[p, q, c] = model_score(scratch, p, item)
        ranks[p, q, c] = lists.rank_of[item]
    for r in range(lists.n_ranked[p]):
        lists.rank_of[lists.ranked[p, r]] = np.nan
