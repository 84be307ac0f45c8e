"""How tasks of a cluster hand each other sparse matrices and arrays.

Matrices travel as blocks of rows: each block is one row of a table, with its entries as a few cells of bytes, since
Spark's costs grow with the rows of a table. Arrays that later tasks need lie in files of a folder that all see. Sums
are taken in the order of the parts, and a file appears under its name only when it is complete: a task that runs twice
leaves identical results.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from talerec.runtime.arrays import Array
from talerec.runtime.files import atomic_write
from talerec.runtime.lazy import sparse

#: A block: its number, the part that it comes from, its matrix; then rows, their lengths, columns and values.
BLOCKS = "block int, part int, kind int, row binary, length binary, column binary, value binary"
_FIELDS = pa.schema(
    [(name, pa.int32()) for name in ("block", "part", "kind")]
    + [(name, pa.binary()) for name in ("row", "length", "column", "value")]
)
_COPIED = 2**22  # entries of an array that are copied to a file at a time
_BATCH = 2**16  # rows of an Arrow batch

#: Matrices of a pair of items: its entry of G, its entry of K into the owner, its entry of K from the owner.
G, INTO, FROM = range(3)

Batches = Iterable[pa.RecordBatch]


# -- files -----------------------------------------------------------------------------------------


def save_array(folder: str | Path, name: str, array: Array) -> None:
    """Write an array to the file of that name, which appears complete or not at all."""
    target = Path(folder) / f"{name}.npy"
    with atomic_write(target, uuid.uuid4().hex) as unfinished, unfinished.open("wb") as out:
        np.save(out, array)


def load_array(folder: str | Path, name: str) -> Array:
    """Map the array of that name into memory."""
    path = Path(folder) / f"{name}.npy"
    has_entries = path.stat().st_size > 128  # an empty array cannot be mapped
    array: Array = np.load(path, mmap_mode="r" if has_entries else None)
    return array


def load_blocks(folder: str | Path, name: str, count: int) -> Iterator[Array]:
    """The arrays of that name of all blocks, in order."""
    return (load_array(folder, f"{name}-{block}") for block in range(count))


def copy_to(out: Any, array: Array) -> None:
    """Write the bytes of an array to an open file, without a copy of all in memory."""
    for a in range(0, len(array), _COPIED):
        out.write(np.ascontiguousarray(array[a : a + _COPIED]).data.cast("B"))


# -- matrices --------------------------------------------------------------------------------------


def blocks(
    matrix: Any, rows: Array, columns: Array, edges: Array, part: int, kind: int
) -> Iterator[pa.RecordBatch]:
    """Cut a CSR matrix into blocks of rows, from one edge to the next.

    `rows` (ascending) and `columns` hold the numbers that its rows and columns have in the whole matrix.
    """
    bounds = np.searchsorted(rows, edges)
    for block in np.flatnonzero(np.diff(matrix.indptr[bounds])):
        a, b = bounds[block], bounds[block + 1]
        length = np.diff(matrix.indptr[a : b + 1]).astype(np.int32)
        filled = length > 0
        span = slice(matrix.indptr[a], matrix.indptr[b])
        entries = (columns[matrix.indices[span]], matrix.data[span])
        numbers = [pa.array([value], pa.int32()) for value in (block, part, kind)]
        cells = [_cell(array) for array in (rows[a:b][filled], length[filled], *entries)]
        yield pa.RecordBatch.from_arrays(numbers + cells, schema=_FIELDS)


def _cell(array: Array) -> pa.Array:
    """An array as one cell of bytes, without a copy. (pyarrow never frees a memoryview that it made a cell of.)"""
    ends = np.array([0, array.nbytes], np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(array))]
    return pa.Array.from_buffers(pa.binary(), 1, buffers)


def sum_blocks(batches: Batches, lo: int, hi: int, n: int, value_type: type) -> dict[int, Any]:
    """The sum over all parts of rows lo..hi, for each kind of matrix: CSR with sorted columns."""
    found: dict[int, list[tuple[int, list[Array]]]] = {G: [], INTO: [], FROM: []}
    types = (np.int32, np.int32, np.int32, value_type)
    for batch in batches:
        for x in range(batch.num_rows):
            _, part, kind = (batch.column(c)[x].as_py() for c in range(3))
            cells = [batch.column(c)[x].as_buffer() for c in range(3, 7)]
            arrays: list[Array] = [
                np.frombuffer(cell, kind_of) for cell, kind_of in zip(cells, types, strict=True)
            ]
            found[kind].append((part, arrays))
    return {kind: _sum_parts(parts, lo, hi, n, value_type) for kind, parts in found.items()}


def _sum_parts(
    parts: list[tuple[int, list[Array]]], lo: int, hi: int, n: int, value_type: type
) -> Any:
    """Add up in the order of the parts, whatever order they came in; `parts` is emptied to free memory."""
    parts.sort(key=lambda known: known[0])
    row = [np.repeat(rows - np.int32(lo), length) for _, (rows, length, _, _) in parts]
    column = [columns for _, (_, _, columns, _) in parts]
    value = [values for _, (_, _, _, values) in parts]
    empty: list[Array] = [np.empty(0, np.int32)]
    entries = np.concatenate([*value, np.empty(0, value_type)])
    places = (np.concatenate(row + empty), np.concatenate(column + empty))
    parts.clear()
    total = sparse.coo_array((entries, places), shape=(hi - lo, n)).tocsr()
    total.sum_duplicates()
    return total


# -- Arrow -----------------------------------------------------------------------------------------


def frame_of(batches: Batches) -> pl.DataFrame:
    """All batches of a task as one frame; a frame without columns where there are no batches."""
    held = list(batches)
    if not held:
        return pl.DataFrame()
    frame = pl.from_arrow(pa.Table.from_batches(held))
    assert isinstance(frame, pl.DataFrame)
    return frame


def in_schema(frame: pl.DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A frame as batches of exactly these columns and types."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    yield from table.select(schema.names).cast(schema).to_batches(max_chunksize=_BATCH)
