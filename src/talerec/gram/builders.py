"""Gram builders, one per model: pairs of rows are summed, no row of S or T is ever built."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from talerec.data import DAY, Log, last_row_mask, reverse_rows, user_end_per_row
from talerec.errors import TalerecError
from talerec.gram import lag_pairs, pairs, weighted_pairs
from talerec.gram.accumulate import ONLY_K, Pairs, accumulate_gram, longest_history
from talerec.gram.gram import Gram
from talerec.gram.terms import (
    GramTerm,
    age_weights,
    column_scale,
    first_rows,
    newest_rows,
    next_rows,
    row_scale,
    trend_scale,
)
from talerec.runtime import Array, Kernel, Matrix

TARGETS = ("single", "multi")  # the next row, or all later ones
NORMS = ("none", "l1", "symmetric")


class TaleWeighting(NamedTuple):
    """The parameters of TALE's weights of a user's rows and of pairs (source row, target row).

    A linear model is fitted from sums of these weights over pairs of a user's rows.
    """

    decay: float  # days: a source d days before its target weighs max(exp(-d / decay), floor)
    floor: float  # the smallest weight of a source, from 0 to 1
    window: float  # days around a row in which p, the number of rows of its item, is counted
    trend: float  # a row weighs p ** -trend
    trend_side: str  # the window lies on "both" sides of the row, or in its "past"
    same_time: str  # a user's rows of one time are "ordered", or sources of each other ("joint")
    max_history: int  # how many of each user's last rows are used


class SlitWeighting(NamedTuple):
    """The parameters of SLIT's weights of a user's rows and of pairs (source row, target row).

    S and T have a row per training example: its source items and its target items.
    """

    position: float  # a source or target d rows away weighs exp(-d / position)
    max_history: int  # how many of each user's last rows are used
    targets: str = "multi"  # all later rows are targets, or the next one alone ("single")
    norm: str = "none"  # how S and T are normalized: "none", "l1" or "symmetric"
    decay_user: float = 0.0  # days: users whose last row is older weigh less; 0: all alike
    window: float = 0.0  # days around a row in which p, the number of rows of its item, is counted
    trend: float = 0.0  # a row weighs p ** -trend
    trend_side: str = "both"  # the window lies on both sides of the row, or in its "past"


# -- TALE ------------------------------------------------------------------------------------------


def tale_gram(
    log: Log,
    *,
    decay: float,
    floor: float,
    window: float,
    trend: float,
    trend_side: str,
    same_time: str,
    max_history: int,
    targets: str = "single",
    memory: int | None = None,
) -> Gram:
    """Return TALE's Gram, G = S'S and K = S'T: sources are weighted by time to the target.

    Parameters
    ----------
    log : Log
        The training rows.
    decay, floor : float
        A source d days before its target weighs max(exp(-d / decay), floor).
    window, trend, trend_side : float, float, {"both", "past"}
        A row weighs p ** -trend, p being the number of rows of its item within `window` days,
        on both sides of it or before it.
    same_time : {"ordered", "joint"}
        Rows of a user at one time follow each other, or each is a source of the others.
    max_history : int
        How many of each user's last rows are used.
    targets : {"single", "multi"}
        A row's targets are the next row alone, or all later ones.
    memory : int, optional
        Bytes that the Gram may take; by default, the free memory.

    Returns
    -------
    Gram

    Raises
    ------
    TalerecError
        If the Gram does not fit into memory, or `joint` is combined with `multi` targets.

    Examples
    --------
    >>> import talerec as tr
    >>> weights = {"decay": 1.0, "floor": 0.3, "window": 180.0, "trend": 0.1, "trend_side": "both"}
    >>> tr.tale_gram(tr.synthetic_log(200), **weights, same_time="ordered", max_history=2500)
    Gram(20 items, dense)
    """
    weighting = TaleWeighting(decay, floor, window, trend, trend_side, same_time, max_history)
    return tale_term(log, weighting, targets).build(memory)


def tale_term(log: Log, weighting: TaleWeighting, targets: str = "single") -> GramTerm:
    """Return TALE's Gram term: the log rows and weighted pairs of rows that G and K sum up.

    G = S'S and K = S'T: a row of S has the source items of a training example, and T its target
    items. targets: a row's targets are the next row alone ("single"), or all later ones ("multi"),
    which raises TalerecError with same_time="joint" or with row weights. weighting: decay, trend
    and history length.
    """
    if targets == "multi" and weighting.same_time == "joint":
        raise TalerecError("same_time=joint has one target at a time: use targets=single")
    if targets == "multi" and log.weight is not None:
        raise TalerecError("targets=multi does not support row weights: use targets=single")
    key = ("tale", log, weighting, targets)
    log = newest_rows(log, weighting.max_history)
    scale = trend_scale(log, weighting.window, weighting.trend, weighting.trend_side)
    return GramTerm(log, _tale_pairs(log, scale, weighting, targets), key=key)


def tale_columns(
    log: Log,
    weighting: TaleWeighting,
    targets: Array,
    *,
    reverse_share: float = 0.0,
    memory: int | None = None,
) -> Matrix:
    """Return TALE's K = S'T plus reverse_share K', with the columns of some targets alone.

    K is source x target, items x items: weighted counts of a source item before a target item.
    targets: a flag per item; columns of other items are empty. K' is the K of the log with time
    running backwards. memory: bytes that a matrix may take (None: the free memory). weighting:
    decay, trend and history length.
    """
    log = newest_rows(log, weighting.max_history)
    scale = trend_scale(log, weighting.window, weighting.trend, weighting.trend_side)
    row_pairs = _tale_pairs(log, scale, weighting, "single")
    _, K = accumulate_gram(log, row_pairs, memory, ONLY_K, targets)
    if not reverse_share:
        return K
    back = reverse_rows(log.ptr)
    log = replace(log.reorder(back, log.ties), time=-log.time[back])
    row_pairs = _tale_pairs(log, scale[back], weighting, "single")
    return K + reverse_share * accumulate_gram(log, row_pairs, memory, ONLY_K, targets)[1]


def _tale_pairs(log: Log, scale: Array, weighting: TaleWeighting, targets: str) -> Pairs:
    """Return TALE's pairs of a user's rows, with the arrays and kernels that weight them.

    A pair has a source row and a later target row. scale: the trend factor p ** -trend of every
    row, p being how many rows of its item lie around it in time. targets: "single" (the next row)
    or "multi" (all later rows). The kernels differ for rows with weights and for multiple targets.
    weighting: the decay and how simultaneous rows are treated.
    """
    decay, floor = weighting.decay * DAY, weighting.floor
    step, reach, begin = pairs.tale_intervals(log.ptr, log.time, decay, floor)
    if weighting.same_time == "joint":
        first, after = pairs.instants(log.ptr, log.time)
    else:  # every row is an instant of its own
        after = next_rows(log)
        first = after - np.int32(1)
    stop = user_end_per_row(log.ptr)
    rows = pairs.TaleRows(begin, first, after, reach, stop, step, scale, floor)
    args: Any = rows
    kernels: tuple[Kernel, Kernel] = pairs.tale_sparse, pairs.tale_dense
    if log.weight is not None:
        remaining = weighted_pairs.remaining_weights(log.ptr, log.weight)
        rows = rows._replace(scale=scale * log.weight)
        args = weighted_pairs.WeightedTaleRows(rows, log.weight, remaining)
        kernels = weighted_pairs.weighted_tale_sparse, weighted_pairs.weighted_tale_dense
    elif targets == "multi":
        sums = pairs.multi_target_sums(log.ptr, log.time, decay, floor, step, reach)
        args = pairs.MultiTargetRows(rows, *sums)
        kernels = pairs.tale_multi_sparse, pairs.tale_multi_dense
    return Pairs(begin, after, args, *kernels)


def simultaneous_weight(log: Log, window: float, trend: float, max_history: int) -> float:
    """Return what pairs of rows of one user and time add to TALE's K outside of its diagonal.

    K = S'T adds up weights of a source item (row of K) for a target item (column); both directions
    of a pair count. Pairs of rows of the same item are on the diagonal and left out. A log row
    weighs p ** -trend, p being the rows of its item within `window` days on both sides of it, times
    its own weight if the log has weights. max_history: last rows of each user that are used.
    """
    log = newest_rows(log, max_history)
    scale = trend_scale(log, window, trend, "both")
    scale = scale if log.weight is None else scale * log.weight
    first, after = pairs.instants(log.ptr, log.time)
    together = np.bincount(first, scale, log.rows)
    every_pair = float((together**2).sum() - (scale**2).sum())
    rows = np.flatnonzero(after - first > 1)
    key = first[rows].astype(np.int64) * len(log.items) + log.item[rows]
    _, group = np.unique(key, return_inverse=True)  # rows of one user, time and item
    of_item, squares = np.bincount(group, scale[rows]), np.bincount(group, scale[rows] ** 2)
    return every_pair - float((of_item**2 - squares).sum())


# -- the family ------------------------------------------------------------------------------------


def slit_gram(
    log: Log,
    *,
    position: float,
    max_history: int,
    targets: str = "multi",
    norm: str = "none",
    decay_user: float = 0.0,
    window: float = 0.0,
    trend: float = 0.0,
    trend_side: str = "both",
    memory: int | None = None,
) -> Gram:
    """Return SLIT's Gram, G = S'S and K = S'T: items weighted by lag from each row.

    Parameters
    ----------
    log : Log
        The training rows.
    position : float
        A source or target d rows away weighs exp(-d / position).
    max_history : int
        How many of each user's last rows are used.
    targets : {"multi", "single"}
        A row's targets are all later rows, or the next one alone.
    norm : {"none", "l1", "symmetric"}
        Divide rows of S and T by their sums (`l1`), or entries by the roots of their row and
        column sums (`symmetric`).
    decay_user : float
        A user whose last row is d days before the log's last weighs exp(-d / decay_user);
        0: all weigh 1.
    window, trend, trend_side, memory
        As in `tale_gram`.

    Returns
    -------
    Gram

    Raises
    ------
    TalerecError
        If the Gram does not fit into memory.

    Examples
    --------
    >>> import talerec as tr
    >>> tr.slit_gram(tr.synthetic_log(200), position=1.0, max_history=2500)
    Gram(20 items, dense)
    """
    trending = (window, trend, trend_side)
    weighting = SlitWeighting(position, max_history, targets, norm, decay_user, *trending)
    return slit_term(log, weighting).build(memory)


def slit_term(log: Log, weighting: SlitWeighting) -> GramTerm:
    """Return SLIT's Gram term: the log rows and weighted pairs of rows that G and K sum up.

    G = S'S and K = S'T: a row of S has the source items of a training example, and T its target
    items. With norm="symmetric" the term also has a factor per source item and per target item.
    weighting: decay by lag, trend, targets, norm and history length.
    """
    key = ("slit", log, weighting)
    log = newest_rows(log, weighting.max_history)
    scale = trend_scale(log, weighting.window, weighting.trend, weighting.trend_side)
    row_pairs, columns = _slit_pairs(log, scale, weighting)
    if weighting.norm != "symmetric":
        return GramTerm(log, row_pairs, key=key)
    source, target = (column_scale(log, entries) for entries in columns)
    return GramTerm(log, row_pairs, scales=(source, target), key=key)


def _slit_pairs(log: Log, scale: Array, weighting: SlitWeighting) -> tuple[Pairs, list[Array]]:
    """Return SLIT's pairs of rows, and what each log row adds to column sums of S and of T.

    Pairs say which rows of a user add to G = S'S and K = S'T: a row of S has the source items of a
    training example, and T its target items. scale: a factor of every log row (its trend). The
    second result is a list of two arrays with one entry per log row, for the columns of S and for
    those of T. weighting: decay by lag, targets, norm and decay of users.
    """
    multi, rate = weighting.targets == "multi", math.exp(-1 / weighting.position)
    source_sums, target_sums, *columns = lag_pairs.slit_sums(log.ptr, scale, rate, multi)
    source_scale, target_scale = (
        row_scale(sums, weighting.norm) for sums in (source_sums, target_sums)
    )
    weight = age_weights(log, weighting.decay_user)
    tail = lag_pairs.slit_tails(log.ptr, source_scale * source_scale * weight, rate)
    lag_weights = np.exp(-np.arange(longest_history(log) + 1) / weighting.position)
    lag_weights = lag_weights[: int(np.count_nonzero(lag_weights)) + 1]  # up to the first zero
    begin = first_rows(log, len(lag_weights) - 1)
    factor = source_scale * target_scale * weight
    args = lag_pairs.SlitRows(begin, tail, factor, scale, lag_weights, multi)
    return Pairs(begin, next_rows(log), args, lag_pairs.slit_sparse, lag_pairs.slit_dense), columns


def slis_gram(
    log: Log,
    *,
    max_history: int,
    norm: str = "none",
    decay_user: float = 0.0,
    memory: int | None = None,
) -> Gram:
    """Return SLIS's Gram: G = X'WX, X being 1 where a user has an item; K is the same matrix.

    Parameters
    ----------
    log : Log
        The training rows.
    max_history : int
        How many of each user's last rows are used.
    norm, decay_user, memory
        As in `slit_gram`.

    Returns
    -------
    Gram

    Raises
    ------
    TalerecError
        If the Gram does not fit into memory.

    Examples
    --------
    Two users have item 1, one has item 2, and one has both:

    >>> import polars as pl
    >>> import talerec as tr
    >>> rows = {"user_id": [1, 1, 2], "item_id": [1, 2, 1], "timestamp": ["2024-05-01"] * 3}
    >>> tr.slis_gram(tr.Log.from_frame(pl.DataFrame(rows)), max_history=2500).G.tolist()
    [[2.0, 1.0], [1.0, 1.0]]
    """
    return slis_term(log, max_history, norm, decay_user).build(memory)


def slis_term(log: Log, max_history: int, norm: str = "none", decay_user: float = 0.0) -> GramTerm:
    """Return the log rows and weighted pairs of rows that SLIS's Gram G = X'WX sums up.

    X (users x items) is 1 where a user has an item, so each user's items count once, and W weights
    users by age. Sources and targets are the same, so K is G. max_history: how many of each user's
    last rows are used. norm, decay_user (days): as in `slit_gram`.
    """
    key = ("slis", log, max_history, norm, decay_user)
    log = newest_rows(log, max_history)
    age = age_weights(log, decay_user)
    once = last_row_mask(log.ptr, log.item, len(log.items))
    log, age = log.keep(once), age[once]
    count = np.repeat(np.diff(log.ptr), np.diff(log.ptr)).astype(np.float64)
    begin = np.repeat(log.ptr[:-1], np.diff(log.ptr)).astype(np.int32)
    args = lag_pairs.WeightedRows(begin, age * row_scale(count, norm) ** 2)
    row_pairs = Pairs(begin, next_rows(log), args, lag_pairs.slis_sparse, lag_pairs.slis_dense)
    scales = None
    if norm == "symmetric":
        scale = column_scale(log, np.ones(log.rows))
        scales = (scale, scale)
    return GramTerm(log, row_pairs, target_equals_source=True, scales=scales, key=key)


def lag_counts(
    log: Log, lag_weights: Array, *, max_history: int, memory: int | None = None
) -> Matrix:
    """Return K alone: K_ij adds up lag_weights[d] over rows of i that are d rows before j.

    K is items x items, dense or sparse. d runs from 0 (the row itself) to len(lag_weights) - 1
    within a user's last `max_history` rows; if rows have weights, those of both rows multiply.
    memory: bytes for K (None: free memory).
    """
    term = lag_term(log, lag_weights, max_history)
    return accumulate_gram(term.log, term.pairs, memory, ONLY_K)[1]


def lag_term(log: Log, lag_weights: Array, max_history: int) -> GramTerm:
    """Return the pairs of rows that `lag_counts` adds up: only their K is used."""
    log = newest_rows(log, max_history)
    begin = first_rows(log, len(lag_weights) - 1)
    args: Any = lag_pairs.LagRows(begin, lag_weights)
    kernels: tuple[Kernel, Kernel] = lag_pairs.lag_sparse, lag_pairs.lag_dense
    if log.weight is not None:
        args = weighted_pairs.WeightedLagRows(begin, lag_weights, log.weight)
        kernels = weighted_pairs.weighted_lag_sparse, weighted_pairs.weighted_lag_dense
    return GramTerm(log, Pairs(begin, next_rows(log), args, *kernels))
