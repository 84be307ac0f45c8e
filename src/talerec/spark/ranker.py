"""The ranker on a cluster: tasks make queries and features, the driver learns trees.

Parts are fitted as those of a blend, to the training rows of each round of queries and to all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data import Log, Vocabulary
from talerec.errors import TalerecError
from talerec.features import ItemTimes
from talerec.models import load
from talerec.models.core import AUTO, Fitted, Model
from talerec.models.ranker import (
    ENOUGH_DELAYED,
    LARGE_PARTS,
    MIN_QUERIES,
    AskedQueries,
    Examples,
    FirstStage,
    QuerySplit,
    Ranker,
    RankerState,
    build_parts,
    choose_rows_back,
    delayed_cutoffs,
    learn_kinds,
    store,
    takes_content,
)
from talerec.models.tempo import Tempo
from talerec.runtime import Array
from talerec.spark import messages, ranker_tasks
from talerec.spark.fit_model import FitOptions
from talerec.spark.log_stats import ClusterLog, LogStats, partition_rows
from talerec.spark.parts import fit_final_parts, fit_parts, nested_run, save_training_rows
from talerec.spark.ranker_tasks import HeldOutRows, StageFile
from talerec.spark.session import ClusterRun, run_on_partitions
from talerec.spark.tempo import TempoFit


def build_ranker_parts(model: Ranker) -> list[Model]:
    """Return the parts of a ranker that is fitted on a cluster, not fitted yet."""
    return build_parts(_name_parts(model))


def _name_parts(model: Ranker) -> str:
    """Return the parts as text; those of one machine's large logs unless the model names some."""
    return LARGE_PARTS if model.parts.strip() == AUTO else model.parts


def fit_ranker(run: ClusterRun, stats: LogStats, model: Ranker, options: FitOptions) -> Fitted:
    """Return the fitted state of a ranker: its parts, trees and times of rows.

    run: the Spark session and a shared folder; stats: the log's rows as a Spark table, with counts.
    The first part writes the users' rows where `options` says. TalerecError if the ranker would
    take the item table in.
    """
    _refuse_content(stats, model, options)
    tempo, log_run = Tempo(), nested_run(run, "queries")
    log = partition_rows(log_run, stats, tempo, options.ties, options.limits, every_row=True)
    rows = log.rows
    TempoFit(log, tempo).order_by_time(rows)
    with run.stage("rows"):
        ranker_tasks.create_times_file(rows, stats.n_rows)
        run_on_partitions(run, 1, lambda _: ranker_tasks.save_item_times(rows))
    return RankerFit(log, model, options).fit(run)


def _refuse_content(stats: LogStats, model: Ranker, options: FitOptions) -> None:
    """Raise TalerecError if a ranker of one machine would take the item table in."""
    if options.items is None or model.content != AUTO:
        return
    n_items, user = len(stats.ids), Vocabulary(pl.Series([0]))
    rows = np.array([0, n_items]), np.arange(n_items, dtype=np.int32), np.zeros(n_items, np.int64)
    every_item = Log(*rows, user, Vocabulary(stats.ids))  # types are those of items with rows
    if takes_content(every_item.with_items(options.items)):
        message = "Spark does not take the item table into a ranker: fit it with content=off"
        raise TalerecError(message)


class PlannedRound(NamedTuple):
    """A round of held-out queries whose training rows are saved.

    run, train: the training rows as a log of their own, and its folder, in which the array
    `in_train` flags their items. n_queries: of each partition.
    """

    held_out: HeldOutRows
    run: ClusterRun
    train: LogStats
    n_queries: Array


