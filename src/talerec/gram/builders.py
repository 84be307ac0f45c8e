"""Builders of Grams: pair by pair, without ever building a row of S."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from talerec.data import row_kernels
from talerec.data.log import Log
from talerec.data.times import DAY
from talerec.errors import TalerecError
from talerec.gram import pairs
from talerec.gram import weighted_pairs as worth_pairs
from talerec.gram.assembly import ONLY_K, Pairs, assemble, longest_history
from talerec.gram.gram import Gram
from talerec.gram.row_weights import age_weights, newest_rows, trend_scale
from talerec.gram.terms import Summand
from talerec.runtime.arrays import Array, Matrix

TARGETS = ("single", "multi")  # the next row, or all later ones
NORMS = ("none", "l1", "symmetric")


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
    """TALE's Gram (Eqs. 6, 13, 14): a source weighs by the interval to its target.

    Parameters
    ----------
    log : Log
        The rows to learn from.
    decay, floor : float
        A source d days before its target weighs max(exp(-d / decay), floor).
    window, trend, trend_side : float, float, {"both", "past"}
        A row weighs p ** -trend, p the rows of its item within `window` days on both sides, or before it.
    same_time : {"ordered", "joint"}
        Rows of a user at one instant follow each other, or each is a source of the others.
    max_history : int
        How many of each user's last rows count.
    targets : {"single", "multi"}
        A row's targets are the next row alone, or all later ones.
    memory : int, optional
        Bytes that the Gram may take; by default, what is free.

    Returns
    -------
    Gram

    Raises
    ------
    TalerecError
        If the Gram does not fit into memory, or `joint` is to have `multi` targets.

    Examples
    --------
    >>> import talerec as tr
    >>> weights = {"decay": 1.0, "floor": 0.3, "window": 180.0, "trend": 0.1, "trend_side": "both"}
    >>> tr.tale_gram(tr.synthetic_log(200), **weights, same_time="ordered", max_history=2500)
    Gram(20 items, dense)
    """
    told = (decay, floor, window, trend, trend_side, same_time, max_history, targets)
    return tale_summand(log, *told).gram(memory)


def tale_summand(
    log: Log,
    decay: float,
    floor: float,
    window: float,
    trend: float,
    trend_side: str,
    same_time: str,
    max_history: int,
    targets: str = "single",
) -> Summand:
    """The pairs of `tale_gram`."""
    if targets == "multi" and same_time == "joint":
        raise TalerecError("same_time=joint has one target at a time: use targets=single")
    if targets == "multi" and log.weight is not None:
        raise TalerecError("rows of several targets take no weights: use targets=single")
    log = newest_rows(log, max_history)
    scale = trend_scale(log, window, trend, trend_side)
    return Summand(log, _tale_pairs(log, scale, decay * DAY, floor, same_time, targets))


def tale_columns(
    log: Log,
    targets: Array,
    *,
    decay: float,
    floor: float,
    window: float,
    trend: float,
    trend_side: str,
    same_time: str,
    max_history: int,
    turned: float = 0.0,
    memory: int | None = None,
) -> Matrix:
    """The columns of K + turned K' that some targets have (a flag per item), counted from the log; the others are empty.

    What leads from later rows to earlier ones is what leads from earlier to later ones where time runs backwards.
    """
    log = newest_rows(log, max_history)
    scale = trend_scale(log, window, trend, trend_side)
    made = _tale_pairs(log, scale, decay * DAY, floor, same_time, "single")
    _, K = assemble(log, made, memory, ONLY_K, targets)
    if not turned:
        return K
    back = row_kernels.backwards(log.ptr)
    log = replace(log.ordered(back, log.ties), time=-log.time[back])
    made = _tale_pairs(log, scale[back], decay * DAY, floor, same_time, "single")
    return K + turned * assemble(log, made, memory, ONLY_K, targets)[1]


def _tale_pairs(
    log: Log, scale: Array, decay: float, floor: float, same_time: str, targets: str
) -> Pairs:
    """TALE's pairs; `decay` in microseconds."""
    step, reach, begin = pairs.tale_intervals(log.ptr, log.time, decay, floor)
    first, after = _instants(log, same_time)
    stop = row_kernels.ends(log.ptr)
    rows = pairs.TaleRows(begin, first, after, reach, stop, step, scale, floor)
    if log.weight is not None:
        left = worth_pairs.worth_left(log.ptr, log.weight)
        worth = worth_pairs.WorthRows(rows._replace(scale=scale * log.weight), log.weight, left)
        return Pairs(begin, after, worth, worth_pairs.worth_sparse, worth_pairs.worth_dense)
    if targets == "single":
        return Pairs(begin, after, rows, pairs.tale_sparse, pairs.tale_dense)
    several = pairs.tale_several(log.ptr, log.time, decay, floor, step, reach)
    args = pairs.SeveralTargets(rows, *several)
    return Pairs(begin, after, args, pairs.tale_multi_sparse, pairs.tale_multi_dense)


def _instants(log: Log, same_time: str) -> tuple[Array, Array]:
    """For every row, the first row of its instant and the first after it; `ordered`: each row is an instant."""
    if same_time == "joint":
        return pairs.instants(log.ptr, log.time)
    after = _next(log)
    return after - np.int32(1), after


