"""The JSON of requests and responses, for decoding, checks and the OpenAPI document."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from talerec.models.core import MAX_CONDITION
from talerec.serve.decoding import NO_FIELD, convert_whole_floats, parse_validation_error
from talerec.serve.errors import ApiError
from talerec.store import MAX_NAME

T = TypeVar("T")
Id = int | str
ItemFields = dict[str, Any]  # values of an item by column; null empties a column
Moment = int | float | str
Positive = Annotated[int, Meta(ge=1)]
Condition = Annotated[str, Meta(min_length=1, max_length=MAX_CONDITION)]
Boosts = dict[str, dict[str, Annotated[float, Meta(ge=-1000, le=1000)]]]
#: The value of a field that the JSON omits, and its type.
ABSENT: UnsetType = UNSET
Absent = UnsetType

# gc=False: a response has many of these objects, and none can be part of a reference cycle


class HistoryRow(Struct, forbid_unknown_fields=True, gc=False):
    """One row of a history.

    Give `timestamp` (ISO 8601, or a number in s, ms, us or ns) for every row or for none.
    """

    item_id: Id  # whole number or text
    timestamp: Moment | None = None  # None: rows are in order, oldest first


class NoHistory(list[HistoryRow]):
    """The history of a request that has none."""


ContextValues = Annotated[dict[str, str | float | bool | None], Meta(max_length=20)]


class HistoryRequest(Struct, forbid_unknown_fields=True):
    """The options of all requests for a history or a user; RecommendRequest explains them."""

    history: list[HistoryRow] = msgspec.field(default_factory=NoHistory)  # or `user_id`
    hide_seen: bool = False  # leave out items of the history
    recency: Annotated[float, Meta(gt=0)] | None = None  # replaces the model's recency decay
    allow: list[Id] | None = None  # only these items
    deny: list[Id] | None = None  # none of these items
    where: Condition | None = None  # only items that meet this condition on the item table
    as_of: Moment | None = None  # the time of the request; None: the end of the log
    boost: Boosts | None = None  # by column and value: a fraction of the list's score range
    user_id: Id | None = None  # the user whose stored history is used
    context: ContextValues | None = None  # by context column: {"device": "phone"}


class SlotRule(Struct, forbid_unknown_fields=True, gc=False):
    """The rule for one place of a list."""

    where: Condition  # on the item table


class RecommendRequest(HistoryRequest):
    """A request for the next items after a history, or for a user.

    Give either `history` (oldest first, or in any order with timestamps) or `user_id`. A user's
    history consists of the user's rows in the log and all later events. Unknown ids are ignored.
    `recency` replaces the model's value for this request. `as_of` is the time of the request (like
    a timestamp): only rows before it are history, and models such as tempo know how long ago they
    were; the default is the end of the log. The following refer to the item table: `where` is a
    condition ("category = 'tents' and price < 100"); `per` limits how many items share a value
    ({"category": 2}); `boost` raises or lowers scores by a fraction of the list's score range
    ({"brand": {"X": 0.2}}); `slots` has conditions by place, from 1 to k
    ({"3": {"where": "campaign = 'spring'"}}). `context` says the situation of the request, by
    column, to a ranker that was fitted with context columns ({"device": "phone"}).
    """

    k: Positive = 10  # the number of items
    per: dict[str, Positive] | None = None  # by column: the most items with an equal value
    slots: dict[str, SlotRule] | None = None  # by place: which items may stand there
    impression: bool = True  # whether somebody sees the list, so that it may be kept and counted


class BatchRequest(Struct, forbid_unknown_fields=True):
    """Several requests, all answered by the same model."""

    requests: Annotated[list[RecommendRequest], Meta(min_length=1)]


class SimilarRequest(Struct, forbid_unknown_fields=True):
    """A request for the items that the model expects right after one item."""

    item_id: Id
    k: Positive = 10  # the number of items


class ExplainRequest(HistoryRequest, kw_only=True):
    """A request to explain an item's score: the contribution of each history row and boost.

    Give either `history` or `user_id`, as for recommendations. The other options are those of the
    list whose score range the boosts refer to.
    """

    item_id: Id


class Reason(Struct, gc=False):
    """A history row and its share of the score; without a base score, all shares add up to 1."""

    item_id: Id  # the item of the history row
    share: float  # the part of the score (of the families' absolute sum) that the row contributes


class ReasonFamily(Struct, gc=False):
    """The contribution of a family of features to a score, for models with such families.

    The contributions of an item's families add up to its score, without boosts.
    """

    family: str  # such as "repeats"
    reason: str  # in words, such as "the user has it at this hour"
    contribution: float  # in units of the score
    share: float  # of the sum of the families' absolute contributions


class Item(Struct, omit_defaults=True):
    """An item, its title, and the other columns of the item table (`info`)."""

    item_id: Id
    title: str | UnsetType = UNSET  # UNSET: the field is omitted from the JSON
    info: dict[str, Any] | UnsetType = UNSET  # values by column


class RankedItem(Struct, gc=False):
    """An item of a response.

    `because` names the history rows that contribute most to its score; `boost` is what boosts add;
    `families` is what families of features add, for a model that ranks by them.
    """

    item_id: Id
    score: float
    rank: int  # from 1
    title: str | UnsetType = UNSET  # UNSET fields are omitted from the JSON
    because: list[Reason] | UnsetType = UNSET
    boost: float | UnsetType = UNSET  # in units of the score
    families: list[ReasonFamily] | UnsetType = UNSET
    explored: bool | UnsetType = UNSET  # true: an item with few impressions, put here by chance
    probability: float | UnsetType = UNSET  # of this item at this rank, where chance had a part
    slot: bool | UnsetType = UNSET  # true: it stands at the place of a slot, whose rule it meets


class Recommendations(Struct):
    """The next items. `fallback` names their source if the model knows no history item."""

    model: str  # the version of the model
    items: list[RankedItem]  # best first
    fallback: str | UnsetType = UNSET  # "trending"; omitted if the model ranked the items
    recommendation_id: str | UnsetType = UNSET  # for events on these items; omitted in batches
    empty_slots: list[int] | UnsetType = UNSET  # places of slots for which no item was left
    #: the name of a named list; omitted in personal ones
    list_name: str | UnsetType = msgspec.field(default=UNSET, name="list")


class BatchRecommendations(Struct):
    """The responses to a batch, in the order of its requests."""

    model: str  # the version of the model
    answers: list[Recommendations]


class SimilarItems(Struct):
    """The items that the model expects right after `item_id`."""

    model: str  # the version of the model
    item_id: Id  # the item of the request
    items: list[RankedItem]  # best first
    title: str | UnsetType = UNSET  # of the item of the request; omitted without one


class Contribution(Struct):
    """The contribution of a history row to a score.

    `place` counts rows from the end; `weight` is the row's weight by recency.
    """

    item_id: Id
    place: int  # 0 for the latest row
    weight: float | None  # None for a model without such weights
    contribution: float  # in units of the score
    share: float  # the contribution divided by the score, or by the families' absolute sum
    title: str | UnsetType = UNSET


class AppliedBoost(Struct):
    """A boost that applies to an item, and what it adds to the item's score."""

    column: str  # of the item table
    value: str  # of the item in that column
    contribution: float  # in units of the score


