"""The items of a model as clients see them: ids, titles, search, and popularity."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import DAY, Log
from talerec.models.core import RECENT_DAYS, Fitted
from talerec.runtime import Array
from talerec.serve import ABSENT, Absent
from talerec.store import RecentCounts, limit_repeats

_MAX_LIST = 200_000  # items: up to here, lists of ids and titles take little memory
_NAMES = (columns.ITEM, columns.TITLES[0])
_MAX_DISTINCT = 200  # values of a column that the model card lists, so that a page can offer them
_MAX_TITLE = 300  # characters of a title in answers
_MAX_SINGLE = 64  # values: up to here, reading them one by one is faster than one call of Polars
_MAX_RECOUNT_SHARE = 20  # popularity is recounted for at most 1/20 of the time


class Catalogue:
    """Ids, titles and columns of a model's items, by item position (0 to n_items - 1).

    A position is the number of an item in the model's vocabulary. `ids` has the external ids,
    `titles` the titles, None without any. `fitted` is the fitted state of the model, with the item
    table (`info`) and, if saved, the training log.
    """

    def __init__(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self._titles = _read_titles(fitted.info)
        self.ids = ItemValues(fitted.items.ids)
        self.titles = None if self._titles is None else ItemValues(self._titles)

    def __len__(self) -> int:
        return len(self._fitted.items)

    def title(self, item: int) -> str | Absent:
        """Return the title of the item at a position; ABSENT without a title, or for position -1.

        -1 stands for an item that the model does not know; ABSENT marks a field that JSON omits. An
        item's position is its number in the vocabulary.
        """
        title: str | Absent = ABSENT if self.titles is None or item < 0 else self.titles[item]
        return title

    def info(self, items: list[int]) -> list[dict[str, Any] | Absent]:
        """Return, for each item position, its columns of the item table besides id and title.

        Each is a dict of values by column, without nulls; ABSENT stands for an item without any
        value. An item's position is its number in the vocabulary.
        """
        if self._json_columns is None:
            return [ABSENT] * len(items)
        rows = self._json_columns[items].to_dicts()
        return [{name: v for name, v in row.items() if v is not None} or ABSENT for row in rows]

    @cached_property
    def _json_columns(self) -> pl.DataFrame | None:
        """The columns of the item table besides id and title, for JSON; None without any.

        Lists, structures and bytes are left out. Rows are in the order of item positions.
        """
        info = self._fitted.info
        if info is None:
            return None
        converted = map(_to_json, info.drop(_NAMES, strict=False))
        shown = [column for column in converted if column is not None]
        return pl.DataFrame(shown) if shown else None

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Describe each column of the item table besides id and title, for the model card.

        {"min", "max"} for numbers, {"values": [...]} for up to 200 other values, {} for more.
        """
        info, shown = self._fitted.info, self._json_columns
        if info is None or shown is None:
            return {}
        return {c.name: _describe_column(c, info.schema[c.name]) for c in shown}

    def position(self, item_id: int | str) -> int:
        """Return the position of an external item id; -1 if the model does not know it."""
        return int(self._fitted.items.positions([item_id], "item", "skip")[0])

    def search(self, text: str, limit: int) -> list[int]:
        """Return up to `limit` positions of items whose title has every word, popular ones first.

        `text` holds the words; case is ignored, and words may be parts of words. An item whose id
        is `text` comes before all others. An item's position is its number in the vocabulary.
        """
        matches = self._match_words(text.casefold().split())
        order = np.argsort(-self._item_counts[matches], kind="stable")[:limit]
        items: list[int] = matches[order].tolist()
        same_id = self.position(text.strip()) if text.strip() else -1
        if same_id >= 0:
            items = [same_id, *(item for item in items if item != same_id)][:limit]
        return items

    def _match_words(self, words: list[str]) -> Array:
        """Return the positions of items whose title contains all `words`, which are in lower case.

        An item without a title is matched by its id. Without words, all items match. An item's
        position is its number in the vocabulary.
        """
        if not words:
            return np.arange(len(self))
        has_all = self._search_text.str.contains(words[0], literal=True)
        for word in words[1:]:
            has_all &= self._search_text.str.contains(word, literal=True)
        return has_all.arg_true().to_numpy()

    @cached_property
    def _search_text(self) -> pl.Series:
        """The text that searches match, by item position: the title, or the id without a title.

        A column of text in lower case; `_titles` is None if the item table has no titles. An item's
        position is its number in the vocabulary.
        """
        names = self._fitted.items.ids.cast(pl.String)
        texts = names if self._titles is None else self._titles.fill_null(names)
        return texts.str.to_lowercase()

    @cached_property
    def _item_counts(self) -> Array:
        """Rows of each item in the training log, by position; used to sort search results.

        If the log was not saved, only the rows of its last days; zeros if these were not saved
        either. An item's position is its number in the vocabulary.
        """
        fitted = self._fitted
        if fitted.log is not None:
            return fitted.log.counts()
        return np.zeros(len(self)) if fitted.recent_counts is None else fitted.recent_counts


