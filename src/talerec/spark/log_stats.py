"""What the driver knows of a log: it grows with the items, and not with rows or users."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from talerec.data.vocabulary import Vocabulary
from talerec.data.weights import are_even
from talerec.errors import TalerecError
from talerec.runtime.arrays import Array
from talerec.spark.partitions import Users
from talerec.spark.read import (
    Columns,
    Source,
    checked,
    checks,
    in_microseconds,
    k_core,
    one_of_each,
    raw_events,
)
from talerec.spark.session import Run

_PER_PART = 400  # rows by which users are cut into parts
_HUGE = 8  # times the rows of a task that one user may have

_SUMS = ("rows", "kept", "no_user", "no_item", "no_time", "no_weight", "below", "texts", "worth")
_LEAST, _MOST = ("first", "begin", "least", "light"), ("last", "end", "heavy")


@dataclass(frozen=True, eq=False)
class Tally:
    """A log that was read, checked and cleaned: its rows, and what was counted on the way."""

    events: DataFrame
    plain: DataFrame  # the same rows, whose places mean nothing
    ids: pl.Series  # of items, by position
    position: Array  # of items, by popularity rank
    rows_of: Array  # of items, by popularity rank
    time: tuple[int, int]  # of the first row, and of the last
    unit: str  # that times were read as
    numeric: bool  # users are text, and every one a whole number
    mean: float | None  # of the rows' weights; None where all weigh the same
    weight_unit: (
        float | None
    )  # the mean of the rows' weights, however even they are; None: they have none

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self.rows_of.sum())


def tally(
    run: Run, source: Source, names: Columns, ties: str, core: int | None, drop_duplicates: bool
) -> Tally:
    """Read, check and clean a log in one pass that also counts its items; another where it is cleaned."""
    with run.stage("read"):
        plain, events = raw_events(run.session, source, names, ties)
    counts = _counted(run, plain, "counts")
    totals = _totals(counts)
    unit, time = checked(events, names, totals)
    numeric = not totals["texts"]
    whole = Vocabulary.encode(counts["item"])[0]  # what is left of the items has their order
    events, plain = (in_microseconds(one, unit) for one in (events, plain))
    if drop_duplicates:
        events = one_of_each(run, events)
    if core is not None:
        events = k_core(run, events, core)
    if drop_duplicates or core is not None:
        plain = events
        counts = _counted(run, events, "cleaned")
        totals = _totals(counts)
        time = [totals["first"], totals["last"]]
    ranked = _ranked(run.folder, whole, whole.codes(counts["item"]), counts["kept"])
    return Tally(events, plain, *ranked, (time[0], time[1]), unit, numeric, *_means(totals))


def before(run: Run, known: Tally, when: int) -> Tally:
    """The rows of a log before a moment as a log of their own, with the items that they have."""
    return of_rows(run, known, known.events.where(F.col("time") < when))


def of_rows(run: Run, known: Tally, events: DataFrame, *, every_item: bool = False) -> Tally:
    """Some rows of a log as a log of their own, with the items that they have, or with every item of the whole.

    Users and items have the order of the whole.
    """
    counts = _counted(run, events, "counts")
    totals = _totals(counts)
    whole = Vocabulary(known.ids)
    ranked = _ranked(run.folder, whole, whole.codes(counts["item"]), counts["kept"], every_item)
    time = (totals["first"], totals["last"])
    return Tally(events, events, *ranked, time, known.unit, known.numeric, *_means(totals))


def _means(totals: dict[str, Any]) -> tuple[float | None, float | None]:
    """The mean of the rows' weights, None where all weigh the same; and that mean, however even they are."""
    if "worth" not in totals:
        return None, None
    mean = totals["worth"] / totals["kept"]
    return None if are_even(totals["light"], totals["heavy"]) else mean, mean


def _counted(run: Run, events: DataFrame, name: str) -> pl.DataFrame:
    """Rows of every item, and what the checks ask of them."""
    run.save(name, events.groupBy("item").agg(*checks(events)), "read")
    return run.read(name)


def _totals(counts: pl.DataFrame) -> dict[str, Any]:
    """What the checks say of all items together."""
    there = set(counts.columns)
    sums = {name: counts[name].sum() for name in _SUMS if name in there}
    least = {name: counts[name].min() for name in _LEAST if name in there}
    return sums | least | {name: counts[name].max() for name in _MOST if name in there}


def _ranked(
    folder: Path, vocabulary: Vocabulary, at: Array, kept: pl.Series, every_item: bool = False
) -> tuple[pl.Series, Array, Array]:
    """Ids by position, positions by rank and rows by rank, of the items at `at` or of all, in the vocabulary's order.

    Ids, positions and ranks are saved for tasks to read.
    """
    counted = np.zeros(len(vocabulary), np.int64)
    counted[at] = kept.to_numpy()
    there = np.arange(len(counted)) if every_item else np.flatnonzero(counted)
    vocabulary, by_position = vocabulary.take(there), counted[there]
    position = np.argsort(-by_position, kind="stable").astype(np.int32)
    rank = np.empty_like(position)
    rank[position] = np.arange(len(position), dtype=np.int32)
    columns = {"id": vocabulary.ids, "position": np.arange(len(rank), dtype=np.int32), "rank": rank}
    pl.DataFrame(columns).write_parquet(folder / "items.parquet")
    return vocabulary.ids, position, by_position[position]


def cut_users(run: Run, known: Tally, parts: int, most: int | None) -> Users:
    """Ranges of users with about as many rows each; `most`: refuse a user who has more rows by far."""
    every = max(known.rows // (_PER_PART * parts), 1)
    picked = F.pmod(F.xxhash64("user", "item", "time", "place"), F.lit(every)) == 0
    with run.stage("users"):
        found = known.plain.where(picked).groupBy("user").count().toArrow()
    sampled = pl.DataFrame(found)
    if most is not None and not sampled.is_empty():
        _refuse_huge(sampled, every, most)
    ids = sampled["user"].repeat_by(sampled["count"]).explode()
    return Users.cut(ids, parts, numeric=known.numeric)


def _refuse_huge(sampled: pl.DataFrame, every: int, most: int) -> None:
    user, count = sampled.sort("count").row(-1)
    if count * every > _HUGE * most and count > 8:
        raise TalerecError(
            f"user {user!r} has about {count * every:,} rows, and a task holds {most:,}: leave that user out, "
            "raise task_rows, or fit tale, which looks at max_history rows alone"
        )
