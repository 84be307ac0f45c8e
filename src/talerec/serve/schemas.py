"""The JSON of requests and responses. Decoding, checking and the OpenAPI document all use these classes."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from talerec.serve.errors import ApiError
from talerec.store.events import MAX_NAME

T = TypeVar("T")
Id = int | str
Moment = int | float | str
Positive = Annotated[int, Meta(ge=1)]
Condition = Annotated[str, Meta(min_length=1, max_length=2000)]
Boosts = dict[str, dict[str, Annotated[float, Meta(ge=-1000, le=1000)]]]
#: The value of a field that the JSON leaves out.
ABSENT: UnsetType = UNSET

# gc=False: an answer has many of these objects, and none can be part of a reference cycle


class HistoryRow(Struct, forbid_unknown_fields=True, gc=False):
    """One row of a history. Give `timestamp` (ISO 8601, or a number in s, ms, us or ns) for every row or for none."""

    item_id: Id
    timestamp: Moment | None = None


class NoHistory(list[HistoryRow]):
    """What stands for the history of a request that gives none."""


class RecommendRequest(Struct, forbid_unknown_fields=True):
    """Ask for the next items after a history (oldest first, or in any order with timestamps), or those of a user.

    Give `history` or `user_id`. A user's history is that of the log, and every event since.
    Ids that the model does not know are skipped. `recency` replaces the model's own value for this request.
    `as_of` is the time of the request (like a timestamp), for models that use it; the default is the end of the log.
    By the item table, `where` is a condition ("category = 'tents' and price < 100"), `per` how many items of a kind may come
    ({"category": 2}), and `boost` how many spreads of the list are added to the scores of items ({"brand": {"X": 0.2}}).
    """

    history: list[HistoryRow] = msgspec.field(default_factory=NoHistory)
    k: Positive = 10
    hide_seen: bool = False
    recency: Annotated[float, Meta(gt=0)] | None = None
    allow: list[Id] | None = None
    deny: list[Id] | None = None
    where: Condition | None = None
    as_of: Moment | None = None
    per: dict[str, Positive] | None = None
    boost: Boosts | None = None
    user_id: Id | None = None

    @property
    def is_of_nobody(self) -> bool:
        """Is it about a user of whom there is no row?"""
        return False


class UserRequest(RecommendRequest):
    """A request by user, once its rows are found: `history` is a `UserRows`, in positions of one model. No JSON is decoded into it."""

    history: Any = None

    @property
    def is_of_nobody(self) -> bool:
        return not len(self.history)


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Several requests, all answered by the same model."""

    requests: Annotated[list[RecommendRequest], Meta(min_length=1)]


class SimilarRequest(Struct, forbid_unknown_fields=True):
    """Ask which items the model expects right after one item."""

    item_id: Id
    k: Positive = 10


class ExplainRequest(Struct, forbid_unknown_fields=True):
    """Ask what each row of a history, or of a user, contributes to the score of an item, and what boosts add to it.

    Give `history` or `user_id`, as for recommendations. The other options are those of the list whose spread boosts are measured by.
    """

    item_id: Id
    history: list[HistoryRow] = msgspec.field(default_factory=NoHistory)
    recency: Annotated[float, Meta(gt=0)] | None = None
    as_of: Moment | None = None
    hide_seen: bool = False
    allow: list[Id] | None = None
    deny: list[Id] | None = None
    where: Condition | None = None
    boost: Boosts | None = None
    user_id: Id | None = None


class UserExplainRequest(ExplainRequest):
    """The same of a user, once its rows are found, as in `UserRequest`."""

    history: Any = None


class Reason(Struct, gc=False):
    """A history row and its share of the score. Without a base score, the shares of all rows add up to 1."""

    item_id: Id
    share: float


class Item(Struct, omit_defaults=True):
    """An item, its title, and what else the item table says of it (`info`), where it says something."""

    item_id: Id
    title: str | UnsetType = UNSET
    info: dict[str, Any] | UnsetType = UNSET


class RankedItem(Struct, gc=False):
    """An item of an answer; `because` names the history rows that contribute most to its score, `boost` is what boosts added to it."""

    item_id: Id
    score: float
    rank: int
    title: str | UnsetType = UNSET
    because: list[Reason] | UnsetType = UNSET
    boost: float | UnsetType = UNSET


class Recommendations(Struct):
    """The next items. `fallback` says what they are when the model knows no item of the history."""

    model: str
    items: list[RankedItem]
    fallback: str | UnsetType = UNSET


class BatchRecommendations(Struct):
    """The answers to a batch, in the order of its requests."""

    model: str
    answers: list[Recommendations]


class SimilarItems(Struct):
    """The items that the model expects right after `item_id`."""

    model: str
    item_id: Id
    items: list[RankedItem]
    title: str | UnsetType = UNSET


