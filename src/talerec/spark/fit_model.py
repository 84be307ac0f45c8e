"""The fit of one model on a cluster: rows in partitions, Gram, then weights."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import functions as F

from talerec.data import Log, Vocabulary, days_to_microseconds
from talerec.errors import TalerecError
from talerec.models.core import Fitted, Model
from talerec.models.counting import LagCountModel, Popular
from talerec.models.linear import RidgeModel
from talerec.models.neighbors import SKNN
from talerec.models.tempo import Tempo
from talerec.ranking import Weights
from talerec.runtime import Array, Clock
from talerec.spark.gram import build_count_terms, build_model_terms
from talerec.spark.log_stats import ClusterLog, LogStats, partition_rows
from talerec.spark.partitions import TaskLimits
from talerec.spark.session import ClusterRun
from talerec.spark.solve import SolveTask, WeightTable, count_pairs, count_trends, solve_rows
from talerec.spark.tables import write_histories
from talerec.spark.tempo import TempoFit


class FitOptions(NamedTuple):
    """Options of a fit on Spark, and where its weights and the users' rows are saved."""

    ties: str  # order of a user's rows with equal times: "file" or "item"
    limits: TaskLimits  # how much a Spark task takes on: rows, pairs of items, bytes
    table: str  # the address of the table of weights
    histories: bool | str = False  # save users' rows with the model, or at this address
    items: pl.DataFrame | None = None  # the item table, for models that learn from it


def fit_model(run: ClusterRun, stats: LogStats, model: Model, options: FitOptions) -> Fitted:
    """Return the fitted state of a model that has no parts; also write its table of weights.

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
    solver = "local" if isinstance(model, RidgeModel) else None
    fitted = Fitted(
        weights, Vocabulary(stats.ids), None, merged, solver, run.clock.seconds, log.describe(),
        recent_weights,
    )  # fmt: skip
    if isinstance(histories, str):
        write_histories(run, log.rows, log.n_partitions, histories)
    return fitted


def _fit_weights(log: ClusterLog, model: Model, table: WeightTable) -> Weights:
    """Return a model's weights, fitted to rows saved in partitions.

    log: the rows, with the plan of the Spark tasks. table: the folder of Parquet files that
    item-item weights are also written to. Neighbors are an index of users' newest rows, which the
    driver builds.
    """
    if isinstance(model, Popular):
        return _fit_popularity(log, model)
    if isinstance(model, SKNN):
        return model.learn_weights(log.merge(), Clock())[0]
    if isinstance(model, LagCountModel):
        task = SolveTask(log.rows, partial(build_count_terms, model), model)
        return Weights(count_pairs(log, task, table))
    assert isinstance(model, RidgeModel)
    return _fit_item_weights(log, model, table)


def _fit_item_weights(log: ClusterLog, model: RidgeModel, table: WeightTable) -> Weights:
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


def _fit_popularity(log: ClusterLog, model: Popular) -> Weights:
    """Return the weights of a model of popularity, fitted to a log with one row per item.

    That row has the weight of the item's rows in the days that the model counts.
    """
    latest = log.stats.time_range[1]
    counts = count_recent_rows(log.run, log.stats, getattr(model, "window", math.inf))
    rows = np.flatnonzero(counts)
    columns = (np.array([0, len(rows)]), rows.astype(np.int32), np.full(len(rows), latest))
    items = Vocabulary(log.stats.ids)
    small = Log(*columns, Vocabulary(pl.Series([0])), items, weight=counts[rows])
    return model.learn_weights(small, Clock())[0]


def count_recent_rows(run: ClusterRun, stats: LogStats, days: float) -> Array:
    """Return the weight of each item's rows in the last days of a log, by vocabulary position."""
    events = stats.events
    if days != math.inf:
        events = events.where(F.col("time") >= stats.time_range[1] - days_to_microseconds(days))
    weight = F.count("item") if stats.mean_weight is None else F.sum("weight")
    with run.stage("read"):
        table = pl.DataFrame(events.groupBy("item").agg(weight.alias("weight")).toArrow())
    counts = np.zeros(len(stats.ids))
    counts[Vocabulary(stats.ids).codes(table["item"])] = table["weight"].to_numpy()
    return counts if stats.mean_weight is None else counts / stats.mean_weight


def check_model(model: Model) -> Model:
    """Return the model if Spark can fit it, else raise TalerecError.

    Spark fits tempo, models whose weights come from a sum of Gram terms (summands of G = S'S and K
    = S'T) and the local solver, which gives each target item few sources, counts of pairs, of rows,
    and neighbors. Models with parts are not accepted. G and K are those of the normal equations: S
    and T have, per training example, the weights of its source and its target items.
    """
    if isinstance(model, LagCountModel | Popular | SKNN):
        return model
    if not isinstance(model, RidgeModel) or not (
        isinstance(model, Tempo) or _uses_ridge_fit(model)
    ):
        raise TalerecError(
            f"Spark does not fit {model.name}; it fits tempo, tale, slit, slist, rules, markov, "
            "trending, popular, sknn and stan, blends and rankers of these, and content"
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
