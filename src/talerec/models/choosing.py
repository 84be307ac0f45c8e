"""Which items may come: allow and deny lists, conditions on the item table, and so many of a kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from talerec.data.histories import Histories
from talerec.errors import TalerecError
from talerec.models import asking
from talerec.models.asking import Asked, Ids
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel

_MORE = 4  # times as many items are ranked as are wanted, where some may be left out
_LONGEST = 2000  # characters of a condition


@dataclass(frozen=True, eq=False)
class Kinds:
    """At most `most` items of a kind in a list."""

    kind: Array  # of each item; -1 for an item of no kind, which may always come
    most: int


@dataclass(frozen=True, eq=False)
class Limits:
    """What may come: a flag per item (None: everything), and how many of each kind."""

    allowed: Array | None = None
    kinds: tuple[Kinds, ...] = ()


def limits(
    model: Asked,
    allow: Ids | None,
    deny: Ids | None,
    where: str | None,
    per: Mapping[str, int] | None,
    unknown: str,
) -> Limits:
    """What people say about the items that may come."""
    allowed = allowed_items(model, allow, deny, unknown)
    if where is not None:
        matching = matches(model, where)
        allowed = matching if allowed is None else allowed & matching
    return Limits(allowed, tuple(_kinds(model, *one) for one in (per or {}).items()))


def allowed_items(model: Asked, allow: Ids | None, deny: Ids | None, unknown: str) -> Array | None:
    """Allow and deny lists as one flag per item; None where there are neither."""
    if allow is None and deny is None:
        return None
    items = model.fitted.items
    allowed = np.full(len(items), allow is None, np.uint8)
    for ids, value in ((allow, 1), (deny, 0)):
        if ids is not None:
            found = items.positions(ids, "item", unknown)
            allowed[found[found >= 0]] = value
    return allowed


# -- the item table --------------------------------------------------------------------------------


def _table(model: Asked, what: str) -> pl.DataFrame:
    info = model.fitted.info
    if info is None:
        raise TalerecError(f"{what} needs an item table: fit the model with --items")
    return info


def matches(model: Asked, where: str) -> Array:
    """A flag for every item: does the item table's row meet the condition? Unknown values do not."""
    info = _table(model, "where")
    if not isinstance(where, str) or not where.strip() or len(where) > _LONGEST:
        raise TalerecError(
            f"where is a condition such as price < 100, of at most {_LONGEST:,} characters"
        )
    try:
        found = info.select(pl.sql_expr(where).alias("where")).to_series()
    except pl.exceptions.ColumnNotFoundError as error:
        name = (
            str(error).splitlines()[0].split('"')[1]
            if '"' in str(error)
            else str(error).splitlines()[0]
        )
        raise TalerecError(
            f"where {where!r}: the item table has no column {name}; it has {', '.join(info.columns)}"
        ) from None
    except (
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        ValueError,
        TypeError,
    ) as error:
        reason = str(error).strip().splitlines()[0]
        raise TalerecError(f"where {where!r} cannot be used: {reason}") from None
    if found.dtype != pl.Boolean or len(found) not in (1, len(info)):
        raise TalerecError(f"where {where!r} is not a condition that holds or does not")
    flags: Array = found.fill_null(False).cast(pl.UInt8).to_numpy(writable=True)
    return np.full(len(info), flags[0], np.uint8) if len(flags) < len(info) else flags


def _kinds(model: Asked, column: str, most: Any) -> Kinds:
    info = _table(model, "per")
    if column not in info.columns:
        raise TalerecError(
            f"per: the item table has no column {column!r}; it has {', '.join(info.columns)}"
        )
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise TalerecError(f"per: {column} is {most!r}; it takes a whole number from 1")
    kind = (
        info[column].rank("dense").cast(pl.Int64)
        if info[column].dtype != pl.Boolean
        else info[column].cast(pl.Int64)
    )
    return Kinds(kind.fill_null(-1).to_numpy(), int(most))


# -- so many of a kind -----------------------------------------------------------------------------


def top(
    model: Asked, histories: Histories, k: int, chosen: Limits, *, hide_seen: bool = False
) -> tuple[Array, Array, Array]:
    """The first k of every history that may come, as `asking.top` gives them.

    With so many of a kind, an item is left out where those before it have used up its kind: lists are asked for
    again, longer, until k items are found or there are no more.
    """
    options: dict[str, Any] = {"hide_seen": hide_seen, "allowed": chosen.allowed}
    if not chosen.kinds:
        return asking.top(model, histories, k, **options)
    asking.check_k(model, k)
    items, scores = np.full((len(histories), k), -1, np.int32), np.full((len(histories), k), np.nan)
    counts, left, size = np.zeros(len(histories), np.int64), np.arange(len(histories)), k
    while left.size:
        size = min(_MORE * size, len(model.fitted.items))
        found = asking.top(model, histories.take(left), size, **options)
        kept = _kept(found, chosen.kinds, k)
        done = (kept[2] == k) | (found[2] < size) | (size == len(model.fitted.items))
        rows = left[done]
        items[rows], scores[rows], counts[rows] = (part[done] for part in kept)
        left = left[~done]
    return items, scores, counts


def _kept(
    found: tuple[Array, Array, Array], kinds: tuple[Kinds, ...], k: int
) -> tuple[Array, Array, Array]:
    """The first k items of each list of which no kind is used up by those before them."""
    lists, scores, counts = found
    items, best = np.full((len(lists), k), -1, np.int32), np.full((len(lists), k), np.nan)
    kind = np.stack([one.kind for one in kinds])
    most = np.array([one.most for one in kinds])
    used = np.zeros((len(kinds), int(kind.max(initial=0)) + 1), np.int64)
    taken = _take_first(lists, scores, counts, kind, most, used, items, best)
    return items, best, taken


@kernel
def _take_first(
    lists: Array,
    scores: Array,
    counts: Array,
    kind: Array,
    most: Array,
    used: Array,
    items: Array,
    best: Array,
) -> Array:
    """Fill `items` and `best` from the front of each list. `used`: a 0 for every kind, left as found."""
    taken = np.zeros(len(lists), np.int64)
    for h in range(len(lists)):
        for j in range(counts[h]):
            if taken[h] == items.shape[1]:
                break
            i = lists[h, j]
            fits = True
            for c in range(len(most)):
                fits = fits and (kind[c, i] < 0 or used[c, kind[c, i]] < most[c])
            if fits:
                items[h, taken[h]], best[h, taken[h]] = i, scores[h, j]
                taken[h] += 1
                for c in range(len(most)):
                    used[c, max(kind[c, i], 0)] += kind[c, i] >= 0
        for x in range(taken[h]):
            for c in range(len(most)):
                used[c, max(kind[c, items[h, x]], 0)] = 0
    return taken