class Explanation(Struct):
    """An item's score as the sum of the contributions of rows and boosts and the base score."""

    model: str  # the version of the model
    item_id: Id
    score: float
    rows: list[Contribution]
    title: str | UnsetType = UNSET
    base: float | UnsetType = UNSET  # what no history row contributes; omitted without a base
    boosts: list[AppliedBoost] | UnsetType = UNSET
    families: list[ReasonFamily] | UnsetType = UNSET  # the same score as a sum over families


class ItemList(Struct):
    """The items that match a search."""

    model: str  # the version of the model
    items: list[Item]


class UserList(Struct):
    """The users that match a search."""

    model: str  # the version of the model
    users: list[Id]


class TimedRow(Struct, gc=False):
    """A row of a user's history; `event` and `event_id` are those of a stored event."""

    item_id: Id
    timestamp: str  # ISO 8601
    event: str | UnsetType = UNSET  # the name of the event, such as "view"
    event_id: str | UnsetType = UNSET  # chosen by the client that sent the event


class UserHistory(Struct):
    """A user's rows of the log and all later events, oldest first; at most the last 2,500."""

    model: str  # the version of the model
    user_id: Id
    history: list[TimedRow]


class NewEvent(Struct, forbid_unknown_fields=True, gc=False):
    """An interaction of a user with an item.

    The default `timestamp` is now. An event with an `event_id` can be sent twice without harm.
    """

    user_id: Id
    item_id: Id
    timestamp: Moment | None = None
    event: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None  # its name
    event_id: Id | None = None  # chosen by the client, unique among all events
    recommendation_id: str | None = None  # of the response that showed the item


