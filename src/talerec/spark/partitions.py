"""Division of a log into partitions of users. No Spark.

A *partition* holds the rows of a range of users as a few arrays in files. Ranges have the order of
the users in one machine's log, so that all partitions, one after another, have its rows in order.
Items are numbered by popularity *rank*, 0 the most popular; their *position* is their number in the
vocabulary, as on one machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from talerec.data import Log, Vocabulary, group_rows, sort_groups
from talerec.errors import TalerecError
from talerec.runtime import Array
from talerec.spark import messages
from talerec.spark.messages import Batches

_SAMPLE_TIMES = 64  # times of a popular item, or of all rows, that a partition reports


def row_order(by_item: bool, position: str = "item") -> tuple[str, ...]:
    """Return the names of the columns that order a user's rows, the most important one first.

    Rows with equal times keep the order of the files (`row_number`); if `by_item`, the column
    `position` (items by vocabulary position) goes before it.
    """
    return ("time", position, "row_number") if by_item else ("time", "row_number")


class UserPartitions(NamedTuple):
    """A division of the users of a log into partitions, each for one Spark task.

    Partition p has the user ids bounds[p - 1]..bounds[p] (excluded) in sort order.
    """

    bounds: pl.Series  # first user id of each partition but the first, ascending
    is_numeric: bool  # ids are text, and all of them whole numbers, which orders them as numbers

    @classmethod
    def from_sample(cls, users: pl.Series, count: int, *, is_numeric: bool) -> UserPartitions:
        """Return about `count` partitions of users with equally many rows, from a sample of rows.

        users: the user id of each sampled row. is_numeric: ids are text, but sorted as numbers.
        """
        ordered = _sort_keys(users, is_numeric).sort()
        cuts = np.unique(np.linspace(0, len(ordered), count + 1).astype(np.int64)[1:-1])
        return cls(ordered.gather(cuts[cuts < len(ordered)]).unique().sort(), is_numeric)

    @property
    def n_partitions(self) -> int:
        """The number of partitions (sets of users); `bounds` are the ids between them."""
        return len(self.bounds) + 1

    def assign(self, users: pl.Series) -> Array:
        """Return the number of the partition (set of users, from 0) of each user id, as int32."""
        keys = _sort_keys(users, self.is_numeric)
        return self.bounds.search_sorted(keys, side="right").to_numpy().astype(np.int32)

    def encode(self, users: pl.Series) -> tuple[pl.Series, Array]:
        """Return the distinct user ids in sort order, and each row's index into them.

        users: the user id of each row. Text ids that are all whole numbers are sorted as numbers.
        """
        ids = users.unique()
        keys = pl.DataFrame({"key": _sort_keys(ids, self.is_numeric), "id": ids})
        ordered = keys.sort("key", "id")["id"]
        codes = users.replace_strict(ordered, pl.Series(np.arange(len(ordered), dtype=np.int32)))
        return ordered, codes.to_numpy()


def _sort_keys(users: pl.Series, is_numeric: bool) -> pl.Series:
    return users.cast(pl.Int128) if is_numeric else users


# -- rows on their way to their partitions ---------------------------------------------------------


class RowOptions(NamedTuple):
    """Options by which `send_rows` converts and selects a log's rows."""

    items_file: str  # Parquet: item id, position in the vocabulary, popularity rank
    by_item: bool  # rows with equal times are ordered by their items
    max_history: int | None  # latest rows of each user to send; None sends all
    mean_weight: float | None  # that weights are divided by; None: rows have no weights


