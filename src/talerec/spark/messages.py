"""Arrays that the tasks of a cluster hand each other, as messages or as files. No Spark.

A message carries a few arrays as bytes, in one row of a Spark table, because Spark's costs grow
with the rows of a table. Its receiver is a *block* (a number), its sender a task. Arrays that later
tasks need lie in files of a folder that all machines see. Messages are read in the order of their
senders, and a file appears only once it is complete: a task that runs twice changes nothing.
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
from talerec.runtime import Array, atomic_write

#: The columns of a table of messages, as Spark spells them.
MESSAGES = "block int, sender int, arrays array<binary>"
_SCHEMA = pa.schema(
    [("block", pa.int32()), ("sender", pa.int32()), ("arrays", pa.list_(pa.binary()))]
)
_MAX_BYTES = 2**31 - 1  # of a row of a table
_COPY_ENTRIES = 2**22  # of an array, copied to a file at a time
_BATCH_ROWS = 2**16

Batches = Iterable[pa.RecordBatch]


# -- files -----------------------------------------------------------------------------------------


def save_array(folder: str | Path, name: str, array: Array) -> None:
    """Write an array to `folder/name.npy`, which appears only once it is complete."""
    target = Path(folder) / f"{name}.npy"
    with atomic_write(target, uuid.uuid4().hex) as unfinished, unfinished.open("wb") as out:
        np.save(out, array)


def save_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame to a Parquet file, which appears only once it is complete."""
    with atomic_write(path, uuid.uuid4().hex) as unfinished:
        frame.write_parquet(unfinished)


def map_array(folder: str | Path, name: str) -> Array:
    """Return the array of the file `folder/name.npy`, memory-mapped; an empty one is loaded."""
    path = Path(folder) / f"{name}.npy"
    has_entries = path.stat().st_size > 128  # an empty array cannot be mapped
    array: Array = np.load(path, mmap_mode="r" if has_entries else None)
    return array


def read_array(folder: str | Path, name: str) -> Array:
    """Return the array of `folder/name.npy`, read into memory."""
    return np.array(map_array(folder, name))


def map_arrays(folder: str | Path, name: str, count: int) -> Iterator[Array]:
    """Yield the arrays of `folder/name-0.npy` to `name-(count - 1).npy`, memory-mapped."""
    return (map_array(folder, f"{name}-{number}") for number in range(count))


def write_bytes(out: Any, array: Array) -> None:
    """Write an array's raw bytes to a file open for binary writing, a few entries at a time."""
    for start in range(0, len(array), _COPY_ENTRIES):
        out.write(np.ascontiguousarray(array[start : start + _COPY_ENTRIES]).data.cast("B"))


def join_arrays(folder: str | Path, name: str, count: int, dtype: type, file: str) -> Array:
    """Join the saved arrays `name-0` to `name-(count - 1)` to one file; return it mapped.

    Each array is a file `.npy` in `folder`. The raw bytes of all, without a header, go to
    `folder/file.raw`, which appears once it is complete; `dtype`: of all arrays.
    """
    path = Path(folder) / f"{file}.raw"
    with atomic_write(path, uuid.uuid4().hex) as unfinished, unfinished.open("wb") as out:
        for array in map_arrays(folder, name, count):
            write_bytes(out, array)
    return map_joined(folder, file, dtype)


def map_joined(folder: str | Path, file: str, dtype: type) -> Array:
    """Return the array of `folder/file.raw`, which `join_arrays` wrote, memory-mapped.

    dtype: of its values. An empty file gives an empty array.
    """
    path = Path(folder) / f"{file}.raw"
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)


# -- messages --------------------------------------------------------------------------------------


