"""Categories in tempo's scores: what is popular among the categories of a user's items.

With one column of categories (an author, a brand), of which item i has the categories C_i, tempo
adds to the score of item i

    weight * sum over c in C_i of (share_c - mean_c) popularity_c,i

share_c is the share of the history in category c, by the weights exp(-lag / 6) of its items; mean_c
is its mean over the users of the log; and popularity_c,i the share of item i in the rows of the
category, where each item counts half a row more. Items that all users take gain nothing by it, and
new items a little. Totals and means come from items with rows alone, so that a new item has the
score that a table with it from the start would give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from talerec.data import CATEGORIES, CATEGORY, Histories, ItemColumn, Log
from talerec.models.content import category_keys, hash_words, row_categories
from talerec.models.core import check_indptr, require
from talerec.ranking import Block, IdentityBlock, Query, Weights, make_block, recency_query
from talerec.runtime import Array, sparse

PREFIX = "category_"  # of names of stored arrays

_PRIOR_ROWS = 0.5  # added to the rows of each item
_RECENCY = 6.0  # decay length of history weights, in rows
_LEAST = 1e-3  # rows of a category
_MAX_COLUMNS = 6  # of an item table that are compared
MAX_HISTORY = 2500  # rows of a history in learning


def category_columns(types: list[ItemColumn]) -> list[ItemColumn]:
    """Return the first six columns of categories of an item table."""
    return [column for column in types if column.kind in (CATEGORY, CATEGORIES)][:_MAX_COLUMNS]


@dataclass(frozen=True, eq=False)
class CategoryScores:
    """What scores by the categories of one column are made of; the arrays are saved.

    Parameters
    ----------
    column : ItemColumn
        The column of the item table.
    weight : float
        The factor of the scores.
    keys : int64 array
        The hashes of its categories, ascending.
    mean : array
        The mean share of each category in the histories of the log's users.
    total : array
        The rows of each category's items, with half a row more for each item that has rows.
    counts : array
        The rows of each item.
    indptr, indices : int64 arrays
        The categories (positions in `keys`) of each item.
    """

    column: ItemColumn
    weight: float
    keys: Array
    mean: Array
    total: Array
    counts: Array
    indptr: Array
    indices: Array

    ARRAYS = ("keys", "mean", "total", "counts", "indptr", "indices")

    @classmethod
    def build(cls, log: Log, column: ItemColumn, weight: float) -> CategoryScores:
        """Return the scores by one column of a log's item table.

        log: its items are those of log and table. Categories are those of items with rows.
        """
        assert log.info is not None
        counts = np.bincount(log.item, minlength=len(log.items)).astype(np.float64)
        item, keys = _list_keys(log.info, column)
        used_keys = np.unique(keys[counts[item] > 0])
        nothing = np.zeros(len(used_keys))
        indptr, indices = _place(item, keys, used_keys, len(log.items))
        scores = cls(column, weight, used_keys, nothing, nothing, counts, indptr, indices)
        rows = np.where(counts > 0, counts + _PRIOR_ROWS, 0.0)
        total = np.asarray(scores._spread(rows).sum(axis=0)).ravel()
        scores = replace(scores, total=total)
        has_rows = np.diff(log.ptr) > 0
        histories = Histories(log.ptr[:-1][has_rows], log.ptr[1:][has_rows], log.item, log.time)
        no_weights = Weights([IdentityBlock(items=len(counts))])
        shares = scores.measure_shares(histories, no_weights, MAX_HISTORY)
        return replace(scores, mean=np.asarray(shares.mean(axis=0)).ravel())

    @classmethod
    def restore(cls, arrays: dict[str, Array], types: list[ItemColumn]) -> CategoryScores | None:
        """Return the scores that `to_arrays` stored; None if there are none.

        types: of the columns of the item table.
        """
        if f"{PREFIX}weight" not in arrays:
            return None
        weight, number = arrays[f"{PREFIX}weight"].tolist()
        require(number in range(len(types)), f"{PREFIX}weight names no column")
        return cls(types[int(number)], weight, *(arrays[PREFIX + name] for name in cls.ARRAYS))

    def to_arrays(self, types: list[ItemColumn]) -> dict[str, Array]:
        """Return the arrays that a model stores, by name; types: of the item table's columns."""
        arrays = {PREFIX + name: getattr(self, name) for name in self.ARRAYS}
        number = [column.name for column in types].index(self.column.name)
        return {**arrays, f"{PREFIX}weight": np.array([self.weight, number])}

    def check(self, n_items: int) -> None:
        """Raise TalerecError if arrays, read from an artifact, do not fit together."""
        n_keys = len(self.keys)
        check_indptr(f"{PREFIX}indptr", self.indptr, n_items, len(self.indices))
        is_inside = (self.indices >= 0) & (self.indices < n_keys)
        require(self.indices.dtype.kind in "iu" and is_inside.all(), f"{PREFIX}indices is damaged")
        require((np.diff(self.keys) > 0).all(), f"{PREFIX}keys do not rise")
        require(self.counts.shape == (n_items,), f"{PREFIX}counts has another length")
        for name, least in (("mean", 0.0), ("total", _LEAST), ("counts", 0.0)):
            values = getattr(self, name)
            is_valid = np.isfinite(values).all() and (values >= least).all()
            require(bool(is_valid), f"{PREFIX}{name} has invalid numbers")
        require(self.mean.shape == self.total.shape == (n_keys,), f"{PREFIX}mean is damaged")
        require(np.isfinite(self.weight), f"{PREFIX}weight is not finite")

    def with_rows(self, table: pl.DataFrame, positions: Array, n_items: int) -> CategoryScores:
        """Return the scores with new or replaced rows of the item table.

        table: the rows. positions: of their items, of `n_items`. Further items have no rows in the
        training log.
        """
        stays = np.ones(n_items, bool)
        stays[positions] = False
        item = np.repeat(np.arange(len(self.counts)), np.diff(self.indptr))
        keys = self.keys[self.indices][stays[item]]
        new_item, new_keys = _list_keys(table, self.column)
        item = np.concatenate([item[stays[item]], positions[new_item]])
        indptr, indices = _place(item, np.concatenate([keys, new_keys]), self.keys, n_items)
        counts = np.pad(self.counts, (0, n_items - len(self.counts)))
        return replace(self, counts=counts, indptr=indptr, indices=indices)

    # -- scores --

    @cached_property
    def _members(self) -> Any:
        """Item x category: 1 over the number of the item's categories, for each of them."""
        n_own = np.diff(self.indptr)
        values = np.repeat(1.0 / np.maximum(n_own, 1), n_own)
        shape = (len(self.counts), len(self.keys))
        return sparse.csr_array((values, self.indices, self.indptr), shape=shape)

    def _spread(self, rows: Array) -> Any:
        """Return a number per item, divided equally among its categories: item x category."""
        spread = self._members.copy()
        spread.data *= np.repeat(rows, np.diff(self.indptr))
        return spread

    @cached_property
    def _popularity(self) -> Any:
        """The share of each item in the rows of each category: CSR, category x item."""
        popularity = self._spread(self.counts + _PRIOR_ROWS).tocsc()
        popularity.data /= np.repeat(np.maximum(self.total, _LEAST), np.diff(popularity.indptr))
        return sparse.csr_array(popularity.T)

    def block(self) -> Block:
        """Return the block of weights: category x item, and one row more for the mean history."""
        mean = sparse.csr_array((self._popularity.T @ self.mean)[None, :])
        matrix = sparse.csr_array(sparse.vstack([self._popularity, mean]) * self.weight)
        return make_block(matrix, source_item=np.full(matrix.shape[0], -1, np.int32))

    def score_items(self, histories: Histories, weights: Weights) -> Array:
        """Return the scores of all items without the weight: history x item."""
        shares = self.measure_shares(histories, weights, MAX_HISTORY)
        has_share = (np.diff(shares.indptr) > 0)[:, None]
        scores: Array = (shares @ self._popularity).toarray()
        scores -= has_share * (self._popularity.T @ self.mean)
        return scores

    def measure_level(self, histories: Histories, weights: Weights) -> float:
        """Return the median of the highest score of some histories; 0 if none has a category.

        The mean is not subtracted.
        """
        shares = self.measure_shares(histories, weights, MAX_HISTORY)
        highest = (shares @ self._popularity).max(axis=1).toarray().ravel()
        highest = highest[highest > 0]
        return float(np.median(highest)) if len(highest) else 0.0

    def measure_shares(self, histories: Histories, weights: Weights, max_history: int) -> Any:
        """Return the share of each category in each history: CSR, 0 if no item has one.

        weights: of the model, which has the items.
        """
        x = recency_query(
            weights, histories, histories.moments(joint=True), _RECENCY, max_history
        ).rows()
        shape = (len(histories), len(self.counts))
        shares = sparse.csr_array((x.share, x.source, x.ptr), shape=shape) @ self._members
        sums = np.asarray(shares.sum(axis=1)).ravel()
        shares.data /= np.repeat(np.where(sums > 0, sums, 1.0), np.diff(shares.indptr))
        return sparse.csr_array(shares)

    def query(
        self, histories: Histories, weights: Weights, max_history: int, first: int, is_asked: Array
    ) -> Query:
        """Return the query of each history to the block: its shares, and -1 for the mean.

        first: number of the block's first source. is_asked: a flag per history; others, and those
        without categories, have no sources.
        """
        shares = self.measure_shares(histories, weights, max_history).sorted_indices()
        has_share = (np.diff(shares.indptr) > 0) & is_asked
        n_entries = np.diff(shares.indptr) * has_share
        ends = np.cumsum(n_entries + has_share)
        ptr = np.concatenate([[0], ends]).astype(np.int64)
        is_mean = np.zeros(ptr[-1], bool)
        is_mean[ends[has_share] - 1] = True
        source, weight = np.full(ptr[-1], len(self.keys)), np.full(ptr[-1], -1.0)
        is_used = np.repeat(has_share, np.diff(shares.indptr))
        source[~is_mean], weight[~is_mean] = shares.indices[is_used], shares.data[is_used]
        return Query(ptr, source + first, weight)


