"""Parts of models on a cluster, and training rows to fit them to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame

from talerec.data import Log
from talerec.errors import TalerecError
from talerec.models.core import Model
from talerec.spark.fit_model import FitOptions, check_model, fit_model
from talerec.spark.log_stats import ClusterLog, LogStats, select_rows
from talerec.spark.messages import Batches, to_batches
from talerec.spark.partitions import RowFiles
from talerec.spark.session import ClusterRun, map_tasks
from talerec.spark.tables import arrow_type, replace_table, spark_schema


def check_parts(parts: Sequence[Model], whole: str) -> None:
    """Raise TalerecError if Spark cannot fit a part of a model; it names the part.

    whole: the name of the model.
    """
    for part in parts:
        try:
            check_model(part)
        except TalerecError as error:
            raise TalerecError(
                f"{part.name}, a part of the {whole}, cannot be fitted: {error}", *error.parameters
            ) from None


def nested_run(run: ClusterRun, name: str, *, has_items: bool = True) -> ClusterRun:
    """Return a run whose folder is a new one in this run's; session and clock are the same.

    name: of the folder. has_items: copy the run's item table (`items.parquet`: id, position and
    popularity rank of each item) there, for tasks to read. An item's position is its number in the
    vocabulary.
    """
    folder = run.folder / name
    folder.mkdir()
    if has_items:
        shutil.copy(run.folder / "items.parquet", folder)
    return ClusterRun(run.session, folder, run.clock)


def fit_parts(run: ClusterRun, stats: LogStats, parts: list[Model], options: FitOptions) -> None:
    """Fit the parts of a model to rows; their tables of weights lie in the run's folder alone.

    run: the Spark session and a shared folder. stats: the rows as a Spark table, with counts.
    """
    for number, part in enumerate(parts):
        part_run = nested_run(run, f"part-{number}")
        table = f"file://{part_run.folder / 'weights.parquet'}"
        part_options = options._replace(table=table, histories=False)
        part.set_fitted(fit_model(part_run, stats, check_model(part), part_options))


def fit_final_parts(
    run: ClusterRun,
    stats: LogStats,
    parts: list[Model],
    options: FitOptions,
    is_used: Sequence[bool],
) -> None:
    """Fit the parts of a model that are used to all rows, and write their tables of weights.

    The tables go to folders below `options.table`. The first part that is fitted saves the users'
    rows. is_used: whether the model needs a part at all.
    """
    histories = options.histories
    with replace_table(run.session, options.table):  # it may hold parts that are no longer fitted
        for number, part in enumerate(parts):
            part.set_fitted(None)
            if is_used[number]:
                table = f"{options.table}/{number}-{part.name}"
                part_options = options._replace(table=table, histories=histories)
                part_run = nested_run(run, f"part-{number}")
                part.set_fitted(fit_model(part_run, stats, check_model(part), part_options))
                histories = False


def save_training_rows(run: ClusterRun, log: ClusterLog, load: Callable[[int], Log]) -> LogStats:
    """Return training rows, saved as a log of their own with the items of the whole log.

    run: the session and an empty folder, where the rows go. log: the whole log. load: returns the
    training rows of a partition of users, with items by popularity rank.
    """
    events = run.save("rows", _to_events(log, load), "learn")
    return select_rows(run, log.stats, events, every_item=True)


def _to_events(log: ClusterLog, load: Callable[[int], Log]) -> DataFrame:
    """Return training rows that tasks load for each partition of users, as a Spark table.

    Columns: user, item (ids), time, row_number, which keeps the order of a user's rows, and weight
    if rows have weights. log: gives the types of ids, the files and the run. load: returns the
    training rows of a partition, with items by popularity rank.
    """
    rows = log.rows
    schema_of = log.stats.events.schema
    types = {name: arrow_type(schema_of[name].dataType) for name in ("user", "item")}
    weight = {"weight": pa.float64()} if rows.has_weights else {}
    schema = pa.schema({**types, "time": pa.int64(), "row_number": pa.int64(), **weight})

    def send(partition: int, batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from to_batches(_label_rows(rows, partition, load(partition)), schema)

    count = log.n_partitions
    return map_tasks(log.run.task_numbers(count), count, "block", send, spark_schema(schema))


def _label_rows(rows: RowFiles, partition: int, log: Log) -> pl.DataFrame:
    """Return rows of a partition with ids: user, item, time, row_number, maybe weight.

    rows: the files of all partitions; partition: number of the set of users of one task; log: the
    rows. Times are microseconds, and row_number counts from 0 within the partition.
    """
    frame = {
        "user": rows.load_user_ids(partition).gather(log.user_codes()),
        "item": rows.load_item_ids().gather(log.item),
        "time": log.time,
        "row_number": np.arange(log.rows),
    }
    return pl.DataFrame(frame if log.weight is None else {**frame, "weight": log.weight})
