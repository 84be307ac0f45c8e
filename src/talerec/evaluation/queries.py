"""Frames of cases: one row per case with user, ranks, groups and list statistics.

A case is one evaluated query: a history and the held-out item that came next, its target. On a
cluster, cases that are equal in everything that metrics use become one row with their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from talerec import columns
from talerec.data import Histories
from talerec.data.split import Cases, Split
from talerec.evaluation.metrics import RANK, RANK_HIDDEN, metric_expressions, novelty, row_means
from talerec.runtime import Array

Means = dict[str, float | None]

HEAD_SHARE = 0.2  # of the items: the most popular by training rows
_THIRDS = ("short", "mid", "long")
GROUPS = {
    "popularity": ("head", "tail"), "gap": _THIRDS, "length": _THIRDS, "kind": ("repeat", "new"),
    "item_rows": ("none", "few", "many"),
}  # fmt: skip
#: Groups of cases that only some splits have (`Cases.labels`).
SPLIT_GROUPS = {
    "user": ("known", "new"), "position": ("2", "3", "4", "5", "6 to 10", "over 10"),
}  # fmt: skip
_ALL_GROUPS = {**GROUPS, **SPLIT_GROUPS}
MANY_ROWS = 5  # training rows of an item, from which there are many
TIES, WINDOW, TIME = "ties", "window", "time"
CASES = "cases"  # number of equal cases that a row stands for; a frame without it has one per row
NOVELTY, LIST_ROWS = "novelty", "list_rows"
HISTORY_ROWS, TARGET_ROWS = "history_rows", "target_rows"  # training rows of an item, as a mean
THIRDS = (0.33, 0.67)  # quantiles: short <= q33 < mid <= q67 < long


class _HistoryItems(NamedTuple):
    """The items of all histories in one array, -1 for unknown ones, and the case of each.

    `item` and `case` have one entry per history row; cases are numbered 0..n_cases-1.
    """

    item: Array
    case: Array
    n_cases: int

    @classmethod
    def of(cls, histories: Histories) -> _HistoryItems:
        """Return the items of these histories, one after the other; history h is case h.

        A history is a range of rows, start[h] to stop[h] - 1, of shared arrays.
        """
        start, length = histories.start, histories.stop - histories.start
        ends = np.cumsum(length)
        rows = np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - (ends - length), length)
        case = np.repeat(np.arange(len(start)), length)
        return cls(histories.item[rows], case, len(start))

    def sum_by_case(self, values: Array) -> Array:
        """Return, for each case, the sum of `values` over the rows of its history.

        A case is one evaluated query. values: one per row of all histories; `case` has the number
        of each row's case.
        """
        return np.bincount(self.case, values, minlength=self.n_cases)


class CaseContext(NamedTuple):
    """Facts about the whole split that the rows of cases need.

    ties, window  the name of the order of simultaneous rows, and the start of the rolling window
    counts        training rows of each item
    gap, length   bounds (q33, q67) of the thirds of all cases: by the microseconds from the
                  last row of the history to the target, and by the rows of the history
    """

    ties: str
    window: str
    counts: Array
    gap: tuple[float, float]
    length: tuple[float, float]


def build_case_context(split: Split, cases: Cases) -> CaseContext:
    """Return what `build_case_rows` needs of a whole split, for rows of some of its cases.

    A case is a history and the held-out item that came next, its target. cases: all of the split.
    """
    counts = np.bincount(split.train.item, minlength=len(split.train.items))
    thirds = (_find_thirds(values) for values in (target_gaps(cases), history_lengths(cases)))
    return CaseContext(split.train.ties, split.window, counts, *thirds)


def case_groups(frame: pl.DataFrame) -> dict[str, tuple[str, ...]]:
    """Return the groupings that a frame of cases has, with the names of their groups in order.

    A case is one evaluated query, a row; a grouping, such as popularity, is a column.
    """
    return {column: names for column, names in _ALL_GROUPS.items() if column in frame.columns}


def target_gaps(cases: Cases) -> Array:
    """Return the microseconds from the last row of each case's history to its target.

    A case is a history and the held-out row that came next, its target.
    """
    last: Array = cases.histories.time[cases.histories.stop - 1]
    return cases.target_time - last


def history_lengths(cases: Cases) -> Array:
    """Return the number of rows of each history."""
    return cases.histories.stop - cases.histories.start


def build_case_rows(
    context: CaseContext,
    users: pl.Series,
    cases: Cases,
    ranks: Array,
    lists: Array,
    ks: Sequence[int],
    *,
    hide_seen: bool,
) -> pl.DataFrame:
    """Return one row for each of some cases of a split: user, ranks, groups, list statistics.

    A case is a history and the held-out item that came next, its target. `context` describes the
    whole split: order of ties, window, each item's training rows, and bounds of the thirds by gap
    and by length. `users` are the ids of its users. ranks: cases x 2, of the target with all items
    and with seen items hidden (`hide_seen`: which is the column `rank`), 0 for no rank; the frame
    has null there. lists: cases x k, recommended items, -1 for none. ks: cutoffs of the list
    statistics.
    """
    items, counts = _HistoryItems.of(cases.histories), context.counts
    gap, length = target_gaps(cases), history_lengths(cases)
    return pl.DataFrame(
        {
            columns.USER: users.gather(cases.user),
            TIES: pl.repeat(context.ties, len(cases), eager=True),
            WINDOW: pl.repeat(context.window, len(cases), eager=True),
            TIME: pl.Series(cases.target_time).cast(pl.Datetime("us")),
            RANK: _replace_zero(ranks[:, 1 if hide_seen else 0]),
            RANK_HIDDEN: _replace_zero(ranks[:, 1]),
            "popularity": _label_popularity(counts, cases.target),
            "gap": _label_thirds("gap", gap, context.gap),
            "length": _label_thirds("length", length, context.length),
            "kind": _label_codes("kind", ~_is_repeat(items, cases.target)),
            "item_rows": label_item_rows(_append_zero(counts)[cases.target]),
            **{column: _label_codes(column, codes) for column, codes in cases.labels.items()},
            "gap_us": gap,
            "history_length": length,
            TARGET_ROWS: _append_zero(counts)[cases.target],
            HISTORY_ROWS: _replace_nan(_average_history_popularity(items, counts)),
            **_list_columns(lists, counts, ks),
        }
    )


def _list_columns(lists: Array, counts: Array, ks: Sequence[int]) -> dict[str, pl.Series]:
    """Return columns novelty@k and list_rows@k: means over each list's top k items.

    `lists` has positions of items (cases x k, -1: none), and `counts` each item's training rows,
    the measure of popularity; items of higher positions have no training row. Novelty is -log2 of
    an item's share of the training rows; list_rows are its training rows. Null for an empty list.
    """
    series = {}
    n_unseen = max(0, int(lists.max(initial=-1)) + 1 - len(counts))  # items without training rows
    rows = np.append(counts.astype(float), np.zeros(n_unseen))
    for k in ks:
        series[f"{NOVELTY}@{k}"] = _replace_nan(novelty(lists[:, :k], rows))
        series[f"{LIST_ROWS}@{k}"] = _replace_nan(row_means(lists[:, :k], rows))
    return series


def _average_history_popularity(items: _HistoryItems, counts: Array) -> Array:
    """Return the mean of counts[item] over each history's known items; NaN where it has none.

    items: the items of all histories, one after the other, -1 for unknown ones. `counts` has each
    item's training rows.
    """
    total = items.sum_by_case(_append_zero(counts)[items.item])
    n_known = items.sum_by_case(items.item >= 0)
    means: Array = np.divide(total, n_known, out=np.full(len(total), np.nan), where=n_known > 0)
    return means


def _append_zero(counts: Array) -> Array:
    """Return counts as floats, followed by a 0 for item -1."""
    return np.append(counts.astype(float), 0.0)


def _replace_nan(values: Array) -> pl.Series:
    """Return the values as a series with null in place of NaN."""
    return pl.Series(values).fill_nan(None)


def _replace_zero(ranks: Array) -> pl.Series:
    """Return ranks from 1 as a series with null in place of 0, which stands for no rank."""
    return pl.Series(ranks).replace(0, None)


def _is_repeat(items: _HistoryItems, target: Array) -> Array:
    """Return whether each case's target is an item of its history; false if it is unknown."""
    return (items.sum_by_case(items.item == target[items.case]) > 0) & (target >= 0)


