"""Output of Spark: tables, which are folders of Parquet files, and users' rows.

Users' rows go from the tasks of a fit to a table, or to a store of events, past the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from talerec import columns
from talerec.data import Log, Vocabulary
from talerec.data.read import database_kind
from talerec.errors import TalerecError
from talerec.spark.messages import Batches, to_batches
from talerec.spark.partitions import RowFiles
from talerec.spark.read import Source, restore_slashes
from talerec.spark.session import ClusterRun, map_tasks, run_on_partitions
from talerec.store import Store, import_log

_SPARK_FILE_PREFIXES = ("part-", "_", ".part-", "._")  # of the names of files that Spark writes
_NAMED_ROWS = 500_000  # rows that get external ids at a time
_MAX_BROADCAST = 2_000_000  # items of a table that is sent to every executor


def check_table(session: SparkSession, address: str, source: Source) -> str:
    """Return the address if a table may be written there, else raise TalerecError.

    A table is a folder of Parquet files; address: a path or URL. Not allowed are the log's folder,
    folders that contain it or lie in it, and folders with files that Spark did not write. source:
    the log.
    """
    out = _normalize_address(session, address)
    for path in _input_addresses(session, source):
        if path == out or path.startswith(f"{out}/") or out.startswith(f"{path}/"):
            raise TalerecError(
                f"{address} is where the log is read from, and would be overwritten: "
                "name another folder"
            )
    if not _is_replaceable(*_build_hadoop_path(session, address)):
        raise TalerecError(f"{address} is there already, and is not a table that Spark has written")
    return address


def _is_replaceable(path: Any, file_system: Any) -> bool:
    """Return whether nothing is at a path, or a folder in which Spark wrote every file.

    path, file_system: a Hadoop path and its file system, Java objects (`_build_hadoop_path`). Files
    of Spark are recognised by the beginning of their names; an empty folder is replaceable.
    """
    if not file_system.exists(path):
        return True
    if not file_system.getFileStatus(path).isDirectory():
        return False
    listed = file_system.listFiles(path, True)
    while listed.hasNext():
        if not str(listed.next().getPath().getName()).startswith(_SPARK_FILE_PREFIXES):
            return False
    return True


def _input_addresses(session: SparkSession, source: Source) -> list[str]:
    """Return the full URLs that the log is read from: of its folder, or of a table's files.

    source: the log, as an address or a Spark table.
    """
    if not isinstance(source, DataFrame):
        return [_normalize_address(session, restore_slashes(source))]
    return [_normalize_address(session, file) for file in source.inputFiles()]


def _build_hadoop_path(session: SparkSession, address: str) -> tuple[Any, Any]:
    """Return an address (path or URL) as a Hadoop Path object, and its Hadoop file system.

    Both are Java objects, reached through py4j.
    """
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(address)
    java: Any = session._jsc
    return path, path.getFileSystem(java.hadoopConfiguration())


def _normalize_address(session: SparkSession, address: str) -> str:
    """Return the full URL of an address; symbolic links of local folders are resolved."""
    path, file_system = _build_hadoop_path(session, address)
    text = str(file_system.makeQualified(path).toString())
    return f"file:{Path(text[5:]).resolve()}" if text.startswith("file:") else text


def write_table(frame: DataFrame, address: str) -> None:
    """Write a frame as Parquet files to a folder, whose old files are removed first.

    After an error, nothing is left there.
    """
    with replace_table(frame.sparkSession, address):
        frame.write.mode("overwrite").parquet(address)


@contextmanager
def replace_table(session: SparkSession, address: str) -> Iterator[None]:
    """Remove the folder at an address; run the block; if it fails, remove what it wrote there.

    A context manager; the block writes the new table.
    """
    path, file_system = _build_hadoop_path(session, address)
    file_system.delete(path, True)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error is the one to report
            file_system.delete(path, True)
        raise


def read_item_table(session: SparkSession, path: Path, n_items: int) -> DataFrame:
    """Return a Parquet file of items as a Spark table to join with; a small one is broadcast.

    n_items: its number of rows. Broadcast (up to two million rows): Spark sends the whole table to
    every machine.
    """
    table = session.read.parquet(f"file://{path}")
    return F.broadcast(table) if n_items <= _MAX_BROADCAST else table


def arrow_type(kind: T.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark column of ids or counts: text, int64 or int32."""
    types = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
    return types[kind.simpleString()]


