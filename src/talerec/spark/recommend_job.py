"""Recommendations for every user of a log, on a cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Window as SparkWindow
from pyspark.sql import functions as F

from talerec import columns
from talerec.data import TimeLike
from talerec.models import load
from talerec.models.core import BoostSpec, Ids, Model, RecommendOptions, check_k, weight_factor
from talerec.spark import tasks
from talerec.spark.log_columns import NAMES, Columns
from talerec.spark.log_stats import remove_duplicates
from talerec.spark.messages import Batches, to_batches, to_frame
from talerec.spark.partitions import row_order
from talerec.spark.read import Source, read_events
from talerec.spark.session import ClusterRun, map_tasks, open_run
from talerec.spark.tables import arrow_type, check_table, read_item_table, spark_schema, write_table

_SLICE_ROWS = 1_000_000  # rows of a long history that are ranked together


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
    boost: BoostSpec | None = None,
    unknown: str = "error",
    as_of: TimeLike | None = None,
    names: Columns = NAMES,
    ties: str = "file",
    drop_duplicates: bool = False,
    work: str | Path | None = None,
    task_rows: int = 1_000_000,
) -> DataFrame:
    """Recommend the next `k` items to every user of a log, with a saved model, on a cluster.

    Parameters
    ----------
    path, output : str or Path
        The saved model, in a folder that all machines see, and the table of recommendations.
    source, names, ties, drop_duplicates : DataFrame, str or Path; Columns; {"file", "item"}; bool
        The log, its columns (with that of weights if the model was fitted with weights), the order
        of simultaneous rows, whether to drop repeats. Rows of unknown items keep their place.
    session, work, task_rows : SparkSession; str or Path; int
        Where it runs, a folder that all machines see (default: the model's), rows of a task.
    k, hide_seen, allow, deny, where, per, boost, unknown, as_of
        How many items, which ones, boosts, and the request time: as for `Model.recommend`.

    Returns
    -------
    DataFrame
        What was written to `output`: user_id, item_id, score, rank.

    Raises
    ------
    TalerecError
        When `k` is above the number of items, an option or the log is invalid, or Spark fails.
    """
    artifact = str(Path(path).absolute())
    options = RecommendOptions(k, hide_seen, allow, deny, where, per, boost, as_of, unknown)
    model = _load_model(artifact, names, options)
    check_table(session, str(output), source)
    with open_run(session, work or Path(artifact).parent) as run:
        with run.stage("read"):
            events, _ = read_events(session, source, names, ties)
        events = remove_duplicates(run, events) if drop_duplicates else events
        order = row_order(ties == "item")
        rows, n_rows = _select_histories(run, events, order, model, options)
        n_tasks = max(run.n_cores, math.ceil(n_rows / max(task_rows, 1)))
        lists = _recommend_rows(rows, order, n_tasks, artifact, model, options)
        with run.stage("recommend"):
            write_table(lists, str(output))
    return session.read.parquet(str(output))


def _load_model(artifact: str, names: Columns, options: RecommendOptions) -> Model:
    """Return the saved model at a path; raise TalerecError if it does not support the options.

    options: how many items, filters and boosts. names: the columns of the log, which must name
    weights if the model was fitted with weights.
    """
    model = load(artifact)
    check_k(model, options.k)
    options.build_filter(model)
    weight_factor(model.fitted.training, 1.0 if names.has_weights else None)
    return model


def _select_histories(
    run: ClusterRun,
    events: DataFrame,
    order: tuple[str, ...],
    model: Model,
    options: RecommendOptions,
) -> tuple[DataFrame, int]:
    """Return the rows that recommendations depend on, and how many rows these are taken from.

    Those are each user's last `max_history` rows before the request time, if the model has such a
    parameter and `options` such a time, with items as vocabulary positions. events: the log's rows,
    a Spark table; order: the columns that order a user's rows. With `hide_seen` of the options, a
    row of every seen item is included too.
    """
    request_time = options.request_time(model.fitted.unit)
    with run.stage("read"):
        rows = _encode_items(run, events, model)
        if request_time is not None:
            rows = _select_before(rows, request_time)
        counts = rows.groupBy("user").count().agg(F.sum("count"), F.max("count")).first()
    assert counts is not None
    n_rows, longest = counts
    limit = model.params.get("max_history")
    if limit and longest > limit:
        latest = _select_latest(rows, limit, order)
        rows = _add_seen_items(rows, latest, limit) if options.hide_seen else latest
    return rows, n_rows


def _encode_items(run: ClusterRun, events: DataFrame, model: Model) -> DataFrame:
    """Return rows whose items are positions in the model's vocabulary, -1 for unknown items.

    run: gives a folder for the table of items. events: a Spark table of user, item (ids), time,
    row_number, maybe weight. Weights are scaled to those that the model was fitted with.
    """
    ids = model.item_ids
    table = pl.DataFrame({"id": ids, "position": np.arange(len(ids), dtype=np.int32)})
    table.write_parquet(run.folder / "items.parquet")
    items = read_item_table(run.session, run.folder / "items.parquet", len(ids))
    kind = "string" if ids.dtype == pl.String else "long"
    cast = events.withColumn("item", F.col("item").try_cast(kind)).withColumnRenamed("item", "id")
    weight = []
    if "weight" in events.columns:
        factor = weight_factor(model.fitted.training, 1.0)
        weight = [(F.col("weight") * F.lit(factor)).alias("weight")]
    position = F.coalesce("position", F.lit(-1)).alias("item")
    return cast.join(items, "id", "left").select("user", position, "time", "row_number", *weight)


def _select_before(rows: DataFrame, when: int) -> DataFrame:
    """Return the rows before a time in microseconds, and one row of each user without any.

    That row is not before the time: `tasks.recommend_users` leaves it out, so that the user has a
    list for an empty history, as on one machine.
    """
    before = rows.where(F.col("time") < when)
    others = rows.join(before.select("user").distinct(), "user", "left_anti")
    names = [name for name in rows.columns if name != "user"]
    first = others.groupBy("user").agg(F.min(F.struct(*names)).alias("row"))
    return before.unionByName(first.select("user", *(f"row.{name}" for name in names)))


def _select_latest(rows: DataFrame, limit: int, order: tuple[str, ...]) -> DataFrame:
    """Return each user's last `limit` rows by the columns `order`.

    rows: a Spark table. Only users with more rows are ranked, first in slices of a million rows, so
    that no task sorts a very long history.
    """
    long_users = rows.groupBy("user").count().where(F.col("count") > limit)
    short_rows = rows.join(long_users, "user", "left_anti")
    long_rows = rows.join(long_users, "user")
    n_slices = F.ceil(F.col("count") / _SLICE_ROWS)
    slice_number = F.pmod(F.xxhash64("item", "time", "row_number"), n_slices)
    long_rows = long_rows.withColumn("slice", slice_number)
    descending = [F.desc(name) for name in order]
    for group in (("user", "slice"), ("user",)):
        lag = F.row_number().over(SparkWindow.partitionBy(*group).orderBy(*descending))
        long_rows = long_rows.withColumn("lag", lag).where(F.col("lag") <= limit)
    return short_rows.unionByName(long_rows.select(short_rows.columns))


def _add_seen_items(rows: DataFrame, latest: DataFrame, limit: int) -> DataFrame:
    """Return `latest`, and one earlier row of each item that a user has only in earlier rows.

    rows: all rows; latest: each user's last `limit` rows. The added rows are too old to have a
    weight; they hide items that the user has seen.
    """
    long_users = rows.groupBy("user").count().where(F.col("count") > limit).select("user")
    by_item = rows.join(long_users, "user", "left_semi").groupBy("user", "item")
    names = [name for name in rows.columns if name not in ("user", "item")]
    oldest = by_item.agg(F.min(F.struct(*names)).alias("row"))
    oldest_rows = oldest.select("user", "item", *(f"row.{name}" for name in names))
    return latest.unionByName(oldest_rows.join(latest, ["user", "item"], "left_anti"))


def _recommend_rows(
    rows: DataFrame,
    order: tuple[str, ...],
    n_tasks: int,
    artifact: str,
    model: Model,
    options: RecommendOptions,
) -> DataFrame:
    """Return user id, item id, score and rank of the recommendations to all users of `rows`.

    A lazy Spark table. Each of `n_tasks` tasks has some of the users, and loads the model from its
    folder `artifact`. order: the columns that order a user's rows; options: how many items, filters
    and boosts.
    """
    id_type = pa.string() if model.item_ids.dtype == pl.String else pa.int64()
    schema = pa.schema(
        [
            (columns.USER, arrow_type(rows.schema["user"].dataType)),
            (columns.ITEM, id_type),
            (columns.SCORE, pa.float64()),
            (columns.RANK, pa.int64()),
        ]
    )

    def recommend_some(_: int, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Yield the recommendations of the users whose rows a task gets."""
        user_rows = to_frame(batches)
        if not user_rows.is_empty():
            lists = tasks.recommend_users(load(artifact), user_rows, order, options)
            yield from to_batches(lists, schema)

    task = F.pmod(F.xxhash64("user"), F.lit(n_tasks)).cast("int")
    numbered = rows.withColumn("task", task)
    return map_tasks(numbered, n_tasks, "task", recommend_some, spark_schema(schema))
