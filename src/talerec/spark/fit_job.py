"""The fit on a cluster, of any model: rows are read, the model is fitted and saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
from pyspark.sql import SparkSession

from talerec.artifact import check_target
from talerec.errors import TalerecError
from talerec.models import load
from talerec.models.blend import Blend
from talerec.models.content import Content
from talerec.models.core import Fitted, Model
from talerec.models.ranker import Ranker
from talerec.spark.blend import fit_blend
from talerec.spark.content import ContentFit, empty_log
from talerec.spark.fit_model import FitOptions, check_model, fit_model
from talerec.spark.log_columns import NAMES, Columns
from talerec.spark.log_stats import LogOptions, LogStats, partition_rows, read_stats
from talerec.spark.partitions import TaskLimits
from talerec.spark.parts import check_parts
from talerec.spark.ranker import build_ranker_parts, fit_ranker
from talerec.spark.read import Source
from talerec.spark.session import ClusterRun, open_run
from talerec.spark.tables import check_histories_output, check_table, write_histories


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
        A model of `check_model`, a `Content`, `Blend` or `Ranker`; solver is `auto` or `local`.
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
    table = check_table(session, str(weights or _choose_table_address(Path(output))), source)
    histories = check_histories_output(session, histories, source, names.has_weights)
    with open_run(session, work or Path(output).parent) as run:
        stats = read_stats(run, source, LogOptions(names, ties, core, drop_duplicates))
        options = FitOptions(ties, limits, table, histories, items)
        model.set_fitted(_with_item_table(fit_rows(run, stats, model, options), items))
        model.save(output, histories=histories is True)
    model.set_fitted(load(output).fitted)
    return model


def _choose_table_address(output: Path) -> str:
    """Return the address of the table of a saved model's weights, which lies beside the model.

    For shop.tale it is shop.weights.parquet, as a URL with file://.
    """
    path = output.absolute()
    return f"file://{path.parent / path.name.removesuffix('.tale')}.weights.parquet"


def fit_rows(run: ClusterRun, stats: LogStats, model: Model, options: FitOptions) -> Fitted:
    """Return the fitted state of a model: weights, items, and training statistics.

    run: the Spark session and a shared folder. stats: the log's rows as a Spark table, with counts.
    The table of weights and maybe the users' rows are written where `options` says. TalerecError if
    Spark cannot fit the model.
    """
    if isinstance(model, Blend):
        return fit_blend(run, stats, model, options)
    if isinstance(model, Ranker):
        return fit_ranker(run, stats, model, options)
    if isinstance(model, Content):
        return _fit_content(run, stats, model, options)
    return fit_model(run, stats, check_model(model), options)


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


def _with_item_table(fitted: Fitted, table: pl.DataFrame | None) -> Fitted:
    """Return the fitted state with an item table; unchanged if it has one already.

    table: item_id and columns that describe the items; its rows are brought to the order of the
    model's items.
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
    """Raise TalerecError if Spark cannot fit the model, or a part of a blend or a ranker."""
    if isinstance(model, Content):
        return
    if isinstance(model, Ranker):
        model.check_ready()
        check_parts(build_ranker_parts(model), model.name)
    elif isinstance(model, Blend):
        check_parts(model.build_parts(), model.name)
    else:
        check_model(model)
