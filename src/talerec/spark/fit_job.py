"""The fit on a cluster, of a model or a blend: rows in partitions, Gram, then weights."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from talerec.artifact import check_target
from talerec.data import Vocabulary
from talerec.errors import TalerecError
from talerec.models import load
from talerec.models.blend import Blend, learn_part_weights, stack_parts
from talerec.models.content import Content
from talerec.models.core import Fitted, Model
from talerec.models.linear import RidgeModel
from talerec.models.tempo import Tempo
from talerec.ranking import Weights
from talerec.runtime import Array, sum_seconds
from talerec.spark.content import ContentFit, empty_log
from talerec.spark.gram import build_model_terms
from talerec.spark.log_columns import NAMES, Columns
from talerec.spark.log_stats import (
    ClusterLog,
    LogOptions,
    LogStats,
    partition_rows,
    read_stats,
    select_rows,
)
from talerec.spark.messages import Batches, to_batches
from talerec.spark.partitions import RowFiles, TaskLimits
from talerec.spark.read import Source
from talerec.spark.session import ClusterRun, map_tasks, open_run
from talerec.spark.solve import SolveTask, WeightTable, count_trends, solve_rows
from talerec.spark.tables import (
    arrow_type,
    check_histories_output,
    check_table,
    replace_table,
    spark_schema,
    write_histories,
)
from talerec.spark.tempo import TempoFit


def fit(
    model: Model,
    source: Source,
    output: str | Path,
    *,
    session: SparkSession,
    names: Columns = NAMES,
    core: int | None = None,
    ties: str = "file",
    drop_duplicates: bool = False,
    histories: bool | str | Path = False,
    items: pl.DataFrame | None = None,
    weights: str | Path | None = None,
    work: str | Path | None = None,
    task_rows: int = 2_000_000,
    task_pairs: int = 8_000_000,
    solve_bytes: int = 4_000_000_000,
) -> Model:
    """Fit a model to a log on a Spark cluster, save it, and return it.

    Parameters
    ----------
    model : Model
        `Content`, or a `Tempo`, `TALE`, `SLIT`, `SLIST` or `Blend` with solver `auto` or `local`.
    source, names : DataFrame, str or Path; Columns
        The log as a DataFrame or as the address of Parquet files, and the names of its columns.
    output, weights : str or Path
        The folder to save the model to, and a table of its weights, which is next to it by default.
    session, work : SparkSession; str or Path
        Where it runs (see `connected`), and a folder that all machines see (default: `output`'s).
    core, drop_duplicates, ties : int; bool; {"file", "item"}
        Keep the k-core; drop repeated rows; the order of a user's rows with equal times.
    histories, items : bool, str or Path; DataFrame, optional
        Save users' rows with the model, or to a folder or postgresql://HOST/NAME; item metadata.
    task_rows, task_pairs, solve_bytes : int
        The rows of the log, pairs of items and bytes of the Gram matrix that one task holds at
        most; lower them if there is little memory per core.

    Returns
    -------
    Model
        The same model, fitted.

    Raises
    ------
    TalerecError
        When the model cannot be fitted on a cluster, the log is not valid, or Spark fails.
    """
    limits = TaskLimits.check(task_rows, task_pairs, solve_bytes)
    check_weighted_fit(model, names)
    check_target(output)
    table = check_table(session, str(weights or _default_table(Path(output))), source)
    histories = check_histories_output(session, histories, source, names.has_weights)
    with open_run(session, work or Path(output).parent) as run:
        stats = read_stats(run, source, LogOptions(names, ties, core, drop_duplicates))
        options = FitOptions(ties, limits, table, histories, items)
        model.set_fitted(_add_items(fit_rows(run, stats, model, options), items))
        model.save(output, histories=histories is True)
    model.set_fitted(load(output).fitted)
    return model


def _default_table(output: Path) -> str:
    """Return the address of the table of a saved model's weights, which lies beside the model.

    For shop.tale it is shop.weights.parquet, as a URL with file://.
    """
    path = output.absolute()
    return f"file://{path.parent / path.name.removesuffix('.tale')}.weights.parquet"


class FitOptions(NamedTuple):
    """How Spark fits a model to rows, and where its weights and the users' rows are saved."""

    ties: str  # order of a user's rows with equal times: "file" or "item"
    limits: TaskLimits  # how much a Spark task takes on: rows, pairs of items, bytes
    table: str  # the address of the table of weights
    histories: bool | str = False  # save users' rows with the model, or at this address
    items: pl.DataFrame | None = None  # the item table, for models that learn from it


def fit_rows(run: ClusterRun, stats: LogStats, model: Model, options: FitOptions) -> Fitted:
    """Return the fitted state of a model or a blend: weights, items, and training statistics.

    run: the Spark session and a shared folder. stats: the log's rows as a Spark table, with counts.
    The table of weights and maybe the users' rows are written where `options` says. TalerecError if
    Spark cannot fit the model.
    """
    if isinstance(model, Blend):
        return _fit_blend(run, stats, model, options)
    if isinstance(model, Content):
        return _fit_content(run, stats, model, options)
    return _fit_model(run, stats, check_model(model), options)


def _fit_model(run: ClusterRun, stats: LogStats, model: RidgeModel, options: FitOptions) -> Fitted:
    """Return the fitted state of a model that is not a blend; also write its table of weights.

    The state has weights, item ids, solver, seconds and training statistics; users' rows, too, if
    `options.histories` is True. If that is text, they are written to this address instead. run: the
    session and a shared folder; stats: the log's rows as a Spark table, with counts.
    """
    histories = options.histories
    log = partition_rows(run, stats, model, options.ties, options.limits, every_row=bool(histories))
    merged = log.merge() if histories is True else None
    weights = _fit_weights(log, model, WeightTable(options.table, stats.ids))
    is_tempo = isinstance(model, Tempo)
    recent_weights = log.rows.read_array("recent_weights", 0) if is_tempo else None
    fitted = Fitted(
        weights, Vocabulary(stats.ids), None, merged, "local", run.clock.seconds, log.describe(),
        recent_weights,
    )  # fmt: skip
    if isinstance(histories, str):
        write_histories(run, log.rows, log.n_partitions, histories)
    return fitted


def _fit_content(run: ClusterRun, stats: LogStats, model: Content, options: FitOptions) -> Fitted:
    """Return the fitted state of the model content, for all items of `options.items`.

    run: the session and a shared folder; stats: the log's rows as a Spark table, with counts.
    """
    histories = options.histories
    log = partition_rows(run, stats, model, options.ties, options.limits, every_row=True)
    content = ContentFit.prepare(log, model, options.items)
    weights, items, info = content.fit_weights(), content.catalogue.items, content.catalogue.info
    merged = content.merge() if histories is True else None
    fitted = Fitted(weights, items, info, merged, None, run.clock.seconds, content.describe())
    if isinstance(histories, str):
        write_histories(run, log.rows, log.n_partitions, histories)
    return fitted


def _fit_weights(log: ClusterLog, model: RidgeModel, table: WeightTable) -> Weights:
    """Return a model's weights B (source x target), fitted to rows saved in partitions.

    log: the rows, with the plan of the Spark tasks. table: the folder of Parquet files that the
    weights are also written to. Tempo is fitted by `TempoFit`; other models count trends (rows of
    an item within a time window) if they use them, and solve the sum of their Gram terms (summands
    of G = S'S and K = S'T). G and K are those of the normal equations: S and T have, per training
    example, the weights of its source and its target items.
    """
    if isinstance(model, Tempo):
        return TempoFit(log, model).fit_weights(table)
    rows, params = log.rows, model.params
    if params.get("trend"):
        rows = count_trends(log, rows, params["window"], params["trend_side"])
    return Weights(
        solve_rows(log, SolveTask(rows, partial(build_model_terms, model), model), table)
    )


def _add_items(fitted: Fitted, table: pl.DataFrame | None) -> Fitted:
    """Return a fitted state with an item table (item_id and columns that describe the items).

    Its rows are brought to the order of the model's items. Unchanged if it has a table already.
    """
    if table is None or fitted.info is not None:
        return fitted
    return replace(fitted, info=empty_log(fitted.items).with_items(table).info)


# -- checks ----------------------------------------------------------------------------------------


def check_weighted_fit(model: Model, names: Columns) -> None:
    """Raise TalerecError if Spark cannot fit the model, or if the model takes no row weights.

    names: the columns of the log; weights matter only if they name a weight or event weights.
    """
    check_fit(model)
    if names.has_weights and not model.takes_weights:
        raise TalerecError(f"{model.name} takes no weights of rows (with these parameters)")


def check_fit(model: Model) -> None:
    """Raise TalerecError if Spark cannot fit the model, or a part of it if it is a blend.

    A blend adds the scores of several models, its parts.
    """
    if isinstance(model, Content):
        return
    if not isinstance(model, Blend):
        check_model(model)
        return
    for part in model.build_parts():
        try:
            check_model(part)
        except TalerecError as error:
            raise TalerecError(
                f"{part.name}, a part of the blend, cannot be fitted: {error}", *error.parameters
            ) from None


def check_model(model: Model) -> RidgeModel:
    """Return the model if Spark can fit it, else raise TalerecError.

    Spark fits tempo, and models whose weights come from a sum of Gram terms (summands of G = S'S
    and K = S'T) and the local solver, which gives each target item few sources. Blends are not
    accepted. G and K are those of the normal equations: S and T have, per training example, the
    weights of its source and its target items.
    """
    if not isinstance(model, RidgeModel) or not (
        isinstance(model, Tempo) or _uses_ridge_fit(model)
    ):
        raise TalerecError(
            f"Spark does not fit {model.name}; it fits content, tempo, tale, slit, slist and blends"
        )
    if model.solver not in ("auto", "local"):
        raise TalerecError(f"solver is {model.solver}; on Spark it takes auto or local")
    if getattr(model, "norm", "none") == "symmetric":
        raise TalerecError("norm is symmetric; on Spark it takes none or l1")
    return model


def _uses_ridge_fit(model: RidgeModel) -> bool:
    """Return whether a model fits as `RidgeModel` does: it sums its Gram terms, and solves.

    A Gram term is a summand of G = S'S and K = S'T. False if the class of the model overrides one
    of the methods below; Spark cannot fit such a model. G and K are those of the normal equations:
    S and T have, per training example, the weights of its source and its target items.
    """
    shared = ("learn_weights", "solution", "gram")
    return all(getattr(type(model), name) is getattr(RidgeModel, name) for name in shared)


# -- blends ----------------------------------------------------------------------------------------


def _fit_blend(run: ClusterRun, stats: LogStats, blend: Blend, options: FitOptions) -> Fitted:
    """Return the fitted state of a blend, which adds the weighted scores of its parts.

    Its weights are those of the parts, stacked. Parts (models) of weight 0 are not fitted. The
    others write their tables of weights to folders below `options.table`, and the first of them
    writes the users' rows. run: the session and a shared folder; stats: the log's rows as a Spark
    table, with counts.
    """
    parts = blend.build_parts()
    part_weights, is_enough = blend.choose_weights(
        parts, lambda: _learn_blend_weights(run, stats, parts, options)
    )
    histories = options.histories  # the first part that is fitted saves them
    with replace_table(run.session, options.table):  # it may hold parts that are no longer fitted
        for number, part in enumerate(parts):
            part.set_fitted(None)
            if part_weights[number]:
                table = f"{options.table}/{number}-{part.name}"
                part_options = options._replace(table=table, histories=histories)
                part_run = _nested_run(run, f"part-{number}")
                part.set_fitted(_fit_model(part_run, stats, check_model(part), part_options))
                histories = False
    fitted_parts = [part if part.is_fitted else None for part in parts]
    states = [part.fitted for part in fitted_parts if part is not None]
    recent_counts = [state.stored_recent_counts for state in states]
    return replace(
        states[0],
        weights=stack_parts(fitted_parts, part_weights, is_enough),
        log=next((state.log for state in states if state.log is not None), None),
        solver=None,
        seconds=sum_seconds(state.seconds for state in states),
        stored_recent_counts=next((counts for counts in recent_counts if counts is not None), None),
    )


def _nested_run(run: ClusterRun, name: str, *, has_items: bool = True) -> ClusterRun:
    """Return a run (Spark session, folder, clock) whose folder is a new one in this run's.

    name: of the folder. has_items: copy the run's item table (`items.parquet`: id, position and
    popularity rank of each item) there, for tasks to read. An item's position is its number in the
    vocabulary.
    """
    folder = run.folder / name
    folder.mkdir()
    if has_items:
        shutil.copy(run.folder / "items.parquet", folder)
    return ClusterRun(run.session, folder)


def _learn_blend_weights(
    run: ClusterRun, stats: LogStats, parts: list[Model], options: FitOptions
) -> Array | None:
    """Return the learned weight of each part of a blend; None if queries are too few.

    A held-out query is a user's history and, as target, the item of a later row that is not trained
    on. The parts (models) are fitted to the rest of the log; their weights are those that rank the
    targets best. run: the session and a shared folder; stats: the log's rows as a Spark table, with
    counts. The split is that of the model tempo.
    """
    tempo = Tempo()
    holdout_run = _nested_run(run, "questions")
    tempo_fit = TempoFit(
        partition_rows(holdout_run, stats, tempo, options.ties, options.limits, every_row=True),
        tempo,
    )
    tempo_fit.order_by_time(tempo_fit.log.rows)
    holdout = tempo_fit.split_holdout(every_item=True)
    if holdout is None:
        return None
    train_run = _nested_run(run, "first", has_items=False)
    events = train_run.save("rows", _to_events(tempo_fit.log, holdout.rows), "learn")
    train = select_rows(train_run, stats, events, every_item=True)
    for number, part in enumerate(parts):
        part_run = _nested_run(train_run, f"part-{number}")
        table = f"file://{part_run.folder / 'weights.parquet'}"
        part_options = options._replace(table=table, histories=False)
        part.set_fitted(_fit_model(part_run, train, check_model(part), part_options))
    repeats = tempo_fit.load_statistics(holdout.rows).has_repeats
    with run.stage("learn"):
        return learn_part_weights(parts, holdout.queries, len(stats.ids), repeats=repeats)


def _to_events(log: ClusterLog, rows: RowFiles) -> DataFrame:
    """Return training rows that are saved in partitions of users, as a Spark table.

    Columns: user, item (ids), time, row_number, which keeps the order of a user's rows, and weight
    if rows have weights. log: gives the types of ids and the run; rows: the files of the training
    rows that remain without held-out rows.
    """
    schema_of = log.stats.events.schema
    types = {name: arrow_type(schema_of[name].dataType) for name in ("user", "item")}
    weight = {"weight": pa.float64()} if rows.has_weights else {}
    schema = pa.schema({**types, "time": pa.int64(), "row_number": pa.int64(), **weight})

    def send(partition: int, batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from to_batches(_load_events(rows, partition), schema)

    count = log.n_partitions
    return map_tasks(log.run.task_numbers(count), count, "block", send, spark_schema(schema))


def _load_events(rows: RowFiles, partition: int) -> pl.DataFrame:
    """Return the rows of a partition with ids: user, item, time, row_number, maybe weight.

    rows: the files of all partitions; partition: number of the set of users of one task; times are
    microseconds, and row_number counts from 0 within the partition.
    """
    log = rows.load_log(partition)
    frame = {
        "user": rows.load_user_ids(partition).gather(log.user_codes()),
        "item": rows.load_item_ids().gather(log.item),
        "time": log.time,
        "row_number": np.arange(log.rows),
    }
    return pl.DataFrame(frame if log.weight is None else {**frame, "weight": log.weight})