def _list_keys(table: pl.DataFrame, column: ItemColumn) -> tuple[Array, Array]:
    """Return the row and the hash of each category of a table's rows, a hash once per row."""
    cells = category_keys(column.name, row_categories(table, [column])[column.name])
    pairs = pl.DataFrame({"row": np.arange(len(table)), "key": cells}).explode("key").drop_nulls()
    distinct = pairs["key"].unique()
    hashes = pl.Series("hash", hash_words(distinct.to_list()), pl.Int64)
    pairs = pairs.join(pl.DataFrame({"key": distinct, "hash": hashes}), on="key")
    both = pairs.select("row", "hash").unique().sort("row", "hash")
    return both["row"].to_numpy().astype(np.int64), both["hash"].to_numpy()


def _place(item: Array, keys: Array, used_keys: Array, n_items: int) -> tuple[Array, Array]:
    """Return the categories of each item as CSR: positions in `used_keys`, ascending.

    item, keys: pairs of an item and the hash of a category; unknown ones are left out.
    """
    position = np.searchsorted(used_keys, keys)
    is_known = position < len(used_keys)
    is_known[is_known] = used_keys[position[is_known]] == keys[is_known]
    item, position = item[is_known], position[is_known]
    order = np.lexsort((position, item))
    counts = np.bincount(item, minlength=n_items)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return indptr, position[order].astype(np.int64)
