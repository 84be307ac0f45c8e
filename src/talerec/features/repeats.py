"""Family `repeats`: how often, how long ago and at what hours the user had an item."""

from __future__ import annotations

import numpy as np

from talerec.data import UNTIMED
from talerec.features.inputs import (
    HOUR,
    MINUTE,
    FeatureFamily,
    FeatureGroup,
    FeatureInputs,
    FeatureSources,
)
from talerec.runtime import Array, kernel, template

_MAX_ROWS = 2000  # newest rows of a history that count
_DAY_HOURS, _WEEK_HOURS = 24.0, 168.0
_HOUR_WIDTH, _WEEK_WIDTH = 1.5, 3.0  # hours in which nearness in the day or week falls to 1/e
_N = 9


def _groups(sources: FeatureSources) -> list[FeatureGroup]:
    """Return the groups of the features; they do not depend on the sources."""
    counts = ["seen_count", "seen_lag", "seen_hours", "seen_by_lag", "seen_by_age"]
    return [
        FeatureGroup(
            "how often and how recently the user had the item", "the user comes back to it", counts
        ),
        FeatureGroup("the hour of the day", "the user has it at this hour", ["seen_at_hour"]),
        FeatureGroup(
            "the hour of the week", "the user has it at this time of the week", ["seen_at_weekday"]
        ),
        FeatureGroup(
            "what followed the user's last item before", "the user had it next before",
            ["seen_after_last"],
        ),
        FeatureGroup("the user's interval of repeats", "the user is due for it", ["seen_due"]),
    ]  # fmt: skip


@template
def _cyclic_nearness(time: int, now: int, period: float, width: float) -> float:
    """Return exp(-(d / width)^2), d the hours between two times within a cycle.

    time, now: microseconds. period: the length of the cycle, in hours.
    """
    distance = abs((time / HOUR) % period - (now / HOUR) % period)
    distance = min(distance, period - distance)
    nearness: float = np.exp(-((distance / width) ** 2))
    return nearness


@kernel
def _fill(
    inputs: FeatureInputs, indptr: Array, a: int, b: int, out: Array, column: int
) -> None:  # fmt: skip
    """Write nine features of each candidate's rows in the history, from `column` on.

    0: number of rows; 1: lag of the last one (1: the newest row of the history; NaN: never); 2:
    hours since it; sums over its rows of 3: lag^-0.5, 4: (hours + 1)^-0.5, 5: lag^-0.5 times
    nearness in the hour of the day, 6: the same in the hour of the week, 7: lag^-0.5 if the row
    followed the user's last item; 8: time since the last row over the mean interval of the item's
    rows (NaN below two rows). See `FeatureFamily` for the arguments.
    """
    for q in range(a, b):
        now, count = inputs.now[q], inputs.counts[q]
        stop = inputs.stop[q]
        start = max(inputs.start[q], stop - _MAX_ROWS)
        items = inputs.candidates[q, :count].copy()
        order = np.argsort(items)
        items = items[order]
        first_time = np.zeros(count, np.int64)
        last_time = np.zeros(count, np.int64)
        for c in range(count):
            row = indptr[q] + c
            for f in range(_N):
                out[row, column + f] = 0.0
            out[row, column + 1] = out[row, column + 2] = out[row, column + 8] = np.nan
        for r in range(start, stop):
            at = np.searchsorted(items, inputs.item[r])
            if at == count or items[at] != inputs.item[r]:
                continue
            c = order[at]
            row, lag = indptr[q] + c, stop - r
            by_lag, time = lag**-0.5, inputs.time[r]
            if out[row, column] == 0.0:
                first_time[c] = time
            last_time[c] = time
            out[row, column] += 1.0
            out[row, column + 1] = lag
            out[row, column + 3] += by_lag
            if time > UNTIMED:
                hours = max(now - time, MINUTE) / HOUR
                out[row, column + 2] = hours
                out[row, column + 4] += (hours + 1.0) ** -0.5
                near = _cyclic_nearness(time, now, _DAY_HOURS, _HOUR_WIDTH)
                out[row, column + 5] += by_lag * near
                near = _cyclic_nearness(time, now, _WEEK_HOURS, _WEEK_WIDTH)
                out[row, column + 6] += by_lag * near
            if r > start and inputs.item[r - 1] == inputs.item[stop - 1]:
                out[row, column + 7] += by_lag
        for c in range(count):
            row = indptr[q] + c
            n = out[row, column]
            if n > 1 and last_time[c] > first_time[c] > UNTIMED:
                interval = (last_time[c] - first_time[c]) / (n - 1.0)
                out[row, column + 8] = (now - last_time[c]) / interval


REPEATS = FeatureFamily("repeats", "what the user had before", _groups, _fill)
