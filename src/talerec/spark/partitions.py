"""A log in parts of its users, each a few arrays in files: how rows get there, and how tasks read them. No Spark.

Parts are ranges of users in the order of one machine's log, so that rows have the same order as there: part by part.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from talerec.data import row_kernels
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.runtime.arrays import Array
from talerec.runtime.files import atomic_write
from talerec.spark import blocks
from talerec.spark.blocks import Batches

_SAMPLED = 64  # times of a popular item, or of all rows, that a part tells
_TIES = ("place", "position")  # what simultaneous rows are ordered by, the second before the first


class Users(NamedTuple):
    """How users are ordered and cut into parts: part p begins with bounds[p - 1]."""

    bounds: pl.Series
    numeric: bool  # text, and every id a whole number: these are in the order of numbers

    @classmethod
    def cut(cls, sampled: pl.Series, parts: int, *, numeric: bool) -> Users:
        """Parts of about as many rows each, from the users of some rows."""
        ordered = _keys(sampled, numeric).sort()
        at = np.unique(np.linspace(0, len(ordered), parts + 1).astype(np.int64)[1:-1])
        return cls(ordered.gather(at[at < len(ordered)]).unique().sort(), numeric)

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return len(self.bounds) + 1

    def part_of(self, users: pl.Series) -> Array:
        """The part of each user."""
        found = self.bounds.search_sorted(_keys(users, self.numeric), side="right")
        return np.asarray(found.to_numpy(), np.int32)

    def codes(self, users: pl.Series) -> tuple[pl.Series, Array]:
        """Distinct users in order, and each row's position among them."""
        ids = users.unique()
        order = pl.DataFrame({"key": _keys(ids, self.numeric), "id": ids}).sort("key", "id")["id"]
        codes = users.replace_strict(order, pl.Series(np.arange(len(order), dtype=np.int32)))
        return order, codes.to_numpy()


def _keys(users: pl.Series, numeric: bool) -> pl.Series:
    return users.cast(pl.Int128) if numeric else users


class Order(NamedTuple):
    """What rows are given on their way to their part."""

    items: str  # the file of items: id, position, rank
    by_item: bool  # simultaneous rows go by their items
    limit: int | None  # rows of a user that count, where earlier ones play no part at all
    mean: float | None  # of all weights; None: rows have none


def spread(batches: Batches, users: Users, order: Order, rows: int) -> Iterator[pa.RecordBatch]:
    """Send rows to the parts of their users, as frames of `user, item, time, place`, maybe `position` and `weight`, items by rank.

    Simultaneous rows go by position where it is there, and those of one item as in the file: their weights may differ.
    """
    items = pl.read_parquet(order.items)
    for frame in blocks.frames(batches, rows):
        known = frame.join(items, left_on="item", right_on="id")
        by_item = [pl.col("position").cast(pl.Int64)] if order.by_item else []
        worth = [] if order.mean is None else [pl.col("weight") / order.mean]
        known = known.select("user", pl.col("rank").alias("item"), "time", "place", *by_item, *worth)  # fmt: skip
        if order.limit is not None:
            known = _newest(known, order.limit)
        part = users.part_of(known["user"])
        ptr, at = row_kernels.group_rows(part, users.parts)
        known = known[at]
        for number in np.flatnonzero(np.diff(ptr)):
            yield _framed(int(number), known[int(ptr[number]) : int(ptr[number + 1])])


def _framed(part: int, rows: pl.DataFrame) -> pa.RecordBatch:
    out = BytesIO()
    rows.rechunk().write_ipc_stream(out, compat_level=pl.CompatLevel.oldest())
    return blocks.cells(part, 0, np.frombuffer(out.getbuffer(), np.uint8))


def _newest(rows: pl.DataFrame, limit: int) -> pl.DataFrame:
    """Each user's last rows: of a very long history, no more of them travel."""
    longest = rows.group_by("user").len()["len"].max()
    if not isinstance(longest, int) or longest <= limit:
        return rows
    ordered = rows.sort("user", "time", *(name for name in reversed(_TIES) if name in rows.columns))
    code = ordered["user"].rle_id().to_numpy()
    end = np.cumsum(np.bincount(code))[code]
    return ordered.filter(pl.Series(end - np.arange(len(code)) <= limit))


