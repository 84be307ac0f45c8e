"""Tempo on a cluster: what it learns from a log besides the Gram.

The functions of one machine do the work, on partitions of the log (see `tempo_tasks`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from talerec.models.core import (
    AUTO,
    HoldoutQueries,
    candidate_cutoffs,
    choose_cutoff,
    delayed_rows_per_user,
    has_enough_queries,
    sample_target_items,
    select_answerable,
)
from talerec.models.tempo import (
    HORIZONS,
    HoldoutFit,
    LogStatistics,
    PopularitySnapshots,
    QueryParams,
    Tempo,
    TieOrder,
    assemble_weights,
    build_snapshots,
    learn_params,
    log_popularity,
    select_treatments,
)
from talerec.ranking import Weights, make_block
from talerec.runtime import Array
from talerec.spark import tempo_tasks
from talerec.spark.gram import build_tempo_terms
from talerec.spark.log_stats import ClusterLog
from talerec.spark.partitions import RowFiles, cut_times
from talerec.spark.session import run_on_partitions, run_tasks, send_messages
from talerec.spark.solve import SolveTask, WeightTable, count_trends, solve_rows
from talerec.spark.tempo_tasks import HoldoutPlan


class ClusterHoldout(NamedTuple):
    """The training rows that remain of a log without its held-out queries, and these queries.

    A query is a user's history and, as target, the item of the row that came next: a current one of
    the last row before the cutoff, a delayed one of the first row after it.
    """

    rows: RowFiles  # the files of the training rows
    plan: HoldoutPlan  # the cutoff, and the items that may be targets
    item_weights: Array  # sum of the weights of each item's training rows, by position
    queries: tuple[HoldoutQueries, HoldoutQueries]  # current and delayed


@dataclass(frozen=True, eq=False)
class TempoFit:
    """A fit of the model tempo to a log whose rows are saved in partitions of users."""

    log: ClusterLog  # with the run on the cluster and the plan of its tasks
    model: Tempo  # gives the parameters

    def fit_weights(self, table: WeightTable) -> Weights:
        """Return the weights fitted to the whole log, with query parameters learned from it.

        Query parameters tell how the items of a history are weighted in a query; they are learned
        only if the model's `learn` is "auto". table: where item-item weights are also written,
        multiplied by a power of the target's popularity if its exponent was learned.
        """
        model, rows = self.model, self.log.rows
        statistics = self.load_statistics(rows)
        self.order_by_time(rows)
        tie_order, params = statistics.tie_order, None
        if model.learn == AUTO:
            tie_order, params = self._learn_params(statistics)
        statistics = statistics._replace(tie_order=tie_order)
        model = model.with_tie_order(tie_order)
        counts = rows.read_array("item_weights", 0)
        if params is not None and params.popularity_exponent[0]:
            exponent = float(params.popularity_exponent[0])
            factor = np.exp(exponent * log_popularity(counts)).astype(np.float32)
            table = table._replace(factor=factor)
        task = self._solve_task(self._count_trends(rows), statistics)
        item_weights = solve_rows(self.log, task, table)
        decay = model.pace * statistics.median_interval
        facts = (statistics, decay, params, counts)
        return assemble_weights(make_block(item_weights), *facts, self._build_snapshots)

    def load_statistics(self, rows: RowFiles) -> LogStatistics:
        """Return statistics of saved rows: median interval, order of simultaneous rows, repeats.

        rows: those of the whole log, or the training rows that remain without held-out rows. Each
        partition of users has saved its share.
        """
        stats, count = self.log.stats, self.log.n_partitions
        return tempo_tasks.load_statistics(self.model, rows, count, stats.ids, stats.position)

    def _count_trends(self, rows: RowFiles) -> RowFiles:
        """Return the rows with trend counts, if the model has trends.

        A trend count is the number of rows of a row's item within model.window days. rows: files of
        the rows of all partitions of users.
        """
        model = self.model
        return count_trends(self.log, rows, model.window, "both") if model.trend else rows

    def _solve_task(self, rows: RowFiles, statistics: LogStatistics) -> SolveTask:
        """Return what item-item weights are solved from.

        The result has the rows, a function that builds the summands of the normal equations from
        them, and the model. rows: files of the rows of all partitions of users, with trend counts;
        statistics: of these rows.
        """
        model = self.model
        builder = partial(build_tempo_terms, model, statistics)
        return SolveTask(rows, builder, model, shrinkage=model.shrinkage)

    # -- rows in the order of time --

    def order_by_time(self, rows: RowFiles) -> None:
        """Save all rows ordered by time, and each item's weight in them, by vocabulary position.

        rows: the files of the rows of each partition (a set of users), to which the results go too.
        Each partition sends its rows as messages to tasks for slices of time, which sort them.
        """
        run, plan, position = self.log.run, self.log.plan, self.log.stats.position
        n_slices = max(1, math.ceil(plan.n_rows / plan.limits.rows))
        cuts = cut_times(self.log.sampled_times, -1, n_slices)
        count = len(cuts) + 1
        sent = send_messages(
            run, self.log.n_partitions, lambda p: tempo_tasks.send_by_time(rows, p, cuts, position)
        )
        with run.stage("habits"):
            run_tasks(sent, count, lambda t, b: tempo_tasks.save_time_slice(b, t, rows))
            self._run_single_task(lambda: tempo_tasks.join_time_slices(rows, count))

    def _build_snapshots(self, horizons: list[float]) -> PopularitySnapshots:
        """Return item popularity at many points in time, for the whole log.

        A horizon is how quickly popularity is forgotten: the number of rows after which a row
        counts 1/e, as a multiple of the model's `span` (rows per item). There are snapshots for
        each.
        """
        with self.log.run.stage("habits"):
            self._save_snapshots(self.log.rows, horizons)
        return tempo_tasks.load_snapshots(self.log.rows)

    def _save_snapshots(
        self, rows: RowFiles, horizons: Sequence[float], *, share_room: bool = True
    ) -> None:
        """Save item popularity at many points in time, from rows that are saved ordered by time.

        horizons: how quickly popularity is forgotten, as multiples of the model's `span` (rows per
        item). share_room: all horizons together store no more snapshots than one alone may. One
        Spark task does it.
        """
        span = self.model.span

        def save() -> None:
            """Take the snapshots of popularity, and save them."""
            by_time = tempo_tasks.load_by_time(rows)
            snapshots = build_snapshots(by_time, span, horizons, share_room=share_room)
            tempo_tasks.save_snapshots(snapshots, rows)

        self._run_single_task(save)

    def _run_single_task(self, work: Callable[[], None]) -> None:
        """Run `work()` on the cluster, as a single Spark task, and wait for it."""
        run_on_partitions(self.log.run, 1, lambda _: work())

    # -- learning --

    def _learn_params(self, statistics: LogStatistics) -> tuple[TieOrder, QueryParams | None]:
        """Return how equal times are treated, and the learned query parameters.

        The parameters are None if there are too few held-out queries; tests of the log alone then
        decide on equal times. Query parameters weight the items of a history. A held-out query is a
        history and the item that came next, its target. A model is fitted to the log without these
        rows, with item popularity at many times (snapshots), and the parameters that rank the
        targets best are selected. `HORIZONS`: how quickly popularity is forgotten. statistics: of
        the whole log.
        """
        holdout = self.split_holdout(every_item=statistics.has_repeats)
        if holdout is None:
            return statistics.tie_order, None
        train, plan, counts, queries = holdout
        target_mask = np.empty(train.n_items, bool)
        target_mask[self.log.stats.position] = plan.target_mask
        with self.log.run.stage("learn"):
            self._save_snapshots(train, HORIZONS, share_room=False)
        time = tempo_tasks.load_by_time(train).time
        time_range = (int(time[0]), int(time[-1]))
        trend_rows = self._count_trends(train)

        def fit_holdout(is_joint: bool) -> HoldoutFit:
            """Fit item-item weights to the training rows; is_joint: equal times are unordered."""
            small = replace(self, model=self.model.holdout_model(is_joint))
            measured = small.load_statistics(train)
            task = small._solve_task(trend_rows, measured)
            folder = "gram-joint" if is_joint else "gram-ordered"
            task = task._replace(target_mask=plan.target_mask, folder=folder)
            item_weights = make_block(solve_rows(self.log, task, None))
            facts = (tempo_tasks.load_snapshots(train), counts, time_range)
            rules = small.model.history_rules(measured)
            return HoldoutFit(item_weights, measured.repeat_rates, *facts, rules)

        tie_order = statistics.tie_order
        fits = [fit_holdout(is_joint) for is_joint in select_treatments(tie_order, queries)]
        with self.log.run.stage("learn"):
            return learn_params(fits, tie_order, queries, target_mask)

    def split_holdout(self, *, every_item: bool) -> ClusterHoldout | None:
        """Save training rows and held-out queries; return both, or None if queries are too few.

        A query is a user's history and, as target, the item that came next: a current one of the
        last row before a cutoff, a delayed one of the first row after it. Queries whose target has
        no training row are left out. every_item: all items of a large catalogue may be targets, not
        only half of them.
        """
        count, position = self.log.n_partitions, self.log.stats.position
        plan = self._plan_holdout(every_item)
        train = self.log.rows._replace(prefix="first_")
        self._save_holdout(train, plan)
        self.order_by_time(train)
        counts = train.read_array("item_weights", 0)
        current, delayed = (
            select_answerable(tempo_tasks.load_queries(train, kind, count, position), counts > 0)
            for kind in tempo_tasks.QUERY_KINDS
        )
        if not has_enough_queries(current):
            return None
        return ClusterHoldout(train, plan, counts, (current, delayed))

    def _plan_holdout(self, every_item: bool) -> HoldoutPlan:
        """Return the time that ends the training rows, and the items that may be queries' targets.

        A held-out query is a user's history and, as target, the item that came next. every_item:
        all items of a large catalogue may be targets, not only half of them.
        """
        rows, count = self.log.rows, self.log.n_partitions
        cutoffs = candidate_cutoffs(tempo_tasks.load_by_time(rows).time)
        self._run_learning(lambda p: tempo_tasks.save_users_across(rows, p, cutoffs))
        n_users = np.asarray(sum(rows.map_arrays("across", count)))
        target_mask = sample_target_items(rows.n_items, every_item=every_item)
        by_rank = target_mask[self.log.stats.position]
        return HoldoutPlan(choose_cutoff(cutoffs, n_users), by_rank)

    def _save_holdout(self, train: RowFiles, plan: HoldoutPlan) -> None:
        """Sample users for queries; save their held-out queries and, as `train`, training rows.

        A query is a user's history and, as target, the item that came next: a current one of the
        last row before plan.cutoff, a delayed one of the first row after it. train: the files to
        write.
        """
        rows, count = self.log.rows, self.log.n_partitions
        self._run_learning(lambda p: tempo_tasks.save_eligible_users(rows, p, plan))
        current, delayed = (
            tempo_tasks.sample_eligible_users(rows, kind, count, self.log.plan.n_rows)
            for kind in tempo_tasks.QUERY_KINDS
        )

        n_rows = delayed_rows_per_user(sum(map(len, delayed)), self.log.plan.n_rows)

        def save(partition: int) -> None:
            users = (current[partition], delayed[partition])
            tempo_tasks.save_holdout(rows, train, partition, plan, users, n_rows)

        self._run_learning(save)

    def _run_learning(self, work: Callable[[int], None]) -> None:
        """Run `work(partition)` on the cluster for each partition of users, and wait.

        The time is counted as stage "learn", in which query parameters are learned.
        """
        with self.log.run.stage("learn"):
            run_on_partitions(self.log.run, self.log.n_partitions, work)
