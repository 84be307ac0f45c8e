"""Content in the ranker: features of items by the item table, and new items as candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data import (
    CATEGORIES,
    CATEGORY,
    DATE,
    NUMBER,
    UNTIMED,
    ItemColumn,
    Log,
    parse_dates,
    read_numbers,
)
from talerec.features import NO_DATE, ContentColumns, ItemContent
from talerec.models.content import Content, category_keys, is_described, row_categories
from talerec.models.core import Model, require
from talerec.ranking import ItemFlags, Query, TopK, Weights, push_item, sort_top_k
from talerec.runtime import Array, as_readonly, kernel

#: The content model that becomes a part of a ranker with item features.
CONTENT_PART = "content(dims=64)"

_MAX_ITEMS = 200_000  # of log and item table, up to which a query's cost is bearable
_MAX_CATEGORIES, _MAX_NUMBERS = 6, 4  # columns that are features, the first of each kind
_DAY = 86_400_000_000  # microseconds
_LIST = 25  # new items of each list that may become candidates
_FRESHNESS, _LIFETIME = 8.0, 180.0  # of the second list: standard deviations, and days to 1/e


def takes_content(log: Log) -> bool:
    """Return whether a ranker takes in the content of a log's items.

    It does if the item table has columns that say something, and if scikit-learn is installed.
    """
    n_items = len(log.items) + (0 if log.catalogue is None else len(log.catalogue))
    return n_items <= _MAX_ITEMS and is_described(log)


def find_content(parts: Sequence[Model]) -> int | None:
    """Return the number of the first model of content among parts; None without one."""
    return next((n for n, part in enumerate(parts) if isinstance(part, Content)), None)


def encode_items(part: Model, log: Log) -> Model:
    """Return a fitted model of content with the items of a log, and its item table.

    What the fit learned stays. Items without a row in the table have no content.
    """
    assert isinstance(part, Content)
    weights = part.fitted.weights
    features = np.zeros((len(weights.matrix), len(log.items)), np.float32)
    if log.info is not None:
        features[:] = part.encoder.encode(log.info).T
    block = replace(weights.blocks[0], items=len(log.items), values=features)
    fitted = replace(part.fitted, weights=Weights(block, query_arrays=weights.query_arrays))
    return part.with_params().set_fitted(fitted)


class ItemTable(NamedTuple):
    """The columns of an item table that are features, and their values for each item."""

    columns: ContentColumns
    content: ItemContent  # without vectors

    @classmethod
    def read(cls, info: pl.DataFrame, types: list[ItemColumn]) -> ItemTable:
        """Return the first columns of categories, numbers and dates of an item table."""
        tags = [each for each in types if each.kind in (CATEGORY, CATEGORIES)][:_MAX_CATEGORIES]
        amounts = [each.name for each in types if each.kind == NUMBER][:_MAX_NUMBERS]
        date = next((each.name for each in types if each.kind == DATE), None)
        indptr, codes = _encode_categories(info, tags)
        columns = [read_numbers(info[name], info[info.columns[0]]) for name in amounts]
        values = np.array([column.fill_null(np.nan).to_numpy() for column in columns])
        content = ItemContent(
            np.zeros((len(info), 0), np.float32), indptr, codes,
            values.reshape(len(amounts), len(info)),
            np.zeros(0, np.int64) if date is None else _read_dates(info[date]),
        )  # fmt: skip
        names = tuple(each.name for each in tags), tuple(amounts), date is not None
        return cls(ContentColumns(*names), content)


def _encode_categories(info: pl.DataFrame, columns: list[ItemColumn]) -> tuple[Array, Array]:
    """Return where the categories of each item begin, column x (item + 1), and their codes."""
    indptr, parts, end = np.zeros((len(columns), len(info) + 1), np.int64), [], 0
    for number, cells in enumerate(row_categories(info, columns).values()):
        keys = category_keys("", cells)
        pairs = pl.DataFrame({"item": np.arange(len(info)), "key": keys}).explode("key")
        pairs = pairs.drop_nulls("key").with_columns(code=pl.col("key").rank("dense"))
        pairs = pairs.sort("item", "code")
        counts = np.bincount(pairs["item"].to_numpy(), minlength=len(info))
        indptr[number, 0] = end
        indptr[number, 1:] = end + np.cumsum(counts)
        end += len(pairs)
        parts.append(pairs["code"].to_numpy().astype(np.int32))
    return indptr, np.concatenate([np.empty(0, np.int32), *parts])


def _read_dates(column: pl.Series) -> Array:
    """Return the date of each row in microseconds since 1970; `NO_DATE` for none."""
    days = parse_dates(column).cast(pl.Int32).cast(pl.Int64)
    dates: Array = (days * _DAY).fill_null(NO_DATE).to_numpy()
    return dates


@dataclass(frozen=True, eq=False)
class ContentStage:
    """Item features of a first stage, and its content model.

    Parameters
    ----------
    part : int
        The number of the model of content among the parts.
    columns : ContentColumns
        The names of the columns that are features.
    items : ItemContent
        Vectors, categories, numbers and dates of all items.
    is_new : bool array
        The items without rows in the log that the parts were fitted to.
    end : int
        The time of the last row, in microseconds: requests without a time are right after it.
    """

    part: int
    columns: ContentColumns
    items: ItemContent
    is_new: Array
    end: int

    @classmethod
    def build(
        cls, table: ItemTable, parts: Sequence[Model], counts: Array, end: int
    ) -> ContentStage:
        """Return the content of a first stage.

        counts: rows of each item in the log that the parts were fitted to. end: its last time.
        """
        part = find_content(parts)
        assert part is not None
        features = parts[part].fitted.weights.matrix
        require(features.shape[1] == len(counts), "the model of content has other items")
        vectors = np.ascontiguousarray(features.T, np.float32)
        content = ItemContent(*map(as_readonly, table.content._replace(vectors=vectors)))
        return cls(part, table.columns, content, counts == 0, end)

    @cached_property
    def _new_items(self) -> Array:
        """The positions of new items with content."""
        has_vector = self.items.vectors.any(axis=1)
        return np.flatnonzero(self.is_new & has_vector).astype(np.int32)

    @cached_property
    def _new_vectors(self) -> Array:
        """The vectors of new items: dimension x item."""
        return as_readonly(np.ascontiguousarray(self.items.vectors[self._new_items].T))

    def propose(self, query: Query, now: Array | None, allowed: Array) -> Array:
        """Return new items for each request: request x column, -1 for none, in two lists.

        The first half of the columns has those with the highest scores by content, the second half,
        if items have dates, those with the highest sum of score and freshness. query: the requests
        to the model of content. now: their times. allowed: flags per item; empty: all.
        """
        n_lists = 2 if len(self.items.dates) else 1
        proposed = np.full((len(query), 2 * _LIST), -1, np.int32)
        if not len(self._new_items):
            return proposed[:, :0]
        n_dims = len(self._new_vectors)
        codes = np.zeros((len(query), n_dims))
        codes[np.diff(query.ptr) > 0] = query.weight.reshape(-1, n_dims)
        times = np.full(len(query), self.end + 1) if now is None else now
        times = np.where(times > UNTIMED, times, self.end + 1)
        dates = self.items.dates[self._new_items] if n_lists == 2 else self.items.dates
        _propose(
            codes, self._new_vectors, as_readonly(self._new_items), dates, times,
            ItemFlags(allowed, np.zeros(0, np.uint8)), proposed,
        )  # fmt: skip
        return proposed


@kernel
def _propose(
    codes: Array, vectors: Array, items: Array, dates: Array, now: Array, flags: ItemFlags,
    out: Array,
) -> None:  # fmt: skip
    """Write the best new items of each request: by score, then by score and freshness.

    codes: request x dimension. vectors: dimension x new item. items: positions of new items. dates:
    of the new items; none: no second list. now: of each request. flags: allowed items. out: request
    x (both lists), -1 beyond the end of a list. A request without codes has the second list alone.
    """
    n_dims, n_items = vectors.shape
    size = out.shape[1] // 2
    top = TopK(np.empty(size, np.int32), np.empty(size))
    scores = np.empty(n_items)
    for q in range(len(codes)):
        scores[:] = 0.0
        for d in range(n_dims):
            for i in range(n_items):
                scores[i] += codes[q, d] * vectors[d, i]
        deviation = np.std(scores)
        if deviation > 0:
            n = 0
            for i in range(n_items):
                n = push_item(top, n, items[i], scores[i], flags)
            out[q, : sort_top_k(top, n)] = top.items[:n]
        if not len(dates):
            continue
        for i in range(n_items):
            age = (now[q] - dates[i]) / _DAY if dates[i] > NO_DATE else np.inf
            fresh = np.exp(-age / _LIFETIME) if age >= 0 else 0.0
            scores[i] = _FRESHNESS * fresh + (scores[i] / deviation if deviation > 0 else 0.0)
        n = 0
        for i in range(n_items):
            n = push_item(top, n, items[i], scores[i], flags)
        out[q, size : size + sort_top_k(top, n)] = top.items[:n]