# -- files -----------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The rows of all parts, or those of the first fit; items by rank."""

    folder: str
    items: int
    limit: int  # newest rows of each user that pairs are made of
    latest: int | None  # time of the log
    is_weighed: bool = False  # whether rows have weights
    kind: str = ""  # of rows: all, or those of the first fit ("first_")
    is_counted: bool = False  # whether trend counts are there

    def log(self, part: int) -> Log:
        """All rows of a part."""
        ptr, item, time = (self._read(name, part) for name in ("ptr", "item", "time"))
        worth = self._read("weight", part) if self.is_weighed else None
        users, items = (_numbered(size) for size in (len(ptr) - 1, self.items))
        return Log(ptr, item, time, users, items, latest=self.latest, weight=worth)

    def newest(self, part: int) -> Log:
        """The rows of a part that pairs are made of, with their trend counts."""
        log = self.log(part)
        recent = log.recent(self.limit)
        log = log if recent.all() else log.keep(recent)
        return replace(log, trends=self._read("trend", part)) if self.is_counted else log

    def asked(self, part: int) -> Array:
        """The rows of a part in the order in which their trends are asked for."""
        return self._read("asked", part)

    def save(self, part: int, log: Log) -> None:
        """Save the rows of a part."""
        for name in ("ptr", "item", "time"):
            self.save_array(name, part, getattr(log, name))
        if self.is_weighed:
            self.save_array("weight", part, np.empty(0) if log.weight is None else log.weight)
        length = np.minimum(np.diff(log.ptr), self.limit)
        self.save_array("newest", part, np.array([length.sum(), length.max(initial=1)]))

    def example(self, rows: int) -> Log:
        """One user with so many rows of one item, with all that rows of parts have."""
        ones = np.ones(rows, np.int64)
        worth = ones.astype(np.float64) if self.is_weighed else None
        trends = ones if self.is_counted else None
        named = (_numbered(1), _numbered(self.items))
        item = np.zeros(rows, np.int32)
        return Log(
            np.array([0, rows]), item, ones, *named, latest=self.latest, weight=worth, trends=trends
        )

    def users_file(self, part: int) -> Path:
        """The file with the ids of a part's users."""
        return Path(self.folder) / f"users-{part}.parquet"

    def histories(
        self, parts: int, position: Array
    ) -> tuple[Array, Array, Array, Array | None, pl.Series]:
        """The rows of all parts as one machine has them, mapped from files: ptr, item, time, weight, users."""
        lengths = np.concatenate([np.diff(ptr) for ptr in self.arrays("ptr", parts)])
        ptr: Array = np.concatenate([[0], np.cumsum(lengths)])
        for part in range(parts):
            self.save_array("seen", part, position[self._read("item", part)])
        item = blocks.joined(self.folder, f"{self.kind}seen", parts, np.int32, "seen")
        time = blocks.joined(self.folder, f"{self.kind}time", parts, np.int64, "times")
        worth = None
        if self.is_weighed:
            worth = blocks.joined(self.folder, f"{self.kind}weight", parts, np.float64, "worths")
        there = [pl.read_parquet(self.users_file(part))["id"] for part in range(parts)]
        return ptr, item, time, worth, pl.concat([ids for ids in there if len(ids)])

    def save_array(self, name: str, part: int, array: Array) -> None:
        """Save an array of a part."""
        blocks.save_array(self.folder, f"{self.kind}{name}-{part}", array)

    def arrays(self, name: str, parts: int) -> Iterator[Array]:
        """The arrays of that name of all parts, mapped into memory."""
        return blocks.load_blocks(self.folder, f"{self.kind}{name}", parts)

    def _read(self, name: str, part: int) -> Array:
        return blocks.read_array(self.folder, f"{self.kind}{name}-{part}")


def _numbered(size: int) -> Vocabulary:
    return Vocabulary(pl.Series(np.arange(size)))


def save_part(batches: Batches, part: int, users: Users, rows: Rows, giants: int) -> Log:
    """Put the rows of one part in order and save them, with what the driver wants to know of them."""
    log = _sorted(blocks.frames_of(batches), users, rows)
    rows.save(part, log)
    with atomic_write(rows.users_file(part), uuid.uuid4().hex) as unfinished:
        pl.DataFrame({"id": log.users.ids}).write_parquet(unfinished)
    length = np.minimum(np.diff(log.ptr), rows.limit)
    pairs = int((length * (length + 1) // 2).sum())
    rows.save_array("facts", part, np.array([len(log.users), log.rows, pairs]))
    rows.save_array("giants", part, _sampled_times(log, giants))
    return log


def _sorted(frame: pl.DataFrame, users: Users, rows: Rows) -> Log:
    """The rows of a part as a log: by user, time and place."""
    if frame.is_empty():
        none = np.empty(0, np.int64)
        return Log(np.zeros(1, np.int64), none.astype(np.int32), none, _numbered(0), _numbered(rows.items))  # fmt: skip
    ids, user = users.codes(frame["user"])
    ptr, at = row_kernels.group_rows(user, len(ids))
    for name in (*_TIES, "time"):
        if name in frame.columns:
            row_kernels.sort_groups(ptr, at, frame[name].to_numpy())
    item, time = (frame[name].to_numpy()[at] for name in ("item", "time"))
    worth = frame["weight"].to_numpy()[at] if "weight" in frame.columns else None
    named = (Vocabulary(ids), _numbered(rows.items))
    return Log(ptr, item.astype(np.int32), time, *named, latest=rows.latest, weight=worth)


def _sampled_times(log: Log, giants: int) -> Array:
    """Times of the items 0..giants, and of all rows (item -1), each standing for so many: (item, time, rows)."""
    popular = [_spaced(item, log.time[log.item == item]) for item in range(giants)]
    return np.concatenate([_spaced(-1, log.time), *popular], axis=1)


def _spaced(item: int, times: Array) -> Array:
    step = max(len(times) // _SAMPLED, 1)
    picked = np.sort(times)[step // 2 :: step]
    return np.array([np.full(len(picked), item), picked, np.full(len(picked), step)], np.int64)


def time_cuts(sampled: Array, item: int, count: int) -> Array:
    """Where the times of an item (-1: of all rows) are cut into about `count` equal pieces, from what all parts told."""
    mine = sampled[:, sampled[0] == item]
    mine = mine[:, np.argsort(mine[1], kind="stable")]
    total = np.cumsum(mine[2])
    marks = np.arange(1, count) / count * (total[-1] if len(total) else 0)
    return np.unique(mine[1][np.searchsorted(total, marks)]) if len(total) else mine[1]
