"""What a log is like: the counts of the paper's Table 1, and the shares of ties and repeats."""

from __future__ import annotations

from typing import Any

import numpy as np

from talerec.data.log import Log, as_log
from talerec.data.preprocessing import duplicated
from talerec.data.times import DAY
from talerec.errors import InvalidLogError


def describe(log: Log) -> dict[str, Any]:
    """Describe a log: counts, density, intervals, ties and repeats.

    Parameters
    ----------
    log : Log
        The rows to describe.

    Returns
    -------
    dict
        Counts of users, items and rows, their density and spread, the days between rows of a user,
        the share of ties, the numbers of repeats and duplicate rows, and the first and last time.

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
    length, timed = np.diff(log.ptr), log.unit != "none"
    gaps = _gaps(log) if timed else np.empty(0)
    distinct = _distinct_pairs(log)
    return {
        "users": len(log.users),
        "items": len(log.items),
        "rows": log.rows,
        "density": log.rows / (len(log.users) * len(log.items)),
        "rows_per_user": _spread(length),
        "rows_per_item": _spread(np.bincount(log.item, minlength=len(log.items))),
        "interval_days": {
            "mean": float(gaps.mean() / DAY) if gaps.size else None,
            "median": float(np.median(gaps) / DAY) if gaps.size else None,
        },
        "ties": tied(log) if timed else None,
        "repeats": int(log.rows - distinct),
        "duplicate_rows": int(duplicated(log).sum()),
        "first_time": str(np.datetime64(int(log.time.min()), "us")) if timed else None,
        "last_time": str(np.datetime64(int(log.time.max()), "us")) if timed else None,
        "time_read_as": log.unit,
    }


def tied(log: Log) -> float:
    """The share of pairs of consecutive rows of a user that have the same time."""
    same, pairs = tied_pairs(log)
    return same / pairs if pairs else 0.0


def tied_pairs(log: Log) -> tuple[int, int]:
    """How many pairs of consecutive rows of a user have the same time, and how many there are."""
    gaps = _gaps(log)
    return int(np.count_nonzero(gaps == 0)), len(gaps)


_MANY_TIES = 0.05


def many_ties(share: float) -> bool:
    """Whether so many rows are simultaneous that their order may decide figures."""
    return share > _MANY_TIES


def tie_note(share: float, ties: str) -> str | None:
    """A line of warning where many rows are simultaneous: figures depend on an order that the log does not tell."""
    if not many_ties(share):
        return None
    known = (
        f"{share:.0%} of neighbouring rows have the same time: which came first is not in the log"
    )
    if ".." in ties:
        return f"{known}; the figures are means over random orders ({ties}), with their spread"
    return (
        f"{known}, yet the order taken ({ties}) decides what is learned and asked;"
        " evaluate --ties random:0..4 shows how much of a figure rests on it"
    )


def _spread(counts: Any) -> dict[str, Any]:
    return {
        "mean": float(counts.mean()),
        "median": float(np.median(counts)),
        "max": int(counts.max()),
    }


def _gaps(log: Log) -> Any:
    """Microseconds between consecutive rows of a user."""
    within = np.ones(log.rows, bool)
    within[log.ptr[:-1][np.diff(log.ptr) > 0]] = False
    return np.diff(log.time, prepend=log.time[:1])[within]


def _distinct_pairs(log: Log) -> int:
    """How many (user, item) pairs have a row."""
    keys = log.user_codes().astype(np.int64) * len(log.items) + log.item
    return len(np.unique(keys))
