"""Family `user`: how active the user is, and how popular the user's items are."""

from __future__ import annotations

import numpy as np

from talerec.data import UNTIMED
from talerec.features.inputs import (
    DAY,
    FeatureFamily,
    FeatureGroup,
    FeatureInputs,
    FeatureSources,
    cutoff_time,
)
from talerec.runtime import Array, count_before, kernel

_RECENT = 20  # newest rows of a history that describe the user's taste


def _groups(sources: FeatureSources) -> list[FeatureGroup]:
    """Return the groups of the features; they do not depend on the sources."""
    return [
        FeatureGroup(
            "the user's pace", "suits how active the user is",
            ["n_rows", "inactive_days", "rows_per_day", "stale_days"],
        ),
        FeatureGroup(
            "the user's taste for popular items", "as popular as what the user had",
            ["distinct_share", "taste_popularity", "popularity_gap"],
        ),
    ]  # fmt: skip


@kernel
def _fill(
    inputs: FeatureInputs, indptr: Array, a: int, b: int, out: Array, column: int
) -> None:  # fmt: skip
    """Write features of the user, equal for all candidates, and one that compares with them.

    They are: rows of the history; days since its last row; rows per day; days from the end of known
    rows to the request; share of different items, and mean log count of the items, in the newest 20
    rows; and the candidate's log count less that mean. See `FeatureFamily` for the arguments.
    """
    log = inputs.log
    for q in range(a, b):
        start, stop, now = inputs.start[q], inputs.stop[q], inputs.now[q]
        end = cutoff_time(now, inputs.known_until[q])
        first = max(start, stop - _RECENT)
        total, n_known, n_different = 0.0, 0, 0
        for r in range(first, stop):
            item = inputs.item[r]
            is_new = True
            for s in range(first, r):
                is_new = is_new and inputs.item[s] != item
            n_different += is_new
            if item >= 0:
                low, high = log.indptr[item], log.indptr[item + 1]
                total += np.log1p(count_before(log.times, low, high, end))
                n_known += 1
        taste = total / n_known if n_known else 0.0
        inactive, pace = np.nan, np.nan
        if stop > start and inputs.time[stop - 1] > UNTIMED:
            inactive = max(now - inputs.time[stop - 1], 0) / DAY
            span = max(inputs.time[stop - 1] - inputs.time[start], 1) / DAY
            pace = (stop - start) / max(span, 1.0)
        stale = max(now - inputs.known_until[q], 0) / DAY
        distinct = n_different / max(stop - first, 1)
        for c in range(inputs.counts[q]):
            row, item = indptr[q] + c, inputs.candidates[q, c]
            out[row, column] = stop - start
            out[row, column + 1] = inactive
            out[row, column + 2] = pace
            out[row, column + 3] = stale
            out[row, column + 4] = distinct
            out[row, column + 5] = taste
            low, high = log.indptr[item], log.indptr[item + 1]
            out[row, column + 6] = np.log1p(count_before(log.times, low, high, end)) - taste


USER = FeatureFamily("user", "the user's pace and taste", _groups, _fill)
