"""Cases that are alike as one row: what is left of very many cases when only figures are wanted of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from talerec.evaluation.metrics import RANK, RANK_HIDDEN
from talerec.evaluation.queries import (
    CASES,
    GROUPS,
    HISTORY_ROWS,
    LIST_ROWS,
    NOVELTY,
    TIES,
    WINDOW,
)

_NO_LIST, _NO_HISTORY = "no_list", "no_history"  # alike in this too: what they have no mean of
_ALIKE = (TIES, WINDOW, RANK, RANK_HIDDEN, *GROUPS, _NO_LIST, _NO_HISTORY)


def sums_of(frame: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    """One row for cases that are alike in all that figures ask for: how many they are, and sums of the rest.

    A rank beyond the longest list is a miss at every k, like rank 0.
    """
    most = max(ks)
    ranks = (
        pl.when(pl.col(name) <= most).then(pl.col(name)).otherwise(0).alias(name)
        for name in (RANK, RANK_HIDDEN)
    )
    marked = frame.with_columns(
        *ranks,
        pl.col(f"{LIST_ROWS}@{most}").is_null().alias(_NO_LIST),
        pl.col(HISTORY_ROWS).is_null().alias(_NO_HISTORY),
        pl.lit(1, pl.Int64).alias(CASES),
    )
    return _grouped(marked, ks)


def _grouped(frame: pl.DataFrame, ks: Sequence[int]) -> pl.DataFrame:
    sums = pl.col(CASES, HISTORY_ROWS, *_of_lists(ks)).sum()
    return frame.group_by(_ALIKE, maintain_order=True).agg(sums)


def _of_lists(ks: Sequence[int]) -> list[str]:
    return [f"{name}@{k}" for name in (NOVELTY, LIST_ROWS) for k in ks]


def added(parts: Iterable[pl.DataFrame], ks: Sequence[int]) -> pl.DataFrame:
    """The frame of an `Evaluation` whose cases are those of all parts: sums become means of what is alike."""
    whole = _grouped(pl.concat(parts), ks).sort(_ALIKE)
    lacking = {HISTORY_ROWS: _NO_HISTORY, **dict.fromkeys(_of_lists(ks), _NO_LIST)}
    means = (
        pl.when(~pl.col(flag)).then(pl.col(name) / pl.col(CASES)).alias(name)
        for name, flag in lacking.items()
    )
    return whole.with_columns(means).drop(_NO_LIST, _NO_HISTORY)
