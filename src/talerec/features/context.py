"""Family `context`: whether an item is usual for the device, channel or user at hand."""

from __future__ import annotations

import numpy as np

from talerec.features.inputs import (
    FeatureFamily,
    FeatureGroup,
    FeatureInputs,
    FeatureSources,
    cutoff_time,
)
from talerec.runtime import Array, count_before, kernel, template

_PRIOR = 2.0  # rows that are added to observed and expected ones, so that few rows say little


def _groups(sources: FeatureSources) -> list[FeatureGroup]:
    """Return the groups of each context column: one, and one more unless it describes users."""
    groups = []
    for number, (name, by_user) in enumerate(sources.context, 1):
        reason = f"users with this {name} choose it" if by_user else f"chosen with this {name}"
        feature = [f"context{number}_lift"]
        groups.append(FeatureGroup(f"what is usual for this {name}", reason, feature))
        if not by_user:
            subject, reason = f"the user's items with this {name}", f"had with this {name} before"
            groups.append(FeatureGroup(subject, reason, [f"context{number}_own"]))
    return groups


@template
def _lower_bound(values: Array, low: int, high: int, value: int) -> int:
    """Return the first position from low to high at which ascending `values` reach `value`."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _fill(
    inputs: FeatureInputs, indptr: Array, a: int, b: int, out: Array, column: int
) -> None:  # fmt: skip
    """Write, per context column, the candidate's lift in the request's context, and own rows.

    Lift: log of (rows of the item with the request's value + 2) over (rows of the item times the
    share of the value in all rows + 2), of rows before the request; 0 if nothing is known. Missing
    is a value like all others. Own rows, unless the column describes users: rows of the item in the
    history that have the request's value; NaN if the request has none, or no row of the item has
    any. See `FeatureFamily` for the arguments.
    """
    context, log = inputs.context, inputs.log
    rows, n_rows, n_columns = context.rows, len(log.all_times), len(context.has_rows)
    for q in range(a, b):
        end = cutoff_time(inputs.now[q], inputs.known_until[q])
        n_before = max(count_before(log.all_times, 0, n_rows, end), 1)
        at = column
        for j in range(n_columns):
            value = context.codes[q, j]
            low, high = rows.value_indptr[j, value], rows.value_indptr[j, value + 1]
            share = count_before(rows.value_times[j], low, high, end) / n_before
            for c in range(inputs.counts[q]):
                item = inputs.candidates[q, c]
                first, last = log.indptr[item], log.indptr[item + 1]
                n_item = count_before(log.times, first, last, end)
                low = _lower_bound(rows.values[j], first, last, value)
                high = _lower_bound(rows.values[j], low, last, value + 1)
                n_alike = count_before(rows.times[j], low, high, end)
                lift = np.log((n_alike + _PRIOR) / (n_item * share + _PRIOR))
                out[indptr[q] + c, at] = lift
            at += 1
            if context.has_rows[j]:
                _count_own(inputs, q, j, indptr[q], out, at)
                at += 1


@template
def _count_own(inputs: FeatureInputs, q: int, j: int, row: int, out: Array, at: int) -> None:
    """Write how many of each candidate's history rows have the request's value.

    j: the context column. row: that of the first candidate of request q. at: the column of `out`.
    """
    count, value = inputs.counts[q], inputs.context.codes[q, j]
    items = inputs.candidates[q, :count].copy()
    order = np.argsort(items)
    items = items[order]
    has_rows, has_values = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    for c in range(count):
        out[row + c, at] = 0.0
    for r in range(inputs.start[q], inputs.stop[q]):
        place = np.searchsorted(items, inputs.item[r])
        if place == count or items[place] != inputs.item[r]:
            continue
        c, code = order[place], inputs.context.row_codes[j, r]
        has_rows[c] = 1
        if code > 0:
            has_values[c] = 1
            if code == value:
                out[row + c, at] += 1.0
    for c in range(count):
        if value == 0 or has_rows[c] > has_values[c]:
            out[row + c, at] = np.nan


CONTEXT = FeatureFamily("context", "what is usual for the context at hand", _groups, _fill)
