"""Family `content`: likeness to the user's items by the item table, and newness."""

from __future__ import annotations

import numpy as np

from talerec.features.inputs import (
    DAY,
    FeatureFamily,
    FeatureGroup,
    FeatureInputs,
    FeatureSources,
    cutoff_time,
)
from talerec.features.item_content import NO_DATE, ItemContent
from talerec.runtime import Array, count_before, kernel, template

_RECENT = 20  # newest rows of a history that a candidate is compared with
_DECAY = 6.0  # rows in which the weight of a row in the mean similarity falls to 1/e


def _groups(sources: FeatureSources) -> list[FeatureGroup]:
    """Return the groups of the features; none if the models know no content of items."""
    columns = sources.content
    if columns is None:
        return []
    groups = [
        FeatureGroup(
            "similarity to the user's items", "described like what the user had",
            ["content_nearest", "content_mean"],
        )
    ]  # fmt: skip
    for number, name in enumerate(columns.categories, 1):
        feature = [f"category{number}_share"]
        groups.append(FeatureGroup(f"the user's {name}", f"same {name} as before", feature))
    for number, name in enumerate(columns.quantities, 1):
        feature, subject = [f"number{number}_ratio"], f"{name} against that of the user's items"
        groups.append(FeatureGroup(subject, f"its {name} suits what the user had", feature))
    newness = ["is_new", "item_days"] if columns.has_dates else ["is_new"]
    return [*groups, FeatureGroup("how new the item is", "it is new", newness)]


@kernel
def _fill(
    inputs: FeatureInputs, indptr: Array, a: int, b: int, out: Array, column: int
) -> None:  # fmt: skip
    """Write how each candidate compares with the user's newest 20 rows, and how new it is.

    In order: the largest and the mean similarity of vectors to other items of these rows, newer
    rows weighing more; per category column, the share of the rows of other items that share a
    category with the candidate, of those that have one; per column of numbers, the log of the
    candidate's number over the mean of the rows' numbers (only numbers above 0 count); 1 for an
    item without rows before the request; days since the item's date. NaN where something is
    missing, or the date is not yet reached. See `FeatureFamily` for the arguments.
    """
    content, log = inputs.content, inputs.log
    recent, weight = np.empty(_RECENT, np.int64), np.empty(_RECENT)
    n_columns, n_numbers = len(content.indptr), len(content.quantities)
    for q in range(a, b):
        end = cutoff_time(inputs.now[q], inputs.known_until[q])
        n = 0
        for r in range(inputs.stop[q] - 1, max(inputs.start[q], inputs.stop[q] - _RECENT) - 1, -1):
            if inputs.item[r] >= 0:
                recent[n], weight[n] = inputs.item[r], np.exp((r - inputs.stop[q] + 1) / _DECAY)
                n += 1
        for c in range(inputs.counts[q]):
            row, item, at = indptr[q] + c, inputs.candidates[q, c], column + 2
            _compare_vectors(content, recent[:n], weight, item, out, row, column)
            for j in range(n_columns):
                out[row, at + j] = _category_share(content, j, recent[:n], item)
            at += n_columns
            for j in range(n_numbers):
                out[row, at + j] = _number_ratio(content.quantities, j, recent[:n], item)
            at += n_numbers
            low, high = log.indptr[item], log.indptr[item + 1]
            out[row, at] = count_before(log.times, low, high, end) == 0
            if len(content.dates):
                date = content.dates[item]
                is_known = date > NO_DATE and date <= inputs.now[q]
                out[row, at + 1] = (inputs.now[q] - date) / DAY if is_known else np.nan


@template
def _compare_vectors(
    content: ItemContent, recent: Array, weight: Array, item: int, out: Array, row: int, at: int
) -> None:
    """Write the largest and the mean similarity of an item to other, recent items.

    weight: of each recent item. Items without a vector do not count; NaN without any.
    """
    vectors = content.vectors
    n_dims = vectors.shape[1]
    nearest, total, whole, size = -np.inf, 0.0, 0.0, 0.0
    for d in range(n_dims):
        size += vectors[item, d] * vectors[item, d]
    for x in range(len(recent)):
        if recent[x] == item:
            continue
        similarity, length = 0.0, 0.0
        for d in range(n_dims):
            value = vectors[recent[x], d]
            similarity += vectors[item, d] * value
            length += value * value
        if length > 0:
            nearest = max(nearest, similarity)
            total += weight[x] * similarity
            whole += weight[x]
    has_any = size > 0 and whole > 0
    out[row, at] = nearest if has_any else np.nan
    out[row, at + 1] = total / whole if has_any else np.nan


@template
def _category_share(content: ItemContent, j: int, recent: Array, item: int) -> float:
    """Return the share of other, recent items that share a category of column j with an item.

    Of those that have a category; NaN if there are none, or the item has no category.
    """
    low, high = content.indptr[j, item], content.indptr[j, item + 1]
    n_shared, n_described = 0, 0
    for x in range(len(recent)):
        first, last = content.indptr[j, recent[x]], content.indptr[j, recent[x] + 1]
        if recent[x] == item or first == last:
            continue
        n_described += 1
        p, r = low, first
        while p < high and r < last:
            if content.codes[p] == content.codes[r]:
                n_shared += 1
                break
            if content.codes[p] < content.codes[r]:
                p += 1
            else:
                r += 1
    return n_shared / n_described if n_described and low < high else np.nan


@template
def _number_ratio(quantities: Array, j: int, recent: Array, item: int) -> float:
    """Return the log of an item's number in column j over the mean of recent items' numbers.

    Only numbers above 0 count; NaN without them.
    """
    total, n = 0.0, 0
    for x in range(len(recent)):
        value = quantities[j, recent[x]]
        if value > 0:
            total += value
            n += 1
    value = quantities[j, item]
    ratio: float = np.log(value * n / total) if value > 0 and n else np.nan
    return ratio


CONTENT = FeatureFamily("content", "likeness by the item table, and newness", _groups, _fill)
