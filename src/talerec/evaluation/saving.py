"""A saved result: the cases are the rows of a Parquet file, all else is in its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from talerec.errors import TalerecError
from talerec.runtime.files import atomic_write

_METADATA = b"talerec"  # the key of all but the cases in the metadata of a file


def write(path: str | Path, facts: dict[str, Any], frames: Iterable[pl.DataFrame]) -> Path:
    """Write cases, one frame after the other, and all other facts to a file, which is whole or not there at all."""
    import pyarrow.parquet as pq

    tables = (frame.to_arrow() for frame in frames)
    first = next(tables)
    schema = first.schema.with_metadata({_METADATA: json.dumps(facts)})
    with atomic_write(path) as unfinished, pq.ParquetWriter(unfinished, schema) as file:
        file.write_table(first.cast(schema))
        for table in tables:
            file.write_table(table.cast(schema))
    return Path(path)


def read(path: str | Path) -> tuple[Any, dict[str, Any]]:
    """The Arrow table of a saved result, and the facts in its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        return table, dict(json.loads(table.schema.metadata[_METADATA]))
    except FileNotFoundError:
        raise TalerecError(f"there is no file {path}") from None
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError):
        raise TalerecError(
            f"{path} is not a saved result; `talerec evaluate ... --out {path}` makes one"
        ) from None
