"""Statistics of a log: the counts of the paper's Table 1, and shares of ties and repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from talerec.data.item_rows import described_rows
from talerec.data.log import Log, as_log
from talerec.data.preprocessing import duplicate_mask
from talerec.data.times import DAY
from talerec.errors import InvalidLogError
from talerec.runtime import Array


def describe(log: Log) -> dict[str, Any]:
    """Return statistics of a log: counts, density, intervals, ties and repeats.

    Parameters
    ----------
    log : Log
        The rows to describe.

    Returns
    -------
    dict
        Counts of users, items and rows, their density and spread, the days between rows of a user,
        the share of ties, the numbers of repeats and duplicate rows, and the first and last time.
        If the log has an item table, item_table: the types of its columns, and how many items the
        log and the table share (see `describe_items`).

    Raises
    ------
    InvalidLogError
        If the log has no rows.

    Examples
    --------
    >>> import talerec as tr
    >>> facts = tr.describe(tr.synthetic_log(2000))
    >>> facts["users"], facts["items"], facts["rows_per_user"]["median"]
    (200, 100, 7.0)
    """
    log = as_log(log)
    if not log.rows:
        raise InvalidLogError("the log is empty: it has no rows")
    length, is_timed = np.diff(log.ptr), log.unit != "none"
    intervals = _compute_intervals(log) if is_timed else np.empty(0)
    pairs = log.user_codes().astype(np.int64) * len(log.items) + log.item
    return {
        "users": len(log.users),
        "items": len(log.items),
        "rows": log.rows,
        "density": log.rows / (len(log.users) * len(log.items)),
        "rows_per_user": _spread(length),
        "rows_per_item": _spread(np.bincount(log.item, minlength=len(log.items))),
        "interval_days": {
            "mean": float(intervals.mean() / DAY) if intervals.size else None,
            "median": float(np.median(intervals) / DAY) if intervals.size else None,
        },
        "ties": tie_share(log) if is_timed else None,
        "repeats": int(log.rows - len(np.unique(pairs))),
        "duplicate_rows": int(duplicate_mask(log).sum()),
        "first_time": str(np.datetime64(int(log.time.min()), "us")) if is_timed else None,
        "last_time": str(np.datetime64(int(log.time.max()), "us")) if is_timed else None,
        "time_read_as": log.unit,
        **_describe_item_table(log),
    }


def _describe_item_table(log: Log) -> dict[str, Any]:
    """Return {"item_table": its description}, or an empty dict if the log has no item table."""
    if log.info is None or log.catalogue is None:
        return {}
    from talerec.data.items import describe_items, detect_columns  # most logs have no table

    table = pl.concat([described_rows(log.info), log.catalogue])
    types = detect_columns(table, text=log.item_text, skip=log.item_skip)
    return {"item_table": describe_items(log.items.ids, table, types)}


def tie_share(log: Log) -> float:
    """Return the share of a user's consecutive pairs of rows with equal times; 0 if no pairs.

    Pairs of all users of the log count together.
    """
    same, pairs = count_ties(log)
    return same / pairs if pairs else 0.0


def count_ties(log: Log) -> tuple[int, int]:
    """Return two counts of pairs of a user's consecutive rows: with equal times, and all."""
    intervals = _compute_intervals(log)
    return int(np.count_nonzero(intervals == 0)), len(intervals)


_MANY_TIES = 0.05


def has_many_ties(share: float) -> bool:
    """Return whether a share of ties (`tie_share`) is over 5 %: the order may change metrics."""
    return share > _MANY_TIES


def tie_warning(share: float, ties: str) -> str | None:
    """Return a warning that metrics depend on the order of simultaneous rows; None if few.

    `share` is the share of a user's consecutive rows with equal times; up to 5 % are few. `ties`
    names the order used: file, item or random:SEED, or random:0..4 for several orders.
    """
    if not has_many_ties(share):
        return None
    finding = f"{share:.0%} of neighbouring rows have the same time: the log does not order them"
    if ".." in ties:
        return f"{finding}; the figures are means over random orders ({ties}), with their spread"
    return (
        f"{finding}, so the figures depend on the order used ({ties});"
        " evaluating with ties random:0..4 shows how much"
    )


def _spread(counts: Any) -> dict[str, Any]:
    """Return mean, median and max of an array of counts, by these names."""
    mean, median = float(counts.mean()), float(np.median(counts))
    return {"mean": mean, "median": median, "max": int(counts.max())}


def _compute_intervals(log: Log) -> Any:
    """Return the microseconds between consecutive rows of each user, all users in one array.

    User u of the log has rows ptr[u]..ptr[u + 1], in time order; a user's first row has no
    interval.
    """
    within = np.ones(log.rows, bool)
    within[log.ptr[:-1][np.diff(log.ptr) > 0]] = False
    return np.diff(log.time, prepend=log.time[:1])[within]


def median_interval(log: Log) -> float:
    """Return the median positive time between a user's consecutive rows, in days.

    All users' intervals above 0 are taken together; 1 if there are none.
    """
    intervals = positive_intervals(log)
    return median_in_days(float(np.median(intervals)) if intervals.size else None)


def positive_intervals(log: Log) -> Array:
    """Return the times between users' consecutive rows (microseconds) that are above 0.

    One entry per pair of consecutive rows of the same user with different times, in the log's order
    of rows (by user, then by time).
    """
    intervals = np.diff(log.time)
    first_rows = log.ptr[1:-1][(log.ptr[1:-1] > 0) & (log.ptr[1:-1] < log.rows)]
    intervals[first_rows - 1] = 0  # the next row is another user's
    return intervals[intervals > 0]


def median_in_days(median: float | None) -> float:
    """Convert a median interval from microseconds to days; 1 for None (no intervals)."""
    return 1.0 if median is None else median / DAY
