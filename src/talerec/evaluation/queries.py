"""One row per case: whose it is, the rank of its target, the groups it falls into, and what was recommended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.histories import Histories
from talerec.data.split.splits import Cases, Split
from talerec.evaluation import metrics
from talerec.evaluation.metrics import RANK, RANK_HIDDEN
from talerec.runtime.arrays import Array

HEAD_SHARE = 0.2  # of the items, by training rows
_THIRDS = ("short", "mid", "long")
GROUPS = {
    "popularity": ("head", "tail"),
    "gap": _THIRDS,
    "length": _THIRDS,
    "kind": ("repeat", "new"),
}
TIES, WINDOW, TIME = "ties", "window", "time"
CASES = (
    "cases"  # that a row stands for, in a frame of sums; without that column, each row is one case
)
NOVELTY, LIST_ROWS = "novelty", "list_rows"
HISTORY_ROWS, TARGET_ROWS = "history_rows", "target_rows"  # training rows of an item, as a mean


class _HistoryRows(NamedTuple):
    """All rows of all histories: the item of each (-1: not in the vocabulary), and the number of its case."""

    item: Array
    case: Array
    cases: int

    @classmethod
    def of(cls, histories: Histories) -> _HistoryRows:
        start, length = histories.start, histories.stop - histories.start
        ends = np.cumsum(length)
        rows = np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - (ends - length), length)
        case = np.repeat(np.arange(len(start)), length)
        return cls(histories.item[rows], case, len(start))

    def sums(self, values: Array) -> Array:
        """The sum of the values (one per row) over each history."""
        return np.bincount(self.case, values, minlength=self.cases)


class Background(NamedTuple):
    """What the cases of a split are seen against: facts of all training rows, and of all cases."""

    ties: str
    window: str
    counts: Array  # training rows of each item
    gap: tuple[float, float]  # where the thirds of all cases begin
    length: tuple[float, float]


def case_frame(
    split: Split,
    cases: Cases,
    ranks: Array,
    lists: Array,
    ks: Sequence[int],
    *,
    hide_seen: bool,
) -> pl.DataFrame:
    """One row per case.

    ranks: the rank of each target, with seen items ranked like others and with seen items hidden.
    lists: the items recommended in each case, best first, -1 where there are no more.
    """
    counts = np.bincount(split.train.item, minlength=len(split.train.items))
    thirds = (_thirds(values) for values in (gaps(cases), lengths(cases)))
    behind = Background(split.train.ties, split.window, counts, *thirds)
    return frame_before(behind, split.users.ids, cases, ranks, lists, ks, hide_seen=hide_seen)


def gaps(cases: Cases) -> Array:
    """The time from the last row of each history to its target."""
    last: Array = cases.histories.time[cases.histories.stop - 1]
    return cases.target_time - last


def lengths(cases: Cases) -> Array:
    """The rows of each history."""
    return cases.histories.stop - cases.histories.start


def frame_before(
    behind: Background,
    users: pl.Series,
    cases: Cases,
    ranks: Array,
    lists: Array,
    ks: Sequence[int],
    *,
    hide_seen: bool,
) -> pl.DataFrame:
    """One row for each of some cases of a split; see `case_frame`."""
    rows, counts = _HistoryRows.of(cases.histories), behind.counts
    gap, length = gaps(cases), lengths(cases)
    return pl.DataFrame(
        {
            columns.USER: users.gather(cases.user),
            TIES: pl.repeat(behind.ties, len(cases), eager=True),
            WINDOW: pl.repeat(behind.window, len(cases), eager=True),
            TIME: pl.Series(cases.target_time).cast(pl.Datetime("us")),
            RANK: ranks[:, 1 if hide_seen else 0],
            RANK_HIDDEN: ranks[:, 1],
            "popularity": _popularity(counts, cases.target),
            "gap": _third("gap", gap, behind.gap),
            "length": _third("length", length, behind.length),
            "kind": _labels("kind", ~_repeated(rows, cases.target)),
            "gap_us": gap,
            "history_length": length,
            TARGET_ROWS: _or_zero(counts)[cases.target],
            HISTORY_ROWS: _null_for_nan(_history_popularity(rows, counts)),
            **_list_columns(lists, counts, ks),
        }
    )


def _list_columns(lists: Array, counts: Array, ks: Sequence[int]) -> dict[str, pl.Series]:
    """How surprising and how popular the first k of each list are, by training rows."""
    found = {}
    rows = counts.astype(float)
    for k in ks:
        found[f"{NOVELTY}@{k}"] = _null_for_nan(metrics.novelty(lists[:, :k], rows))
        found[f"{LIST_ROWS}@{k}"] = _null_for_nan(metrics.row_means(lists[:, :k], rows))
    return found


def _history_popularity(rows: _HistoryRows, counts: Array) -> Array:
    """The mean of the training rows of each history's known items; NaN where it has none."""
    total, known = rows.sums(_or_zero(counts)[rows.item]), rows.sums(rows.item >= 0)
    means: Array = np.divide(total, known, out=np.full(len(total), np.nan), where=known > 0)
    return means


def _or_zero(counts: Array) -> Array:
    """Counts as floats, followed by a 0 that item -1 finds."""
    return np.append(counts.astype(float), 0.0)


def _null_for_nan(values: Array) -> pl.Series:
    return pl.Series(values).fill_nan(None)


def _repeated(rows: _HistoryRows, target: Array) -> Array:
    """Whether the target is an item of its own history."""
    return (rows.sums(rows.item == target[rows.case]) > 0) & (target >= 0)


def _popularity(counts: Array, target: Array) -> pl.Series:
    """Head: the top fifth of the items by training rows. Items that were never seen are tail."""
    tail = np.ones(len(counts) + 1, bool)  # the last entry is for target -1
    tail[np.argsort(-counts, kind="stable")[: round(HEAD_SHARE * len(counts))]] = False
    return _labels("popularity", tail[target])


THIRDS = (0.33, 0.67)  # of the values: short <= q33 < mid <= q67 < long


def _thirds(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, THIRDS)
    return float(low), float(high)


def _third(column: str, values: Array, bounds: tuple[float, float]) -> pl.Series:
    """The thirds of values: equal values are never in two groups."""
    low, high = bounds
    return _labels(column, np.add(values > low, values > high, dtype=np.int8))


def _labels(column: str, codes: Array) -> pl.Series:
    """The names of a column's groups for their numbers; much faster than an array of text."""
    return pl.Series(GROUPS[column]).gather(codes.astype(np.uint32))