class ItemValues:
    """Ids or titles by item position, as Python values; a missing title is ABSENT.

    Up to 200,000 items, all values are converted once to a list; above that, only those in use. A
    position is the number of an item in the model's vocabulary.
    """

    def __init__(self, values: pl.Series) -> None:
        self._series = values
        self._list = _to_list(values) if len(values) <= _MAX_LIST else None

    def take(self, items: list[int]) -> list[Any]:
        """Return the ids or titles at these item positions; ABSENT for a missing title.

        `_list` has the values of all items; None for a large catalogue, whose values are converted
        on each call. An item's position is its number in the vocabulary.
        """
        if self._list is not None:
            all_values = self._list
            return [all_values[item] for item in items]
        if len(items) > _MAX_SINGLE:
            return _to_list(self._series.gather(items))
        values = map(self._series.__getitem__, items)
        return [ABSENT if value is None else value for value in values]

    def __getitem__(self, item: int) -> Any:
        return self.take([item])[0]


def _to_json(column: pl.Series) -> pl.Series | None:
    """Return a column with values that JSON can show; None for lists, structures and bytes.

    Infinities and NaN become null; numbers and booleans stay; dates and other types become text,
    cut to 300 characters.
    """
    kind = column.dtype
    if kind.is_float():
        return column.cast(pl.Float64).set(~column.is_finite(), None)
    if kind.is_integer() or kind == pl.Boolean:
        return column
    if kind.is_nested() or kind == pl.Binary or kind == pl.Object:
        return None
    return column.cast(pl.String).str.slice(0, _MAX_TITLE)


def _describe_column(column: pl.Series, dtype: pl.DataType) -> dict[str, Any]:
    """Return a description of a column of the item table for the model card.

    {"min", "max"} for numbers, {"values": [...]} for up to 200 other values, {} for more, and for
    values that no condition (`where`) can name. column: as JSON shows it; dtype: its type in the
    item table.
    """
    if dtype in (pl.Time, pl.Duration):
        return {}
    if dtype == pl.Decimal:
        column = column.cast(pl.Float64)
    if column.dtype.is_numeric():
        return {"min": column.min(), "max": column.max()}
    values = column.drop_nulls().unique()
    return {"values": values.sort().to_list()} if len(values) <= _MAX_DISTINCT else {}


def _read_titles(info: pl.DataFrame | None) -> pl.Series | None:
    """Return the titles of an item table, cut to 300 characters; None if it has no titles.

    Rows are in the order of item positions; missing titles are null. An item's position is its
    number in the vocabulary.
    """
    if info is None or columns.TITLES[0] not in info.columns:
        return None
    titles = info[columns.TITLES[0]].cast(pl.String)
    is_short = titles.str.len_chars() <= _MAX_TITLE
    return titles.zip_with(is_short, titles.str.slice(0, _MAX_TITLE) + "…")


def _to_list(values: pl.Series) -> list[Any]:
    """Return a column as a list of Python values, with the marker ABSENT for nulls.

    JSON omits a field whose value is ABSENT.
    """
    listed = values.to_list()
    if not values.null_count():
        return listed
    return [ABSENT if value is None else value for value in listed]


