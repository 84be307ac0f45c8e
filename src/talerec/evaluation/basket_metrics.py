"""Metrics of recommended lists for baskets: how many items of the next basket a list has.

All items of a basket are targets. Of these, repeats are items of the user's history, and new items
are the others; metrics of repeats (or new items) take them alone as targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data import Log, list_rows
from talerec.data.split import Cases
from talerec.runtime import Array

METRICS = ("recall", "precision", "HR", "NDCG", "F1")
PARTS = ("", "repeat_", "new_")  # prefixes of metrics: all items, repeats, new items
SHARES = ("none", "up to half", "over half", "all")  # of repeats in a basket


def basket_metric_names(ks: Sequence[int], part: str = "") -> list[str]:
    """Return the columns of metrics at each cutoff k, such as recall@10; part: their prefix."""
    return [f"{part}{metric}@{k}" for metric in METRICS for k in ks]


class _Baskets(NamedTuple):
    """Items of some baskets: their keys, ascending, and whether each is a repeat.

    A key is the basket's number times `n_items` plus the item's position in the log.
    """

    keys: Array
    is_repeat: Array
    n_baskets: int
    n_items: int

    def count_flagged_items(self, flags: Array) -> Array:
        """Return the number of flagged items of each basket; flags: one per key."""
        return np.bincount(self.keys[flags] // self.n_items, minlength=self.n_baskets)

    def find_hits(self, lists: Array) -> tuple[Array, Array]:
        """Return which listed items are in their basket, and which of those are repeats.

        lists : the list for each basket (row) by rank (column): item positions in the log, -1 for
        none. Both results are flags of the same shape.
        """
        keys = np.arange(self.n_baskets)[:, None] * self.n_items + lists
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        is_hit = (self.keys[at] == keys) & (lists >= 0)
        return is_hit, is_hit & self.is_repeat[at]


def measure_baskets(log: Log, cases: Cases, lists: Array, ks: Sequence[int]) -> pl.DataFrame:
    """Return a row per basket: sizes, the share of repeats, and the metrics of its list.

    log : the log that was split, with the items of baskets and histories
    cases : a case per basket, with rows `target_row` to `basket_stop` of the log
    lists : baskets x longest k, recommended items as positions in the log, -1 for none
    ks : cutoffs. Metrics of repeats (prefix repeat_) and new items (new_) are null for baskets
    without such items. Equal items of a basket count once.
    """
    histories = cases.histories
    assert cases.basket_stop is not None
    n_items = len(log.items)
    keys = _build_item_keys(log, cases.target_row, cases.basket_stop)
    is_repeat = np.isin(
        keys, _build_item_keys(log, histories.start, histories.stop), assume_unique=True
    )
    baskets = _Baskets(keys, is_repeat, len(cases), n_items)
    is_hit, is_repeat_hit = baskets.find_hits(lists)
    size, n_repeats = (
        baskets.count_flagged_items(flags) for flags in (np.ones(len(keys), bool), is_repeat)
    )
    share = n_repeats / size  # of repeats; its group is a position in SHARES
    label = np.add(share > 0, share > 0.5, dtype=np.int8) + (share == 1)
    frame: dict[str, pl.Series | Array] = {
        "basket_size": size, "repeats": n_repeats,
        "repeat_share": pl.Series(SHARES).gather(label.astype(np.uint32)),
    }  # fmt: skip
    hits = (is_hit, is_repeat_hit, is_hit & ~is_repeat_hit)
    sizes = (size, n_repeats, size - n_repeats)
    for part, part_hits, part_size in zip(PARTS, hits, sizes, strict=True):
        for k in ks:
            values = _list_metrics(part_hits[:, :k], part_size, k)
            series = (pl.Series(np.where(part_size, v, np.nan)).fill_nan(None) for v in values)
            names = (f"{part}{metric}@{k}" for metric in METRICS)
            frame |= dict(zip(names, series, strict=True))
    return pl.DataFrame(frame)


def _build_item_keys(log: Log, start: Array, stop: Array) -> Array:
    """Return the distinct items of each of some ranges of rows, as sorted keys.

    Range number n has the rows start[n] to stop[n] - 1. The key of an item in it is n times the
    number of items plus the item's position.
    """
    number, rows = list_rows(start, stop)
    return np.unique(number * len(log.items) + log.item[rows])


def _list_metrics(hits: Array, size: Array, k: int) -> tuple[Array, ...]:
    """Return recall, precision, HR, NDCG and F1 of lists, each an array with a value per list.

    hits : lists x ranks (at most k), whether the listed item is a target
    size : targets of each list; the values of a list without targets have no meaning
    k : the cutoff; a list may be shorter, as if further items were misses
    """
    n_hits, targets = hits.sum(axis=1), np.maximum(size, 1)
    discount = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discount)[np.minimum(targets, k) - 1]
    gain = hits @ discount[: hits.shape[1]] / ideal
    return (
        n_hits / targets,
        n_hits / k,
        (n_hits > 0).astype(float),
        gain,
        2 * n_hits / (k + targets),
    )
