"""The loops that find what a score is made of."""

from __future__ import annotations

import numpy as np

from talerec.ranking.tables import (
    DENSE,
    IDENTITY,
    SPARSE,
    Blocks,
    Rows,
    block_at,
    dense_row,
    item_of,
    run_around,
    runs_of,
    sparse_rows,
)
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel, template


@kernel
def contributions(
    blocks: Blocks, sources: Array, shares: Array, targets: Array, items: int
) -> Array:
    """What each source (column) of a query gives to the score of each target (row); 0 where it has no weight for it."""
    out, at = np.zeros((len(targets), len(sources))), np.empty(len(targets), np.uint64)
    for x in range(len(sources)):
        b = block_at(blocks, sources[x])
        s, share = sources[x] - blocks[b].first, shares[x] * blocks[b].weight
        if blocks[b].kind == SPARSE:
            _from_row(sparse_rows(blocks, b), s, share, targets, at, out[:, x])
        elif blocks[b].kind == DENSE:
            row = dense_row(blocks, b, s, items)
            for t in range(len(targets)):
                out[t, x] = share * row[targets[t]]
        elif blocks[b].kind == IDENTITY:
            for t in range(len(targets)):
                out[t, x] = share if targets[t] == s else 0.0
        else:
            _from_run(runs_of(blocks, b), s, share, targets, out[:, x])
    return out


@template
def _from_row(rows: Rows, s: int, share: float, targets: Array, at: Array, out: Array) -> None:
    """Look up all targets in one compressed row, step by step together: memory is asked for many at once.

    at: work space
    """
    low, size = np.uint64(rows.bounds[s]), np.uint64(rows.bounds[s + 1] - rows.bounds[s])
    if size == 0:
        return
    at[:] = low
    while size > np.uint64(1):
        half = size >> np.uint64(1)
        for t in range(len(targets)):
            at[t] += half * np.uint64(rows.items[at[t] + half] <= targets[t])
        size -= half
    for t in range(len(targets)):
        if rows.items[at[t]] == targets[t]:
            out[t] = share * rows.values[at[t]]


@template
def _from_run(runs: Rows, entry: int, share: float, targets: Array, out: Array) -> None:
    """What an entry of a history gives to the targets that stand in it."""
    low, high = run_around(runs, entry)
    for t in range(len(targets)):
        for e in range(low, high):
            if runs.items[e] == targets[t]:
                out[t] += share * runs.values[abs(e - entry)]


@kernel
def source_items(blocks: Blocks, sources: Array) -> Array:
    """The item that each source stands for, -1 for none."""
    found = np.empty(len(sources), np.int64)
    for x in range(len(sources)):
        b = block_at(blocks, sources[x])
        found[x] = item_of(blocks, b, sources[x] - blocks[b].first)
    return found


@kernel
def credit_items(parts: Array, blocks: Blocks, sources: Array, items: Array) -> None:
    """Leave every contribution to one column per item, in place.

    Sources of several blocks may stand for one item: what they give goes to the column of the item's source in the
    first block. What sources that stand for no item give is left out.
    """
    for x in range(len(sources)):
        if items[x] >= 0 and sources[x] < blocks[0].last:
            continue
        for t in range(len(parts)):
            part = parts[t, x]
            for y in range(len(sources) if part != 0.0 and items[x] >= 0 else 0):
                if items[y] == items[x] and sources[y] < blocks[0].last:
                    parts[t, x], parts[t, y] = 0.0, parts[t, y] + part
                    break
            if items[x] < 0:
                parts[t, x] = 0.0


@kernel
def strongest(parts: Array, scores: Array, most: int) -> tuple[Array, Array, Array]:
    """Of each row, the columns of its `most` largest parts by absolute value, and their shares of the row's score.

    Row r has the entries from ends[r - 1] to ends[r]. Equal parts come in the order of their columns, zeros are left
    out, and a score of zero has no shares.
    """
    rows, size = parts.shape
    ends = np.empty(rows, np.int64)
    columns, shares = np.empty(rows * most, np.int64), np.empty(rows * most)
    end = 0
    for r in range(rows):
        mine, found = slice(end, end + most), 0
        for c in range(size if scores[r] != 0.0 else 0):
            found = _insert(parts[r, c], c, shares[mine], columns[mine], found)
        for n in range(end, end + found):
            shares[n] /= scores[r]
        end += found
        ends[r] = end
    return ends, columns[:end], shares[:end]


@template
def _insert(value: float, column: int, values: Array, columns: Array, size: int) -> int:
    """Put a value where it belongs among the `size` largest so far, by absolute value; how many there are then.

    Zero belongs nowhere.
    """
    most = len(values)
    m = min(size, most)
    if value == 0.0 or (m == most and (most == 0 or abs(values[m - 1]) >= abs(value))):
        return size
    while m > 0 and abs(values[m - 1]) < abs(value):
        if m < most:
            values[m], columns[m] = values[m - 1], columns[m - 1]
        m -= 1
    values[m], columns[m] = value, column
    return min(size + 1, most)


@kernel
def row_peaks(bounds: Array, values: Array) -> Array:
    """The largest absolute value of each compressed row."""
    peaks = np.zeros(len(bounds) - 1, np.float32)
    for i in range(len(peaks)):
        for e in range(bounds[i], bounds[i + 1]):
            peaks[i] = max(peaks[i], abs(values[e]))
    return peaks
