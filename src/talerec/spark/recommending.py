"""Recommendations for every user of a log, as a job."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from talerec import columns
from talerec.models import asking, load
from talerec.models.base import Model
from talerec.spark import tasks
from talerec.spark.events import NAMES, Columns, Source, events_of, newest, vocabulary
from talerec.spark.sessions import Run, arrow_type, spelled, spread


def recommend(
    path: str | Path,
    source: Source,
    output: str | Path,
    *,
    session: SparkSession,
    k: int = 10,
    hide_seen: bool = False,
    names: Columns = NAMES,
    ties: str = "file",
    task_rows: int = 1_000_000,
) -> DataFrame:
    """The next `k` items of every user of `source`, by the artifact at `path` that all executors see.

    Parquet at `output`: user_id, item_id, score, rank. Items that the model does not know keep their place.
    """
    place = str(Path(path).absolute())
    model = load(place)
    asking.check_k(model, k)
    with tempfile.TemporaryDirectory(prefix="talerec-", dir=Path(place).parent) as folder:
        run = Run(session, Path(folder))
        run.folder.chmod(0o755)
        with run.watched("read"):
            events, _ = events_of(session, source, names, ties)
            rows = _known_rows(run, events, model, ties)
            counts = rows.groupBy("user").count().agg(F.sum("count"), F.max("count")).first()
        assert counts is not None
        limit = model.params.get("max_history")
        if limit and counts[1] > limit:
            rows = _with_seen(rows, limit) if hide_seen else newest(rows, limit)
        count = max(run.cores, math.ceil(counts[0] / task_rows))
        known = pa.string() if model.item_ids.dtype == pl.String else pa.int64()
        schema = pa.schema(
            [
                (columns.USER, arrow_type(rows.schema["user"].dataType)),
                (columns.ITEM, known),
                (columns.SCORE, pa.float64()),
                (columns.RANK, pa.int64()),
            ]
        )

        def answer(_: int, batches: tasks.Batches) -> Iterator[pa.RecordBatch]:
            mine = tasks.frame_of(batches)
            if not mine.is_empty():
                yield from tasks.in_schema(
                    tasks.recommended(load(place), mine, k, hide_seen), schema
                )

        part = F.pmod(F.xxhash64("user"), F.lit(count)).cast("int")
        made = spread(rows.withColumn("part", part), count, "part", answer, spelled(schema))
        with run.watched("recommend"):
            made.write.mode("overwrite").parquet(str(output))
    return session.read.parquet(str(output))


def _known_rows(run: Run, events: DataFrame, model: Model, ties: str) -> DataFrame:
    """Rows with items by position, -1 where the model does not know them."""
    ids = model.item_ids
    table = pl.DataFrame({"id": ids, "position": np.arange(len(ids), dtype=np.int32)})
    table.write_parquet(run.folder / "items.parquet")
    items = vocabulary(run.session, run.folder / "items.parquet", len(ids))
    kind = "string" if ids.dtype == pl.String else "long"
    same = events.withColumn("item", F.col("item").try_cast(kind)).withColumnRenamed("item", "id")
    position = F.coalesce("position", F.lit(-1))
    place = position.cast("long") if ties == "item" else F.col("place")
    return same.join(items, "id", "left").select(
        "user", position.alias("item"), "time", place.alias("place")
    )


def _with_seen(rows: DataFrame, limit: int) -> DataFrame:
    """Each user's newest rows, and one of every other item that they ever had: it is hidden, and weighs nothing."""
    last = newest(rows, limit)
    giants = rows.groupBy("user").count().where(F.col("count") > limit).select("user")
    had = rows.join(giants, "user", "left_semi").groupBy("user", "item")
    first = had.agg(F.min(F.struct("time", "place")).alias("at")).select(
        "user", "item", "at.time", "at.place"
    )
    return last.unionByName(first.join(last, ["user", "item"], "left_anti"))
