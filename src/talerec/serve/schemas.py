"""The JSON of requests and responses, for decoding, checks and the OpenAPI document."""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from talerec.serve.errors import ApiError
from talerec.store import MAX_NAME

T = TypeVar("T")
Id = int | str
Moment = int | float | str
Positive = Annotated[int, Meta(ge=1)]
Condition = Annotated[str, Meta(min_length=1, max_length=2000)]
Boosts = dict[str, dict[str, Annotated[float, Meta(ge=-1000, le=1000)]]]
#: The value of a field that the JSON omits, and its type.
ABSENT: UnsetType = UNSET
Absent = UnsetType

# gc=False: an answer has many of these objects, and none can be part of a reference cycle


class HistoryRow(Struct, forbid_unknown_fields=True, gc=False):
    """One row of a history.

    Give `timestamp` (ISO 8601, or a number in s, ms, us or ns) for every row or for none.
    """

    item_id: Id
    timestamp: Moment | None = None


class NoHistory(list[HistoryRow]):
    """The history of a request that has none."""


class HistoryRequest(Struct, forbid_unknown_fields=True):
    """The options of all requests for a history or a user; RecommendRequest explains them."""

    history: list[HistoryRow] = msgspec.field(default_factory=NoHistory)
    hide_seen: bool = False
    recency: Annotated[float, Meta(gt=0)] | None = None
    allow: list[Id] | None = None
    deny: list[Id] | None = None
    where: Condition | None = None
    as_of: Moment | None = None
    boost: Boosts | None = None
    user_id: Id | None = None


class RecommendRequest(HistoryRequest):
    """A request for the next items after a history, or for a user.

    Give either `history` (oldest first, or in any order with timestamps) or `user_id`. A user's
    history consists of the user's rows in the log and all later events. Unknown ids are ignored.
    `recency` replaces the model's value for this request. `as_of` is the time of the request (like
    a timestamp): only rows before it are history, and models such as tempo know how long ago they
    were; the default is the end of the log. The following refer to the item table: `where` is a
    condition ("category = 'tents' and price < 100"); `per` limits how many items share a value
    ({"category": 2}); `boost` raises or lowers scores by a fraction of the list's score range
    ({"brand": {"X": 0.2}}).
    """

    k: Positive = 10
    per: dict[str, Positive] | None = None


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Several requests, all answered by the same model."""

    requests: Annotated[list[RecommendRequest], Meta(min_length=1)]


class SimilarRequest(Struct, forbid_unknown_fields=True):
    """A request for the items that the model expects right after one item."""

    item_id: Id
    k: Positive = 10


class ExplainRequest(HistoryRequest, kw_only=True):
    """A request to explain an item's score: the contribution of each history row and boost.

    Give either `history` or `user_id`, as for recommendations. The other options are those of the
    list whose score range the boosts refer to.
    """

    item_id: Id


class Reason(Struct, gc=False):
    """A history row and its share of the score; without a base score, all shares add up to 1."""

    item_id: Id
    share: float


class Item(Struct, omit_defaults=True):
    """An item, its title, and the other columns of the item table (`info`)."""

    item_id: Id
    title: str | UnsetType = UNSET
    info: dict[str, Any] | UnsetType = UNSET


class RankedItem(Struct, gc=False):
    """An item of an answer.

    `because` names the history rows that contribute most to its score; `boost` is what boosts add.
    """

    item_id: Id
    score: float
    rank: int
    title: str | UnsetType = UNSET
    because: list[Reason] | UnsetType = UNSET
    boost: float | UnsetType = UNSET


class Recommendations(Struct):
    """The next items. `fallback` names their source if the model knows no history item."""

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
    """The contribution of a history row to a score.

    `place` counts rows from the end; `weight` is the row's weight by recency.
    """

    item_id: Id
    place: int
    weight: float | None
    contribution: float
    share: float
    title: str | UnsetType = UNSET


class AppliedBoost(Struct):
    """A boost that applies to an item: its column and value, and what it adds to the score."""

    column: str
    value: str
    contribution: float


class Explanation(Struct):
    """An item's score as the sum of the contributions of rows and boosts and the base score."""

    model: str
    item_id: Id
    score: float
    rows: list[Contribution]
    title: str | UnsetType = UNSET
    base: float | UnsetType = UNSET
    boosts: list[AppliedBoost] | UnsetType = UNSET


class ItemList(Struct):
    """The items that match a search."""

    model: str
    items: list[Item]


class UserList(Struct):
    """The users that match a search."""

    model: str
    users: list[Id]