def spark_schema(schema: pa.Schema) -> str:
    """Return the columns of an Arrow schema in Spark's schema text: "user long, item string"."""
    names = {"int64": "long", "int32": "int", "timestamp[us]": "timestamp_ntz"}
    types = ((column.name, str(column.type)) for column in schema)
    return ", ".join(f"{column} {names.get(kind, kind)}" for column, kind in types)


# -- users' rows -----------------------------------------------------------------------------------


def check_histories_output(
    session: SparkSession, output: bool | str | Path, source: Source, has_weights: bool
) -> bool | str:
    """Return `output` if users' rows can be saved there: a bool, or an address as text.

    A bool tells whether they go into the saved model; an address is a folder or
    postgresql://HOST/NAME, whose tables are created. Raises TalerecError for other addresses, and
    for a database if rows have weights. source: the log, which must not be overwritten.
    """
    if isinstance(output, bool):
        return output
    address = str(output)
    kind = database_kind(address)
    if kind is None:
        return check_table(session, address, source)
    if kind != "postgresql":
        raise TalerecError(
            "users' rows go from Spark to a folder or to postgresql://HOST/NAME, "
            "which all machines can write to"
        )
    if has_weights:
        raise TalerecError("a store keeps events without weights: give a folder")
    Store.open(address).close()
    return address


def write_histories(run: ClusterRun, rows: RowFiles, count: int, address: str) -> None:
    """Write the users' rows of `count` partitions to a folder of Parquet files or a database.

    rows: the files of the partitions. A partition has the users of one task, which writes their
    rows. A task that Spark runs twice adds no row twice. address: of the folder, or
    postgresql://HOST/NAME.
    """
    with run.stage("histories"):
        if database_kind(address) is not None:
            run_on_partitions(run, count, lambda p: _import_partition(rows, p, address))
            return
        schema = _build_histories_schema(rows, count)

        def write(partition: int, batches: Batches) -> Iterator[pa.RecordBatch]:
            """Yield the rows of a partition of users, with ids, as Arrow batches."""
            for _ in batches:
                log = _load_named_log(rows, partition)
                frame = log.to_frame()
                if log.weight is not None:
                    frame = frame.with_columns(pl.Series("weight", log.weight))
                for start in range(0, len(frame), _NAMED_ROWS):
                    yield from to_batches(frame[start : start + _NAMED_ROWS], schema)

        table = map_tasks(run.task_numbers(count), count, "block", write, spark_schema(schema))
        write_table(table, address)


def _import_partition(rows: RowFiles, partition: int, address: str) -> None:
    """Write the rows of a partition (users of one task) to the database at an address.

    rows: the files of all partitions. The database is an event store, from which histories are
    served. Nothing happens without rows.
    """
    log = _load_named_log(rows, partition)
    if log.rows:
        with Store.open(address) as store:
            import_log(store, log)


def _load_named_log(rows: RowFiles, partition: int) -> Log:
    """Return the rows of a partition (users of one task) as a log with user and item ids.

    The files in `rows` have numbers in place of ids, and the ids in files of their own.
    """
    users, items = Vocabulary(rows.load_user_ids(partition)), Vocabulary(rows.load_item_ids())
    return replace(rows.load_log(partition), users=users, items=items)


def _build_histories_schema(rows: RowFiles, count: int) -> pa.Schema:
    """Return the Arrow columns of users' rows: user and item ids, times, and maybe weights.

    rows: the files of all partitions (sets of users); count: how many. Ids have the types that they
    have in the log: text or int64.
    """
    users = [pl.read_parquet_schema(rows.users_file(p))["id"] for p in range(count)]
    items = rows.load_item_ids().dtype
    is_text = (pl.String in users, items == pl.String)  # a partition may have no users, and no type
    types = [pa.string() if text else pa.int64() for text in is_text]
    fields = zip(
        (columns.USER, columns.ITEM, columns.TIME), (*types, pa.timestamp("us")), strict=True
    )
    weight = [("weight", pa.float64())] if rows.has_weights else []
    return pa.schema([*fields, *weight])
