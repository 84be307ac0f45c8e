"""Requests in the terms of one model: options, histories in positions, cached filters."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import accumulate
from threading import Lock
from typing import NamedTuple

import numpy as np

from talerec.data import (
    ContextColumns,
    Histories,
    TimeLike,
    Vocabulary,
    concatenate_context,
    newest_values,
    take_context,
    time_to_microseconds,
)
from talerec.errors import TalerecError
from talerec.models.core import (
    NO_FILTER,
    BoostSpec,
    ItemBoosts,
    ItemFilter,
    Model,
    RecommendOptions,
    Slot,
    allowed_items,
    are_in_slots,
    both,
    build_boosts,
    item_table,
    limit_column,
    matching_items,
    parse_slots,
)
from talerec.ranking import SequenceBlock, SparseBlock, Weights
from talerec.runtime import Array
from talerec.serve import schemas
from talerec.serve.model.availability import Availability
from talerec.serve.model.catalogue import ItemValues
from talerec.store import NegativeFeedback, StoredRow, now_us

MAX_TIMESTAMP = 9e18  # later than any date, in any unit

_MAX_CACHED = 64  # values of `where`, `per` and `boost` whose filters are cached,
_MAX_CACHE_BYTES = 2**26  # as long as they take no more memory than this
_LONG_LIST = 1000  # ids: finding the positions of fewer takes a fraction of a millisecond
_LONG_CONDITION = 1_000_000  # characters times items: fewer take about a millisecond
_HIDE_SEEN = ItemFilter(hide_seen=True)
_NO_RULES = (None,) * 8  # allow, deny, where, per, boost, as_of, context, slots of a plain request

_HashableBoost = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


# -- times ----------------------------------------------------------------------------------------


def parse_time(when: TimeLike, unit: str) -> int:
    """Return a timestamp of a request in microseconds since 1970.

    `when` is ISO 8601 text or a number. `unit` (such as "s") is that of small numbers; the size of
    a large number tells its unit. TalerecError for a number beyond any date.
    """
    if isinstance(when, int | float) and abs(when) > MAX_TIMESTAMP:
        raise TalerecError(f"timestamp {when} is beyond any date, in any unit")
    return time_to_microseconds(when, unit)


def format_time(time_us: int, timespec: str = "auto") -> str:
    """Return a time as ISO 8601 in UTC; as a number with " us" if no calendar has it.

    `time_us` is in microseconds since 1970; `timespec` is that of `datetime.isoformat`.
    """
    try:
        seconds, micro = divmod(time_us, 10**6)
        date = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro)
        return date.isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return f"{time_us} us"


# -- histories -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class UserRows:
    """The history of a user in time order, for one model; both arrays are read-only."""

    item: Array  # item positions in the model's vocabulary; -1 for an item that it does not know
    time: Array  # microseconds since 1970
    # By row number, the rows that come from the event store; all others are of the training log.
    events: dict[int, StoredRow] = field(default_factory=dict)
    # Negative feedback, oldest first: item positions (-1: unknown) and events, which are not rows.
    hidden: tuple[tuple[int, StoredRow], ...] = ()
    context: ContextColumns = ()  # of each row; rows of the event store have no values

    def __len__(self) -> int:
        return len(self.item)

    def names(self, ids: ItemValues) -> list[schemas.Id]:
        """Return the external item id of each row; the event's id where the model lacks the item.

        `ids` are the model's external ids by item position; a row with the position -1 comes from
        the event store, so that `events` has its id. An item's position is its number in the
        vocabulary.
        """
        items = self.item.tolist()
        model_ids = iter(ids.take([item for item in items if item >= 0]))
        return [
            next(model_ids) if item >= 0 else str(self.events[row].item)
            for row, item in enumerate(items)
        ]

    def before(self, when: int) -> UserRows:
        """Return the rows before a time (microseconds since 1970); a row at that time is not."""
        n_rows = int(np.searchsorted(self.time, when))
        events = {row: event for row, event in self.events.items() if row < n_rows}
        hidden = tuple(pair for pair in self.hidden if pair[1].time < when)
        context = take_context(self.context, slice(0, n_rows))
        return UserRows(self.item[:n_rows], self.time[:n_rows], events, hidden, context)

    def copied(self) -> UserRows:
        """Return a copy in memory, which does not keep the mapped files of a model open.

        Items and times become read-only copies; the dict `events` is shared.
        """
        item, time = self.item.copy(), self.time.copy()
        item.flags.writeable = time.flags.writeable = False
        context = take_context(self.context, np.arange(len(item)))
        return UserRows(item, time, self.events, self.hidden, context)

    def hidden_items(self, feedback: NegativeFeedback, now: int) -> frozenset[int]:
        """Return the positions of items that negative feedback hides at a time (microseconds)."""
        if not self.hidden:
            return frozenset()
        return frozenset(
            item for item, event in self.hidden if item >= 0 and feedback.hides(event.time, now)
        )


def join_users(users: Sequence[UserRows]) -> Histories:
    """Return the rows of several users as histories, one per user, in the order of `users`.

    The histories share one array of item positions and one of times; `ptr` has their bounds.
    """
    if len(users) == 1 and not users[0].context:  # most often
        ptr = np.array([0, len(users[0])])
        return Histories(ptr[:1], ptr[1:], users[0].item, users[0].time)
    ptr = np.array([0, *accumulate(map(len, users))])
    row_context = concatenate_context([rows.context for rows in users], list(map(len, users)))
    context = newest_values(row_context, ptr)
    item = np.concatenate([rows.item for rows in users])
    time = np.concatenate([rows.time for rows in users])
    item.flags.writeable = time.flags.writeable = False
    return Histories(ptr[:-1], ptr[1:], item, time, None, None, context, row_context)


class ModelQuery(NamedTuple):
    """A request for one model: options of its list, and a history or the rows of a user."""

    options: RecommendOptions  # k, hide_seen, filters, boosts, time of the request
    history: list[schemas.HistoryRow]  # sent by the client; ignored if `rows` is set
    recency: float | None = None  # replaces the model parameter of this name, for this request
    rows: UserRows | None = None  # the stored history, set if the request names a user
    hidden: frozenset[int] = frozenset()  # positions of items that the user does not want

    @property
    def n_rows(self) -> int:
        """Return the number of rows of the history: the client's, or that of the user it names.

        `rows` is the stored history of a user; None if the client sent a history.
        """
        return len(self.history) if self.rows is None else len(self.rows)

    @property
    def is_unknown_user(self) -> bool:
        """Does the request name a user (`rows` is not None) who has no rows?"""
        return self.rows is not None and not len(self.rows)

    @property
    def group_key(self) -> tuple[int, bool, bool] | None:
        """Return a key that queries share if only their histories differ; None: compute alone.

        The key is (k, hide_seen, whether the history is a stored user's). None if the query sets
        recency, a time (`as_of`), a context, rules on items, timestamps of its history rows, or
        hides items.
        """
        options = self.options
        if self.recency is not None or options.as_of is not None or options.has_item_rules:
            return None
        if self.hidden or options.context is not None:
            return None
        if self.rows is not None:
            return options.k, options.hide_seen, True
        is_untimed = [row.timestamp for row in self.history].count(None) == len(self.history)
        return (options.k, options.hide_seen, False) if is_untimed else None


def build_query(
    request: schemas.HistoryRequest,
    rows: UserRows | None = None,
    hidden: frozenset[int] = frozenset(),
) -> ModelQuery:
    """Return a client's request as options and a history for one model, without unknown ids.

    `rows` is the history of the user that the request names; None if the request has a history.
    `hidden` are positions of items that are not listed. Explanations have no `k`, and get 1.
    """
    k, per = getattr(request, "k", 1), getattr(request, "per", None)
    rules = (request.allow, request.deny, request.where, per, request.boost, request.as_of)
    slots: dict[str, schemas.SlotRule] | None = getattr(request, "slots", None)
    if (*rules, request.context, slots) == _NO_RULES:
        options = _build_plain_options(k, request.hide_seen)
    else:
        conditions = {place: {"where": rule.where} for place, rule in (slots or {}).items()}
        others = ("skip", request.context, conditions or None)
        options = RecommendOptions(k, request.hide_seen, *rules, *others)
    return ModelQuery(options, request.history, request.recency, rows, hidden)


@lru_cache(_MAX_CACHED)
def _build_plain_options(k: int, hide_seen: bool) -> RecommendOptions:
    """Return the options of requests without rules for items; building them takes time."""
    return RecommendOptions(k, hide_seen, unknown="skip")


def read_history(
    query: ModelQuery, items: Vocabulary, unit: str
) -> tuple[Histories, list[schemas.Id]]:
    """Return the query's history in time order, and its item ids ([] for a stored user's).

    `items` is the model's vocabulary, `unit` the time unit of its log. `as_of` is the time of the
    request, None for the end of the log; rows that are not before it are left out (`query.rows` has
    none of these). Items that the model does not know stay in the ids. TalerecError if some rows
    have a timestamp and others have none.
    """
    as_of = query.options.as_of
    now = None if as_of is None else parse_time(as_of, unit)
    if query.rows is not None:
        return join_users([query.rows]).as_of(now), []
    ids = [row.item_id for row in query.history]
    times = [row.timestamp for row in query.history]
    if times.count(None) == len(times):
        return Histories.untimed([ids], items, "skip").as_of(now), ids
    if None in times:
        raise TalerecError("give a timestamp with every row of a history, or with none")
    moments = [parse_time(when, unit) for when in times if when is not None]
    pairs = sorted(zip(ids, moments, strict=True), key=lambda pair: pair[1])
    pairs = [pair for pair in pairs if now is None or pair[1] < now]
    return Histories.timed([pairs], items, "skip").as_of(now), [item_id for item_id, _ in pairs]


def weights_per_row(weights: Weights) -> float:
    """Return about how many weights are added per history row; inf for neighbour models.

    A block holds rows of the weight matrix B in one storage format; a source is a row of B (mostly
    an item of the history), and a sparse row is charged at four times its mean number of entries. A
    dense row has a weight for each item.
    """
    block = weights.blocks[0]
    if isinstance(block, SequenceBlock):
        return math.inf  # the reasons of neighbour models are computed one history at a time
    if isinstance(block, SparseBlock):
        return 4 * len(block.indices) / max(block.sources, 1)
    return float(weights.items)


# -- filters ---------------------------------------------------------------------------------------


class FilterCache:
    """Builds the item filters of requests to one model, and caches their parts.

    Parts are the items that match `where` (a condition on the item table), the limits of `per`
    (items by column value), and the scores of `boost` (changes by column value). `availability`
    says which items may be recommended at all; None: all of them.
    """

    def __init__(self, model: Model, availability: Availability | None = None) -> None:
        self._model, self._availability = model, availability
        n_items = max(len(model.fitted.items), 1)
        self._conditions: OrderedDict[str, Array] = OrderedDict()  # flags per item, latest last
        self._max_conditions = _choose_cache_size(n_items)
        self._lock = Lock()  # of `_conditions`: requests are computed in several threads
        # the cached functions hold no reference to this object: a replaced model is freed at once
        self._limits = lru_cache(_choose_cache_size(8 * n_items))(partial(limit_column, model))
        self._boosts = lru_cache(_choose_cache_size(8 * n_items))(partial(_build_boosts, model))

    def build_filter(self, options: RecommendOptions) -> ItemFilter:
        """Return the item filter of a request: `options.build_filter(model)`, and availability.

        A filter has `hide_seen`, the allowed items, the limits per column value and the boosts. The
        costly parts are taken from the caches (`_conditions`, `_limits`, `_boosts`) if an earlier
        request had the same. Items that are not available now are never allowed.
        """
        available = None
        if self._availability is not None:
            available = self._availability.flags(now_us())
        if not options.has_item_rules:
            if available is not None:
                return ItemFilter(options.hide_seen, available[: len(self._model.fitted.items)])
            return _HIDE_SEEN if options.hide_seen else NO_FILTER
        allowed = allowed_items(self._model, options.allow, options.deny, options.unknown)
        if available is not None:
            allowed = both(allowed, available[: len(self._model.fitted.items)])
        if options.where is not None:
            allowed = both(allowed, self._match_condition(options.where))
        limits = tuple(self._limits(*limit) for limit in (options.per or {}).items())
        boosts = self._boosts(_make_hashable(options.boost)) if options.boost else None
        slots = tuple(
            Slot(place, self._match_condition(where))
            for place, where in parse_slots(options.slots or {}, options.k)
        )
        return ItemFilter(options.hide_seen, allowed, limits, boosts, slots)

    def is_slow(self, options: RecommendOptions) -> bool:
        """Would building the item filter delay other requests in the event loop noticeably?

        True with `per` (a limit of items by column value), `boost` (changes of scores by column
        value) or `slots`, with more than 1,000 ids in `allow` and `deny`, or with a condition
        (`where`) that is not cached and long for the number of items.
        """
        if not options.has_item_rules:
            return False
        if len(options.allow or ()) + len(options.deny or ()) > _LONG_LIST:
            return True
        where = options.where or ""
        is_long = len(where) * len(self._model.fitted.items) > _LONG_CONDITION
        return bool(options.per or options.boost or options.slots) or (
            is_long and where not in self._conditions
        )

    def _match_condition(self, where: str) -> Array:
        """Return a flag (uint8) per item: whether it meets a condition; the latest are cached."""
        with self._lock:
            flags = self._conditions.get(where)
            if flags is not None:
                self._conditions.move_to_end(where)
                return flags
        flags = matching_items(self._model, where)
        with self._lock:
            self._conditions[where] = flags
            if len(self._conditions) > self._max_conditions:
                self._conditions.popitem(last=False)
        return flags


def mark_slots(
    response: schemas.Recommendations, positions: Array, slots: Sequence[Slot]
) -> schemas.Recommendations:
    """Return a response with its items in slots marked, and slots without an item named.

    positions: of the response's items, in the model's vocabulary.
    """
    if slots:
        flags = are_in_slots(positions, np.arange(1, len(positions) + 1), slots)
        for item, flag in zip(response.items, flags.tolist(), strict=True):
            if flag:
                item.slot = True
        filled = set((np.flatnonzero(flags) + 1).tolist())
        response.empty_slots = [slot.place for slot in slots if slot.place not in filled]
    return response


def hide_items(item_filter: ItemFilter, hidden: frozenset[int], n_items: int) -> ItemFilter:
    """Return a filter that also leaves out the items at the positions `hidden` of `n_items`."""
    if not hidden:
        return item_filter
    flags = np.ones(n_items, np.uint8)
    flags[list(hidden)] = 0
    return replace(item_filter, allowed=both(item_filter.allowed, flags))


def _choose_cache_size(entry_bytes: int) -> int:
    """Return how many entries of this many bytes a cache may hold: 1 to 64, at most 64 MiB."""
    return max(1, min(_MAX_CACHED, _MAX_CACHE_BYTES // entry_bytes))


def _make_hashable(boost: BoostSpec) -> _HashableBoost:
    """Return boosts (column -> value -> fraction) as nested tuples, to be the key of a cache."""
    return tuple((column, tuple(values.items())) for column, values in boost.items())


def _build_boosts(model: Model, boost: _HashableBoost) -> ItemBoosts:
    """Return what the boosts add to each item of the model's item table.

    `boost` has, as tuples, pairs of a column and its pairs of a value and a fraction of the score
    range to add.
    """
    spec = {column: dict(values) for column, values in boost}
    return build_boosts(item_table(model, "boost"), spec)
