"""Family `popularity`: shares of an item in the rows of recent windows, and its age."""

from __future__ import annotations

import numpy as np

from talerec.features.inputs import (
    DAY,
    HOUR,
    FeatureFamily,
    FeatureGroup,
    FeatureInputs,
    FeatureSources,
    cutoff_time,
)
from talerec.runtime import Array, count_before, kernel

_WINDOWS = (6 * HOUR, DAY, 7 * DAY, 30 * DAY, 180 * DAY)  # before the request, in microseconds


def _groups(sources: FeatureSources) -> list[FeatureGroup]:
    """Return the groups of the features; they do not depend on the sources."""
    return [
        FeatureGroup("popularity in the last day", "popular today", ["share_6h", "share_day"]),
        FeatureGroup(
            "popularity in the last month", "popular lately", ["share_week", "share_month"]
        ),
        FeatureGroup(
            "long-term popularity", "popular for long",
            ["share_half_year", "share_ever", "log_count"],
        ),
        FeatureGroup("the item's age", "its age", ["age_days"]),
        FeatureGroup("time since the item's last row", "had by others recently", ["idle_days"]),
    ]  # fmt: skip


@kernel
def _fill(
    inputs: FeatureInputs, indptr: Array, a: int, b: int, out: Array, column: int
) -> None:  # fmt: skip
    """Write shares of rows in windows before the request, log count, age and idle days.

    Windows and ages end at the request, or at the end of known rows if that is earlier. Idle days
    are those since the item's last row; both ages are NaN for an item without earlier rows. See
    `FeatureFamily` for the arguments.
    """
    log, n_windows = inputs.log, len(_WINDOWS)
    n_rows = len(log.all_times)
    totals = np.empty(n_windows + 1)
    for q in range(a, b):
        end = cutoff_time(inputs.now[q], inputs.known_until[q])
        n_before = count_before(log.all_times, 0, n_rows, end)
        for w in range(n_windows):
            totals[w] = n_before - count_before(log.all_times, 0, n_rows, end - _WINDOWS[w])
        totals[n_windows] = n_before
        for c in range(inputs.counts[q]):
            row, item = indptr[q] + c, inputs.candidates[q, c]
            low, high = log.indptr[item], log.indptr[item + 1]
            count = count_before(log.times, low, high, end)
            older = 0
            for w in range(n_windows - 1, -1, -1):  # the longest window has the fewest older rows
                older += count_before(log.times, low + older, low + count, end - _WINDOWS[w])
                out[row, column + w] = (count - older) / max(totals[w], 1.0)
            at = column + n_windows
            out[row, at] = count / max(totals[n_windows], 1.0)
            out[row, at + 1] = np.log1p(count)
            out[row, at + 2] = (end - log.times[low]) / DAY if count else np.nan
            out[row, at + 3] = (end - log.times[low + count - 1]) / DAY if count else np.nan


POPULARITY = FeatureFamily("popularity", "popularity in recent windows, and age", _groups, _fill)
