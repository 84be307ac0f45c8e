"""Parquet files of a log as Spark reads them, in the order of one machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

PREFIX = "_talerec_"  #: of columns that are not the log's
PLACE = PREFIX + "place"
_FILE_ROWS = 2**40  # more rows than a file has


def placed_files(
    session: SparkSession, address: str, needed: Sequence[str], time: str
) -> tuple[DataFrame, DataFrame]:
    """Parquet files, and the same with the place of every row: files in the order of their names, rows as they stand.

    needed, time: the columns that a log must have, and which of them holds times.
    """
    frame = _files_below(session, address, needed, time)
    row = F.col("_metadata.row_index")
    plain = frame.withColumn(PLACE, row)
    files = sorted(
        (re.sub("^file:/+", "file:/", name) for name in frame.inputFiles()),
        key=lambda name: PurePosixPath(unquote(name)),
    )
    if len(files) < 2:
        return plain, plain
    numbered = {
        PREFIX + "file": pa.array(files, pa.string()),
        PREFIX + "number": pa.array(range(len(files)), pa.int64()),
    }
    numbers = F.broadcast(session.createDataFrame(pa.table(numbered)))
    file = F.col("_metadata.file_path")
    placed = frame.select("*", file.alias(PREFIX + "file"), row.alias(PREFIX + "row")).join(
        numbers, PREFIX + "file"
    )
    place = F.col(PREFIX + "number") * F.lit(_FILE_ROWS) + F.col(PREFIX + "row")
    return plain, placed.withColumn(PLACE, place)


def _files_below(
    session: SparkSession, address: str, needed: Sequence[str], time: str
) -> DataFrame:
    """All files in a folder and the folders in it; where these are called name=value, a column that files lack is theirs.

    Ids in the names of folders are text, as they stand: Spark by itself would take 007 for 7.
    """
    frame = session.read.option("recursiveFileLookup", "true").parquet(address)
    lacking = set(needed) - set(frame.columns)
    if not lacking:
        return frame
    frame = session.read.parquet(address)
    texts = lacking - {time}
    fields = [
        T.StructField(one.name, T.StringType()) if one.name in texts else one
        for one in frame.schema
    ]
    return session.read.schema(T.StructType(fields)).parquet(address)
