"""Statistics of lists beyond accuracy: new items, diversity, calibration, exposure.

A case is one evaluated query; its list has the recommended items, best first. Categories are those
of the item table: every value of a column of the kind category or categories, by column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from talerec.data import CATEGORIES, CATEGORY, Histories, Log, column_categories, detect_columns
from talerec.evaluation.metrics import item_coverage
from talerec.evaluation.queries import Means, mean_columns
from talerec.runtime import Array, Matrix, sparse

NEW, DIVERSITY, CALIBRATION = "new", "diversity", "calibration"
GINI = "gini"
_SMOOTHING = 0.01  # share of the history's categories that is mixed into those of the list


class ExposureCounter:
    """Counts, over many lists, how often each item is among the first k, for each k."""

    def __init__(self, ks: Sequence[int], n_items: int) -> None:
        """Set all counts to 0. ks: the lengths k; n_items: the number of the model's items."""
        self._counts = {k: np.zeros(n_items, np.int64) for k in ks}

    def add(self, lists: Array) -> None:
        """Count the items of some lists: cases x longest k, best first, -1 for no item."""
        for k, counts in self._counts.items():
            top = lists[:, :k]
            counts += np.bincount(top[top >= 0], minlength=len(counts))

    def summarize(self) -> dict[str, float]:
        """Return coverage@k, the share of items in any list, and gini@k, at each k."""
        return {
            **{f"coverage@{k}": item_coverage(n) for k, n in self._counts.items()},
            **{f"{GINI}@{k}": exposure_gini(n) for k, n in self._counts.items()},
        }


def exposure_gini(counts: Array) -> float:
    """Return the Gini coefficient of how often each item is in a list, from these numbers.

    0: all items are listed equally often; close to 1: a few items fill all lists. 0 without any
    listed item.
    """
    n_items, counts = len(counts), np.sort(counts.astype(float))
    total = counts.sum()
    if not total:
        return 0.0
    place = np.arange(1, n_items + 1)
    return float(((2 * place - n_items - 1) * counts).sum() / (n_items * total))


def find_new_items(lists: Array, items: Array, case: Array) -> Array:
    """Return whether each item of each list is missing from the history of the list's case.

    lists: cases x k, positions of items, -1 (never new) for none. items, case: the item and the
    case of every row of all histories; item -1 is unknown.
    """
    n_items = int(max(lists.max(initial=0), items.max(initial=0))) + 1
    seen = np.sort((case * n_items + items)[items >= 0])
    keys = np.arange(len(lists))[:, None] * n_items + lists
    if not len(seen):
        return lists >= 0
    place = np.minimum(np.searchsorted(seen, keys.ravel()), len(seen) - 1)
    is_new: Array = (seen[place].reshape(keys.shape) != keys) & (lists >= 0)
    return is_new


def new_item_shares(lists: Array, is_new: Array, k: int) -> Array:
    """Return, for each case, the share of its top k items that its history does not have.

    lists: cases x longest k, positions of items, -1 for none. is_new: of the same shape, from
    `find_new_items`. NaN for an empty list.
    """
    return _divide(is_new[:, :k].sum(axis=1), (lists[:, :k] >= 0).sum(axis=1))


def read_categories(log: Log) -> Matrix | None:
    """Return the categories of each item as a sparse matrix of ones, items x categories.

    Rows are the items of the log, then those that only the item table has. None without an item
    table, or if it has no column of categories.
    """
    if log.info is None:
        return None
    table = log.with_catalogue().info
    assert table is not None
    types = detect_columns(table, text=log.item_text, skip=log.item_skip)
    items, categories = [], []
    for column in types:
        if column.kind in (CATEGORY, CATEGORIES):
            lists = column_categories(table[column.name], column)
            frame = pl.DataFrame({"item": np.arange(len(lists)), "value": lists})
            pairs = frame.explode("value").drop_nulls().unique(maintain_order=True)
            items.append(pairs["item"])
            # equal values of two columns are two categories
            categories.append(f"{column.name}\0" + pairs["value"])
    if not items:
        return None
    item, category = pl.concat(items).to_numpy(), pl.concat(categories).rename("category")
    code = category.rank("dense").to_numpy().astype(np.int64) - 1
    if not len(code):
        return None
    shape = (len(table), int(code.max()) + 1)
    return sparse.csr_array((np.ones(len(code)), (item, code)), shape=shape)


