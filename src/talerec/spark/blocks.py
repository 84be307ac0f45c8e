"""How tasks of a cluster hand each other arrays.

Arrays travel as cells of bytes, many to a row of a table, since Spark's costs grow with the rows of a table. Arrays
that later tasks need lie in files of a folder that all see. Cells are read in the order of the parts that they come
from, and a file appears under its name only when it is complete: a task that runs twice leaves identical results.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc

from talerec.errors import TalerecError
from talerec.runtime.arrays import Array
from talerec.runtime.files import atomic_write

#: Arrays on their way: to which block, from which part.
CELLS = "block int, part int, cells array<binary>"
_FIELDS = pa.schema([("block", pa.int32()), ("part", pa.int32()), ("cells", pa.list_(pa.binary()))])
_LARGEST = 2**31 - 1  # bytes that a row of a table may have
_COPIED = 2**22  # entries of an array that are copied to a file at a time
_BATCH = 2**16  # rows of an Arrow batch

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


def read_array(folder: str | Path, name: str) -> Array:
    """The array of that name, in memory."""
    return np.array(load_array(folder, name))


def load_blocks(folder: str | Path, name: str, count: int) -> Iterator[Array]:
    """The arrays of that name of all blocks, in order."""
    return (load_array(folder, f"{name}-{block}") for block in range(count))


def copy_to(out: Any, array: Array) -> None:
    """Write the bytes of an array to an open file, without a copy of all in memory."""
    for a in range(0, len(array), _COPIED):
        out.write(np.ascontiguousarray(array[a : a + _COPIED]).data.cast("B"))


def joined(folder: str | Path, name: str, count: int, kind: type, file: str) -> Array:
    """The blocks' arrays of that name as one, mapped from a file of another name."""
    path = Path(folder) / f"{file}.raw"
    with atomic_write(path, uuid.uuid4().hex) as unfinished, unfinished.open("wb") as out:
        for array in load_blocks(folder, name, count):
            copy_to(out, array)
    return mapped(folder, file, kind)


def mapped(folder: str | Path, file: str, kind: type) -> Array:
    """What `joined` wrote, mapped into memory."""
    path = Path(folder) / f"{file}.raw"
    size = path.stat().st_size
    return np.asarray(np.memmap(path, kind, "r")) if size else np.empty(0, kind)


# -- cells -----------------------------------------------------------------------------------------


def cells(block: int, part: int, *arrays: Array) -> pa.RecordBatch:
    """Some arrays on their way to a block."""
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    ends = np.cumsum([0, *(len(array) for array in flat)])
    if ends[-1] > _LARGEST:
        raise TalerecError(
            f"a block of {ends[-1]:,} bytes is too large for Spark: use a smaller task_pairs or task_rows"
        )
    bounds, data = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(np.concatenate(flat))
    values = pa.Array.from_buffers(pa.binary(), len(flat), [None, bounds, data])
    listed = pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), values)
    numbers = [pa.array([number], pa.int32()) for number in (block, part)]
    return pa.RecordBatch.from_arrays([*numbers, listed], schema=_FIELDS)


def arrays_of(batches: Batches, *kinds: type) -> list[tuple[int, list[Array]]]:
    """What `cells` sent to one block: the parts in order, each with its arrays of these types."""
    found = [
        (part, [_array(cell, kind) for cell, kind in zip(values, kinds, strict=True)])
        for part, values in _cells_of(batches)
    ]
    return sorted(found, key=lambda known: known[0])


def chained(batches: Batches, *kinds: type) -> list[Array]:
    """What `cells` sent to one block, the arrays of all parts one after the other."""
    parts = [arrays for _, arrays in arrays_of(batches, *kinds)]
    return [
        np.concatenate([np.empty(0, kind), *(arrays[c] for arrays in parts)])
        for c, kind in enumerate(kinds)
    ]


def frames_of(batches: Batches) -> pl.DataFrame:
    """The frames that were sent to one block as cells, one below the other."""
    tables = [pa.ipc.open_stream(cell.as_buffer()) for _, (cell,) in _cells_of(batches)]
    return frame_of(batch for table in tables for batch in table)


def _cells_of(batches: Batches) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        for part, listed in zip(batch.column("part"), batch.column("cells"), strict=True):
            yield part.as_py(), listed.values


def _array(cell: Any, kind: type) -> Array:
    data = cell.as_buffer()
    return np.frombuffer(data, kind) if len(data) else np.empty(0, kind)


# -- Arrow -----------------------------------------------------------------------------------------


def frames(batches: Batches, most: int) -> Iterator[pl.DataFrame]:
    """The batches of a task as frames of about `most` rows."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        if rows >= most:
            yield frame_of(held)
            held, rows = [], 0
    if rows:
        yield frame_of(held)


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
