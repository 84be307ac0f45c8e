"""Reading tables of unknown origin: a few compressed bytes can stand for gigabytes."""

from __future__ import annotations

from pathlib import Path

import polars as pl

_UNPACKED, _RATIO = 2**26, 100  # a table may unpack to so many bytes, and to so many times its size


def read_table(path: Path, most_rows: int, *, verify: bool = False) -> pl.DataFrame:
    """A Parquet file that has at most so many rows; `verify`: and that does not unpack to far more than it is.

    Raises
    ------
    ValueError
        Where it would fill the memory.
    """
    rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    if rows > most_rows:
        raise ValueError(f"it has {rows:,} rows; there is room for {most_rows:,}")
    if verify:
        _check_unpacked(path)
    return pl.read_parquet(path)


def _check_unpacked(path: Path) -> None:
    from pyarrow import parquet

    found, packed = parquet.read_metadata(path), path.stat().st_size
    size = sum(found.row_group(n).total_byte_size for n in range(found.num_row_groups))
    if size > _UNPACKED + _RATIO * packed:
        raise ValueError(f"its {packed:,} bytes would unpack to {size:,}")
