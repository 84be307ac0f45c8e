"""Tables that Spark writes: folders of Parquet files, which take the place of what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from talerec.errors import TalerecError
from talerec.spark.events import Source, whole_address


def check_table(session: SparkSession, address: str, source: Source) -> str:
    """The address, where a table may be written; refused are a folder of something else, the log, and what holds or lies in it."""
    path, files = _place(session, address)
    done = session._jvm.org.apache.hadoop.fs.Path(path, "_SUCCESS")  # type: ignore[union-attr]
    if files.exists(path) and not files.exists(done):
        raise TalerecError(f"{address} is there already, and is not a table that Spark has written")
    out = _spelled(session, address)
    for one in _read_from(session, source):
        if one == out or one.startswith(f"{out}/") or out.startswith(f"{one}/"):
            raise TalerecError(
                f"{address} is where the log is read from, and would be overwritten: name another folder"
            )
    return address


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
    try:
        frame.write.mode("overwrite").parquet(address)
    except BaseException:
        path, files = _place(frame.sparkSession, address)
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