def _label_popularity(counts: Array, target: Array) -> pl.Series:
    """Return head for targets in the top fifth of the items by training rows, else tail.

    `counts` has each item's training rows; `target` has positions of items, -1 (tail) for unknown.
    """
    is_tail = np.ones(len(counts) + 1, bool)  # the last entry is for target -1
    is_tail[np.argsort(-counts, kind="stable")[: round(HEAD_SHARE * len(counts))]] = False
    return _label_codes("popularity", is_tail[target])


def label_item_rows(n_rows: Array) -> pl.Series:
    """Return none, few (1 to 4) or many for each target's number of training rows."""
    return _label_codes("item_rows", np.add(n_rows > 0, n_rows >= MANY_ROWS, dtype=np.int8))


def _find_thirds(values: Array) -> tuple[float, float]:
    """Return the 33 % and 67 % quantiles of the values, which bound thirds: short, mid, long."""
    low, high = np.quantile(values, THIRDS)
    return float(low), float(high)


def _label_thirds(column: str, values: Array, bounds: tuple[float, float]) -> pl.Series:
    """Return "short", "mid" or "long" for each value: up to low, up to high, or above.

    `bounds` is (low, high), and `column` the name of the grouping (gap or length).
    """
    low, high = bounds
    return _label_codes(column, np.add(values > low, values > high, dtype=np.int8))


