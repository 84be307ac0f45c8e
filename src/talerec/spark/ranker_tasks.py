"""Held-out queries of a ranker, and times of rows, of a log in partitions. No Spark.

Each function does for one partition of users what `talerec.models.ranker` does for a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from talerec.data import Log, group_rows
from talerec.features import ItemTimes
from talerec.models import load
from talerec.models.core import Fitted, HoldoutQueries, select_answerable, spread_sample
from talerec.models.ranker import (
    Examples,
    FirstStage,
    LearnedTrees,
    QueryRound,
    QuerySplit,
    Ranker,
    RankerState,
    ask_queries,
    store,
)
from talerec.runtime import Array
from talerec.spark import messages, tempo_tasks
from talerec.spark.gram import create_file
from talerec.spark.partitions import RowFiles

_TIMES = "item_times"  # file of the times of all rows, by item
_CHUNK_ROWS = 2**22  # rows of the log that are read at a time
MODES = ("allowed", "hidden")  #: of examples: with seen items, and without


class HeldOutRows(NamedTuple):
    """A round of queries that are held out from the rows of all partitions of users.

    rows: the files of the whole log. name: of the round, by which its files begin. split: how
    queries are held out. users: of each partition, the sampled users, as numbers within it.
    position: of each item (popularity rank) in the vocabulary. known_until: as in `QueryRound`.
    """

    rows: RowFiles
    name: str
    split: QuerySplit
    users: list[Array]
    position: Array
    known_until: int

    @property
    def files(self) -> RowFiles:
        """The files of the round."""
        return round_files(self.rows, self.name)

    def load_train(self, partition: int) -> Log:
        """Return the training rows of a partition, with items by popularity rank."""
        return self._split(partition)[0]

    def save_targets(self, partition: int) -> None:
        """Save the target of each query of a partition that has a history, as `targets`."""
        every_item = np.ones(self.rows.n_items, bool)
        queries = select_answerable(self._split(partition)[1], every_item)
        self.files.save_array("targets", partition, self.position[queries.target])

    def save_examples(self, partition: int, stage: StageFile, first: int) -> None:
        """Save the examples of a partition, with seen items and without.

        stage: the parts that know the training rows. first: number of the partition's first query.
        """
        train, queries = self._split(partition)
        histories = replace(queries.histories, item=self.position[queries.histories.item])
        queries = HoldoutQueries(histories, self.position[queries.target], queries.user)
        in_train = messages.read_array(stage.folder, "in_train")
        held_out = QueryRound(train, select_answerable(queries, in_train), self.known_until)
        state = RankerState.restore(load(stage.path).fitted, stage.size)
        sets = ask_queries(state.first, held_out, state.first.joins_history, first)
        for mode, examples in zip(MODES, sets, strict=True):
            for name, array in examples._asdict().items():
                self.files.save_array(f"{mode}_{name}", partition, array)

    def load_examples(
        self, mode: str, partitions: Sequence[int], first_user: Array
    ) -> list[Examples]:
        """Return the examples that partitions have saved, with users' numbers in the whole log.

        mode: one of `MODES`. first_user: the number of each partition's first user. Arrays are
        memory-mapped.
        """
        sets = []
        for partition in partitions:
            folder, prefix = self.files.folder, self.files.prefix
            arrays = {
                name: messages.map_array(folder, f"{prefix}{mode}_{name}-{partition}")
                for name in Examples._fields
            }
            arrays["user"] = arrays["user"] + first_user[partition]
            sets.append(Examples(**arrays))
        return sets

    def _split(self, partition: int) -> tuple[Log, HoldoutQueries]:
        return self.split.hold_out(self.rows.load_log(partition), self.users[partition])


class StageFile(NamedTuple):
    """A saved ranker without trees, whose first stage the tasks load.

    folder: has the array `in_train`, a flag per item. size: the most candidates of a query.
    """

    folder: str
    size: int

    @property
    def path(self) -> Path:
        """The path of the artifact."""
        return Path(self.folder) / "stage.tale"

    def save(self, stage: FirstStage, names: str) -> None:
        """Save a stage whose parts have these names, and know the rows of one round.

        Parts decide by the times of the rows that they were fitted to, not by those of the log.
        """
        first = stage.parts[0].fitted
        weights = store(stage, names, LearnedTrees.empty(stage.sources))
        fitted = Fitted(weights, first.items, None, None, None, {}, first.training)
        untrained = Ranker(parts=names, candidates=self.size, content="off")
        untrained.set_fitted(fitted).save(self.path, histories=False)


def round_files(rows: RowFiles, name: str) -> RowFiles:
    """Return the files of a round of queries. rows: those of the log. name: of the round."""
    return rows._replace(prefix=f"{name}_")


def save_held_counts(rows: RowFiles, name: str, partition: int, split: QuerySplit) -> None:
    """Save which users of a partition may have queries, and how many rows they may hold out."""
    n_held, files = split.count_held(rows.load_log(partition)), round_files(rows, name)
    users = np.flatnonzero(n_held)
    files.save_array("held_users", partition, users)
    files.save_array("n_held", partition, np.array([n_held[users].sum()], np.int64))


def sample_held_users(rows: RowFiles, name: str, count: int, split: QuerySplit) -> list[Array]:
    """Return the users of each partition who have queries: an even sample of the whole log's.

    rows: the files of the log; name: of the round of queries; count: of partitions.
    """
    files = round_files(rows, name)
    eligible = list(files.map_arrays("held_users", count))
    n_held = sum(int(array[0]) for array in files.map_arrays("n_held", count))
    ends = np.cumsum([0, *map(len, eligible)])
    sample = spread_sample(np.arange(ends[-1]), split.sample_size(int(ends[-1]), n_held))
    cuts = np.searchsorted(sample, ends)
    return [
        np.array(users[sample[a:b] - first])
        for users, (a, b), first in zip(eligible, pairwise(cuts), ends[:-1], strict=True)
    ]


# -- times of rows ---------------------------------------------------------------------------------


def create_times_file(rows: RowFiles, n_rows: int) -> None:
    """Create the file that `save_item_times` fills."""
    create_file(_get_times_path(rows), 8 * n_rows)


def save_item_times(rows: RowFiles) -> None:
    """Save the times of each item's rows, ascending, from rows that are saved ordered by time.

    The rows are read once, from front to back. A second run writes the same bytes.
    """
    by_time = tempo_tasks.load_by_time(rows)
    n_rows, n_items = len(by_time.time), rows.n_items
    chunks = [slice(a, a + _CHUNK_ROWS) for a in range(0, n_rows, _CHUNK_ROWS)]
    counts = sum((np.bincount(by_time.item[c], minlength=n_items) for c in chunks), start=0)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    times = np.memmap(_get_times_path(rows), np.int64, "r+", shape=(n_rows,))
    free = indptr[:-1].copy()  # of each item, the first row that is not written
    for chunk in chunks:
        item = np.asarray(by_time.item[chunk])
        ptr, order = group_rows(item, n_items)
        rank = np.arange(len(order)) - np.repeat(ptr[:-1], np.diff(ptr))
        times[free[item[order]] + rank] = by_time.time[chunk][order]
        free += np.diff(ptr)
    times.flush()
    rows.save_array("item_indptr", 0, indptr)


def load_item_times(rows: RowFiles) -> ItemTimes:
    """Return the times of all rows, memory-mapped; the files are those of `save_item_times`."""
    times = np.asarray(np.memmap(_get_times_path(rows), np.int64, "r"))
    return ItemTimes(rows.read_array("item_indptr", 0), times, tempo_tasks.load_by_time(rows).time)


def _get_times_path(rows: RowFiles) -> Path:
    """Return the path of the file of times by item."""
    return Path(rows.folder) / f"{_TIMES}.raw"