@dataclass(frozen=True, eq=False)
class RankerFit:
    """A fit of a ranker to a log whose rows are saved in partitions of users, and by time."""

    log: ClusterLog
    model: Ranker
    options: FitOptions

    def fit(self, run: ClusterRun) -> Fitted:
        """Return the fitted state. run: where the parts are fitted to all rows."""
        stats, files, parts = self.log.stats, self.log.rows, build_parts(self._text)
        kinds = self._plan_kinds()

        def ask(kind: int) -> AskedQueries | None:
            """Return the examples of a kind of query, None if it has too few queries."""
            return self._ask_rounds(kinds[kind]) if kinds[kind] else None

        sources = self._build_stage(parts).sources
        trees = learn_kinds(ask, sources, self.model.seed, run.clock)
        fit_final_parts(run, stats, parts, self.options, [True] * len(parts))
        log = next((part.fitted.log for part in parts if part.fitted.log is not None), None)
        return Fitted(
            store(self._build_stage(parts), self._text, trees), Vocabulary(stats.ids), None, log,
            None, run.clock.seconds, self.log.describe(), files.read_array("recent_weights", 0),
        )  # fmt: skip

    @property
    def _text(self) -> str:
        return _name_parts(self.model)

    @cached_property
    def _times(self) -> ItemTimes:
        """The times of the rows of the log, memory-mapped."""
        return ranker_tasks.load_item_times(self.log.rows)

    @cached_property
    def _has_repeats(self) -> bool:
        """Whether users repeat items."""
        return TempoFit(self.log, Tempo()).load_statistics(self.log.rows).has_repeats

    @cached_property
    def _user_counts(self) -> Array:
        """The number of users of each partition."""
        sizes = self.log.rows.map_arrays("sizes", self.log.n_partitions)
        return np.array([int(n_users) for n_users, _, _ in sizes])

    def _build_stage(self, parts: list[Model]) -> FirstStage:
        """Return the first stage of these parts; they may be fitted later."""
        return FirstStage(parts, self._times, self._has_repeats, self.model.candidates)

    # -- queries --

    def _plan_kinds(self) -> list[list[PlannedRound]]:
        """Return the rounds of current and of delayed queries, none if their queries are few."""
        rows_back = self.model.rows_back or choose_rows_back(int(self._user_counts.sum()))
        end = self.log.stats.time_range[1] + 1
        current = self._plan_round("current", QuerySplit(None, rows_back), end)
        delayed: list[PlannedRound] = []
        for number, cutoff in enumerate(delayed_cutoffs(self._times.all_times)):
            delayed += self._plan_round(f"delayed-{number}", QuerySplit(cutoff), cutoff)
            if _count_queries(delayed) >= ENOUGH_DELAYED:
                break
        kinds = (current, delayed)
        return [kind if _count_queries(kind) >= MIN_QUERIES else [] for kind in kinds]

    def _plan_round(self, name: str, split: QuerySplit, known_until: int) -> list[PlannedRound]:
        """Return a round of queries, whose training rows are saved; none if it has no queries."""
        log, rows, count = self.log, self.log.rows, self.log.n_partitions
        self._run_tasks(lambda p: ranker_tasks.save_held_counts(rows, name, p, split))
        users = ranker_tasks.sample_held_users(rows, name, count, split)
        held_out = HeldOutRows(rows, name, split, users, log.stats.position, known_until)
        self._run_tasks(held_out.save_targets)
        targets = list(held_out.files.map_arrays("targets", count))
        if not any(map(len, targets)):
            return []
        run = nested_run(log.run, name, has_items=False)
        train = save_training_rows(run, log, held_out.load_train)
        in_train = np.zeros(rows.n_items, bool)
        in_train[train.position] = train.item_counts > 0
        messages.save_array(run.folder, "in_train", in_train)
        n_queries = np.array([np.count_nonzero(in_train[each]) for each in targets])
        return [PlannedRound(held_out, run, train, n_queries)] if n_queries.any() else []

    def _run_tasks(self, work: Callable[[int], None]) -> None:
        """Run `work(partition)` on the cluster for each partition of users, and wait."""
        with self.log.run.stage("queries"):
            run_on_partitions(self.log.run, self.log.n_partitions, work)

    # -- examples --

    def _ask_rounds(self, rounds: list[PlannedRound]) -> AskedQueries:
        """Return the examples of all rounds, with seen items and without, and the last stage."""
        sets: list[list[Examples]] = [[] for _ in ranker_tasks.MODES]
        for planned in rounds:
            stage = self._save_stage(planned)
            for number, mode in enumerate(ranker_tasks.MODES):
                partitions = np.flatnonzero(planned.n_queries).tolist()
                first_user = np.cumsum(self._user_counts) - self._user_counts
                sets[number] += planned.held_out.load_examples(mode, partitions, first_user)
        return AskedQueries([Examples.join(each) for each in sets], stage)

    def _save_stage(self, planned: PlannedRound) -> FirstStage:
        """Fit the parts to a round's training rows, save the examples, and return the stage."""
        held_out, run, train, n_queries = planned
        parts, options = build_parts(self._text), self.options
        fit_parts(run, train, parts, options)
        stage, file = self._build_stage(parts), StageFile(str(run.folder), self.model.candidates)
        file.save(stage, self._text)
        first, some = np.cumsum(n_queries) - n_queries, np.flatnonzero(n_queries)

        def save(task: int) -> None:
            """Save the examples of a partition that has queries."""
            partition = int(some[task])
            held_out.save_examples(partition, file, int(first[partition]))

        with self.log.run.stage("features"):
            run_on_partitions(self.log.run, len(some), save)
        return RankerState.restore(load(file.path).fitted, file.size).first


def _count_queries(rounds: list[PlannedRound]) -> int:
    """Return the number of queries of some rounds."""
    return sum(int(each.n_queries.sum()) for each in rounds)