class EventsRequest(Struct, forbid_unknown_fields=True):
    """Events to store: all of them or, if one is refused, none."""

    events: Annotated[list[NewEvent], Meta(min_length=1)]


class EventsAdded(Struct):
    """The numbers of events stored now, and of events stored before; all are on disk."""

    accepted: int  # stored by this request
    duplicates: int  # stored before under the same event_id
    deleted: int | Absent = ABSENT  # ignored: not later than the deletion of their user
    unknown_recommendations: int | Absent = ABSENT  # events with an id that no response had


class UserDeleted(Struct):
    """A deleted user; `remains` says what a model still contains, and until when."""

    user_id: Id
    deleted: bool  # always true
    remains: str  # a sentence


class CandidateFacts(Struct):
    """The model that answers a share of the users instead of the main model."""

    model: str  # the version of the model
    share: float  # of users, 0 to 1


class Stats(Struct):
    """Statistics of the service: store, arriving events, learning, and online evaluation.

    `measured` has the metrics of each model for the last hour and the last day, and the candidate's
    difference with an interval.
    """

    model: str  # the version of the main model
    store: dict[str, Any] | None  # the event database; None without one
    events: dict[str, float]  # counts of arrived events
    learning: dict[str, Any] | None  # fits in the background; None if they are off
    measured: dict[str, Any] | None  # None without online evaluation
    candidate: CandidateFacts | None  # None if one model answers all users
    impressions: dict[str, Any] | None = None  # what was shown and clicked; None if not kept


class ModelCard(Struct):
    """The model, its training data, and the limits of this service.

    `columns` are those of the item table, with their values if there are few, or their minimum and
    maximum. `beside` names further models, which answer with `?beside=NAME`.
    """

    model: str  # the version of the model
    name: str  # of the model class, such as "tempo"
    paper: str  # the publication of the model
    params: dict[str, Any]  # parameters of the fit
    solver: str | None  # of the linear system; None for a model without one
    training: dict[str, Any]  # size and time span of the log
    saved: str | None  # when, in ISO 8601
    metrics: dict[str, float] | None  # of an evaluation that was saved with the model
    recency: float | None  # the decay of the weights of history rows; None: no such parameter
    limits: dict[str, float]  # of requests, by setting
    columns: dict[str, Any]
    beside: list[str]


class ReloadResult(Struct):
    """The model in use after a reload, and how many worker processes serve it."""

    model: str  # the version of the model
    reloaded: bool  # whether it replaced another model
    workers: int  # processes that serve this version


class Health(Struct):
    """The response to a health probe."""

    status: str  # "ok"
    model: str | None = None  # the version of the model; None while none is loaded


encode = msgspec.json.Encoder().encode
_find_decoder: Any = cache(msgspec.json.Decoder)  # by the class of a request


def decode(body: bytes | bytearray, kind: type[T]) -> T:
    """Return a JSON request body as an object of class `kind`, one of the request classes.

    Raises ApiError: 400 if it is not JSON, 422 if a field is missing, unknown or invalid; the
    message names the JSON path of the field.
    """
    try:
        return _decode_or_raise(body, kind)
    except msgspec.ValidationError as error:
        path, message, _ = parse_validation_error(error)
        if not path and message.startswith(NO_FIELD):
            names = getattr(kind, "__struct_encode_fields__", ())
            message += f"; the fields are {', '.join(names)}"
        code = "invalid_event" if path.startswith("events[") else "invalid"
        raise ApiError(422, code, f"{path}: {message}" if path else message) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, "malformed_json", str(error)) from None
    except RecursionError:
        raise ApiError(400, "malformed_json", "the JSON is nested too deeply") from None


def _decode_or_raise(body: bytes | bytearray, kind: type[T]) -> T:
    """Return a JSON body as an object of class `kind`; raise msgspec's error if it is invalid.

    Where the class needs integers, whole numbers written as floats (28.0) are accepted: if an error
    reports a float, the body is decoded once more with such numbers converted.
    """
    try:
        decoded: T = _find_decoder(kind).decode(body)
    except msgspec.ValidationError as error:
        if not parse_validation_error(error).has_float:
            raise
        return msgspec.convert(convert_whole_floats(msgspec.json.decode(body)), kind)
    return decoded
