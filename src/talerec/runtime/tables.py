"""Tables that are written as they are made: one frame after the other into one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.errors import TalerecError
from talerec.runtime.files import atomic_write

if TYPE_CHECKING:
    import polars as pl

Add = Callable[["pl.DataFrame"], None]


def check_ending(path: Path) -> None:
    """Refuse a file whose ending does not say how a table is written to it."""
    if path.suffix.lower() not in _WRITERS:
        raise TalerecError(f"{path} must end in {', '.join(_WRITERS)}: its ending says the format")


@contextmanager
def appending(path: Path) -> Iterator[Add]:
    """A function that adds frames to a new file; the file is whole or not there at all."""
    check_ending(path)
    with atomic_write(path) as unfinished, _WRITERS[path.suffix.lower()](unfinished) as add:
        yield add


@contextmanager
def _parquet(path: Path) -> Iterator[Add]:
    import pyarrow.parquet as pq

    writer: list[Any] = []

    def add(frame: pl.DataFrame) -> None:
        table = frame.to_arrow()
        if not writer:
            writer.append(pq.ParquetWriter(path, table.schema, compression="zstd"))
        writer[0].write_table(table)

    try:
        yield add
    finally:
        for one in writer:
            one.close()


@contextmanager
def _csv(path: Path) -> Iterator[Add]:
    with path.open("wb") as file:
        yield lambda frame: frame.write_csv(file, include_header=file.tell() == 0)


@contextmanager
def _ndjson(path: Path) -> Iterator[Add]:
    with path.open("wb") as file:
        yield lambda frame: frame.write_ndjson(file)


_WRITERS: dict[str, Callable[[Path], AbstractContextManager[Add]]] = {
    ".parquet": _parquet, ".csv": _csv, ".ndjson": _ndjson, ".jsonl": _ndjson,
}  # fmt: skip
