"""Saved results: Parquet files with a row per case, and the other fields as metadata.

A case is one evaluated query: a history and the held-out item that came next, its target.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from talerec.errors import TalerecError
from talerec.evaluation.metrics import RANK, RANK_HIDDEN
from talerec.evaluation.queries import TARGET_ROWS, label_item_rows
from talerec.runtime import atomic_write

METADATA = b"talerec"  # key of the facts in the metadata of a saved result
BASKET_FACT = {"unit": "basket"}  # a fact of results with a row per basket


def write_result(path: str | Path, facts: dict[str, Any], frames: Iterable[pl.DataFrame]) -> Path:
    """Write frames of cases, one after the other, and facts (JSON) to a Parquet file.

    A frame has one row per evaluated case; all have the same columns. The facts are
    `Evaluation.facts()`, in the metadata. The file appears only once it is complete.
    """
    import pyarrow.parquet as pq

    tables = (frame.to_arrow() for frame in frames)
    first = next(tables)
    schema = first.schema.with_metadata({METADATA: json.dumps(facts)})
    with atomic_write(path) as unfinished, pq.ParquetWriter(unfinished, schema) as file:
        for table in chain([first], tables):
            file.write_table(table.cast(schema))
    return Path(path)


def read_result(path: str | Path) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the frame of cases of a saved result, and the facts in its metadata.

    A case is one evaluated query, a row with the rank of its target. The facts are the other fields
    of the result, by their names in JSON. Version 0.2 wrote rank 0 for a target without a rank; the
    frame has null there. TalerecError if `read_file` raises it, or the result is of baskets.
    """
    frame, facts = read_file(path)
    if is_of_baskets(facts):
        raise TalerecError(f"{path} is a result of next baskets: `BasketEvaluation.load` reads it")
    if "item_rows" not in frame.columns:  # written before version 0.3
        labels = label_item_rows(frame[TARGET_ROWS].to_numpy())
        frame = frame.with_columns(labels.alias("item_rows"))
    return frame.with_columns(pl.col(RANK, RANK_HIDDEN).replace(0, None)), facts


def read_file(path: str | Path) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the frame of a saved result, of cases or baskets, and the facts in its metadata.

    TalerecError if the file does not exist, or was not written by `write_result`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table, facts = file.read(), dict(json.loads(file.metadata.metadata[METADATA]))
    except FileNotFoundError:
        raise TalerecError(f"there is no file {path}") from None
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError):
        message = f"{path} is not a saved result; evaluate with `out` to write one"
        raise TalerecError(message, "out") from None
    return pl.DataFrame(table.replace_schema_metadata(None)), facts


def is_of_baskets(facts: dict[str, Any]) -> bool:
    """Return whether the facts of a saved result are of an evaluation on baskets."""
    return facts.get("unit") == BASKET_FACT["unit"]


def find_model_class(name: str) -> type | None:
    """Return the class of a model by its name; None for a third-party model not imported."""
    from talerec.models import registered_class

    try:
        return registered_class(name)
    except TalerecError:
        return None
