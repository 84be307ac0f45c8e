"""Gram terms: the pairs of rows that a Gram sums up, and the weights of single log rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
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

    pairs: which rows of a user form pairs, and the kernels that weight and add them up.
    """

    log: Log  # the rows that form pairs
    pairs: Pairs
    target_equals_source: bool = False  # T is S, so K is G
    share: float = 1.0
    scales: tuple[Array, Array] | None = None  # factors per source item and per target item

    def build(self, memory: int | None) -> Gram:
        """Return this summand of a Gram as matrices G = S'S and K = S'T, items x items.

        memory: bytes that it may take (None: the free memory); raises TalerecError if they are too
        few.
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

    A Gram term is a summand of G = S'S and K = S'T. slis, other: functions that make a term, called
    only if its share is not 0.
    """
    if alpha in (0, 1):
        return [slis() if alpha else other()]
    return [slis()._replace(share=alpha), other()._replace(share=1 - alpha)]


def sum_terms(terms: Sequence[GramTerm], memory: int | None = None) -> Gram:
    """Return the Gram (G = S'S, K = S'T) that several terms add up to.

    memory: bytes that the matrices of each term may take (None: the free memory).
    """
    return reduce(add, (term.build(memory) for term in terms))


def _transpose_symmetric(G: Matrix) -> Matrix:
    """Return a symmetric G by column (CSC, or the transposed dense array), without a copy."""
    if not is_sparse(G):
        return G.T
    return sparse.csc_array((G.data, G.indices, G.indptr), shape=G.shape)


# -- weights of rows -------------------------------------------------------------------------------


def newest_rows(log: Log, max_history: int) -> Log:
    """Return the log of each user's last `max_history` rows; raise if it has 2**31 or more."""
    recent = log.recent(max_history)
    if not recent.all():
        log = log.keep(recent)
    if log.rows >= 2**31:
        raise InvalidLogError(
            f"the log has {log.rows:,} rows; one machine takes up to {2**31 - 1:,}"
        )
    return log


def trend_scale(log: Log, window: float, trend: float, trend_side: str) -> Array:
    """Return TALE's trend factor p ** -trend of every row; ones if trend is 0.

    p: how many rows of the same item lie within `window` days ("both" sides, or the "past").
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

    t_user: the time of the user's last row; t_max: that of the log. decay_user is in days.
    """
    if decay_user == 0 or not log.rows:
        return np.ones(log.rows)
    last = np.repeat(log.time[log.ptr[1:] - 1], np.diff(log.ptr))  # a user without rows has no row
    latest = log.time.max() if log.latest is None else log.latest
    return np.exp((last - latest) / (decay_user * DAY))