def list_diversities(lists: Array, categories: Matrix) -> Array:
    """Return the mean distance of two items of each list, by the categories of the items.

    The distance is Jaccard's: 1 less shared categories over all categories of the two. lists: cases
    x k, -1 for none. categories: ones, items x categories. Pairs with an item that has no category
    do not count; NaN for a list without other pairs.
    """
    n_cases, k = lists.shape
    left, right = np.triu_indices(k, 1)
    first, second = (lists[:, side].ravel().astype(np.int64) for side in (left, right))
    sizes = np.append(np.diff(categories.indptr), 0)  # the last entry is for item -1
    counts = (sizes[first] > 0) & (sizes[second] > 0)
    width = len(sizes)
    codes, inverse = np.unique(first[counts] * width + second[counts], return_inverse=True)
    a, b = codes // width, codes % width
    common = np.asarray(categories[a].multiply(categories[b]).sum(axis=1)).ravel()
    distance = 1 - common / (sizes[a] + sizes[b] - common) if len(codes) else np.empty(0)
    case = np.repeat(np.arange(n_cases), len(left))[counts]
    total = np.bincount(case, distance[inverse], minlength=n_cases)
    return _divide(total, np.bincount(case, minlength=n_cases))


def list_calibrations(lists: Array, items: Array, case: Array, categories: Matrix) -> Array:
    """Return how far the categories of each list are from those of its history.

    This is Steck's measure, the Kullback-Leibler divergence of p (shares of categories in the
    history) from q (in the list, with 1 % of p mixed in), in nats: 0 if the shares are equal, up to
    4.6. An item's weight is divided evenly over its categories. lists: cases x k, -1 for none.
    items, case: of every row of all histories, its item (-1: unknown) and the number of its list.
    categories: as for `list_diversities`. NaN if history or list has no category.
    """
    n_cases = len(lists)
    sizes = np.diff(categories.indptr)
    scale = np.divide(1.0, sizes, out=np.zeros(len(sizes)), where=sizes > 0)
    shares = sparse.diags_array(scale) @ categories
    listed = lists >= 0
    row = np.repeat(np.arange(n_cases), lists.shape[1])[listed.ravel()]
    q = _compute_category_shares(row, lists[listed], n_cases, shares)
    p = _compute_category_shares(case[items >= 0], items[items >= 0], n_cases, shares)
    p.sort_indices()
    mixed = ((1 - _SMOOTHING) * q.multiply(p > 0) + _SMOOTHING * p).tocsr()
    mixed.sort_indices()
    parts = p.data * np.log(p.data / mixed.data)
    case_of_part = np.repeat(np.arange(n_cases), np.diff(p.indptr))
    values: Array = np.maximum(np.bincount(case_of_part, parts, minlength=n_cases), 0.0)
    has_both = (np.diff(p.indptr) > 0) & (np.diff(q.indptr) > 0)
    return np.where(has_both, values, np.nan)


def _compute_category_shares(row: Array, item: Array, n_cases: int, shares: Matrix) -> Any:
    """Return the share of each category among the items of each case: cases x categories, CSR.

    row, item: the case and the item of each entry. shares: of an item's categories, items x
    categories; a case without categories has no entry.
    """
    shape = (n_cases, shares.shape[0])
    sums = (sparse.csr_array((np.ones(len(item)), (row, item)), shape=shape) @ shares).tocsr()
    total = np.asarray(sums.sum(axis=1)).ravel()
    factor = np.divide(1.0, total, out=np.zeros(n_cases), where=total > 0)
    scaled = (sparse.diags_array(factor) @ sums).tocsr()
    scaled.eliminate_zeros()
    return scaled


def build_list_columns(
    histories: Histories, lists: Array, categories: Matrix | None, ks: Sequence[int]
) -> dict[str, pl.Series]:
    """Return the columns new@k, diversity@k and calibration@k of a frame of cases, at each k.

    histories, lists: of each case; a list has positions of items, best first, -1 for none.
    categories: from `read_categories`; None leaves diversity and calibration out. Null for a case
    without a value.
    """
    lengths = histories.stop - histories.start
    ends = np.cumsum(lengths)
    offsets = np.repeat(histories.start - (ends - lengths), lengths)
    items = histories.item[np.arange(len(offsets)) + offsets].astype(np.int64)
    case = np.repeat(np.arange(len(lengths)), lengths)
    series, is_new = {}, find_new_items(lists, items, case)
    for k in ks:
        series[f"{NEW}@{k}"] = new_item_shares(lists, is_new, k)
        if categories is not None:
            top = lists[:, :k].astype(np.int64)
            series[f"{DIVERSITY}@{k}"] = list_diversities(top, categories)
            series[f"{CALIBRATION}@{k}"] = list_calibrations(top, items, case, categories)
    return {name: pl.Series(values).fill_nan(None) for name, values in series.items()}


def mean_list_columns(frame: pl.DataFrame, ks: Sequence[int]) -> Means:
    """Return the means of a frame's columns new@k, diversity@k and calibration@k, by name.

    Frames of earlier versions and of clusters lack columns, whose means are left out.
    """
    return mean_columns(frame, [name for name in list_column_names(ks) if name in frame.columns])


def list_column_names(ks: Sequence[int]) -> list[str]:
    """Return new@k, diversity@k and calibration@k at each k, the columns of cases."""
    return [f"{name}@{k}" for name in (NEW, DIVERSITY, CALIBRATION) for k in ks]


def _divide(total: Array, count: Array) -> Array:
    """Return total / count for each entry, NaN where the count is 0."""
    values: Array = np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
    return values
