"""Requests in the terms of one model: options, histories in positions, cached filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from talerec.data import Histories, TimeLike, time_to_microseconds
from talerec.errors import TalerecError
from talerec.models.core import (
    NO_FILTER,
    BoostSpec,
    ItemBoosts,
    ItemFilter,
    Model,
    RecommendOptions,
    allowed_items,
    both,
    build_boosts,
    item_table,
    limit_column,
    matching_items,
)
from talerec.runtime import Array
from talerec.serve import schemas
from talerec.serve.model.catalogue import ItemValues
from talerec.store import StoredRow

MAX_TIMESTAMP = 9e18  # later than any date, in any unit

_MAX_CACHED = 64  # values of `where`, `per` and `boost` whose filters are cached,
_MAX_CACHE_BYTES = 2**26  # as long as they take no more memory than this
_LONG_LIST = 1000  # ids: finding the positions of fewer takes a fraction of a millisecond
_HIDE_SEEN = ItemFilter(hide_seen=True)
_NO_RULES = (None,) * 6  # allow, deny, where, per, boost and as_of of a plain request

_HashableBoost = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


def parse_time(when: TimeLike, unit: str) -> int:
    """Return a timestamp of a request in microseconds since 1970.

    `unit` (such as "s") is that of small numbers; the size of a large number tells its unit.
    """
    if isinstance(when, int | float) and abs(when) > MAX_TIMESTAMP:
        raise TalerecError(f"timestamp {when} is beyond any date, in any unit")
    return time_to_microseconds(when, unit)


# -- histories -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class UserRows:
    """The history of a user in time order, for one model; both arrays are read-only.

    item: item positions; -1 for an item that the model does not know
    time: microseconds since 1970
    events: the rows that come from the store, by row number; all others come from the training log
    """

    item: Array
    time: Array
    events: dict[int, StoredRow] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.item)

    def names(self, ids: ItemValues) -> list[schemas.Id]:
        """Return the external item id of each row; the event's id where the model lacks the item.

        `ids` are the model's external ids by item position.
        """
        items = self.item.tolist()
        model_ids = iter(ids.take([item for item in items if item >= 0]))
        return [
            next(model_ids) if item >= 0 else str(self.events[row].item)
            for row, item in enumerate(items)
        ]

    def copied(self) -> UserRows:
        """Return a copy in memory, which does not keep the mapped files of a model open.

        Items and times become read-only copies; the dict `events` is shared.
        """
        item, time = self.item.copy(), self.time.copy()
        item.flags.writeable = time.flags.writeable = False
        return UserRows(item, time, self.events)


def join_users(users: Sequence[UserRows]) -> Histories:
    """Return the rows of several users as histories, one per user, in the order of `users`."""
    ptr = np.array([0, *accumulate(map(len, users))])
    if len(users) == 1:
        return Histories(ptr[:-1], ptr[1:], users[0].item, users[0].time)
    item = np.concatenate([rows.item for rows in users])
    time = np.concatenate([rows.time for rows in users])
    item.flags.writeable = time.flags.writeable = False
    return Histories(ptr[:-1], ptr[1:], item, time)


class ModelQuery(NamedTuple):
    """A request for one model: options of its list, and a history or the rows of a user.

    history: the rows that the client sent; ignored if `rows` is set. recency: the model parameter
    of this name, for this request only.
    """

    options: RecommendOptions
    history: list[schemas.HistoryRow]
    recency: float | None = None
    rows: UserRows | None = None  # set if the request names a user

    @property
    def n_rows(self) -> int:
        """Return the number of rows of the history: the client's, or that of the user it names."""
        return len(self.history) if self.rows is None else len(self.rows)

    @property
    def is_unknown_user(self) -> bool:
        """Does the request name a user without any row?"""
        return self.rows is not None and not len(self.rows)

    @property
    def has_slow_filter(self) -> bool:
        """Would building the item filter delay other requests in the event loop noticeably?

        True with `per`, `boost`, or more than 1,000 ids in `allow` and `deny`.
        """
        options = self.options
        if not options.has_item_rules:
            return False
        n_ids = len(options.allow or ()) + len(options.deny or ())
        return bool(options.per or options.boost) or n_ids > _LONG_LIST

    @property
    def group_key(self) -> tuple[int, bool, bool] | None:
        """Return a key that queries share if only their histories differ; None: compute alone.

        The key is (k, hide_seen, whether the history is a stored user's).
        """
        options = self.options
        if self.recency is not None or options.as_of is not None or options.has_item_rules:
            return None
        if self.rows is not None:
            return options.k, options.hide_seen, True
        is_untimed = [row.timestamp for row in self.history].count(None) == len(self.history)
        return (options.k, options.hide_seen, False) if is_untimed else None


