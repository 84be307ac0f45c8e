"""The items of a model as clients see them: ids, titles, columns, and search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.models.core import Fitted
from talerec.ranking import ExplainedLists, FamilyShare
from talerec.runtime import Array
from talerec.serve import ABSENT, Absent, schemas
from talerec.serve.model.explanations import families_json
from talerec.serve.model.live_items import LiveItems

_MAX_LIST = 200_000  # items: up to here, lists of ids and titles take little memory
_NAMES = (columns.ITEM, columns.TITLES[0])
_MAX_DISTINCT = 200  # values of a column that the model card lists, so that a page can offer them
_MAX_TITLE = 300  # characters of a title in responses
_MAX_SINGLE = 64  # values: up to here, reading them one by one is faster than one call of Polars


class Catalogue:
    """Ids, titles and columns of a model's items, by item position (0 to n_items - 1).

    A position is the number of an item in the model's vocabulary; items of the store that the model
    does not score follow. `ids` has the external ids, `titles` the titles, None without any.
    `fitted` is the fitted state of the model, with the item table (`info`) and, if saved, the
    training log; `live` has the items with changes of the store, None without any.
    """

    def __init__(self, fitted: Fitted, live: LiveItems | None = None) -> None:
        self._fitted = fitted
        self._items, self._info = fitted.items, fitted.info
        self._is_deleted: Array | None = None  # by position
        if live is not None:
            self._items, self._info = live.items, live.info
            self._is_deleted = live.availability.is_deleted
        self._titles = _read_titles(self._info)
        self.ids = ItemValues(self._items.ids)
        self.titles = None if self._titles is None else ItemValues(self._titles)

    def __len__(self) -> int:
        return len(self._items)

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
        info = self._info
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
        info, shown = self._info, self._json_columns
        if info is None or shown is None:
            return {}
        return {c.name: _describe_column(c, info.schema[c.name]) for c in shown}

    def rank_items(
        self, items: list[int], scores: Iterable[float], ranks: Iterable[int],
        reasons: Iterable[list[schemas.Reason] | schemas.Absent],
        boosts: list[float] | None = None, families: list[list[FamilyShare] | None] | None = None,
    ) -> list[schemas.RankedItem]:  # fmt: skip
        """Return the items of a response, with ids and titles, one for each position in `items`.

        `scores`, `ranks`, `reasons`, `boosts` (scores added by boosts) and `families` (what
        families of features add) have one entry per item; None: no boosts, or no families. An
        item's position is its number in the vocabulary.
        """
        titles = self.titles
        fields: list[Iterable[Any]] = [self.ids.take(items), scores, ranks]
        fields += [repeat(ABSENT) if titles is None else titles.take(items), reasons]
        fields.append(repeat(ABSENT) if boosts is None else (boost or ABSENT for boost in boosts))
        if families is not None:
            fields.append(map(families_json, families))
        return list(map(schemas.RankedItem, *fields))

    def list_reasons(self, lists: ExplainedLists) -> Iterator[list[schemas.Reason]]:
        """Yield, for each listed item, the history items that contribute most to its score.

        `lists` has the reasons of all listed items one after the other: `sources` (positions of
        history items), `shares` (of the score), and `ends`, where the reasons of each listed item
        end. An item's position is its number in the vocabulary.
        """
        sources = self.ids.take(lists.sources)
        reasons = list(map(schemas.Reason, sources, lists.shares))
        begin = 0
        for end in lists.ends:
            yield reasons[begin:end]
            begin = end

    def position(self, item_id: int | str) -> int:
        """Return the position of an external item id; -1 if it is unknown, or was deleted."""
        position = int(self._items.positions([item_id], "item", "skip")[0])
        is_deleted = self._is_deleted is not None and position >= 0 and self._is_deleted[position]
        return -1 if is_deleted else position

    def text_positions(self, item_ids: list[str]) -> list[int]:
        """Return the positions of external item ids as text; -1 for unknown or deleted items."""
        positions = self._items.text_positions(item_ids)
        if self._is_deleted is not None:
            positions = np.where((positions >= 0) & self._is_deleted[positions], -1, positions)
        listed: list[int] = positions.tolist()
        return listed

    def search(self, text: str, limit: int) -> list[int]:
        """Return up to `limit` positions of items whose title has every word, popular ones first.

        `text` holds the words; case is ignored, and words may be parts of words. An item whose id
        is `text` comes before all others. An item's position is its number in the vocabulary.
        """
        matches = self._match_words(text.casefold().split())
        if self._is_deleted is not None:
            matches = matches[~self._is_deleted[matches]]
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
        names = self._items.ids.cast(pl.String)
        texts = names if self._titles is None else self._titles.fill_null(names)
        return texts.str.to_lowercase()

    @cached_property
    def _item_counts(self) -> Array:
        """Rows of each item in the training log, by position; used to sort search results.

        If the log was not saved, only the rows of its last days; zeros if these were not saved
        either. An item's position is its number in the vocabulary.
        """
        fitted = self._fitted
        counts = fitted.recent_counts if fitted.log is None else fitted.log.counts()
        counts = np.zeros(len(self)) if counts is None else counts
        return np.pad(counts, (0, len(self) - len(counts)))


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
    values that no condition (`where`) can name. column: its values as JSON types; dtype: its type
    in the item table.
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
