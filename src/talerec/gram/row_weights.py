"""What a row of a log weighs in a Gram: by the trend of its item, and by the age of its user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from talerec.data import row_kernels
from talerec.data.log import Log
from talerec.data.times import DAY, days
from talerec.errors import InvalidLogError
from talerec.runtime.arrays import Array


def newest_rows(log: Log, max_history: int) -> Log:
    """The log of each user's last `max_history` rows; earlier rows play no part at all."""
    recent = log.recent(max_history)
    if not recent.all():
        log = log.keep(recent)
    if log.rows >= 2**31:
        raise InvalidLogError(
            f"the log has {log.rows:,} rows; one machine takes up to {2**31 - 1:,}"
        )
    return log


def trend_scale(log: Log, window: float, trend: float, trend_side: str) -> Array:
    """Eq. 14: p ** -trend for every row, p = rows of its item within `window` days (both sides, or past)."""
    if trend == 0:
        return np.ones(log.rows)
    counts: Any = counted(log, window, trend, trend_side).trends
    powers: Array = np.arange(1, counts.max(initial=1) + 1, dtype=np.float64) ** -trend
    scale: Array = powers[counts - 1]
    return scale


def counted(log: Log, window: float, trend: float, trend_side: str) -> Log:
    """The log with its trend counts, so that `trend_scale` need not count again."""
    if trend == 0 or log.trends is not None:
        return log
    counts = trend_counts(log.item, log.time, len(log.items), window, trend_side)
    return replace(log, trends=counts)


def trend_counts(item: Array, time: Array, items: int, window: float, trend_side: str) -> Array:
    """Eq. 14: for every row, how many rows of its item lie within `window` days."""
    ptr, rows = row_kernels.group_rows(item, items)
    row_kernels.sort_groups(ptr, rows, time)
    counts = np.empty(len(item), np.int64)
    counts[rows] = row_kernels.trend_counts(ptr, time[rows], *trend_span(window, trend_side))
    return counts


def late_trend_counts(log: Log, is_new: Array, window: float, trend_side: str) -> Array:
    """Eq. 14 for the rows that are new, among all rows; 1 for the others."""
    asked = np.zeros(len(log.items), bool)
    asked[log.item[is_new]] = True
    some = np.flatnonzero(asked[log.item])  # all that a new row may count
    ptr, places = row_kernels.group_rows(log.item[some], len(log.items))
    counts = np.ones(log.rows, np.int64)
    span = trend_span(window, trend_side)
    row_kernels.trend_counts_of(ptr, some[places], log.time, is_new, *span, counts)
    return counts


def trend_span(window: float, trend_side: str) -> tuple[int, int]:
    """The microseconds before a row and after it in which Eq. 14 counts."""
    span = days(window)
    return span, span if trend_side == "both" else 0


def age_weights(log: Log, decay_user: float) -> Array:
    """exp(-(t_max - t_user) / decay_user) for every row, t_user the user's last time; 0 days: all weigh 1."""
    if decay_user == 0 or not log.rows:
        return np.ones(log.rows)
    last = np.repeat(log.time[log.ptr[1:] - 1], np.diff(log.ptr))  # a user without rows has no row
    latest = log.time.max() if log.latest is None else log.latest
    weights: Array = np.exp((last - latest) / (decay_user * DAY))
    return weights