def tied_weight(log: Log, window: float, trend: float, max_history: int) -> float:
    """The sum of K's entries from simultaneous rows of different items, each a source of the others (`joint`)."""
    log = newest_rows(log, max_history)
    scale = trend_scale(log, window, trend, "both")
    scale = scale if log.weight is None else scale * log.weight
    first, _ = pairs.instants(log.ptr, log.time)
    together = np.bincount(first, scale, log.rows)
    return float((together**2).sum() - (scale**2).sum())


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
    """SLIT's Gram: sources and targets weigh by their places on either side of each row.

    Parameters
    ----------
    log : Log
        The rows to learn from.
    position : float
        A source or target d places away weighs exp(-d / position).
    max_history : int
        How many of each user's last rows count.
    targets : {"multi", "single"}
        A row's targets are all later rows, or the next one alone.
    norm : {"none", "l1", "symmetric"}
        Divide rows of S and T by their sums (`l1`), or by the roots of row and column sums (Eq. 4).
    decay_user : float
        A user whose last row is d days before the log's weighs exp(-d / decay_user); 0: all weigh 1.
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
    told = (position, max_history, targets, norm, decay_user, window, trend, trend_side)
    return slit_summand(log, *told).gram(memory)


def slit_summand(
    log: Log,
    position: float,
    max_history: int,
    targets: str = "multi",
    norm: str = "none",
    decay_user: float = 0.0,
    window: float = 0.0,
    trend: float = 0.0,
    trend_side: str = "both",
) -> Summand:
    """The pairs of `slit_gram`."""
    log = newest_rows(log, max_history)
    scale = trend_scale(log, window, trend, trend_side)
    made, columns = _slit_pairs(log, scale, position, targets, norm, decay_user)
    if norm != "symmetric":
        return Summand(log, made)
    of_sources, of_targets = (_column_share(log, entries) for entries in columns)
    return Summand(log, made, roots=(of_sources, of_targets))


def _slit_pairs(
    log: Log, scale: Array, position: float, targets: str, norm: str, decay_user: float
) -> tuple[Pairs, list[Array]]:
    """SLIT's pairs, and what each row has in the columns of S and of T."""
    multi, fading = targets == "multi", math.exp(-1 / position)
    of_source, of_target, *columns = pairs.place_sums(log.ptr, scale, fading, multi)
    source_share, target_share = (_row_share(sums, norm) for sums in (of_source, of_target))
    weight = age_weights(log, decay_user)
    ahead = pairs.place_ahead(log.ptr, source_share * source_share * weight, fading)
    fade = _until_zero(np.exp(-np.arange(longest_history(log) + 1) / position))
    begin = _begin(log, len(fade) - 1)
    each = source_share * target_share * weight
    args = pairs.PlaceRows(begin, ahead, each, scale, fade, multi)
    return Pairs(begin, _next(log), args, pairs.place_sparse, pairs.place_dense), columns


def slis_gram(
    log: Log,
    *,
    max_history: int,
    norm: str = "none",
    decay_user: float = 0.0,
    memory: int | None = None,
) -> Gram:
    """SLIS's Gram: G = X'WX, X the users' items, each once; K is the same matrix.

    Parameters
    ----------
    log : Log
        The rows to learn from.
    max_history : int
        How many of each user's last rows count.
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
    return slis_summand(log, max_history, norm, decay_user).gram(memory)


def slis_summand(
    log: Log, max_history: int, norm: str = "none", decay_user: float = 0.0
) -> Summand:
    """The pairs of `slis_gram`."""
    log = newest_rows(log, max_history)
    age = age_weights(log, decay_user)
    once = row_kernels.last_rows(log.ptr, log.item, len(log.items))
    log, age = log.keep(once), age[once]
    count = np.repeat(np.diff(log.ptr), np.diff(log.ptr)).astype(np.float64)
    begin = np.repeat(log.ptr[:-1], np.diff(log.ptr)).astype(np.int32)
    args = pairs.WeighedRows(begin, age * _row_share(count, norm) ** 2)
    made = Pairs(begin, _next(log), args, pairs.alike_sparse, pairs.alike_dense)
    if norm != "symmetric":
        return Summand(log, made, is_alike=True)
    share = _column_share(log, np.ones(log.rows))
    return Summand(log, made, is_alike=True, roots=(share, share))


def gap_counts(log: Log, weight: Array, *, max_history: int, memory: int | None = None) -> Matrix:
    """K alone: a row that stands d rows before another counts weight[d] (d from 1 on)."""
    log = newest_rows(log, max_history)
    begin = _begin(log, len(weight) - 1)
    if log.weight is None:
        args: Any = pairs.WeighedRows(begin, weight)
        made = Pairs(begin, _next(log), args, pairs.gap_sparse, pairs.gap_dense)
    else:
        args = worth_pairs.GapRows(begin, weight, log.weight)
        kernels = worth_pairs.worth_gap_sparse, worth_pairs.worth_gap_dense
        made = Pairs(begin, _next(log), args, *kernels)
    _, K = assemble(log, made, memory, ONLY_K)
    return K


def _row_share(sums: Array, norm: str) -> Array:
    """What a row is multiplied by, given its sum; rows that are empty stay so."""
    power = {"none": 0.0, "l1": -1.0, "symmetric": -0.5}[norm]
    return np.power(sums, power, out=np.zeros_like(sums), where=sums > 0)


def _column_share(log: Log, entries: Array) -> Array:
    """One over the root of each item's sum of `entries`, one per row."""
    sums = np.bincount(log.item, entries, len(log.items))
    return np.power(sums, -0.5, out=np.zeros_like(sums), where=sums > 0)


def _until_zero(weights: Array) -> Array:
    """Falling weights, up to the first that is zero."""
    return weights[: int(np.count_nonzero(weights)) + 1]


def _begin(log: Log, gap: int) -> Array:
    """For every row, the user's first row that stands no more than `gap` rows before it."""
    start = np.repeat(log.ptr[:-1], np.diff(log.ptr))
    first: Array = np.maximum(start, np.arange(log.rows) - gap).astype(np.int32)
    return first


def _next(log: Log) -> Array:
    """For every row, the one after it: rows are in order, and none is simultaneous."""
    return np.arange(1, log.rows + 1, dtype=np.int32)
