"""The tasks of an evaluation on a cluster: users' rows, cases and sums of them. No Spark.

A *case* is a user's next row after a split, which a model should rank high. A *window* is the
range of time whose cases are evaluated by a model fitted on the rows before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data import Log, Vocabulary, count_ties
from talerec.data.split import (
    Cases,
    EvaluatedRows,
    RowItems,
    TimeWindow,
    build_cases,
    find_evaluated_rows,
    find_targets,
)
from talerec.evaluation import (
    THIRDS,
    CaseContext,
    build_case_rows,
    history_lengths,
    merge_sums,
    rank_first_rows,
    sum_cases,
    tabulate_user_sums,
    target_gaps,
    user_sum_columns,
)
from talerec.models import load
from talerec.models.core import rank_targets
from talerec.runtime import Array
from talerec.spark import messages
from talerec.spark.messages import Batches
from talerec.spark.partitions import RowFiles, row_order
from talerec.spark.tempo_tasks import quantile

_ROW_COLUMNS = ("user", "item", "time", "row_number", "weight")
_ROW_TYPES = (pl.Int64, pl.Int32, pl.Int64, pl.Int64, pl.Float64)


def save_user_rows(batches: Batches, partition: int, rows: RowFiles, by_item: bool) -> None:
    """Save all rows of a partition's users as a log, ordered by user, then by time.

    batches: the rows that Spark sent to this partition (the users of one task): user, item
    (vocabulary position), time, row_number, and weight if rows have weights. rows: the files to
    write. by_item: order rows with equal times by their items, else by row number.
    """
    frame = messages.to_frame(batches)
    if frame.is_empty():
        frame = pl.DataFrame(schema=dict(zip(_ROW_COLUMNS, _ROW_TYPES, strict=True)))
    frame = frame.sort("user", *row_order(by_item))
    ids, length = frame["user"].rle().struct.unnest().select("value", "len")
    ptr = np.concatenate([[0], np.cumsum(length.to_numpy())]).astype(np.int64)
    item, time = frame["item"].to_numpy(), frame["time"].to_numpy()
    weight = frame["weight"].to_numpy() if rows.has_weights else None
    users = Vocabulary(ids)
    rows.save_log(partition, Log(ptr, item, time, users, users, weight=weight))
    messages.save_frame(rows.users_file(partition), pl.DataFrame({"id": ids}))


# -- a window --------------------------------------------------------------------------------------


def save_window_stats(rows: RowFiles, partition: int, window: TimeWindow, folder: str) -> None:
    """Save a partition's counts for a test period: training rows, ties, pairs, and cases.

    partition: number of a set of users, whose rows are in `rows`. Pairs are consecutive training
    rows of a user, ties those of equal times. A case is a user whose next row after training lies
    in the period (`window`). Saved, too, are the gaps before cases (microseconds) and the lengths
    of their histories, sorted. folder: of the period's files.
    """
    log = rows.load_log(partition)
    is_train = log.time < window.when
    cases = _build_cases(log, RowItems(log.item), window)
    counts = [np.count_nonzero(is_train), *count_ties(log.keep(is_train)), len(cases)]
    messages.save_array(folder, f"counts-{partition}", np.array(counts, np.int64))
    for name, values in (("gap", target_gaps(cases)), ("length", history_lengths(cases))):
        messages.save_array(folder, f"{name}-{partition}", np.sort(values))


class WindowStats(NamedTuple):
    """Statistics of a test period over all partitions; a case is a user's next row in it."""

    n_train: int  # rows before the window
    simultaneous: float  # share of a user's consecutive training rows that have the same time
    n_cases: int
    gap_thirds: tuple[float, float]  # bounds of thirds of the cases by time since the last row
    length_thirds: tuple[float, float]  # bounds of thirds of the cases by history length

    @classmethod
    def load(cls, folder: str | Path, n_partitions: int) -> WindowStats:
        """Return the statistics of a test period: what each partition of users saved, combined.

        `save_window_stats` saved counts that add up, and sorted gaps and lengths of histories.
        folder: of the period's files.
        """
        counts = np.sum(list(messages.map_arrays(folder, "counts", n_partitions)), axis=0)
        n_train, n_simultaneous, n_pairs, n_cases = counts.tolist()
        gap, length = (
            _find_third_bounds(list(messages.map_arrays(folder, name, n_partitions)))
            for name in ("gap", "length")
        )
        share = n_simultaneous / n_pairs if n_pairs else 0.0
        return cls(n_train, share, n_cases, gap, length)


def _find_third_bounds(arrays: Sequence[Array]) -> tuple[float, float]:
    """Return the 0.33 and 0.67 quantiles of all values of several ascending arrays."""
    low, high = (quantile(arrays, share) for share in THIRDS)
    return low, high


def _build_cases(log: Log, items: RowItems, window: TimeWindow) -> Cases:
    """Return the cases of a test period: a history, and the item that came next, its target.

    Targets are each row of the period (a split every:TIME), or each user's first row in it. items:
    the item of each row of the log.
    """
    if window.is_every_row:
        return find_evaluated_rows(log, window).build_cases(log, items)
    return build_cases(log, items, *find_targets(log, window))


# -- evaluation ------------------------------------------------------------------------------------