class TimedRow(Struct, gc=False):
    """A row of a user's history; `event` and `event_id` are those of a stored event."""

    item_id: Id
    timestamp: str
    event: str | UnsetType = UNSET
    event_id: str | UnsetType = UNSET


class UserHistory(Struct):
    """A user's rows of the log and all later events, oldest first; at most the last 2,500."""

    model: str
    user_id: Id
    history: list[TimedRow]


class NewEvent(Struct, forbid_unknown_fields=True, gc=False):
    """An interaction of a user with an item.

    The default `timestamp` is now. An event with an `event_id` can be sent twice without harm.
    """

    user_id: Id
    item_id: Id
    timestamp: Moment | None = None
    event: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None
    event_id: Id | None = None


class EventsRequest(Struct, forbid_unknown_fields=True):
    """Events to store: all of them or, if one is refused, none."""

    events: Annotated[list[NewEvent], Meta(min_length=1)]


class EventsAdded(Struct):
    """How many events were stored, and how many had been stored before. They are on disk."""

    accepted: int
    duplicates: int


class UserDeleted(Struct):
    """A deleted user; `remains` says what a model still contains, and until when."""

    user_id: Id
    deleted: bool
    remains: str


class CandidateFacts(Struct):
    """The model that answers a share of the users instead of the main model."""

    model: str
    share: float


class Stats(Struct):
    """Statistics of the service: store, arriving events, learning, and online evaluation.

    `measured` has the metrics of each model for the last hour and the last day, and the candidate's
    difference with an interval.
    """

    model: str
    store: dict[str, Any] | None
    events: dict[str, float]
    learning: dict[str, Any] | None
    measured: dict[str, Any] | None
    candidate: CandidateFacts | None


class ModelCard(Struct):
    """The model, its training data, and the limits of this service.

    `columns` are those of the item table, with their values if there are few, or their minimum and
    maximum. `beside` names further models, which answer with `?beside=NAME`.
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
    """The answer to a health probe."""

    status: str
    model: str | None = None


encode = msgspec.json.Encoder().encode
_DECODERS: dict[type, Any] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (RecommendRequest, BatchRequest, SimilarRequest, ExplainRequest, EventsRequest)
}


def decode(body: bytes | bytearray, kind: type[T]) -> T:
    """Return a JSON request body as an object of class `kind`.

    Raises ApiError: 400 if it is not JSON, 422 if a field is missing, unknown or invalid.
    """
    try:
        return _decode(body, kind)
    except msgspec.ValidationError as error:
        path, message, _ = parse_violation(error)
        code = "invalid_event" if path.startswith("events[") else "invalid"
        raise ApiError(422, code, f"{path}: {message}" if path else message) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "malformed_json", str(error)) from None
    except RecursionError:
        raise ApiError(400, "malformed_json", "the JSON is nested too deeply") from None


def _decode(body: bytes | bytearray, kind: type[T]) -> T:
    """Return a JSON body as an object of class `kind`; raise msgspec's error if it is invalid.

    Where the class needs integers, whole numbers written as floats (28.0) are accepted.
    """
    try:
        decoded: T = _DECODERS[kind].decode(body)
    except msgspec.ValidationError as error:
        if not parse_violation(error).has_float:
            raise
        return msgspec.convert(_convert_whole_floats(msgspec.json.decode(body)), kind)
    return decoded


class Violation(NamedTuple):
    """A msgspec error: the JSON path, the problem, and whether the value is a float."""

    path: str
    message: str
    has_float: bool


def parse_violation(error: msgspec.ValidationError) -> Violation:
    """Return the path and problem of a msgspec error, which msgspec provides only as text.

    The problem is reworded for clients, such as "k is missing".
    """
    text, _, path = str(error).partition(" - at `$")
    has_float = "got `float`" in text
    text = re.sub("Object missing required field `(.*)`", r"\1 is missing", text)
    text = re.sub("Object contains unknown field `(.*)`", r"there is no field \1", text)
    text, path = text.replace("`", ""), path.removesuffix("`").removeprefix(".")
    return Violation(path, f"{text[:1].lower()}{text[1:]}" if path else text, has_float)


def _convert_whole_floats(value: Any) -> Any:
    """Return JSON with 28.0 as 28: some languages write whole numbers as floats.

    Beyond 2^53, a float stands for several whole numbers and is not converted.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, list):
        return [_convert_whole_floats(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _convert_whole_floats(entry) for name, entry in value.items()}
    return value
