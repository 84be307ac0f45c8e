"""What goes in and out as JSON. Decoding, checking and the OpenAPI document all read these classes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

Id = int | str
Moment = int | float | str
# gc=False: there are many of these, none can be part of a cycle, and the collector need not know them
Positive = Annotated[int, Meta(ge=1)]


class Row(Struct, forbid_unknown_fields=True, gc=False):
    """One row of a history. `timestamp`: unix seconds or ISO 8601; with every row, or with none."""

    item_id: Id
    timestamp: Moment | None = None


class Recommend(Struct, forbid_unknown_fields=True):
    """Ask for the next items after a history (oldest first, or in any order with timestamps).

    Ids that the model does not know are skipped. `recency` replaces the model's own for this question.
    `as_of` is the moment of asking (as a timestamp), for models that look at it; without it, the end of the log.
    """

    history: list[Row]
    k: Positive = 10
    hide_seen: bool = False
    recency: Annotated[float, Meta(gt=0)] | None = None
    allow: list[Id] | None = None
    deny: list[Id] | None = None
    as_of: Moment | None = None


class Batch(Struct, forbid_unknown_fields=True):
    """Several questions, answered by one and the same model."""

    requests: Annotated[list[Recommend], Meta(min_length=1)]


class Similar(Struct, forbid_unknown_fields=True):
    """Ask what the model expects right after one item."""

    item_id: Id
    k: Positive = 10


class Explain(Struct, forbid_unknown_fields=True):
    """Ask what each row of a history gives to the score of an item."""

    history: list[Row]
    item_id: Id
    recency: Annotated[float, Meta(gt=0)] | None = None
    as_of: Moment | None = None


class Because(Struct, gc=False):
    """A history row and its share of the score (shares of all rows add up to 1, but for a base score)."""

    item_id: Id
    share: float


class Item(Struct, omit_defaults=True):
    item_id: Id
    title: str | UnsetType = UNSET


class Ranked(Struct, gc=False):
    item_id: Id
    score: float
    rank: int
    title: str | UnsetType = UNSET
    because: list[Because] | UnsetType = UNSET


class Recommended(Struct):
    """`fallback` says what was answered instead, where no item of the history is known."""

    model: str
    items: list[Ranked]
    fallback: str | UnsetType = UNSET


class Answers(Struct):
    model: str
    answers: list[Recommended]


class Alike(Struct):
    model: str
    item_id: Id
    items: list[Ranked]
    title: str | UnsetType = UNSET


class Given(Struct):
    """A history row: its place from the end, what that place leaves of it, and what it gave to the score."""

    item_id: Id
    place: int
    weight: float | None
    contribution: float
    share: float
    title: str | UnsetType = UNSET


class Explained(Struct):
    """The rows' contributions and the model's base score, where it has one, add up to the score."""

    model: str
    item_id: Id
    score: float
    rows: list[Given]
    title: str | UnsetType = UNSET
    base: float | UnsetType = UNSET


class Found(Struct):
    model: str
    items: list[Item]


class Card(Struct):
    """The model card."""

    model: str
    name: str
    paper: str
    params: dict[str, Any]
    solver: str | None
    training: dict[str, Any]
    saved: str | None
    metrics: dict[str, float] | None
    recency: float | None
    limits: dict[str, float]


class Reloaded(Struct):
    model: str
    reloaded: bool
    workers: int


class Health(Struct):
    status: str
    model: str | None = None