class WindowEvaluation(NamedTuple):
    """The plan by which the cases of a test period are evaluated, one partition at a time.

    A case is a user's next row after training, which the model should rank high.
    """

    rows: RowFiles  # of the whole log; items by position in its vocabulary
    folder: str  # of the window's files
    artifact: str  # path of the saved model
    window: TimeWindow
    ties: str  # order of a user's rows with equal times: "file" or "item"
    stats: WindowStats
    mean_weight: float | None  # that weights are divided by; None if all weights are equal
    ks: tuple[int, ...]  # list lengths of the metrics
    hide_seen: bool  # leave items of the history out of lists
    keep_cases: bool  # save all columns of the row of each case

    def evaluate_partition(self, partition: int) -> None:
        """Rank the targets of a partition's cases; save sums over cases, and the listed items.

        partition: number of a set of users. A case is a user's next row in the test period; its
        item is the target, the rows before the period are the history. Nothing is saved if the
        partition has no case. The rows of single cases are saved too, without `keep_cases` only the
        columns for sums over users.
        """
        log, items = self._load_log(partition)
        users = self.rows.load_user_ids(partition)
        if self.window.is_every_row:
            self._rank_first_rows(
                partition, find_evaluated_rows(log, self.window), log, items, users
            )
        cases = _build_cases(log, items, self.window)
        if not len(cases):
            return
        model, counts = load(self.artifact), messages.map_array(self.folder, "item_counts")
        max_k = min(self.ks[-1], len(counts))
        context = CaseContext(
            self.ties, self.window.words, counts, self.stats.gap_thirds, self.stats.length_thirds
        )
        frames, sums, lists = [], [], []
        for a, b in cases.histories.chunks():
            part = cases.slice(a, b)
            ranked = rank_targets(
                model, part.histories, part.target, max_k, hide_seen=self.hide_seen
            )
            frame = build_case_rows(
                context, users, part, ranked.ranks, ranked.items, self.ks,
                hide_seen=self.hide_seen,
            )  # fmt: skip
            frames.append(
                frame if self.keep_cases else frame.select(user_sum_columns(frame.columns))
            )
            sums.append(sum_cases(frame, self.ks))
            lists.append(ranked.items)
        messages.save_frame(self.file("cases", partition), pl.concat(frames))
        listed = best_ranks(np.concatenate(lists), len(counts))
        messages.save_array(self.folder, f"listed-{partition}", listed)
        merged = merge_sums(sums, self.ks, is_final=False)
        messages.save_frame(self.file("sums", partition), merged)

    def _rank_first_rows(
        self, partition: int, rows: EvaluatedRows, log: Log, items: RowItems, users: pl.Series
    ) -> None:
        """Save how trending items rank the first rows of a partition's new users, if any.

        rows: those of the test period, in the log of the partition; items: of each of its rows;
        users: the ids of its users.
        """
        cases = rows.build_first_rows(log, items)
        if len(cases):
            frame = rank_first_rows(load(self.fallback), cases, users)
            messages.save_frame(self.file("first", partition), frame)

    @property
    def fallback(self) -> str:
        """The path of the model that answers first rows of new users: trending items."""
        return str(Path(self.folder) / "trending.tale")

    def file(self, name: str, partition: int) -> Path:
        """Return the window's Parquet file of a partition; name: cases, sums (over cases), first.

        The latter has the ranks of first rows of new users.
        """
        return Path(self.folder) / f"{name}-{partition}.parquet"

    def _load_log(self, partition: int) -> tuple[Log, RowItems]:
        """Return a partition's rows, and the item of each row in the model, -1 for unknown ones.

        Row weights are divided by `mean_weight`.
        """
        log = self.rows.load_log(partition)
        items = RowItems(messages.map_array(self.folder, "model_items")[log.item])
        weight = None
        if log.weight is not None and self.mean_weight is not None:
            weight = log.weight / self.mean_weight
        return replace(log, weight=weight), items


def save_user_sums(folder: str, partition: int, files: Sequence[Path], ks: Sequence[int]) -> None:
    """Save, per user of a partition, the sums of metrics over the user's cases in all periods.

    files: Parquet files with the partition's cases, one per test period that has any; without files
    nothing is saved. ks: list lengths of the metrics.
    """
    if files:
        names = user_sum_columns(pl.scan_parquet(files[0]).collect_schema().names())
        cases = pl.concat(pl.read_parquet(file, columns=names) for file in files)
        messages.save_frame(user_sums_file(folder, partition), tabulate_user_sums(cases, ks))


def user_sums_file(folder: str | Path, partition: int) -> Path:
    """Return the Parquet file in `folder` of a partition's sums over users.

    partition: number of a set of users, whose cases one task sums.
    """
    return Path(folder) / f"user_sums-{partition}.parquet"


def best_ranks(lists: Array, n_items: int) -> Array:
    """Return the distinct items of some lists and the best rank of each, as two rows.

    lists: a row per list, the best item first, -1 for no item. Ranks begin with 0.
    """
    length = lists.shape[1]
    best = np.full(n_items + 1, length, np.int32)  # the last entry is that of no item, -1
    for rank in range(length - 1, -1, -1):
        best[lists[:, rank]] = rank
    listed = np.flatnonzero(best[:-1] < length)
    return np.array([listed, best[listed]], np.int32)


def coverage(listed: Sequence[Array], n_items: int, ks: Sequence[int]) -> dict[str, float]:
    """Return `coverage@k` for each k: the share of all items that are in any list's top k.

    listed: for parts of the lists, two rows: their distinct items, and the best rank of each from 0
    (see `best_ranks`). n_items: of the model.
    """
    best = np.full(n_items, np.iinfo(np.int32).max)
    for item, rank in listed:
        best[item] = np.minimum(best[item], rank)
    return {f"coverage@{k}": int(np.count_nonzero(best < k)) / n_items for k in ks}
