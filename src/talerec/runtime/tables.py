"""Tables on disk: reading Parquet files of unknown origin, and writing frames one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.errors import TalerecError
from talerec.runtime.files import atomic_write

if TYPE_CHECKING:
    import polars as pl

_MAX_UNPACKED, _MAX_RATIO = 2**26, 100  # bytes that a table may unpack to, and per byte on disk


def read_table(path: Path, max_rows: int, *, verify: bool = False) -> pl.DataFrame:
    """Return a Parquet file of at most `max_rows` rows.

    A few compressed bytes can unpack to gigabytes: with `verify`, a file that would unpack to far
    more than its size is refused too.

    Raises
    ------
    ValueError
        If the table would fill the memory.
    """
    import polars as pl

    n_rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    if n_rows > max_rows:
        raise ValueError(f"it has {n_rows:,} rows; there is room for {max_rows:,}")
    if verify:
        _check_unpacked(path)
    return pl.read_parquet(path)


def _check_unpacked(path: Path) -> None:
    """Raise ValueError if a Parquet file would unpack to far more than its size on disk.

    The limit is 64 MiB plus 100 times its size.
    """

    from pyarrow import parquet

    metadata, packed = parquet.read_metadata(path), path.stat().st_size
    size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    if size > _MAX_UNPACKED + _MAX_RATIO * packed:
        raise ValueError(f"its {packed:,} bytes would unpack to {size:,}")


# -- writing ---------------------------------------------------------------------------------------

Append = Callable[["pl.DataFrame"], None]


def check_table_format(path: Path) -> None:
    """Raise TalerecError unless the path ends in .parquet, .csv, .ndjson or .jsonl."""
    if path.suffix.lower() not in _WRITERS:
        message = f"{path} must end in {', '.join(_WRITERS)}: the ending sets the format"
        raise TalerecError(message, source=str(path))


@contextmanager
def append_tables(path: Path) -> Iterator[Append]:
    """Yield a function that appends frames to a file, which appears once it is complete.

    The ending of `path` sets the format: Parquet, CSV or JSON lines.
    """
    check_table_format(path)
    with atomic_write(path) as unfinished, _WRITERS[path.suffix.lower()](unfinished) as append:
        yield append


@contextmanager
def _append_parquet(path: Path) -> Iterator[Append]:
    """Yield a function that appends frames of one schema to a Parquet file.

    The file is created with the first frame, and closed at the end of the block.
    """

    import pyarrow.parquet as pq

    writer: Any = None

    def append(frame: pl.DataFrame) -> None:
        """Write a frame to the file, which the first frame opens with its schema."""
        nonlocal writer
        table = frame.to_arrow()
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)

    try:
        yield append
    finally:
        if writer is not None:
            writer.close()


@contextmanager
def _append_csv(path: Path) -> Iterator[Append]:
    """Yield a function that appends frames to a CSV file, with a header before the first."""
    with path.open("wb") as file:
        yield lambda frame: frame.write_csv(file, include_header=file.tell() == 0)


@contextmanager
def _append_ndjson(path: Path) -> Iterator[Append]:
    """Yield a function that appends frames to a file, one JSON object per row and line."""
    with path.open("wb") as file:
        yield lambda frame: frame.write_ndjson(file)


_WRITERS: dict[str, Callable[[Path], AbstractContextManager[Append]]] = {
    ".parquet": _append_parquet, ".csv": _append_csv,
    ".ndjson": _append_ndjson, ".jsonl": _append_ndjson,
}  # fmt: skip
