"""What a log is like: the counts of the paper's Table 1, and what decides which model fits it."""

from __future__ import annotations

from typing import Any

import numpy as np

from talerec.data.log import Log
from talerec.data.preprocessing import duplicated
from talerec.data.times import DAY
from talerec.errors import TalerecError


def describe(log: Log) -> dict[str, Any]:
    """Counts, density, intervals, and shares of ties and repeats."""
    if not log.rows:
        raise TalerecError("the log is empty: it has no rows")
    length = np.diff(log.ptr)
    gaps = _gaps(log)
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
        "ties": tied(log),
        "repeats": int(log.rows - distinct),
        "duplicate_rows": int(duplicated(log).sum()),
        "first_time": str(np.datetime64(int(log.time.min()), "us")),
        "last_time": str(np.datetime64(int(log.time.max()), "us")),
        "time_read_as": log.unit,
    }


def tied(log: Log) -> float:
    """The share of neighbouring rows of a user that have the same time."""
    gaps = _gaps(log)
    return float((gaps == 0).mean()) if gaps.size else 0.0


_MANY_TIES = 0.05


def many_ties(share: float) -> bool:
    return share > _MANY_TIES


def tie_note(share: float, ties: str) -> str | None:
    """A line about simultaneous rows where there are many: their order is not in the data, but figures show it."""
    if not many_ties(share):
        return None
    known = (
        f"{share:.0%} of neighbouring rows have the same time: which came first is not in the log"
    )
    if ".." in ties:
        return f"{known}; the figures are means over random orders ({ties}), with their spread"
    return (
        f"{known}, yet the order taken ({ties}) decides what is learned and asked;"
        " --ties random:0..4 shows how much of a figure rests on it"
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
