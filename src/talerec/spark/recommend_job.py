"""Recommendations for every user of a log, as a job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from talerec import columns
from talerec.data.times import Moment
from talerec.models import load
from talerec.models.core import filters as choosing
from talerec.models.core import inference as asking
from talerec.models.core.base import Model
from talerec.models.core.boosts import Wishes
from talerec.models.core.inference import Ids
from talerec.models.core.lists import weight_factor
from talerec.spark import blocks, tasks
from talerec.spark.fit_job import shared_folder
from talerec.spark.read import (
    NAMES,
    Columns,
    Source,
    item_table,
    newest_rows,
    one_of_each,
    read_events,
)
from talerec.spark.session import Run, map_tasks
from talerec.spark.tables import arrow_type, check_table, spark_schema, write_table

#: The columns that a user's rows go by: simultaneous rows by their places, or by items first.
_ORDER = {"file": ("time", "place"), "item": ("time", "item", "place")}


def recommend(
    path: str | Path,
    source: Source,
    output: str | Path,
    *,
    session: SparkSession,
    k: int = 10,
    hide_seen: bool = False,
    allow: Ids | None = None,
    deny: Ids | None = None,
    where: str | None = None,
    per: Mapping[str, int] | None = None,
    boost: Wishes | None = None,
    unknown: str = "error",
    as_of: Moment | None = None,
    names: Columns = NAMES,
    ties: str = "file",
    drop_duplicates: bool = False,
    work: str | Path | None = None,
    task_rows: int = 1_000_000,
) -> DataFrame:
    """Recommend the next `k` items to every user of a log, with a saved model.

    Parameters
    ----------
    path, output : str or Path
        The artifact, in a folder that all machines see, and where lists go as Parquet: user_id, item_id, score, rank.
    source, names, ties, drop_duplicates : DataFrame, str or Path; Columns; {"file", "item"}; bool
        The log and how it is read. Rows of items that the model does not know keep their place in a history. Where the model was
        fitted to rows with weights, `names` says what these are worth.
    session, work, task_rows : SparkSession; str or Path; int
        Where it runs, a folder that all machines see (by default the artifact's), and how many rows of the log one task holds.
    k, hide_seen, allow, deny, where, per, boost, unknown, as_of
        How many items, which may come, which are raised, and when users ask: as for `Model.recommend`.

    Returns
    -------
    DataFrame
        What was written to `output`.

    Raises
    ------
    TalerecError
        When `k` is above the number of items, a condition cannot be used, the log is not valid, or Spark fails.
    """
    place = str(Path(path).absolute())
    limits = {"allow": allow, "deny": deny, "where": where, "per": per, "boost": boost, "unknown": unknown}  # fmt: skip
    options = {**limits, "hide_seen": hide_seen, "as_of": as_of}
    model = _checked(place, k, names, limits)
    check_table(session, str(output), source)
    with shared_folder(Path(work or Path(place).parent).absolute()) as folder:
        run = Run(session, folder)
        events = _events(run, source, names, ties, drop_duplicates)
        rows, count = _histories(run, events, _ORDER[ties], model, hide_seen)
        parts = max(run.cores, math.ceil(count / max(task_rows, 1)))
        made = _lists(rows, _ORDER[ties], parts, place, model, k, options)
        with run.stage("recommend"):
            write_table(made, str(output))
    return session.read.parquet(str(output))


def _checked(place: str, k: int, names: Columns, limits: dict[str, Any]) -> Model:
    """The model of an artifact; what it cannot answer is refused before anything runs."""
    model = load(place)
    asking.check_k(model, k)
    choosing.limits(model, **limits)
    weight_factor(model.fitted.training, 1.0 if names.are_weighed else None)
    return model


def _events(
    run: Run, source: Source, names: Columns, ties: str, drop_duplicates: bool
) -> DataFrame:
    """The rows of the log, checked."""
    with run.stage("read"):
        events, _ = read_events(run.session, source, names, ties)
    return one_of_each(run, events) if drop_duplicates else events


def _histories(
    run: Run, events: DataFrame, order: tuple[str, ...], model: Model, hide_seen: bool
) -> tuple[DataFrame, int]:
    """The rows that a model looks at, and how many rows the log has; `order`: the columns that a user's rows go by."""
    with run.stage("read"):
        rows = _known_rows(run, events, model)
        found = rows.groupBy("user").count().agg(F.sum("count"), F.max("count")).first()
    assert found is not None
    count, longest = found
    limit = model.params.get("max_history")
    if limit and longest > limit:
        last = newest_rows(rows, limit, order)
        rows = _with_seen(rows, last, limit) if hide_seen else last
    return rows, count


def _lists(
    rows: DataFrame,
    order: tuple[str, ...],
    parts: int,
    artifact: str,
    model: Model,
    k: int,
    options: dict[str, Any],
) -> DataFrame:
    """Recommendations for all users of the rows, each part of the users by one task."""
    schema = pa.schema(
        [
            (columns.USER, arrow_type(rows.schema["user"].dataType)),
            (columns.ITEM, pa.string() if model.item_ids.dtype == pl.String else pa.int64()),
            (columns.SCORE, pa.float64()),
            (columns.RANK, pa.int64()),
        ]
    )

    def recommend_part(_: int, batches: blocks.Batches) -> Iterator[pa.RecordBatch]:
        mine = blocks.frame_of(batches)
        if not mine.is_empty():
            lists = tasks.recommend_users(load(artifact), mine, order, k, options)
            yield from blocks.in_schema(lists, schema)

    part = F.pmod(F.xxhash64("user"), F.lit(parts)).cast("int")
    numbered = rows.withColumn("part", part)
    return map_tasks(numbered, parts, "part", recommend_part, spark_schema(schema))


def _known_rows(run: Run, events: DataFrame, model: Model) -> DataFrame:
    """Rows with items as positions, -1 for items that the model does not know."""
    ids = model.item_ids
    table = pl.DataFrame({"id": ids, "position": np.arange(len(ids), dtype=np.int32)})
    table.write_parquet(run.folder / "items.parquet")
    items = item_table(run.session, run.folder / "items.parquet", len(ids))
    kind = "string" if ids.dtype == pl.String else "long"
    cast = events.withColumn("item", F.col("item").try_cast(kind)).withColumnRenamed("item", "id")
    position = F.coalesce("position", F.lit(-1))
    weight = []
    if "weight" in events.columns:
        factor = weight_factor(model.fitted.training, 1.0)
        weight = [(F.col("weight") * F.lit(factor)).alias("weight")]
    return cast.join(items, "id", "left").select(
        "user", position.alias("item"), "time", "place", *weight
    )


def _with_seen(rows: DataFrame, last: DataFrame, limit: int) -> DataFrame:
    """Each user's newest rows (`last`), and before them one row of every other item that the user ever had.

    Such an item is hidden like the others, and its row is too old to count.
    """
    long = rows.groupBy("user").count().where(F.col("count") > limit).select("user")
    had = rows.join(long, "user", "left_semi").groupBy("user", "item")
    columns = [name for name in rows.columns if name not in ("user", "item")]
    oldest = had.agg(F.min(F.struct(*columns)).alias("at"))
    first = oldest.select("user", "item", *(f"at.{name}" for name in columns))
    return last.unionByName(first.join(last, ["user", "item"], "left_anti"))
