"""An evaluation on a cluster: fit on the rows before a time, evaluate the cases after it.

Each case, a user's next row, is evaluated in the task that has the user's rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from talerec.data import DAY, Log, Vocabulary
from talerec.data.split import (
    NoCasesError,
    SplitPlan,
    TimeWindow,
    earlier_cut_row,
    no_history_error,
    no_users_error,
    no_window_error,
    require_both_sides,
)
from talerec.errors import TalerecError
from talerec.evaluation import (
    Evaluation,
    check_cutoffs,
    join_results,
    merge_sums,
    merge_user_sums,
    write_result,
)
from talerec.models.content import Content
from talerec.models.core import Model
from talerec.models.counting import Trending
from talerec.runtime import check_writable, sum_seconds
from talerec.spark import messages
from talerec.spark.evaluation_tasks import (
    WindowEvaluation,
    WindowStats,
    coverage,
    save_user_rows,
    save_user_sums,
    save_window_stats,
    user_sums_file,
)
from talerec.spark.fit_job import check_fit, check_weighted_fit, fit_rows
from talerec.spark.fit_model import FitOptions, count_recent_rows
from talerec.spark.log_columns import NAMES, Columns
from talerec.spark.log_stats import LogOptions, LogStats, partition_users, read_stats, select_rows
from talerec.spark.partitions import RowFiles, TaskLimits
from talerec.spark.read import Source
from talerec.spark.session import ClusterRun, open_run, run_on_partitions, run_tasks
from talerec.spark.tables import read_item_table


def evaluate(
    model: Model,
    source: Source,
    plan: SplitPlan | str,
    *,
    session: SparkSession,
    on: str = "test",
    k: Sequence[int] = (1, 5, 10),
    hide_seen: bool = False,
    names: Columns = NAMES,
    core: int | None = None,
    ties: str = "file",
    drop_duplicates: bool = False,
    cases: str | Path | None = None,
    work: str | Path | None = None,
    task_rows: int = 2_000_000,
    task_pairs: int = 8_000_000,
    solve_bytes: int = 4_000_000_000,
) -> Evaluation:
    """Split a log by time, fit on the rows before, and evaluate users' next rows.

    Parameters
    ----------
    model : Model
        A model that `fit` takes, but not `Content`; it is not changed.
    source, names, core, drop_duplicates, ties
        The log, and how it is read and cleaned: as for `fit`.
    plan : SplitPlan or str
        ``at:TIME``, ``last:10%``, ``rolling:TIME,DAYS``, ``every:TIME`` or ``every:TIME,7d``.
    session, work, task_rows, task_pairs, solve_bytes
        Where it runs, and its task sizes: as for `fit`; `work` is by default the current folder.
    on, k, hide_seen, cases
        "test" or "validation"; list lengths; leave seen items out of lists; a file for all cases.

    Returns
    -------
    Evaluation
        The metrics of `talerec.evaluate_log`; its frame has a row per group of equal cases.

    Raises
    ------
    TalerecError
        When Spark does not support the model or the split, the log is not valid, or Spark fails.
    """
    plan = SplitPlan(plan) if isinstance(plan, str) else plan
    check_evaluation(model, plan, on)
    model, ks = copy(model), tuple(check_cutoffs(k))
    check_weighted_fit(model, names)
    limits = TaskLimits.check(task_rows, task_pairs, solve_bytes)
    cases_file = None if cases is None else check_writable(Path(cases))
    options = _Options(model, ties, limits, on, ks, hide_seen, cases_file is not None)
    with open_run(session, work or Path.cwd()) as run:
        stats = read_stats(run, source, LogOptions(names, ties, core, drop_duplicates))
        log = _save_rows(run, stats, options)
        results = _evaluate_windows(log, plan)
        result = _join_windows(log, results)
        if cases_file is not None:
            files = (file for window in results for file in window.files.values())
            write_result(cases_file, result.facts(), map(pl.read_parquet, files))
    return result


def check_evaluation(model: Model, plan: SplitPlan, on: str) -> None:
    """Raise TalerecError unless Spark evaluates the model on this part (`on`) of the split."""
    if plan.kind == "leave-one-out":
        raise TalerecError(
            f"Spark does not split by {plan.text}; it takes splits by time: "
            "at:TIME, last:10%, rolling:TIME,DAYS or every:TIME"
        )
    plan.check(on)
    if isinstance(model, Content):
        raise TalerecError("Spark does not evaluate content; it fits it, and makes its lists")
    check_fit(model)


# -- rows ------------------------------------------------------------------------------------------


class _Options(NamedTuple):
    """An evaluation on a cluster; most fields are parameters of `evaluate`.

    A case is a user's next row after a split, which the model should rank high. limits: the most
    rows, pairs and bytes of a Spark task.
    """

    model: Model
    ties: str  # order of a user's rows with equal times: "file" or "item"
    limits: TaskLimits
    on: str  # "test" or "validation"
    ks: tuple[int, ...]  # list lengths of the metrics
    hide_seen: bool  # leave items of the history out of lists
    keep_cases: bool  # save a row for each case


class _EvaluationLog(NamedTuple):
    """A log whose rows are saved in partitions of users, and how a model is evaluated on it.

    run: the Spark session, a shared folder, and the seconds of stages. stats: the log's rows as a
    Spark table, with counts. rows: the files of the n_partitions partitions; the users of one
    partition are those of one Spark task. options: the model, and how it is evaluated.
    """

    run: ClusterRun
    stats: LogStats
    rows: RowFiles
    n_partitions: int
    options: _Options


def _save_rows(run: ClusterRun, stats: LogStats, options: _Options) -> _EvaluationLog:
    """Save a log's rows in partitions of users, for an evaluation; return the saved log.

    A partition has all rows of its users, which a hash of the user id assigns to it; one Spark task
    writes it to files in the run's folder. stats: the log's rows as a Spark table, with counts.
    Raises TalerecError if a user seems to have more rows than a task may hold.
    """
    task_rows = options.limits.rows
    count = max(run.n_cores, math.ceil(stats.n_rows / task_rows))
    partition_users(run, stats, count, task_rows)  # refuses a user whose rows no task can hold
    items = read_item_table(run.session, run.folder / "items.parquet", len(stats.ids))
    numbered = stats.events.withColumnRenamed("item", "id").join(items, "id")
    by_item = options.ties == "item"
    has_weights = "weight" in stats.events.columns
    sent = numbered.select(
        "user", F.col("position").alias("item"), "time", "row_number",
        *(["weight"] if has_weights else []),
        F.pmod(F.xxhash64("user"), F.lit(count)).cast("int").alias("block"),
    )  # fmt: skip
    rows = RowFiles(str(run.folder), len(stats.ids), stats.n_rows, None, has_weights)
    with run.stage("rows"):
        run_tasks(sent, count, lambda p, batches: save_user_rows(batches, p, rows, by_item))
    return _EvaluationLog(run, stats, rows, count, options)


def _find_validation_start(run: ClusterRun, stats: LogStats, when: int) -> int:
    """Return the time (microseconds) from which the rows before `when` are for validation.

    run: the Spark session, with the seconds of stages. stats: the log's rows as a Spark table
    (`events`), with counts. when: start of the test rows, microseconds. Training and validation
    rows have the ratio of the rows before and after `when`; see `earlier_cut_row`.
    """
    events = stats.events.where(F.col("time") < when)
    return _find_time(run, events, lambda before: earlier_cut_row(before, stats.n_rows))


def _find_last_rows_start(run: ClusterRun, stats: LogStats, share: float) -> int:
    """Return the time (microseconds) from which on the last rows lie, a share of all rows.

    run: the Spark session. stats: the log's rows as a Spark table (`events`), with counts.
    """
    return _find_time(run, stats.events, lambda n_rows: n_rows - max(1, round(share * n_rows)))


def _find_time(run: ClusterRun, events: DataFrame, find_row: Callable[[int], int]) -> int:
    """Return the time (microseconds) of one row of a Spark table, by its number in time order.

    find_row: from the number of rows to that number. Rows are counted by day, second, microsecond.
    """
    number = None
    with run.stage("read"):
        for width in (DAY, 1_000_000, 1):
            begin = F.col("time") - F.pmod("time", F.lit(width))
            table = events.groupBy(begin.alias("begin")).count().toArrow()
            counts = pl.DataFrame(table).sort("begin")
            ends = np.cumsum(counts["count"].to_numpy())
            if number is None:
                number = find_row(int(ends[-1]) if len(ends) else 0)
            at = int(np.searchsorted(ends, number, "right"))
            number -= int(ends[at - 1]) if at else 0
            start = int(counts["begin"][at])
            events = events.where(begin == start)
    return start


# -- windows ---------------------------------------------------------------------------------------


class _WindowResult(NamedTuple):
    """The evaluation of one test period (window), and the Parquet files of its cases.

    A case is a user's next row in the period. files: by partition of users, if it has cases.
    """

    result: Evaluation
    files: dict[int, Path]


def _evaluate_windows(log: _EvaluationLog, plan: SplitPlan) -> list[_WindowResult]:
    """Fit and evaluate a model once per test period (window) of a split; return the results.

    log: rows saved in partitions, with the Spark run and statistics. plan: a split by time, at:TIME
    with one period, or rolling with several of equal length. A case is a user whose next row after
    the training rows lies in the period; rolling periods without cases are left out. Raises
    TalerecError if there is no case at all.
    """
    results, (run, stats) = [], log[:2]
    finders = (
        partial(find, run, stats) for find in (_find_validation_start, _find_last_rows_start)
    )
    windows = plan.windows(log.options.on, stats.unit, stats.time_range[1], *finders)
    for number, window in enumerate(windows):
        try:
            results.append(_evaluate_window(log, window, run.folder / f"window-{number}"))
        except NoCasesError:
            if not plan.has_windows:
                raise
    if not results:
        raise no_window_error(windows[0].name)
    return results


def _evaluate_window(log: _EvaluationLog, window: TimeWindow, folder: Path) -> _WindowResult:
    """Fit on the rows before a test period (window), and evaluate the cases in it.

    log: rows saved in partitions of users. A case is a user with rows before the period, the
    history, whose next row, the target, lies in it. folder: a new one for the period's files.
    Raises NoCasesError if there is no case.
    """
    folder.mkdir()
    run, rows, count, options = log.run, log.rows, log.n_partitions, log.options
    path = str(folder)
    with run.stage("cut"):
        run_on_partitions(run, count, lambda p: save_window_stats(rows, p, window, path))
    stats = WindowStats.load(folder, count)
    require_both_sides(stats.n_train, log.stats.n_rows)
    if not stats.n_cases:
        raise no_history_error() if window.is_every_row else no_users_error()
    evaluation = _fit_training_rows(log, window, folder, stats)
    with run.stage("score"):
        run_on_partitions(run, count, lambda p: evaluation.evaluate_partition(p))
    saved = [p for p in range(count) if evaluation.file("sums", p).exists()]
    listed = [messages.read_array(folder, f"listed-{p}") for p in saved]
    frame = merge_sums((pl.read_parquet(evaluation.file("sums", p)) for p in saved), options.ks)
    shares = coverage(listed, len(options.model.item_ids), options.ks)
    first = [file for p in range(count) if (file := evaluation.file("first", p)).exists()]
    ranks = pl.concat(map(pl.read_parquet, first)) if first else None
    result = replace(_build_result(options, window, stats, frame, shares), first_row_ranks=ranks)
    return _WindowResult(result, {p: evaluation.file("cases", p) for p in saved})


def _join_windows(log: _EvaluationLog, windows: Sequence[_WindowResult]) -> Evaluation:
    """Return one evaluation of all test periods (windows), with sums over users for intervals.

    A user's rows are in the same partition in every period, so each task sums whole users.
    """
    run, ks, folder = log.run, log.options.ks, str(log.run.folder)
    files = {
        p: [window.files[p] for window in windows if p in window.files]
        for p in range(log.n_partitions)
    }
    with run.stage("score"):
        run_on_partitions(run, len(files), lambda p: save_user_sums(folder, p, files[p], ks))
    saved = (user_sums_file(folder, p) for p, paths in files.items() if paths)
    result = join_results([window.result for window in windows])
    return replace(
        result,
        seconds=sum_seconds([result.seconds, run.clock.seconds]),
        user_sums=merge_user_sums(map(pl.read_parquet, saved)),
    )


def _fit_training_rows(
    log: _EvaluationLog, window: TimeWindow, folder: Path, stats: WindowStats
) -> WindowEvaluation:
    """Fit the model on the rows before a test period; return how its cases are evaluated.

    A case is a user's next row in the period (window). Saved in `folder`: the model, the number
    that each of the log's items has in the model (-1: none), and the training rows of each item.
    stats: counts of the period's training rows and cases.
    """
    run, options, model = ClusterRun(log.run.session, folder), log.options, log.options.model
    train = select_rows(run, log.stats, log.stats.events.where(F.col("time") < window.when))
    table = f"file://{folder / 'weights.parquet'}"
    model.set_fitted(fit_rows(run, train, model, FitOptions(options.ties, options.limits, table)))
    path = folder / "model.tale"
    model.save(path, histories=False)
    all_items, counts = Vocabulary(log.stats.ids), np.empty(len(train.ids), np.int64)
    model_items = np.full(len(all_items), -1, np.int32)
    model_items[all_items.codes(train.ids)] = np.arange(len(train.ids), dtype=np.int32)
    counts[train.position] = train.item_counts
    messages.save_array(folder, "model_items", model_items)
    messages.save_array(folder, "item_counts", counts)
    evaluation = WindowEvaluation(
        log.rows, str(folder), str(path), window, options.ties, stats, train.mean_weight,
        options.ks, options.hide_seen, options.keep_cases,
    )  # fmt: skip
    if window.is_every_row:
        _fit_trending(run, train).save(evaluation.fallback, histories=False)
    return evaluation


def _fit_trending(run: ClusterRun, train: LogStats) -> Trending:
    """Return trending items, fitted to the training rows on the cluster.

    It is fitted to a log with one row per item, which has the weight of the item's latest rows.
    train: the training rows as a Spark table, with counts.
    """
    model, latest = Trending(), train.time_range[1]
    weights = count_recent_rows(run, train, model.window)
    rows = np.flatnonzero(weights)
    columns = (np.array([0, len(rows)]), rows.astype(np.int32), np.full(len(rows), latest))
    items = Vocabulary(train.ids)
    return model.fit(Log(*columns, Vocabulary(pl.Series([0])), items, weight=weights[rows]))


def _build_result(
    options: _Options,
    window: TimeWindow,
    stats: WindowStats,
    frame: pl.DataFrame,
    shares: dict[str, float],
) -> Evaluation:
    """Return the evaluation of one test period (window) from sums over its cases.

    frame: sums of metrics and numbers of equal cases, as `merge_sums` returns them; a case is a
    user's next row in the period. shares: by name `coverage@k`, the share of all items in any top k
    list.
    """
    model = options.model
    return Evaluation(
        model=model.name,
        params=model.params,
        solver=model.fitted.solver,
        split=window.name,
        refit=False,
        ties=options.ties,
        tied=stats.simultaneous,
        on=options.on,
        hide_seen=options.hide_seen,
        ks=options.ks,
        coverage=shares,
        seconds={"load": 0.0, "gram": 0.0, "solve": 0.0, "lists": 0.0, **model.fitted.seconds},
        fixed_order_metrics={},
        frame=frame,
    )
