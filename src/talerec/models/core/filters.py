"""Filters of recommendation lists: a caller's options, and their form for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from talerec.data import Context, TimeLike, time_to_microseconds
from talerec.errors import TalerecError
from talerec.models.core.boosts import BoostSpec, ItemBoosts, build_boosts
from talerec.models.core.persistence import Fitted
from talerec.runtime import Array

if TYPE_CHECKING:
    from talerec.models.core.slots import Slot, SlotSpec

Ids = Sequence[Any] | pl.Series


class HasFit(Protocol):
    """A fitted model, as far as filters need it: its items and its item table."""

    @property
    def fitted(self) -> Fitted: ...


@dataclass(frozen=True, eq=False)
class RecommendOptions:
    """A caller's options for recommendation lists, in external ids and item-table columns.

    Every entrance (Python methods, command, HTTP, Spark) builds one and passes it on whole.

    Parameters
    ----------
    k : int
        Length of each list; lists are shorter only where filters or missing scores leave fewer.
    hide_seen : bool
        Leave out the items of the history.
    allow, deny : ids, optional
        The only items that may be recommended, and items that may not.
    where : str, optional
        Condition on the item table that recommended items meet: ``"price < 100"``.
    per : dict, optional
        Largest number of items of a list with the same value of a column: ``{"category": 2}``.
    boost : dict, optional
        Fractions of the list's score range to add by column and value: ``{"brand": {"X": 0.2}}``.
    as_of : Moment, optional
        Request time, before which rows are history; None: the end of the training log.
    unknown : {"error", "skip"}
        Whether unknown ids are an error or are ignored.
    context : dict, or one per request, optional
        Values of context columns, for a model that uses them: ``{"device": "phone"}``.
    slots : dict, optional
        Conditions by place that the item there meets: ``{3: {"where": "campaign = 'spring'"}}``.
    """

    k: int = 10
    hide_seen: bool = False
    allow: Ids | None = None
    deny: Ids | None = None
    where: str | None = None
    per: Mapping[str, int] | None = None
    boost: BoostSpec | None = None
    as_of: TimeLike | None = None
    unknown: str = "error"
    context: Context | Sequence[Context] | None = None
    slots: SlotSpec | None = None

    @cached_property
    def has_item_rules(self) -> bool:
        """Whether any option names, filters, limits or boosts items."""
        rules = (self.allow, self.deny, self.where, self.per, self.boost, self.slots)
        return any(rule is not None for rule in rules)

    def request_time(self, unit: str) -> int | None:
        """Return `as_of` in microseconds; small numbers count in `unit`, the log's time unit."""
        return None if self.as_of is None else time_to_microseconds(self.as_of, unit)

    def build_filter(self, model: HasFit) -> ItemFilter:
        """Return these options as item flags, column limits and boosts in one model's positions.

        An item's position is its row in the model's item table and its column of the weights.
        """
        allowed = allowed_items(model, self.allow, self.deny, self.unknown)
        if self.where is not None:
            allowed = both(allowed, matching_items(model, self.where))
        limits = tuple(limit_column(model, *limit) for limit in (self.per or {}).items())
        boosts = build_boosts(item_table(model, "boost"), self.boost) if self.boost else None
        slots = self._build_slots(model) if self.slots else ()
        return ItemFilter(self.hide_seen, allowed, limits, boosts, slots)

    def _build_slots(self, model: HasFit) -> tuple[Slot, ...]:
        """Return the places of the list that only some items may take, as flags per item."""
        from talerec.models.core.slots import Slot, parse_slots  # most lists have none

        pairs = parse_slots(self.slots or {}, self.k)
        return tuple(Slot(place, matching_items(model, where)) for place, where in pairs)


@dataclass(frozen=True, eq=False)
class ColumnLimit:
    """At most `limit` items of a list share a value of one column of the item table.

    `codes` has a number for the value of each item, by position; -1 (no value) is never limited.
    """

    codes: Array
    limit: int


@dataclass(frozen=True, eq=False)
class ItemFilter:
    """`RecommendOptions` in item positions of one fitted model.

    hide_seen  whether the items of a history are left out of its list
    allowed    uint8, 1 for each item that may be recommended; None: all of them
    limits     limits on items that share a column's value
    boosts     fractions of the score range added to items; None: no boosts
    slots      places of a list that some items alone may take
    """

    hide_seen: bool = False
    allowed: Array | None = None
    limits: tuple[ColumnLimit, ...] = ()
    boosts: ItemBoosts | None = None
    slots: tuple[Slot, ...] = ()

    @property
    def keeps_order(self) -> bool:
        """Whether lists are the model's top k of the allowed items, without any other rule."""
        return not self.limits and self.boosts is None and not self.slots


def both(flags: Array | None, others: Array) -> Array:
    """Return flags of the items that both arrays (uint8 per item) allow; None allows all."""
    return others if flags is None else flags & others


def allowed_items(model: HasFit, allow: Ids | None, deny: Ids | None, unknown: str) -> Array | None:
    """Return allow and deny lists of ids as one flag (uint8) per item; None without lists.

    An id in both lists is denied. `unknown`: "error" or "skip" for ids that the model lacks.
    """
    if allow is None and deny is None:
        return None
    items = model.fitted.items
    allowed = np.full(len(items), allow is None, np.uint8)
    for ids, flag in ((allow, 1), (deny, 0)):
        if ids is not None:
            positions = items.positions(ids, "item", unknown)
            allowed[positions[positions >= 0]] = flag
    return allowed


def item_table(model: HasFit, parameter: str) -> pl.DataFrame:
    """Return a model's item table, a row per item; TalerecError if it was fitted without one.

    parameter: the option that needs the table, for the message.
    """
    if model.fitted.info is None:
        message = f"`{parameter}` needs an item table: fit the model with `items`"
        raise TalerecError(message, parameter, "items")
    return model.fitted.info


def matching_items(model: HasFit, where: str) -> Array:
    """Return a flag (uint8) per item: whether its row of the item table meets a condition.

    where: a condition such as "price < 100" (`conditions`). TalerecError if it is not valid, or if
    the model has no item table.
    """
    from talerec.models.core.conditions import match_rows  # most lists have no condition

    return match_rows(item_table(model, "where"), where)


def limit_column(model: HasFit, column: str, limit: Any) -> ColumnLimit:
    """Return the limit "at most `limit` items of a list per value of this column".

    column: of the model's item table; its values are numbered, null becomes -1 (not limited).
    TalerecError if the table lacks the column, or `limit` is not a whole number from 1.
    """
    info = item_table(model, "per")
    if column not in info.columns:
        missing = f"the item table has no column {column!r}; it has {', '.join(info.columns)}"
        raise TalerecError(f"`per`: {missing}", "per")
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1:
        raise TalerecError(f"`per`: {column} is {limit!r}; it takes a whole number from 1", "per")
    values = info[column]
    codes = (values if values.dtype == pl.Boolean else values.rank("dense")).cast(pl.Int64)
    return ColumnLimit(codes.fill_null(-1).to_numpy(), min(int(limit), len(info)))