def _label_codes(column: str, codes: Array) -> pl.Series:
    """Return, for each code, the name of that group of a grouping, such as popularity.

    codes: 0, 1, ... in the order of the groups, such as head, tail. Much faster than an array of
    text.
    """
    return pl.Series(_ALL_GROUPS[column]).gather(codes.astype(np.uint32))


# -- sums of cases ---------------------------------------------------------------------------------

_NO_LIST, _NO_HISTORY = "no_list", "no_history"  # cases without a value of these means


def _find_keys(frame: pl.DataFrame) -> list[str]:
    """Return the columns of a frame of cases in which equal cases agree: ranks, groups ..."""
    return [TIES, WINDOW, RANK, RANK_HIDDEN, *case_groups(frame), _NO_LIST, _NO_HISTORY]


def sum_cases(frame: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    """Return one row per group of cases with equal ranks and groups: their number, and sums.

    A case is one evaluated query; `frame` is from `build_case_rows`, a row per case. Groups are
    labels such as popularity, gap, length and kind. Summed are training rows of history items, and
    novelty and training rows of lists at each k of `ks`. A rank beyond the longest list is a miss
    at every k, and becomes null.
    """
    longest = max(ks)
    ranks = (
        pl.when(pl.col(name) <= longest).then(pl.col(name)).alias(name)
        for name in (RANK, RANK_HIDDEN)
    )
    cases = frame.with_columns(
        *ranks,
        pl.col(f"{LIST_ROWS}@{longest}").is_null().alias(_NO_LIST),
        pl.col(HISTORY_ROWS).is_null().alias(_NO_HISTORY),
        pl.lit(1, pl.Int64).alias(CASES),
    )
    return _group_cases(cases, ks)


def _group_cases(frame: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    """Return the number of cases and sums of `history_rows`, `novelty@k` and `list_rows@k`.

    One row for all cases (evaluated queries) with equal ties, window, ranks and groups. frame: one
    row per case, or sums of cases that are added up again.
    """
    sums = pl.col(CASES, HISTORY_ROWS, *_list_names(ks)).sum()
    return frame.group_by(_find_keys(frame), maintain_order=True).agg(sums)


def _list_names(ks: Sequence[int]) -> list[str]:
    """Return the columns novelty@k and list_rows@k for every k."""
    return [f"{name}@{k}" for name in (NOVELTY, LIST_ROWS) for k in ks]


def merge_sums(
    parts: Iterable[pl.DataFrame], ks: Sequence[int], *, is_final: bool = True
) -> pl.DataFrame:
    """Return the frame of an `Evaluation` from sums of parts (`sum_cases`): sums become means.

    A part has some of the cases (evaluated queries), equal ones as one row with their number. `ks`
    are the cutoffs of the list columns. A mean is null where its cases have no list, or no known
    item in the history. Without `is_final`, sums stay sums, to be merged with further parts.
    """
    whole = _group_cases(pl.concat(parts), ks)
    if not is_final:
        return whole
    whole = whole.sort(_find_keys(whole))
    flags = {HISTORY_ROWS: _NO_HISTORY, **dict.fromkeys(_list_names(ks), _NO_LIST)}
    means = (
        pl.when(~pl.col(flag)).then(pl.col(name) / pl.col(CASES)).alias(name)
        for name, flag in flags.items()
    )
    return whole.with_columns(means).drop(_NO_LIST, _NO_HISTORY)


def mean_metrics(frame: pl.DataFrame, ks: Sequence[int], rank: str = RANK) -> Means:
    """Return the mean of each metric (HR@k, NDCG@k, MRR@k) over a frame of cases.

    A case is one evaluated query; a row may stand for several equal cases (column `cases`). `rank`
    is the column of the target's rank. None for each metric without cases.
    """
    means = (mean_expression(frame, metric) for metric in metric_expressions(ks, rank))
    row = frame.select(means).row(0, named=True)
    return {name: value if value is None else float(value) for name, value in row.items()}


def mean_expression(frame: pl.DataFrame, value: pl.Expr) -> pl.Expr:
    """Return the expression of a value's mean over the cases of a frame that have the value.

    A row stands for as many equal cases as its column `cases` says, if the frame has one, else for
    one. The mean is null if no case has the value.
    """
    if CASES not in frame.columns:
        return value.mean()
    n_cases = pl.when(value.is_not_null()).then(pl.col(CASES))
    return ((value * n_cases).sum() / n_cases.sum()).fill_nan(None)


def mean_columns(frame: pl.DataFrame, names: Sequence[str]) -> Means:
    """Return the mean of each named column over the cases that have a value; None for none.

    A case is one evaluated query; a row may stand for several equal cases (column `cases`).
    """
    means = (mean_expression(frame, pl.col(name)) for name in names)
    return frame.select(means).row(0, named=True) if names else {}


def count_cases(frame: pl.DataFrame) -> int:
    """Return the number of cases in a frame: its rows, or the sum of its column `cases`."""
    return int(frame[CASES].sum()) if CASES in frame.columns else len(frame)
