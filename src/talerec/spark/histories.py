"""Users' rows out of a fit, written by its tasks: to a folder of Parquet files, or into a store. Nothing passes the driver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark.sql import SparkSession

from talerec import columns
from talerec.data.log import Log
from talerec.data.read.databases import kind_of
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.spark import blocks
from talerec.spark.partitions import Rows
from talerec.spark.read import Source
from talerec.spark.session import Run, map_tasks, run_tasks
from talerec.spark.tables import check_table, spark_schema, write_table
from talerec.store.store import Store
from talerec.store.transfer import import_log

_ROWS = 500_000  # that are named at a time


def checked_place(
    session: SparkSession, given: str | Path, source: Source, is_weighed: bool
) -> str:
    """Where users' rows go; a place that they cannot go to is refused before anything is read. The tables of a store are made."""
    place = str(given)
    kind = kind_of(place)
    if kind is None:
        return check_table(session, place, source)
    if kind != "postgresql":
        raise TalerecError(
            "users' rows go from Spark to a folder or to postgresql://HOST/NAME: every machine writes to it"
        )
    if is_weighed:
        raise TalerecError("a store keeps events as they are, without weights: give a folder")
    Store.open(place).close()
    return place


def keep_rows(run: Run, rows: Rows, parts: int, place: str) -> None:
    """Write all rows of all parts; a task that runs again adds nothing a second time."""
    with run.stage("histories"):
        if kind_of(place) is not None:
            run_tasks(run.numbers(parts), parts, lambda part, _: _to_store(rows, part, place))
        else:
            _to_files(run, rows, parts, place)


def _to_store(rows: Rows, part: int, address: str) -> None:
    log = _named(rows, part)
    if log.rows:
        with Store.open(address) as store:
            import_log(store, log)


def _named(rows: Rows, part: int) -> Log:
    """The rows of a part with the ids of users and items."""
    users = pl.read_parquet(rows.users_file(part))["id"]
    items = pl.read_parquet(Path(rows.folder) / "items.parquet").sort("rank")["id"]
    return replace(rows.log(part), users=Vocabulary(users), items=Vocabulary(items))


def _to_files(run: Run, rows: Rows, parts: int, place: str) -> None:
    schema = _schema(rows, parts)

    def write(part: int, batches: blocks.Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            log = _named(rows, part)
            frame = log.to_frame()
            if log.weight is not None:
                frame = frame.with_columns(pl.Series("weight", log.weight))
            for a in range(0, len(frame), _ROWS):
                yield from blocks.in_schema(frame[a : a + _ROWS], schema)

    write_table(map_tasks(run.numbers(parts), parts, "block", write, spark_schema(schema)), place)


def _schema(rows: Rows, parts: int) -> pa.Schema:
    """The columns of rows: ids as the log has them, times, and weights where rows have them."""
    users = [pl.read_parquet_schema(rows.users_file(part))["id"] for part in range(parts)]
    items = pl.read_parquet_schema(Path(rows.folder) / "items.parquet")["id"]
    is_text = (pl.String in users, items == pl.String)  # a part without users does not tell
    kinds = [pa.string() if text else pa.int64() for text in is_text]
    weight = [("weight", pa.float64())] if rows.is_weighed else []
    names = (columns.USER, columns.ITEM)
    timed = (columns.TIME, pa.timestamp("us"))
    return pa.schema([*zip(names, kinds, strict=True), timed, *weight])
