"""What a fit settles, and an update keeps: each row's trend count, half of G, and how much old weights lack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from talerec.data.log import Log
from talerec.gram.row_weights import late_trend_counts, newest_rows, trend_counts
from talerec.runtime.arrays import Array
from talerec.solvers.compressed import Compressed
from talerec.solvers.triangle import Half


@dataclass(frozen=True, eq=False)
class Settled:
    """What an update goes on from, besides the histories and their trend counts (`Log.trends`).

    half     G as the local solver keeps it; None where G is counted anew
    entries  of K at the fit: the local solver goes by their number
    turned   the share of K' in K (tempo)
    lacking  how much the weights of each target lack since they were solved: see `residuals.worst_steps`
    """

    half: Half | None = None
    entries: int = 0
    turned: float = 0.0
    lacking: Array | None = None

    def arrays(self) -> dict[str, Array]:
        """What an artifact keeps as arrays."""
        kept = {} if self.lacking is None else {"lacking": self.lacking}
        if self.half is None:
            return kept
        starts, indices, values = self.half.lower
        return kept | {
            "half_starts": starts, "half_indices": indices, "half_values": values,
            "half_rank": self.half.rank, "half_diagonal": self.half.diagonal,
        }  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """What an artifact keeps in its manifest."""
        return {"entries": self.entries, "turned": self.turned}

    @classmethod
    def restored(cls, facts: dict[str, Any] | None, arrays: dict[str, Array]) -> Settled | None:
        """What `facts` and `arrays` gave; None for an artifact that nobody wants to update."""
        if facts is None:
            return None
        half = None
        if "half_rank" in arrays:
            lower = Compressed(
                *(arrays[f"half_{name}"] for name in ("starts", "indices", "values"))
            )
            half = Half(lower, arrays["half_rank"], arrays["half_diagonal"])
        return cls(half, int(facts["entries"]), float(facts["turned"]), arrays.get("lacking"))


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


def later_trends(values: dict[str, Any], log: Log, is_new: Array, kept: Array) -> Array:
    """The counts of old rows as they were kept, and those of new rows as they come."""
    counts = np.ones(log.rows, np.int64)
    used = log.recent(values["max_history"])
    window, side = values["window"], values.get("trend_side", "both")
    counts[used] = late_trend_counts(log.keep(used), is_new[used], window, side)
    counts[~is_new] = kept
    return counts
