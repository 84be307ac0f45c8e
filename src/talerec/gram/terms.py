"""Gram terms: the pairs of rows that a Gram sums up, and the weights of single log rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from talerec.data import (
    DAY,
    Log,
    count_within_window,
    days_to_microseconds,
    group_rows,
    sort_groups,
    update_trend_counts,
)
from talerec.errors import InvalidLogError
from talerec.gram.accumulate import ONLY_G, Pairs, accumulate_gram
from talerec.gram.gram import Gram
from talerec.runtime import Array, Matrix, is_sparse, sparse


class GramTerm(NamedTuple):
    """One summand of a Gram (G = S'S, K = S'T): pairs of rows of a log, multiplied by `share`.

    A row of S has the source items of a training example, and T its target items; a pair is a
    source row and a target row of one user.
    """

    log: Log  # the rows that form pairs
    pairs: Pairs  # which rows form pairs, and the kernels that weight and add them up
    target_equals_source: bool = False  # T is S, so K is G
    share: float = 1.0  # the factor of this summand
    scales: tuple[Array, Array] | None = None  # factors per source item and per target item
    key: Hashable = None  # equal for terms with equal G and K, `share` apart; None: not comparable

    def build(self, memory: int | None) -> Gram:
        """Return this summand of a Gram as matrices G = S'S and K = S'T, items x items.

        A row of S has the source items of a training example, and T its target items. If both are
        the same (`target_equals_source`), K is G. `scales` are factors per source item and per
        target item, `share` multiplies the result. memory: bytes that it may take (None: the free
        memory); TalerecError if they are too few. `log` has the rows, `pairs` which of them form
        pairs and the kernels that weight them.
        """
        if self.target_equals_source:
            G, _ = accumulate_gram(self.log, self.pairs, memory, ONLY_G)
            gram = Gram(G, _transpose_symmetric(G))
        else:
            gram = Gram(*accumulate_gram(self.log, self.pairs, memory))
        gram = gram if self.scales is None else gram.scaled(*self.scales)
        return gram if self.share == 1.0 else self.share * gram


def blend_terms(
    alpha: float, slis: Callable[[], GramTerm], other: Callable[[], GramTerm]
) -> list[GramTerm]:
    """Return the Gram terms of alpha * slis + (1 - alpha) * other; none of share 0.

    A Gram term is a summand of the matrices G = S'S and K = S'T that a linear model is solved from.
    slis, other: functions that make a term, called only if its share is not 0.
    """
    if alpha in (0, 1):
        return [slis() if alpha else other()]
    return [slis()._replace(share=alpha), other()._replace(share=1 - alpha)]


def _transpose_symmetric(G: Matrix) -> Matrix:
    """Return a symmetric G by column (CSC, or the transposed dense array), without a copy."""
    if not is_sparse(G):
        return G.T
    return sparse.csc_array((G.data, G.indices, G.indptr), shape=G.shape)


# -- weights of rows -------------------------------------------------------------------------------


def newest_rows(log: Log, max_history: int) -> Log:
    """Return the log of each user's last `max_history` rows.

    InvalidLogError if it has 2**31 rows or more: kernels count rows in 32 bits.
    """
    recent = log.recent(max_history)
    if not recent.all():
        log = log.keep(recent)
    if log.rows >= 2**31:
        raise InvalidLogError(
            f"the log has {log.rows:,} rows; one machine takes up to {2**31 - 1:,}"
        )
    return log


def trend_scale(log: Log, window: float, trend: float, trend_side: str) -> Array:
    """Return TALE's trend factor p ** -trend of every row of a log; ones if trend is 0.

    p: how many rows of the same item lie within `window` days of the row, on "both" sides or in the
    "past" (trend_side).
    """
    if trend == 0:
        return np.ones(log.rows)
    counts: Any = with_trend_counts(log, window, trend, trend_side).trends
    powers: Array = np.arange(1, counts.max(initial=1) + 1, dtype=np.float64) ** -trend
    scale: Array = powers[counts - 1]
    return scale


def with_trend_counts(log: Log, window: float, trend: float, trend_side: str) -> Log:
    """Return the log with `Log.trends` set, unless trend is 0 or they are set already.

    The trend count of a row is the number of rows of its item within `window` days: on "both" sides
    of it, or in the "past" (trend_side).
    """
    if trend == 0 or log.trends is not None:
        return log
    counts = trend_counts(log.item, log.time, len(log.items), window, trend_side)
    return replace(log, trends=counts)


def trend_counts(item: Array, time: Array, items: int, window: float, trend_side: str) -> Array:
    """Return, per row, how many rows of its item, itself included, lie within `window` days.

    item, time (microseconds): of each row. items: the number of items. trend_side: "both", or
    "past" for rows up to its own time only.
    """
    indptr, rows = group_rows(item, items)
    sort_groups(indptr, rows, time)
    counts = np.empty(len(item), np.int64)
    counts[rows] = count_within_window(indptr, time[rows], *trend_span(window, trend_side))
    return counts


def late_trend_counts(log: Log, is_new: Array, window: float, trend_side: str) -> Array:
    """Return the trend counts of the rows flagged in `is_new`; 1 for the other rows.

    A trend count is the number of rows of the row's item, old and new, within `window` days of it
    (trend_side "both"), or in the `window` days before it ("past").
    """
    has_new_row = np.zeros(len(log.items), bool)
    has_new_row[log.item[is_new]] = True
    rows = np.flatnonzero(has_new_row[log.item])  # all that a new row may count
    indptr, order = group_rows(log.item[rows], len(log.items))
    counts = np.ones(log.rows, np.int64)
    span = trend_span(window, trend_side)
    update_trend_counts(indptr, rows[order], log.time, is_new, *span, counts)
    return counts


def trend_span(window: float, trend_side: str) -> tuple[int, int]:
    """Return the microseconds before and after a row in which rows of its item are counted.

    window: days. trend_side: "both" sides, or "past", which gives 0 after the row.
    """
    span = days_to_microseconds(window)
    return span, span if trend_side == "both" else 0


def age_weights(log: Log, decay_user: float) -> Array:
    """Return exp(-(t_max - t_user) / decay_user) for every row, or ones if decay_user is 0.

    t_user: the time of the user's last row; t_max: the log's last time (`log.latest` if it is part
    of a larger log). decay_user is in days.
    """
    if decay_user == 0 or not log.rows:
        return np.ones(log.rows)
    last = np.repeat(log.time[log.ptr[1:] - 1], np.diff(log.ptr))  # a user without rows has no row
    latest = log.time.max() if log.latest is None else log.latest
    return np.exp((last - latest) / (decay_user * DAY))


def row_scale(sums: Array, norm: str) -> Array:
    """Return the factor of each row of S or T that normalizes it, given the rows' sums.

    S and T have a row per training example: its source items and its target items. norm: "none"
    (factor 1), "l1" (1 / sum), "symmetric" (1 / root of the sum). 0 if the sum is 0.
    """
    power = {"none": 0.0, "l1": -1.0, "symmetric": -0.5}[norm]
    return np.power(sums, power, out=np.zeros_like(sums), where=sums > 0)


def column_scale(log: Log, entries: Array) -> Array:
    """Return one over the root of each item's sum of `entries`, 0 if that sum is 0.

    entries: what each log row adds to the column of its item in S or T, the matrices (training
    examples x items) of sources and targets.
    """
    sums = np.bincount(log.item, entries, len(log.items))
    return np.power(sums, -0.5, out=np.zeros_like(sums), where=sums > 0)


def first_rows(log: Log, lag: int) -> Array:
    """Return, for every row, the user's first row that is no more than `lag` rows before it.

    Row numbers, int32; user u has rows log.ptr[u]..log.ptr[u + 1].
    """
    start = np.repeat(log.ptr[:-1], np.diff(log.ptr))
    first: Array = np.maximum(start, np.arange(log.rows) - lag).astype(np.int32)
    return first


def next_rows(log: Log) -> Array:
    """Return r + 1 for every row r of the log (int32).

    As the end of a range of rows, it includes row r itself.
    """
    return np.arange(1, log.rows + 1, dtype=np.int32)