def pack_message(block: int, sender: int, *arrays: Array) -> pa.RecordBatch:
    """Return arrays that one Spark task sends to another, as an Arrow batch of one row.

    block: number of the task that receives the message (Spark moves the row there); sender: number
    of the task that sends it; the arrays go as bytes, without dtype and shape. Raises TalerecError
    if they have more bytes (2 GiB) than a row of Spark can hold.
    """
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    ends = np.cumsum([0, *(len(array) for array in flat)])
    if ends[-1] > _MAX_BYTES:
        raise TalerecError(
            f"a message of {ends[-1]:,} bytes is too large for Spark: "
            "use a smaller `task_pairs` or `task_rows`",
            "task_pairs",
            "task_rows",
        )
    offsets, data = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(np.concatenate(flat))
    values = pa.Array.from_buffers(pa.binary(), len(flat), [None, offsets, data])
    listed = pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), values)
    addresses = [pa.array([number], pa.int32()) for number in (block, sender)]
    return pa.RecordBatch.from_arrays([*addresses, listed], schema=_SCHEMA)


def unpack_messages(batches: Batches, *dtypes: type) -> list[tuple[int, list[Array]]]:
    """Return (sender, arrays) for each message that a Spark task received, sorted by sender.

    batches: the messages, as other tasks packed them with `pack_message`; sender: the number of the
    task that sent it; dtypes: of the arrays, the same in each message. Arrays have one dimension.
    """
    messages = [
        (sender, [_to_array(data, dtype) for data, dtype in zip(values, dtypes, strict=True)])
        for sender, values in _iterate_messages(batches)
    ]
    return sorted(messages, key=lambda message: message[0])


def concatenate_messages(batches: Batches, *dtypes: type) -> list[Array]:
    """Return, for each dtype, the arrays of all messages to one Spark task, concatenated.

    batches: messages as `pack_message` packs them, each with one array per dtype. They are ordered
    by the number of the task that sent them.
    """
    messages = [arrays for _, arrays in unpack_messages(batches, *dtypes)]
    return [
        np.concatenate([np.empty(0, dtype), *(arrays[column] for arrays in messages)])
        for column, dtype in enumerate(dtypes)
    ]


def unpack_frames(batches: Batches) -> pl.DataFrame:
    """Return the frames of all messages to one Spark task, concatenated vertically.

    batches: the messages that the task received; other tasks packed them with `pack_message`, each
    with the bytes of one frame as an Arrow IPC stream.
    """
    streams = [pa.ipc.open_stream(data.as_buffer()) for _, (data,) in _iterate_messages(batches)]
    return to_frame(batch for stream in streams for batch in stream)


def _iterate_messages(batches: Batches) -> Iterator[tuple[int, Any]]:
    """Yield (sender, arrays) for each message that a Spark task received.

    batches: messages of `pack_message`, one per row; sender: the number of the task that sent it.
    The arrays come as an Arrow array with the bytes of one NumPy array per element; `_to_array`
    reads them.
    """
    for batch in batches:
        for sender, listed in zip(batch.column("sender"), batch.column("arrays"), strict=True):
            yield sender.as_py(), listed.values


def _to_array(data: Any, dtype: type) -> Array:
    """Return an Arrow value of raw bytes as an array of `dtype` with one dimension."""
    buffer = data.as_buffer()
    return np.frombuffer(buffer, dtype) if len(buffer) else np.empty(0, dtype)


# -- Arrow -----------------------------------------------------------------------------------------


def iterate_frames(batches: Batches, min_rows: int) -> Iterator[pl.DataFrame]:
    """Yield Arrow batches as frames of at least `min_rows` rows; the last one may have fewer.

    Consecutive batches are joined; none is split.
    """
    pending: list[pa.RecordBatch] = []
    n_rows = 0
    for batch in batches:
        pending.append(batch)
        n_rows += batch.num_rows
        if n_rows >= min_rows:
            yield to_frame(pending)
            pending, n_rows = [], 0
    if n_rows:
        yield to_frame(pending)


def to_frame(batches: Batches) -> pl.DataFrame:
    """Return Arrow batches as one frame, which has no columns if there are no batches."""
    all_batches = list(batches)
    if not all_batches:
        return pl.DataFrame()
    frame = pl.from_arrow(pa.Table.from_batches(all_batches))
    assert isinstance(frame, pl.DataFrame)
    return frame


def to_batches(frame: pl.DataFrame, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a frame as Arrow batches with the columns and types of `schema`, in its order."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    yield from table.select(schema.names).cast(schema).to_batches(max_chunksize=_BATCH_ROWS)