class PopularItems:
    """All items of a model, the most frequent of the last days first, and their counts.

    Of a user's rows with one item, three count at most, so that nobody leads by sending often. With
    events, the last days end at the latest event; rows of the training log count if they fall into
    these days, and events count at once. Items without rows there follow in the order of the
    log's last days, then of the whole log. Ties are in the order of positions. `fitted` is the
    fitted state of the model, with the training log if it was saved.
    """

    def __init__(self, fitted: Fitted) -> None:
        self._fitted = fitted
        self.events = RecentCounts(RECENT_DAYS)  # events that the artifact does not include
        self._counted_changes = -1  # `events.changes` at the last count
        self._count_seconds, self._counted_at = 0.0, 0.0  # of the last count
        self._ranking: tuple[Array, Array] | None = None  # item positions and their counts
        self._lock = threading.Lock()  # requests are answered in several threads
        self._counted_since = -1  # the time from which `_log_counts_since` counts
        self._log_counts_since = np.zeros(0)  # rows of the log by item position

    def ranked(self) -> tuple[Array, Array]:
        """Return the positions of all items, most popular first, and their counts in that order.

        Counts are rows and events of the last days. The ranking is recounted if it lacks events.
        While one thread recounts, other threads get the previous ranking. An item's position is its
        number in the vocabulary.
        """
        if self._is_stale() and self._lock.acquire(blocking=self._ranking is None):
            try:
                if self._is_stale():  # no other thread has recounted in the meantime
                    self._recount()
            finally:
                self._lock.release()
        assert self._ranking is not None
        return self._ranking

    def _is_stale(self) -> bool:
        """Is there no ranking yet, or one without the latest events that is old enough?

        `events.changes` grows with each event. A ranking is old enough after 20 times the duration
        of the last count (`_count_seconds`, ended at `_counted_at`).
        """
        due = self._counted_at + _MAX_RECOUNT_SHARE * self._count_seconds
        has_changed = self._counted_changes != self.events.changes and time.perf_counter() >= due
        return self._ranking is None or has_changed

    def _recount(self) -> None:
        """Count and rank the items anew, and measure how long that takes.

        Sets `_ranking`: item positions in the vocabulary, most popular first, and their counts.
        Without events these are the counts of the training log's last days. Items without a count
        follow in the order `_log_order` of the log. For the next `_is_stale`, the number of counted
        changes and the time and duration of this count are stored.
        """
        begin = time.perf_counter()
        self._counted_changes = self.events.changes
        counts = self._count_with_events() if self._counted_changes else self._recent_log_counts
        self._ranking = self._rank(counts)
        self._counted_at = time.perf_counter()
        self._count_seconds = self._counted_at - begin

    def _rank(self, counts: Array) -> tuple[Array, Array]:
        """Return all item positions, the highest of `counts` (by position) first, and its counts.

        Items without a count follow in the order of the training log.
        """
        popular = np.flatnonzero(counts)
        popular = popular[np.argsort(-counts[popular], kind="stable")]
        order = np.concatenate([popular, self._log_order[counts[self._log_order] == 0]])
        return order, counts[order]

    def top_before(self, time: int, since: int | None, event_items: Array, k: int) -> list[int]:
        """Return the positions of the k items that were most popular right before a time.

        Counted are the rows of the training log before `time`, and events: `event_items` has their
        item positions, -1 for unknown items. The events are those between `since` and `time`, both
        in microseconds since 1970; `since` is None if there are none. `events` is not used.
        """
        log, popular = self._fitted.log, self
        if log is not None and time <= self._fitted.training["last_time"]:
            popular = PopularItems(replace(self._fitted, log=log.keep(log.time < time)))
        counts = popular._recent_log_counts
        if since is not None:
            known_items = event_items[event_items >= 0]
            counts = popular._count_rows_since(since) + np.bincount(known_items, None, len(counts))
        if len(counts) >= k and (least := np.partition(counts, -k)[-k]) > 0:
            first = np.flatnonzero(counts >= least)  # in large catalogues, to sort all takes long
            items = first[np.argsort(-counts[first], kind="stable")]
        else:
            items = popular._rank(counts)[0]
        return [int(item) for item in items[:k]]

    @cached_property
    def _recent_log_counts(self) -> Array:
        """Rows of each item in the training log's last days; zeros if they were not saved.

        A float array by item position. An item's position is its number in the vocabulary.
        """
        log = self._fitted.log
        if log is not None and log.rows:
            return _count_rows(log, int(log.time.max()) - round(RECENT_DAYS * DAY))
        counts = self._fitted.recent_counts
        return np.zeros(len(self._fitted.items)) if counts is None else counts

    @cached_property
    def _log_order(self) -> Array:
        """All item positions, by rows in the training log's last days, then in the whole log.

        Both in descending order; without a saved log, only the last days count. An item's position
        is its number in the vocabulary.
        """
        log = self._fitted.log
        totals = self._recent_log_counts if log is None else log.counts()
        return np.lexsort((-totals, -self._recent_log_counts))

    def _count_with_events(self) -> Array:
        """Return the log rows plus events of each item in the days before the latest event.

        A float array by item position. Events of unknown items are left out. An item's position is
        its number in the vocabulary.
        """
        counts = self._count_rows_since(self.events.since).copy()
        totals = self.events.totals()
        items = self._fitted.items.text_positions(list(totals))
        is_item = items >= 0
        np.add.at(counts, items[is_item], np.array(list(totals.values()), float)[is_item])
        return counts

    def _count_rows_since(self, since: int) -> Array:
        """Return the training log's (weighted) rows of each item since a time in microseconds.

        A float array by item position (its number in the vocabulary); do not change it. Rows are
        counted only when `since` has changed. Without a saved log: the counts of its last days if
        the log ends at `since` or later, else 0.
        """
        if since != self._counted_since:
            self._counted_since, self._log_counts_since = since, self._recount_rows(since)
        return self._log_counts_since

    def _recount_rows(self, since: int) -> Array:
        """Count the training log's (weighted) rows of each item since a time in microseconds."""
        log = self._fitted.log
        if log is None:  # the artifact has only the counts of the log's last days
            is_recent = self._fitted.training.get("last_time", 0) >= since
            return self._recent_log_counts if is_recent else np.zeros_like(self._recent_log_counts)
        return _count_rows(log, since)


def _count_rows(log: Log, since: int) -> Array:
    """Return the (weighted) rows of each item since a time, at most three of each user.

    `since` is in microseconds since 1970; the result is a float array by item position (its number
    in the vocabulary).
    """
    rows = np.flatnonzero(log.time >= since)
    item = log.item[rows]
    users = np.searchsorted(log.ptr, rows, "right").astype(np.int64)  # rows are sorted by user
    is_counted = limit_repeats(users * len(log.items) + item)
    weight = None if log.weight is None else log.weight[rows][is_counted]
    return np.bincount(item[is_counted], weight, len(log.items)).astype(np.float64)
