"""Options of what a recommendation list may contain, and at which place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from talerec.cli.completion import complete_values
from talerec.cli.options import (
    AsOf,
    HideSeen,
    K,
    RequestContext,
    Titles,
    option,
    parse_boosts,
    parse_context,
    parse_ids,
    parse_limits,
    parse_slot_rules,
)

if TYPE_CHECKING:
    from talerec.models.core import RecommendOptions


@dataclass(frozen=True)
class ListOptions:
    """Options of a list: its length, titles in files, and the request's context."""

    k: K = 10
    titles: Titles = False
    context: RequestContext = field(default_factory=list)


@dataclass(frozen=True)
class PlaceRules:
    """Options of what a list has together: limits by column, and conditions by place."""

    per: Annotated[
        list[str],
        option(
            "--per",
            "COLUMN=N",
            "At most N items of a list share a value of this column of the item table; repeatable.",
        ),
    ] = field(default_factory=list)
    slot: Annotated[
        list[str],
        option(
            "--slot",
            "PLACE=CONDITION",
            "The item at this place meets the condition: \"3=campaign = 'spring'\"; repeatable.",
            parameter="slots",
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True)
class ItemRules:
    """Options of which items a recommendation list may contain, and of the request time."""

    hide_seen: HideSeen = False
    allow: Annotated[str | None, option("--allow", "IDS", "Recommend only these items.")] = None
    deny: Annotated[str | None, option("--deny", "IDS", "Never recommend these items.")] = None
    where: Annotated[
        str | None,
        option(
            "--where",
            "CONDITION",
            "Recommend only items whose row in the item table meets this condition:"
            " \"category = 'tents' and price < 100\" (= <> < in like between has is null and or"
            " not, brackets).",
        ),
    ] = None
    boost: Annotated[
        list[str],
        option(
            "--boost",
            "COLUMN=VALUE:NUMBER",
            "Raise or lower items with this value in the item table by a fraction of the list's"
            " score range: brand=X:0.2; repeatable.",
        ),
    ] = field(default_factory=list)
    unknown: Annotated[
        str,
        option(
            "--unknown",
            "error|skip",
            "Whether ids unknown to the model are an error or skipped.",
            complete=complete_values("error", "skip"),
        ),
    ] = "error"
    as_of: AsOf = None

    def build(
        self, k: int = 10, places: PlaceRules | None = None, context: list[str] | None = None
    ) -> RecommendOptions:
        """Return these options as the library takes them, for lists of `k` items.

        The fields of `self` and `places` are options as text: ids, conditions, limits by column,
        boosts, the request time. `context` are texts COLUMN=VALUE: the situation of the request.
        """
        from talerec.models.core import RecommendOptions

        places = places or PlaceRules()
        return RecommendOptions(
            k=k, hide_seen=self.hide_seen, allow=parse_ids(self.allow), deny=parse_ids(self.deny),
            where=self.where, per=parse_limits(places.per), boost=parse_boosts(self.boost),
            as_of=self.as_of, unknown=self.unknown, context=parse_context(context or []),
            slots=parse_slot_rules(places.slot),
        )  # fmt: skip
