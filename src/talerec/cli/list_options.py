"""Options of one recommendation list: its length, limits, and the request's context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from talerec.cli.options import K, RequestContext, option

Per = Annotated[
    list[str],
    option(
        "--per",
        "COLUMN=N",
        "At most N items of a list share a value of this column of the item table; repeatable.",
    ),
]


@dataclass(frozen=True)
class ListOptions:
    """Options of a list: its length, limits per value of a column, and the request's context."""

    k: K = 10
    per: Per = field(default_factory=list)
    context: RequestContext = field(default_factory=list)