def send_rows(
    batches: Batches, users: UserPartitions, options: RowOptions, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield messages (Arrow batches of one row) with a log's rows, to the partitions of users.

    batches: rows with `user, item` (ids), `time, row_number`, maybe `weight`, about `batch_rows` at
    a time. A message has a frame of these columns as bytes, and the number of the partition, whose
    task receives it. `item` becomes the popularity rank and `weight` is divided by its mean; the
    item's `position` is added if that orders rows with equal times.
    """
    items = pl.read_parquet(options.items_file)
    extra = [pl.col("position").cast(pl.Int64)] if options.by_item else []
    if options.mean_weight is not None:
        extra.append(pl.col("weight") / options.mean_weight)
    for frame in messages.iterate_frames(batches, batch_rows):
        rows = frame.join(items, left_on="item", right_on="id")
        rows = rows.select("user", pl.col("rank").alias("item"), "time", "row_number", *extra)
        if options.max_history is not None:
            rows = _select_latest(rows, options.max_history, options.by_item)
        ptr, order = group_rows(users.assign(rows["user"]), users.n_partitions)
        rows = rows[order]
        for number in np.flatnonzero(np.diff(ptr)):
            out = BytesIO()
            group = rows[int(ptr[number]) : int(ptr[number + 1])].rechunk()
            group.write_ipc_stream(out, compat_level=pl.CompatLevel.oldest())
            data = np.frombuffer(out.getbuffer(), np.uint8)
            yield messages.pack_message(int(number), 0, data)


def _select_latest(rows: pl.DataFrame, limit: int, by_item: bool) -> pl.DataFrame:
    """Return the last `limit` rows of each user by `row_order`, maybe in another order.

    rows: user, time, row_number and other columns; by_item: rows with equal times are ordered by
    the column position. An item's position is its number in the vocabulary.
    """
    max_user_rows = rows.group_by("user").len()["len"].max()
    if not isinstance(max_user_rows, int) or max_user_rows <= limit:
        return rows
    ordered = rows.sort("user", *row_order(by_item, "position"))
    user_code = ordered["user"].rle_id().to_numpy()
    user_end = np.cumsum(np.bincount(user_code))[user_code]
    return ordered.filter(pl.Series(user_end - np.arange(len(user_code)) <= limit))


# -- files -----------------------------------------------------------------------------------------


class RowFiles(NamedTuple):
    """The rows of a log in partitions of users, as NumPy array files in a folder.

    A partition has the users of one Spark task. Items are numbered by popularity rank, 0 the most
    popular; in an evaluation, by vocabulary position.
    """

    folder: str  # all machines of the cluster see it
    n_items: int
    max_history: int  # latest rows of each user that pairs are made of
    latest_time: int | None  # of the whole log, in microseconds
    has_weights: bool = False
    prefix: str = ""  # of the files' names: "first_" for the training rows of a holdout
    has_trends: bool = False  # trend counts are saved

    def load_log(self, partition: int) -> Log:
        """Return all rows of a partition as a log; its users and items have numbers for ids.

        partition: the number of a set of users. Arrays are read into memory.
        """
        ptr, item, time = (self.read_array(name, partition) for name in ("ptr", "item", "time"))
        weight = self.read_array("weight", partition) if self.has_weights else None
        users, items = _build_range_vocabulary(len(ptr) - 1), _build_range_vocabulary(self.n_items)
        return Log(ptr, item, time, users, items, latest=self.latest_time, weight=weight)

    def load_latest(self, partition: int) -> Log:
        """Return each user's `max_history` latest rows of a partition, with saved trend counts.

        The rows of a partition, a set of users, as a log. The trend count of a row is the number of
        rows of its item around its time.
        """
        log = self.load_log(partition)
        recent = log.recent(self.max_history)
        log = log if recent.all() else log.keep(recent)
        return replace(log, trends=self.read_array("trend", partition)) if self.has_trends else log

    def save_log(self, partition: int, log: Log) -> None:
        """Save the rows of a partition (a set of users) as arrays: ptr, item, time, maybe weight.

        The array `latest` has two numbers: how many rows `load_latest` returns, and the most of
        them that one user has, at least 1.
        """
        for name in ("ptr", "item", "time"):
            self.save_array(name, partition, getattr(log, name))
        if self.has_weights:
            self.save_array("weight", partition, np.empty(0) if log.weight is None else log.weight)
        length = np.minimum(np.diff(log.ptr), self.max_history)
        self.save_array("latest", partition, np.array([length.sum(), length.max(initial=1)]))

    def example_log(self, n_rows: int) -> Log:
        """Return a log of one user with `n_rows` rows of item 0, with the same arrays as ours.

        Weights and trend counts (rows of an item around a time), all 1, are there if the saved rows
        have them.
        """
        ones = np.ones(n_rows, np.int64)
        return Log(
            np.array([0, n_rows]), np.zeros(n_rows, np.int32), ones, _build_range_vocabulary(1),
            _build_range_vocabulary(self.n_items), latest=self.latest_time,
            weight=ones.astype(np.float64) if self.has_weights else None,
            trends=ones if self.has_trends else None,
        )  # fmt: skip

    def users_file(self, partition: int) -> Path:
        """Return the file with the ids of a partition's users."""
        return Path(self.folder) / f"users-{partition}.parquet"

    def load_user_ids(self, partition: int) -> pl.Series:
        """Return the ids of a partition's users."""
        return pl.read_parquet(self.users_file(partition))["id"]

    def load_item_ids(self) -> pl.Series:
        """Return the ids of the items, by popularity rank (0 the most popular)."""
        return pl.read_parquet(Path(self.folder) / "items.parquet").sort("rank")["id"]

    def merge(
        self, n_partitions: int, position: Array
    ) -> tuple[Array, Array, Array, Array | None, pl.Series]:
        """Return ptr, items, times, weights (or None) and user ids of all rows, user by user.

        n_partitions: how many sets of users have saved rows. position: of each item in the
        vocabulary, by popularity rank; items are returned as positions. Arrays of rows are
        memory-mapped from new files; the rows of user u are ptr[u]..ptr[u + 1].
        """
        lengths = np.concatenate([np.diff(ptr) for ptr in self.map_arrays("ptr", n_partitions)])
        ptr: Array = np.concatenate([[0], np.cumsum(lengths)])
        for partition in range(n_partitions):
            self.save_array("position", partition, position[self.read_array("item", partition)])
        item = self.join_arrays("position", n_partitions, np.int32)
        time = self.join_arrays("time", n_partitions, np.int64)
        weight = self.join_arrays("weight", n_partitions, np.float64) if self.has_weights else None
        users = [self.load_user_ids(partition) for partition in range(n_partitions)]
        return ptr, item, time, weight, pl.concat([ids for ids in users if len(ids)])

    def save_array(self, name: str, number: int, array: Array) -> None:
        """Save an array under a name and a number: that of a partition, or of another task."""
        messages.save_array(self.folder, f"{self.prefix}{name}-{number}", array)

    def map_arrays(self, name: str, count: int) -> Iterator[Array]:
        """Yield the saved arrays of that name, number 0 to count - 1, mapped into memory."""
        return messages.map_arrays(self.folder, f"{self.prefix}{name}", count)

    def join_arrays(self, name: str, count: int, dtype: type) -> Array:
        """Join the saved arrays `name-0` to `name-(count - 1)` to one file; return it mapped.

        The file is `all_{name}`; `map_joined` maps it again. dtype: of the arrays.
        """
        file = self.prefix + name
        return messages.join_arrays(self.folder, file, count, dtype, f"all_{file}")

    def map_joined(self, name: str, dtype: type) -> Array:
        """Return the array of all partitions that `join_arrays` wrote, memory-mapped."""
        return messages.map_joined(self.folder, f"all_{self.prefix}{name}", dtype)

    def read_array(self, name: str, number: int) -> Array:
        """Return the array saved under a name and a number (of a partition), read into memory."""
        return messages.read_array(self.folder, f"{self.prefix}{name}-{number}")


def _build_range_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary whose ids are the numbers 0 to size - 1."""
    return Vocabulary(pl.Series(np.arange(size)))


def save_partition(
    batches: Batches, partition: int, users: UserPartitions, rows: RowFiles, n_popular: int
) -> Log:
    """Save the rows sent to a partition (a set of users) as a log by user; return the log.

    batches: the messages of `send_rows`. Also saved: user ids, `sizes` (users, rows, pairs of a
    user's latest rows), and sampled `times` of all rows and of the `n_popular` most popular items.
    """
    log = _sort_rows(messages.unpack_frames(batches), users, rows)
    rows.save_log(partition, log)
    messages.save_frame(rows.users_file(partition), pl.DataFrame({"id": log.users.ids}))
    length = np.minimum(np.diff(log.ptr), rows.max_history)
    n_pairs = int((length * (length + 1) // 2).sum())
    rows.save_array("sizes", partition, np.array([len(log.users), log.rows, n_pairs]))
    rows.save_array("times", partition, _sample_times(log, n_popular))
    return log


def _sort_rows(frame: pl.DataFrame, users: UserPartitions, rows: RowFiles) -> Log:
    """Return the rows that were sent to one set of users as a log, ordered by user and time.

    frame: columns user (id), item (popularity rank: 0 has the most rows of the whole log), time
    (microseconds), row_number (order in the files), and maybe position and weight. Rows of a user
    with equal times are ordered by `position` (the item's number in the sorted vocabulary) if there
    is such a column, then by row_number. users: gives the sort order of user ids. rows: gives the
    number of items and the latest time of the whole log.

    The log's items are the ranks, its users the sorted ids, its `latest` the latest time. An empty
    frame gives a log without users and rows, whose `latest` is None: no row would use it.
    """
    items = _build_range_vocabulary(rows.n_items)
    if frame.is_empty():
        none = np.empty(0, np.int64)
        return Log(
            np.zeros(1, np.int64), none.astype(np.int32), none, _build_range_vocabulary(0), items
        )
    ids, user = users.encode(frame["user"])
    ptr, order = group_rows(user, len(ids))
    for name in reversed(row_order("position" in frame.columns, "position")):
        sort_groups(ptr, order, frame[name].to_numpy())
    item, time = (frame[name].to_numpy()[order] for name in ("item", "time"))
    weight = frame["weight"].to_numpy()[order] if "weight" in frame.columns else None
    log = Log(ptr, item.astype(np.int32), time, Vocabulary(ids), items, weight=weight)
    return replace(log, latest=rows.latest_time)


def _sample_times(log: Log, n_popular: int) -> Array:
    """Return sampled times of all rows (as item -1), and of each item below `n_popular`.

    log: its items are popularity ranks. The result has three rows: item, time (microseconds), and
    the number of log rows that the time stands for. `cut_times` uses it.
    """
    popular = [_sample_item_times(item, log.time[log.item == item]) for item in range(n_popular)]
    return np.concatenate([_sample_item_times(-1, log.time), *popular], axis=1)


def _sample_item_times(item: int, times: Array) -> Array:
    """Return about 64 evenly spread times of an item's rows, as an array of three rows.

    The rows: item (-1: any), time, and the number of log rows that the time stands for. times: of
    all rows of the item.
    """
    step = max(len(times) // _SAMPLE_TIMES, 1)
    sample = np.sort(times)[step // 2 :: step]
    return np.array([np.full(len(sample), item), sample, np.full(len(sample), step)], np.int64)


def cut_times(sampled: Array, item: int, count: int) -> Array:
    """Return times (microseconds) that cut an item's rows into about `count` equal slices.

    sampled: the results of `_sample_times` for all sets of users, side by side, as three rows:
    item, time, number of log rows that the time stands for. item -1: all rows of the log.
    """
    item_sample = sampled[:, sampled[0] == item]
    item_sample = item_sample[:, np.argsort(item_sample[1], kind="stable")]
    n_rows_until = np.cumsum(item_sample[2])
    slice_ends = np.arange(1, count) / count * n_rows_until[-1] if len(n_rows_until) else []
    return np.unique(item_sample[1][np.searchsorted(n_rows_until, slice_ends)])


# -- limits of a task ------------------------------------------------------------------------------


class TaskLimits(NamedTuple):
    """Limits of what one Spark task of a fit holds in memory."""

    rows: int  # of the log
    pairs: int  # of items, for which sums are held
    bytes: int  # of the Gram matrix G

    @classmethod
    def check(cls, task_rows: int, task_pairs: int, solve_bytes: int) -> TaskLimits:
        """Return what a task may hold; TalerecError if a limit is not a whole number from 1.

        task_rows: rows of the log; task_pairs: pairs of items; solve_bytes: of the Gram matrix G.
        """
        limits = {"task_rows": task_rows, "task_pairs": task_pairs, "solve_bytes": solve_bytes}
        for name, value in limits.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise TalerecError(f"`{name}` is {value}; it takes a whole number from 1", name)
        return cls(*limits.values())