def build_query(request: schemas.HistoryRequest, rows: UserRows | None = None) -> ModelQuery:
    """Return a client's request as options and a history for one model.

    `rows` is the history of the user that the request names; None if the request has a history.
    """
    k, per = getattr(request, "k", 1), getattr(request, "per", None)
    rules = (request.allow, request.deny, request.where, per, request.boost, request.as_of)
    if rules == _NO_RULES:
        options = _plain_options(k, request.hide_seen)
    else:
        options = RecommendOptions(k, request.hide_seen, *rules, "skip")
    return ModelQuery(options, request.history, request.recency, rows)


@lru_cache(_MAX_CACHED)
def _plain_options(k: int, hide_seen: bool) -> RecommendOptions:
    """Return the options of a request without rules for items, which most requests share.

    Unknown ids are ignored. To build them for every request costs some percent of its time.
    """
    return RecommendOptions(k, hide_seen, unknown="skip")


# -- filters ---------------------------------------------------------------------------------------


class FilterCache:
    """Builds the item filters of requests to one model, and caches their parts.

    Parts are the items that match `where`, the limits of `per`, and the scores of `boost`.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        n_items = max(len(model.fitted.items), 1)
        # the cached functions hold no reference to this object: a replaced model is freed at once
        self._matching = lru_cache(_cache_size(n_items))(partial(matching_items, model))
        self._limit = lru_cache(_cache_size(8 * n_items))(partial(limit_column, model))
        self._boosts = lru_cache(_cache_size(8 * n_items))(partial(_build_boosts, model))

    def build_filter(self, options: RecommendOptions) -> ItemFilter:
        """Return the item filter of a request, the same as `options.build_filter(model)`.

        Its costly parts are taken from the caches if an earlier request had the same.
        """
        if not options.has_item_rules:
            return _HIDE_SEEN if options.hide_seen else NO_FILTER
        allowed = allowed_items(self._model, options.allow, options.deny, options.unknown)
        if options.where is not None:
            allowed = both(allowed, self._matching(options.where))
        limits = tuple(self._limit(*limit) for limit in (options.per or {}).items())
        boosts = self._boosts(_make_hashable(options.boost)) if options.boost else None
        return ItemFilter(options.hide_seen, allowed, limits, boosts)


def _cache_size(entry_bytes: int) -> int:
    """Return how many entries of this many bytes a cache may hold: 1 to 64, at most 64 MiB."""
    return max(1, min(_MAX_CACHED, _MAX_CACHE_BYTES // entry_bytes))


def _make_hashable(boost: BoostSpec) -> _HashableBoost:
    """Return boosts (column -> value -> fraction) as nested tuples, to be the key of a cache."""
    return tuple((column, tuple(values.items())) for column, values in boost.items())


def _build_boosts(model: Model, boost: _HashableBoost) -> ItemBoosts:
    """Return the boost of each item of the model's item table.

    `boost` has, as tuples, pairs of a column and its pairs of a value and a fraction of the score
    range to add.
    """
    spec = {column: dict(values) for column, values in boost}
    return build_boosts(item_table(model, "boost"), spec)
