"""The tasks of an evaluation on a cluster: rows of some users in files, their cases, and sums over these. No Spark."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec.data.log import Log
from talerec.data.split.splits import Cases, askers_of, cases_of
from talerec.data.split.windows import Window
from talerec.data.summary import tied_pairs
from talerec.data.vocabulary import Vocabulary
from talerec.evaluation.queries import THIRDS, Background, frame_before, gaps, lengths
from talerec.evaluation.sums import sums_of
from talerec.models import load
from talerec.models.core import inference as asking
from talerec.runtime.arrays import Array
from talerec.runtime.files import atomic_write
from talerec.spark import blocks
from talerec.spark.log_statistics import smallest
from talerec.spark.partitions import Rows


def save_rows(batches: blocks.Batches, part: int, rows: Rows, by_item: bool) -> None:
    """Save all rows of some users (user, item, time, place, weight where rows have one) in the order of a log.

    by_item: simultaneous rows go by their items, and those of one item as in the file.
    """
    frame = blocks.frame_of(batches)
    if frame.is_empty():
        frame = pl.DataFrame(schema={"user": pl.Int64, "item": pl.Int32, "time": pl.Int64, "place": pl.Int64, "weight": pl.Float64})  # fmt: skip
    frame = frame.sort("user", "time", *(["item"] if by_item else []), "place")
    ids, length = frame["user"].rle().struct.unnest().select("value", "len")
    ptr = np.concatenate([[0], np.cumsum(length.to_numpy())]).astype(np.int64)
    item, time = frame["item"].to_numpy(), frame["time"].to_numpy()
    worth = frame["weight"].to_numpy() if rows.is_weighed else None
    rows.save(part, Log(ptr, item, time, Vocabulary(ids), Vocabulary(ids), weight=worth))
    _save_frame(pl.DataFrame({"id": ids}), rows.users_file(part))


def _save_frame(frame: pl.DataFrame, path: Path) -> None:
    with atomic_write(path, uuid.uuid4().hex) as unfinished:
        frame.write_parquet(unfinished)


# -- a window --------------------------------------------------------------------------------------


def save_cut(rows: Rows, part: int, window: Window, folder: str) -> None:
    """Save what a part says of a window: how many rows are before it, pairs at one time, gaps and lengths of cases."""
    log = rows.log(part)
    train = log.time < window.when
    cases = cases_of(log, log.item, *askers_of(log, window))
    facts = [np.count_nonzero(train), *tied_pairs(log.keep(train)), len(cases)]
    blocks.save_array(folder, f"facts-{part}", np.array(facts, np.int64))
    for name, values in (("gap", gaps(cases)), ("length", lengths(cases))):
        blocks.save_array(folder, f"{name}-{part}", np.sort(values))


class Cut(NamedTuple):
    """What all parts say of a window together."""

    before: int  # rows
    tied: float  # share of consecutive training rows of a user that have the same time
    cases: int
    gap: tuple[float, float]  # where the thirds of all cases begin
    length: tuple[float, float]

    @classmethod
    def of(cls, folder: str | Path, parts: int) -> Cut:
        """From what `save_cut` saved."""
        before, same, pairs, cases = sum(blocks.load_blocks(folder, "facts", parts)).tolist()  # type: ignore[union-attr]
        thirds = [
            _thirds(list(blocks.load_blocks(folder, name, parts))) for name in ("gap", "length")
        ]
        return cls(before, same / pairs if pairs else 0.0, cases, *thirds)


def _thirds(arrays: Sequence[Array]) -> tuple[float, float]:
    low, high = (quantile(arrays, share) for share in THIRDS)
    return low, high


def quantile(arrays: Sequence[Array], share: float) -> float:
    """A quantile of whole numbers that lie in several arrays, each in order, as NumPy has it of all; NaN without any."""
    there = [array for array in arrays if len(array)]
    if not there:
        return float("nan")
    place = (sum(map(len, there)) - 1) * share
    first = int(place)
    ends = [smallest(there, number) for number in (first, int(np.ceil(place)))]
    return float(np.quantile(ends, place - first))


# -- judging ---------------------------------------------------------------------------------------


class Judging(NamedTuple):
    """How the cases of a window are judged."""

    rows: Rows  # of the whole log; items are positions in its vocabulary
    folder: str  # of the window
    artifact: str
    window: Window
    ties: str
    cut: Cut
    weight: float | None  # that the weights of rows are divided by; None: all weigh the same
    ks: tuple[int, ...]
    hide_seen: bool
    keep_cases: bool

    def judge(self, part: int) -> None:
        """Judge the cases of a part, and save sums over them and the items in their lists."""
        cases, users = self._cases(part)
        if not len(cases):
            return
        model, counts = load(self.artifact), blocks.load_array(self.folder, "counts")
        most = min(self.ks[-1], len(counts))
        found = asking.judge(model, cases.histories, cases.target, most, hide_seen=self.hide_seen)
        behind = Background(self.ties, self.window.words, counts, self.cut.gap, self.cut.length)
        frame = frame_before(
            behind, users, cases, found.places, found.items, self.ks, hide_seen=self.hide_seen
        )
        if self.keep_cases:
            _save_frame(frame, self.file("cases", part))
        blocks.save_array(self.folder, f"listed-{part}", best_places(found.items, len(counts)))
        _save_frame(sums_of(frame, self.ks), self.file("sums", part))

    def file(self, name: str, part: int) -> Path:
        """The file of that name of a part."""
        return Path(self.folder) / f"{name}-{part}.parquet"

    def _cases(self, part: int) -> tuple[Cases, pl.Series]:
        log = self.rows.log(part)
        items = blocks.load_array(self.folder, "renumber")[log.item]
        worth = None
        if log.weight is not None and self.weight is not None:
            worth = log.weight / self.weight
        users = pl.read_parquet(self.rows.users_file(part))["id"]
        askers = askers_of(log, self.window)
        return cases_of(replace(log, weight=worth), items, *askers), users


def best_places(lists: Array, items: int) -> Array:
    """Items that are in some list, and the best place of each, from 0."""
    best = np.full(items + 1, lists.shape[1], np.int32)  # the last one is for no item, -1
    for place in range(lists.shape[1] - 1, -1, -1):
        best[lists[:, place]] = place
    there = np.flatnonzero(best[:-1] < lists.shape[1])
    return np.array([there, best[there]], np.int32)


def coverage(listed: Sequence[Array], items: int, ks: Sequence[int]) -> dict[str, float]:
    """The share of the catalogue in some list, by k, from the best places that all parts found."""
    best = np.full(items, np.iinfo(np.int32).max)
    for item, place in listed:
        best[item] = np.minimum(best[item], place)
    return {f"coverage@{k}": int(np.count_nonzero(best < k)) / items for k in ks}
