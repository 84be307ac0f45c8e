"""Which items may come, and which before others: allow and deny lists, conditions on the item table, so many of a kind, boosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from talerec.data.histories import Histories
from talerec.errors import TalerecError
from talerec.models.core import boosts as boosting
from talerec.models.core import inference as asking
from talerec.models.core.boosts import Boost, Lists, Wishes
from talerec.models.core.inference import Asked, Ids
from talerec.ranking import rank
from talerec.runtime.arrays import Array
from talerec.runtime.jit import kernel
from talerec.runtime.threads import even

_MORE = 4  # times as many items are ranked as are wanted, where some may be left out
_LONGEST = 2000  # characters of a condition
_AT_ONCE = (
    2**22
)  # entries of lists that are longer than what is wanted: memory does not grow with the number of users


@dataclass(frozen=True, eq=False)
class Kinds:
    """At most `most` items of a kind in a list."""

    kind: Array  # of each item; -1 for an item of no kind, which may always come
    most: int


@dataclass(frozen=True, eq=False)
class Limits:
    """What may come: a flag per item (None: everything), how many of each kind, and what is boosted (None: nothing)."""

    allowed: Array | None = None
    kinds: tuple[Kinds, ...] = ()
    boost: Boost | None = None

    @property
    def is_plain(self) -> bool:
        """Is the list the first items that may come, as the model ranks them?"""
        return not self.kinds and self.boost is None


def limits(
    model: Asked,
    allow: Ids | None,
    deny: Ids | None,
    where: str | None,
    per: Mapping[str, int] | None,
    unknown: str,
    boost: Wishes | None = None,
) -> Limits:
    """What people say about the items that may come."""
    allowed = allowed_items(model, allow, deny, unknown)
    if where is not None:
        matching = matches(model, where)
        allowed = matching if allowed is None else allowed & matching
    kinds = tuple(kinds_of(model, *one) for one in (per or {}).items())
    return Limits(allowed, kinds, boost_of(model, boost) if boost else None)


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


def boost_of(model: Asked, boost: Wishes) -> Boost:
    """What each item is boosted by."""
    return boosting.boost_of(_table(model, "boost"), boost)


def boosts_of_target(
    model: Asked,
    history: Histories,
    target: int,
    boost: Wishes,
    allowed: Array | None,
    *,
    hide_seen: bool,
) -> list[tuple[str, Any, float]]:
    """The column and value of each boost that holds for an item, and what it adds to the item's score after one history.

    An item that the history gives no score is not boosted.
    """
    table = _table(model, "boost")
    boosting.check(table, boost)
    if not asking.places(model, history, np.array([target]))[0, 0]:
        return []
    size = min(boosting.SPREAD, len(model.fitted.items))
    _, scores, counts = asking.top(model, history, size, hide_seen=hide_seen, allowed=allowed)
    spread = float(boosting.spread_of(scores, counts)[0])
    found = boosting.parts(table, boost, target)
    return [(column, value, number * spread) for column, value, number in found]


def kinds_of(model: Asked, column: str, most: Any) -> Kinds:
    """The kind of each item by a column of the item table, at most so many of which come."""
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
    return Kinds(kind.fill_null(-1).to_numpy(), min(int(most), len(info)))


# -- so many of a kind, and boosts -----------------------------------------------------------------


def top(
    model: Asked, histories: Histories, k: int, chosen: Limits, *, hide_seen: bool = False
) -> tuple[Array, Array, Array]:
    """The first k of every history that may come, as `asking.top` gives them."""
    return top_and_spread(model, histories, k, chosen, hide_seen=hide_seen)[:3]


def top_and_spread(
    model: Asked, histories: Histories, k: int, chosen: Limits, *, hide_seen: bool = False
) -> tuple[Array, Array, Array, Array]:
    """The first k of every history that may come, and the spread of its list (0 where nothing is boosted).

    With so many of a kind, an item is left out where those before it have used up its kind; with boosts, an item far
    behind may come to the front: lists are asked for again, longer, until k items are certain or there are no more.
    """
    n, asked = len(model.fitted.items), len(histories)
    spread = np.zeros(asked)
    if chosen.is_plain:
        first = asking.top(model, histories, k, hide_seen=hide_seen, allowed=chosen.allowed)
        return (*first, spread)
    asking.check_k(model, k)
    items, scores = np.full((asked, k), -1, np.int32), np.full((asked, k), np.nan)
    counts, left, number = np.zeros(asked, np.int64), np.arange(asked), 0
    size = max(_MORE * k, 0 if chosen.boost is None else boosting.SPREAD)
    while left.size:
        size, again = min(size, n), []
        for a, b in even(left.size, max(1, _AT_ONCE // size)):
            rows = left[a:b]
            found = _lists(
                model, histories.take(rows), size, chosen, spread[rows], number, hide_seen
            )
            kept = _kept((found.items, found.scores, found.counts), chosen.kinds, k)
            items[rows], scores[rows], counts[rows], spread[rows] = *kept, found.spread
            again.append(rows[(kept[2] < k) & found.more])
        left, number = np.concatenate(again), number + 1
        size *= 1 if number == 1 and chosen.boost is not None else _MORE
    return items, scores, counts, spread


def answer(
    model: Asked, histories: Histories, k: int, chosen: Limits, *, hide_seen: bool, most: int
) -> tuple[rank.Answer, list[float] | None]:
    """The first k items of every history that may come, with reasons, and what boosts added to each (None: nothing)."""
    if chosen.is_plain:
        options: dict[str, Any] = {"hide_seen": hide_seen, "allowed": chosen.allowed}
        return asking.answer(model, histories, k, most=most, **options), None
    *first, spread = top_and_spread(model, histories, k, chosen, hide_seen=hide_seen)
    items, scores, counts = first
    found = asking.reasons(model, histories, (items, scores, counts), most)
    if chosen.boost is None:
        return found, None
    added: list[float] = (chosen.boost.amount[found.items] * np.repeat(spread, counts)).tolist()
    return found, added


def _lists(
    model: Asked,
    histories: Histories,
    size: int,
    chosen: Limits,
    spread: Array,
    number: int,
    hide_seen: bool,
) -> Lists:
    """Lists of up to `size` items (of each class where items are boosted), at the first or a later attempt."""
    options: dict[str, Any] = {"hide_seen": hide_seen, "allowed": chosen.allowed}
    if chosen.boost is None:
        items, scores, counts = asking.top(model, histories, size, **options)
        more = (counts == size) & (size < len(model.fitted.items))
        return Lists(items, scores, counts, more, spread)
    if number == 0:
        return boosting.first_lists(model, histories, size, chosen.boost, **options)
    return boosting.longer_lists(model, histories, size, chosen.boost, spread, **options)


def first_of(items: Array, scores: Array, k: int, chosen: Limits) -> tuple[Array, Array, Array]:
    """The first k that may come of one list in rank order: items, scores, and what boosts added to them."""
    if chosen.allowed is not None:
        kept = chosen.allowed[items] != 0
        items, scores = items[kept], scores[kept]
    added = np.zeros(len(items))
    if chosen.boost is not None and len(items):
        spread = boosting.spread_of(scores[None], np.array([len(items)]))[0]
        added = chosen.boost.amount[items] * spread
        order = np.argsort(-(scores + added), kind="stable")
        items, scores, added = items[order], (scores + added)[order], added[order]
    if chosen.kinds:
        found = (np.arange(len(items), dtype=np.int32)[None], scores[None], np.array([len(items)]))
        own = tuple(Kinds(one.kind[items], one.most) for one in chosen.kinds)
        places, _, counts = _kept(found, own, min(k, len(items)))
        kept = places[0, : counts[0]]
        items, scores, added = items[kept], scores[kept], added[kept]
    return items[:k], scores[:k], added[:k]


def _kept(
    found: tuple[Array, Array, Array], kinds: tuple[Kinds, ...], k: int
) -> tuple[Array, Array, Array]:
    """The first k items of each list of which no kind is used up by those before them."""
    lists, scores, counts = found
    if not kinds:
        return lists[:, :k], scores[:, :k], np.minimum(counts, k)
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
