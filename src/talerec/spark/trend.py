"""Trend counts (Eq. 14) on a cluster: all rows of an item meet in one task, or in slices of time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from talerec.runtime.arrays import Array
from talerec.spark import blocks, tasks
from talerec.spark.sessions import Run, arrow_type, map_tasks, spark_schema

_ACCURACY = 10_000  # of the quantiles where an item's times are cut: one in so many rows


def with_trend_counts(
    run: Run, rows: DataFrame, rows_of: Array, task_rows: int, window: float, trend_side: str
) -> DataFrame:
    """Rows with the column `count`. `rows_of` holds the rows of each item, by rank.

    An item with more than `task_rows` rows is cut into slices of time, each of which has a task of its own.
    """
    folder = str(run.folder)
    buckets = max(run.cores, math.ceil(int(rows_of.sum()) / task_rows))
    rows, slices = _with_slices(run, rows, rows_of[rows_of > task_rows], task_rows)
    own_task = F.col("slice") + buckets
    bucket = F.coalesce(own_task, F.pmod("item", F.lit(buckets))).cast("int")
    known = [(one.name, arrow_type(one.dataType)) for one in rows.drop("slice").schema]
    schema = pa.schema([*known, ("count", pa.int64())])

    def count(task: int, batches: blocks.Batches) -> Iterator[pa.RecordBatch]:
        mine = blocks.frame_of(batches)
        if not mine.is_empty():
            same_item = next((span for span in slices if task - buckets in span), None)
            counted = tasks.add_trend_counts(mine, window, trend_side, folder, same_item)
            yield from blocks.in_schema(counted, schema)

    total = buckets + (slices[-1].stop if slices else 0)
    with_bucket = rows.withColumn("bucket", bucket).drop("slice")
    counted = map_tasks(with_bucket, total, "bucket", count, spark_schema(schema))
    return run.save("counted", counted, "trend")


def _with_slices(
    run: Run, rows: DataFrame, popular: Array, limit: int
) -> tuple[DataFrame, list[range]]:
    """Rows with the column `slice`, null where an item is not cut; and which slices each cut item has.

    `popular` holds the rows of the items to cut. The slices' times are saved, in order, for all tasks to search.
    """
    cuts, slices = _cuts(run, rows, popular, limit) if len(popular) else (None, [])
    if cuts is None or not slices:
        return rows.withColumn("slice", F.lit(None).cast("int")), []
    folder, earlier = str(run.folder), F.size(F.filter("cuts", lambda cut: cut < F.col("time")))
    joined = rows.join(F.broadcast(cuts), "item", "left")
    rows = joined.withColumn("slice", F.col("first") + earlier).drop("cuts", "first")
    times = map_tasks(
        rows.where(F.col("slice").isNotNull()).select("slice", "time"),
        slices[-1].stop,
        "slice",
        lambda slice, batches: tasks.save_sorted_times(batches, folder, slice),
        "rows long",
    )
    with run.stage("trend"):
        times.agg(F.sum("rows")).collect()
    return rows, slices


def _cuts(run: Run, rows: DataFrame, popular: Array, limit: int) -> tuple[DataFrame, list[range]]:
    """Where the times of popular items are cut (item, first slice, cuts), and which slices each has."""
    wanted = [math.ceil(count / limit) for count in popular.tolist()]
    most = max(wanted)
    shares = [x / most for x in range(1, most)]
    by_item = rows.where(F.col("item") < len(popular)).groupBy("item")
    with run.stage("trend"):
        found = by_item.agg(F.percentile_approx("time", shares, _ACCURACY)).collect()
    table, slices, first = list[tuple[int, int, list[int]]](), list[range](), 0
    for item, quantiles in sorted((row[0], row[1]) for row in found):
        pick = [round(x * most / wanted[item]) - 1 for x in range(1, wanted[item])]
        cuts = sorted({quantiles[x] for x in pick})
        table.append((item, first, cuts))
        slices.append(range(first, first + len(cuts) + 1))
        first = slices[-1].stop
    kinds = {"item": pa.int32(), "first": pa.int32(), "cuts": pa.list_(pa.int64())}
    columns = zip(*table, strict=True) if table else ([], [], [])
    arrays = [pa.array(c, kind) for c, kind in zip(columns, kinds.values(), strict=True)]
    return run.session.createDataFrame(pa.table(arrays, names=list(kinds))), slices
