"""What a fit settles, and an update keeps: the trend count of every row."""

from __future__ import annotations

from typing import Any

import numpy as np

from talerec.data.log import Log
from talerec.gram.row_weights import newest_rows, trend_counts
from talerec.runtime.arrays import Array


def settled_trends(values: dict[str, Any], log: Log) -> Array | None:
    """The trend count of every row, as a fit with these parameters counts it; None where it counts none. Cut rows have 1."""
    if not values.get("trend") or log.trends is not None:
        return log.trends
    counts = np.ones(log.rows, np.int64)
    used = log.recent(values["max_history"])
    some = newest_rows(log, values["max_history"])
    window, side = values["window"], values.get("trend_side", "both")
    counts[used] = trend_counts(some.item, some.time, len(log.items), window, side)
    return counts
