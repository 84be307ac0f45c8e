"""Tables that Spark writes: folders of Parquet files, which take the place of what is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from talerec.errors import TalerecError
from talerec.spark.read import Source, whole_address

_OF_SPARK = ("part-", "_", ".part-", "._")  # how the names of files begin that Spark writes


def check_table(session: SparkSession, address: str, source: Source) -> str:
    """The address, where a table may be written; refused are the log, what holds or lies in it, and a folder of something else."""
    out = _spelled(session, address)
    for one in _read_from(session, source):
        if one == out or one.startswith(f"{out}/") or out.startswith(f"{one}/"):
            raise TalerecError(
                f"{address} is where the log is read from, and would be overwritten: name another folder"
            )
    if not _is_free(*_place(session, address)):
        raise TalerecError(f"{address} is there already, and is not a table that Spark has written")
    return address


def _is_free(path: Any, files: Any) -> bool:
    """Is nothing there, or a folder in which Spark has written all: a table, or the tables of a blend's parts?"""
    if not files.exists(path):
        return True
    if not files.getFileStatus(path).isDirectory():
        return False
    found = files.listFiles(path, True)
    while found.hasNext():
        if not str(found.next().getPath().getName()).startswith(_OF_SPARK):
            return False
    return True


def _read_from(session: SparkSession, source: Source) -> list[str]:
    if not isinstance(source, DataFrame):
        return [_spelled(session, whole_address(source))]
    return [_spelled(session, file) for file in source.inputFiles()]


def _place(session: SparkSession, address: str) -> tuple[Any, Any]:
    """A path as Hadoop has it, and its file system."""
    jvm: Any = session._jvm
    path = jvm.org.apache.hadoop.fs.Path(address)
    java: Any = session._jsc
    return path, path.getFileSystem(java.hadoopConfiguration())


def _spelled(session: SparkSession, address: str) -> str:
    """One spelling for each place; links of this machine's folders are followed."""
    path, files = _place(session, address)
    text = str(files.makeQualified(path).toString())
    return f"file:{Path(text[5:]).resolve()}" if text.startswith("file:") else text


def write_table(frame: DataFrame, address: str) -> None:
    """Write a frame as Parquet files, in place of what is there; nothing is left where that fails."""
    with replaced(frame.sparkSession, address):
        frame.write.mode("overwrite").parquet(address)


@contextmanager
def replaced(session: SparkSession, address: str) -> Iterator[None]:
    """Remove the table that is there, and after an error what the block has left of another."""
    path, files = _place(session, address)
    files.delete(path, True)
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            files.delete(path, True)
        raise


def arrow_type(kind: T.DataType) -> pa.DataType:
    """The Arrow type of an id, a count or a place."""
    kinds: dict[Any, pa.DataType] = {
        T.StringType(): pa.string(),
        T.LongType(): pa.int64(),
        T.IntegerType(): pa.int32(),
    }
    return kinds[kind]


def spark_schema(schema: pa.Schema) -> str:
    """The columns of an Arrow schema as Spark spells them."""
    words = {
        pa.string(): "string",
        pa.int64(): "long",
        pa.int32(): "int",
        pa.float64(): "double",
        pa.float32(): "float",
        pa.timestamp("us"): "timestamp_ntz",
    }
    return ", ".join(f"{one.name} {words[one.type]}" for one in schema)