class Contribution(Struct):
    """What a history row contributes to a score. `place` counts rows from the end; `weight` is what recency leaves."""

    item_id: Id
    place: int
    weight: float | None
    contribution: float
    share: float
    title: str | UnsetType = UNSET


class AppliedBoost(Struct):
    """A boost that holds for an item: the column and value of the item table, and what it adds to the score."""

    column: str
    value: str
    contribution: float


class Explanation(Struct):
    """The contributions of all rows and boosts, and the base score, if the model has one, add up to the score."""

    model: str
    item_id: Id
    score: float
    rows: list[Contribution]
    title: str | UnsetType = UNSET
    base: float | UnsetType = UNSET
    boosts: list[AppliedBoost] | UnsetType = UNSET


class ItemList(Struct):
    """The items that a search found."""

    model: str
    items: list[Item]


class UserList(Struct):
    """The users that a search found."""

    model: str
    users: list[Id]


class TimedRow(Struct, gc=False):
    """A row of a user's history; `event` and `event_id` where it came with them."""

    item_id: Id
    timestamp: str
    event: str | UnsetType = UNSET
    event_id: str | UnsetType = UNSET


class UserHistory(Struct):
    """A user, and its rows, oldest first: those of the log and every event since, at most the last 2,500."""

    model: str
    user_id: Id
    history: list[TimedRow]


class NewEvent(Struct, forbid_unknown_fields=True, gc=False):
    """Something that a user did. Without `timestamp` it is now; an `event_id` makes it harmless to send it again."""

    user_id: Id
    item_id: Id
    timestamp: Moment | None = None
    event: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None
    event_id: Id | None = None


class EventsRequest(Struct, forbid_unknown_fields=True):
    """Events to keep: all of them or, where one is refused, none."""

    events: Annotated[list[NewEvent], Meta(min_length=1)]


class EventsAdded(Struct):
    """How many events were kept, and how many were known already. They are on disk."""

    accepted: int
    duplicates: int


class UserDeleted(Struct):
    """A user that is unknown from now on; `remains` says what a model still holds, and until when."""

    user_id: Id
    deleted: bool
    remains: str


class CandidateFacts(Struct):
    """The model that answers a share of users in place of the first."""

    model: str
    share: float


class Stats(Struct):
    """What the service knows of itself: the store, the events that came, what was learned from them, and how its models do on them.

    `measured` has, for the last hour and the last day, the figures of each model, and the candidate's difference with an interval.
    """

    model: str
    store: dict[str, Any] | None
    events: dict[str, float]
    learning: dict[str, Any] | None
    measured: dict[str, Any] | None
    candidate: CandidateFacts | None


class ModelCard(Struct):
    """What the model is, which data it was fitted on, and the limits of this service.

    `columns` are those of the item table, with their values if there are few, or their least and largest number. `beside` names models
    that answer too, with `?beside=NAME`.
    """

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
    columns: dict[str, Any]
    beside: list[str]


class ReloadResult(Struct):
    """The model in use after a reload, and how many workers serve it."""

    model: str
    reloaded: bool
    workers: int


class Health(Struct):
    """The answer of a probe."""

    status: str
    model: str | None = None


encode = msgspec.json.Encoder().encode
_DECODERS: dict[type, Any] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (RecommendRequest, BatchRequest, SimilarRequest, ExplainRequest, EventsRequest)
}


def decode(body: bytes | bytearray, kind: type[T]) -> T:
    """A request body as an object of class `kind`."""
    try:
        return _decoded(body, kind)
    except msgspec.ValidationError as error:
        message = _in_words(str(error))
        code = "invalid_event" if message.startswith("events[") else "invalid"
        raise ApiError(422, code, message) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "malformed_json", str(error)) from None
    except RecursionError:
        raise ApiError(400, "malformed_json", "the JSON is nested too deeply") from None


def _in_words(said: str) -> str:
    """What is wrong with a value, after its place: "events[3]: item_id is missing"."""
    text, _, place = said.partition(" - at `$")
    text = _MISSING.sub(r"\1 is missing", text)
    text = _UNKNOWN.sub(r"there is no field \1", text).replace("`", "")
    place = place.removesuffix("`").removeprefix(".")
    return f"{place}: {text[:1].lower()}{text[1:]}" if place else text


_MISSING = re.compile("Object missing required field `(.*)`")
_UNKNOWN = re.compile("Object contains unknown field `(.*)`")


def _decoded(body: bytes | bytearray, kind: type[T]) -> T:
    try:
        decoded: T = _DECODERS[kind].decode(body)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        return msgspec.convert(_with_whole_numbers(msgspec.json.decode(body)), kind)
    return decoded


def _with_whole_numbers(value: Any) -> Any:
    """28.0 as 28: JSON has one kind of number, and programs in some languages write whole ones so.

    Beyond 2^53 a float stands for several whole numbers, and stays what it is.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(one) for name, one in value.items()}
    return value
