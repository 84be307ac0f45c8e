"""The OpenAPI document, generated from the classes that decode requests.

For clients that may read, its examples use items of the current model. Its limits are those of the
service.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec

from talerec import __version__
from talerec.models.core import MAX_SLOTS
from talerec.serve import ErrorBody, Settings, is_loopback, schemas
from talerec.serve.http import item_schemas
from talerec.serve.http.audience_schemas import AudienceRequest, ItemAudience
from talerec.serve.model import MAX_TIMESTAMP, ServedModel
from talerec.serve.users import find_id_kinds
from talerec.store import MAX_ID, RECOMMENDATION_ID, IdKinds

Json = dict[str, Any]

_ABOUT = "Recommends the next items after a history of items. Every response names its model."
_REF = "#/components/schemas/{name}"
_STATUS_TEXT = {
    400: "The body or the query string is malformed.",
    401: "The token is missing or wrong.",
    403: "The token may only read, or the service was started without a token, which this request"
    " needs.",
    404: "The item or the user is unknown, or the model has no histories.",
    408: "The body did not arrive in time.",
    409: "The new artifact was refused, an `event_id` exists with other contents, there are too"
    " many items, or the service has no store.",
    413: "The body is too large.",
    415: "The body is not JSON, or not lines of JSON.",
    421: "The Host header does not name this service.",
    422: "A value is not allowed; the message names it.",
    429: "This client has too many requests in progress.",
    503: "No model is loaded yet, too many requests are in progress, the response takes too long,"
    " or the store fails.",
}
_LINES_TEXT = "One JSON object a line: item_id, and fields as for a single item (ItemFields)."
_BODY_ERRORS = (400, 408, 413, 415, 422, 503)
_NULL = {"type": "null"}
_TIME = {
    "anyOf": [
        {"type": "number", "minimum": -MAX_TIMESTAMP, "maximum": MAX_TIMESTAMP},
        {"type": "string", "format": "date-time"},
    ],
    "description": "ISO 8601 (UTC unless it names a time zone), or a number since 1970. From 10^8"
    " on, its size decides between s, ms, us and ns; a smaller number has the unit of the log.",
}
_AS_OF = {
    "anyOf": [*_TIME["anyOf"], _NULL],
    "description": "The time of the request: rows before it are history; null: the log's end.",
}
_VISIBLE_CHARACTER = r"^[^\u0000]*[^\u0000-\u0020\u0085\s][^\u0000]*$"
#: An id that a store accepts: not empty, not only blanks, no zero character.
_STORED_ID = {
    "anyOf": [
        {"type": "integer"},
        {"type": "string", "minLength": 1, "maxLength": MAX_ID, "pattern": _VISIBLE_CHARACTER},
    ],
    "description": f"A whole number, or text of at most {MAX_ID} characters.",
}
_INTEGER_ID = {
    "anyOf": [
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        {"type": "string", "pattern": "^(0|-?[1-9][0-9]{0,17})$"},
    ],
    "description": "A whole number, also as text: the ids of this service are whole numbers.",
}
_IDS = {"type": "array", "items": {"type": "string"}, "maxItems": 100}
_CLASSES = (
    schemas.RecommendRequest, schemas.Recommendations, schemas.BatchRequest,
    schemas.BatchRecommendations, schemas.SimilarRequest, schemas.SimilarItems,
    schemas.ExplainRequest, schemas.Explanation, schemas.ItemList, schemas.UserList,
    schemas.UserHistory, schemas.ModelCard, schemas.ReloadResult, schemas.Health,
    schemas.EventsRequest, schemas.EventsAdded, schemas.UserDeleted, schemas.Stats, ErrorBody,
    item_schemas.CatalogueItem, item_schemas.ItemsStored, item_schemas.ItemDeleted, AudienceRequest,
    ItemAudience,
)  # fmt: skip


def build_document(settings: Settings, model: ServedModel | None) -> Json:
    """Return the OpenAPI document of this service, as a dict, with its own limits.

    `model` provides the items of the examples and the columns of the item table that requests may
    name; None while none is loaded, and for clients without a token.
    """
    _, components = msgspec.json.schema_components(_CLASSES, ref_template=_REF)
    _write_limits(components, settings, model)
    fields = None if model is None else model.item_fields
    components["ItemFields"] = item_schemas.build_fields_schema(fields, _TIME)
    components["ItemLines"] = {"type": "string", "description": _LINES_TEXT}
    info = {"title": "talerec", "version": __version__, "description": _ABOUT}
    parts: Json = {"schemas": components}
    if settings.needs_token:
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    paths = _build_paths(settings, model)
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": parts}


# -- schemas ---------------------------------------------------------------------------------------


def _write_limits(components: Json, settings: Settings, model: ServedModel | None) -> None:
    """Write the service's limits and the item table's columns into request schemas, in place.

    `components` maps names of request classes to JSON schemas; the schema "HistoryRow" is removed.
    Limits: rows of a history, k, requests of a batch, events. The columns are those that the
    options `per` and `boost` may name. `model` is None while none is loaded.
    """
    recommend, explain, similar, batch = (
        components[name]["properties"]
        for name in ("RecommendRequest", "ExplainRequest", "SimilarRequest", "BatchRequest")
    )
    history = _build_history_schema(components.pop("HistoryRow"), settings.max_history)
    for properties in (recommend, explain):
        properties |= {"history": history, "as_of": _AS_OF}
        if model is not None:
            properties["context"] = item_schemas.build_context_schema(model.model.context_columns)
            if "recency" not in model.model.params:
                properties["recency"] = _NULL
    max_k = settings.max_k if model is None else min(settings.max_k, len(model.items))
    for properties in (recommend, similar):
        properties["k"] |= {"maximum": max_k, "default": min(10, max_k)}
    if model is not None:
        for rule in (recommend["per"], recommend["boost"], explain["boost"]):
            _write_columns(rule, model.rule_columns)
    places = {"propertyNames": {"pattern": "^[1-9][0-9]{0,3}$"}, "maxProperties": MAX_SLOTS}
    recommend["slots"]["anyOf"][0] |= places
    batch["requests"]["maxItems"] = settings.max_batch
    audience = components["AudienceRequest"]["properties"]
    audience |= {"k": {**audience["k"], "maximum": settings.max_k}, "as_of": _AS_OF}
    _write_event_limits(components, settings, model)
    for name in ("RecommendRequest", "ExplainRequest"):
        components[name] = _with_history_or_user(components[name])


def _write_event_limits(components: Json, settings: Settings, model: ServedModel | None) -> None:
    """Write the limits of events and of their ids into JSON schemas, in place.

    `components` maps names of request classes to schemas; "EventsRequest" and "NewEvent" change. An
    id that the event store accepts is not blank and not too long, and an integer where the ids of
    `model` are (None: any kind is described).
    """
    components["EventsRequest"]["properties"]["events"]["maxItems"] = settings.max_events
    event = components["NewEvent"]["properties"]
    kinds = IdKinds() if model is None else find_id_kinds(settings, model)
    user_id, item_id = (_INTEGER_ID if kind == "integer" else _STORED_ID for kind in kinds)
    event |= {"user_id": user_id, "item_id": item_id}
    event["event_id"] = {"anyOf": [_STORED_ID, _NULL]}
    event["event"]["anyOf"][0]["pattern"] = _VISIBLE_CHARACTER
    event["recommendation_id"]["anyOf"][0]["pattern"] = f"^{RECOMMENDATION_ID}$"
    description = f"{_TIME['description']} At most a day in the future; the default is now."
    event["timestamp"] = {"anyOf": [*_TIME["anyOf"], _NULL], "description": description}


def _with_history_or_user(request: Json) -> Json:
    """Return the JSON schema of a request that must have either `history` or `user_id`.

    `request` is the schema without this rule; its property `user_id` is changed in place.
    """
    request["properties"]["user_id"] = {"anyOf": [_STORED_ID, _NULL]}
    forms = [
        {"required": ["history"], "properties": {"user_id": _NULL}},
        {"required": ["user_id"], "properties": {"user_id": _STORED_ID, "history": False}},
    ]
    return {**request, "oneOf": forms}


def _build_history_schema(row: Json, max_rows: int) -> Json:
    """Return the JSON schema of a history: a timestamp with every row, or with none.

    `row` is the schema of one row (item_id, timestamp), `max_rows` the most rows of a history.
    """
    item_id, forms = row["properties"]["item_id"], []
    for time, required in ((_NULL, ["item_id"]), (_TIME, ["item_id", "timestamp"])):
        properties = {"item_id": item_id, "timestamp": time}
        form = {"type": "object", "properties": properties, "required": required}
        forms.append({**form, "additionalProperties": False})
    return {"anyOf": [{"type": "array", "items": form, "maxItems": max_rows} for form in forms]}


def _write_columns(rule: Json, columns: list[str]) -> None:
    """Restrict the JSON schema of the option `per` or `boost`, in place, to these columns.

    `rule` is the schema of the option, an object keyed by a column of the item table, or null.
    Without columns the object must be empty.
    """
    form: Json = next(form for form in rule["anyOf"] if form.get("type") == "object")
    if columns:
        form["propertyNames"] = {"enum": columns}
    else:
        form["maxProperties"] = 0


# -- paths -----------------------------------------------------------------------------------------


class _Operation(NamedTuple):
    """One operation of the API, from which its OpenAPI entry is built."""

    method: str  # of HTTP, in lower case
    path: str  # of the URL
    name: str  # the operation's id
    summary: str
    response: str | None  # the name of a schema, "object" for any JSON, None for plain text
    errors: tuple[int, ...] = ()  # HTTP statuses of errors, besides those of every body
    access: str = "token"  # or "public", or "model": also, the query may choose the model
    request: str | None = None  # the name of the schema of the body; None without a body
    parameters: tuple[Json, ...] = ()  # OpenAPI entries of parameters of the query or path
    status: int = 200  # of success


def _query_parameter(name: str, description: str, schema: Json) -> Json:
    """Return the OpenAPI entry of a query string's parameter; `schema` is its JSON schema."""
    return {"name": name, "in": "query", "description": description, "schema": schema}


_TEXT = {"type": "string", "maxLength": 200}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 100}
_LIMIT = _query_parameter("limit", "Maximum number of results.", _COUNT)
_USER_ID = {"type": "string", "minLength": 1}
_USER: Json = {"name": "user_id", "in": "path", "required": True, "schema": _USER_ID}
_ITEM: Json = {**_USER, "name": "item_id"}
_ITEM_SEARCH = (
    _query_parameter("q", "Words of a title, or an id.", _TEXT),
    _LIMIT,
    _query_parameter("id", "The items with these ids, instead of a search.", _IDS),
)
_USER_SEARCH = (_query_parameter("q", "Beginning of the id.", _TEXT), _LIMIT)
_LIST_QUERY = (
    {**_USER, "name": "list_name"},
    _query_parameter("k", "Number of items.", {"type": "integer", "minimum": 1}),
    _query_parameter("user_id", "The user who sees the list.", {"type": "string"}),
)
_OPERATIONS = (
    _Operation("post", "/v1/recommend", "recommend", "The next items after a history",
               "Recommendations", (403, 404), "model", "RecommendRequest"),
    _Operation("post", "/v1/recommend:batch", "recommendBatch",
               "The next items after many histories, all from the same model",
               "BatchRecommendations", (403, 404), "model", "BatchRequest"),
    _Operation("post", "/v1/similar", "getSimilar", "The items expected right after one item",
               "SimilarItems", (404,), "model", "SimilarRequest"),
    _Operation("post", "/v1/explain", "explain",
               "What each history row contributes to an item's score",
               "Explanation", (403, 404), "model", "ExplainRequest"),
    _Operation("post", "/v1/audience", "findAudience",
               "The users of the log who are most likely to take an item next",
               "ItemAudience", (403, 404), "model", "AudienceRequest"),
    _Operation("get", "/v1/items", "searchItems", "Search items by title", "ItemList",
               (400, 422, 503), "model", None, _ITEM_SEARCH),
    _Operation("get", "/v1/items/{item_id}", "getItem", "The fields of an item",
               "CatalogueItem", (400, 404, 422, 503), "model", None, (_ITEM,)),
    _Operation("get", "/v1/users", "searchUsers", "Search users of the log", "UserList",
               (400, 403, 404, 422, 503), "model", None, _USER_SEARCH),
    _Operation("get", "/v1/users/{user_id}", "getUser", "The history of a user", "UserHistory",
               (400, 403, 404, 422, 503), "model", None, (_USER,)),
    _Operation("get", "/v1/model", "getModel", "The model card", "ModelCard", (503,), "model"),
    _Operation("post", "/v1/reload", "reload", "Load a new model now, if there is one",
               "ReloadResult", (403, 409, 503)),
    _Operation("get", "/v1/stats", "getStats", "Store, events and learning", "Stats", (503,)),
    _Operation("get", "/health/live", "isLive", "The process responds", "Health", (), "public"),
    _Operation("get", "/health/ready", "isReady", "A model is loaded and warm", "Health", (503,),
               "public"),
    _Operation("get", "/metrics", "getMetrics", "Prometheus metrics, summed over workers", None),
    _Operation("get", "/openapi.json", "getDocument", "This document", "object", (), "public"),
)  # fmt: skip
_STORE_OPERATIONS = (
    _Operation("post", "/v1/events", "addEvents",
               "Store events; the response follows once they are on disk",
               "EventsAdded", (403, 409), "token", "EventsRequest", (), 202),
    _Operation("delete", "/v1/users/{user_id}", "deleteUser", "Delete a user", "UserDeleted",
               (400, 403, 409, 422, 503), "token", None, (_USER,)),
    _Operation("put", "/v1/items/{item_id}", "putItem",
               "Store fields of an item; the response follows once they are on disk",
               "ItemsStored", (403, 409), "token", "ItemFields", (_ITEM,)),
    _Operation("delete", "/v1/items/{item_id}", "deleteItem", "Delete an item", "ItemDeleted",
               (400, 403, 404, 409, 422, 503), "token", None, (_ITEM,)),
    _Operation("post", "/v1/items", "putItems", "Store many items, one JSON object a line",
               "ItemsStored", (403, 409), "token", "ItemLines"),
)  # fmt: skip


_LIST_OPERATIONS = (
    _Operation("get", "/v1/lists", "getLists", "The names of the named lists", "object", (503,)),
    _Operation("get", "/v1/lists/{list_name}", "getList",
               "The items of a list that everybody sees", "Recommendations",
               (400, 403, 404, 409, 422, 503), "model", None, _LIST_QUERY),
)  # fmt: skip


def _build_paths(settings: Settings, model: ServedModel | None) -> Json:
    """Return the OpenAPI operations, by URL path and then by HTTP method.

    Only a service with an event store has the operations that write events and delete users. The
    examples use items of `model`, None while none is loaded.
    """
    examples = _build_examples(settings, model)
    kinds = IdKinds() if model is None else find_id_kinds(settings, model)
    item_id = _INTEGER_ID if kinds.item == "integer" else _STORED_ID
    paths: Json = {}
    of_store = _STORE_OPERATIONS if settings.store else ()
    for operation in (*_OPERATIONS, *of_store, *(_LIST_OPERATIONS if settings.lists else ())):
        built = _build_operation(operation, settings, examples)
        if operation.name in ("putItem", "deleteItem"):
            built["parameters"] = [{**_ITEM, "schema": item_id}]
        paths.setdefault(operation.path, {})[operation.method] = built
    return paths


def _build_examples(settings: Settings, model: ServedModel | None) -> Json:
    """Return an example of each request body, by the name of its schema.

    The item ids are those of the first items of the model; without a model, the history is empty.
    The ids of the event are integers or text, as the service takes them.
    """
    ids = [] if model is None else model.catalogue.ids.take([*range(min(3, len(model.items)))])
    history = [{"item_id": item_id} for item_id in ids]
    item_id = ids[0] if ids else "A17"
    recommend = {"history": history, "k": 1, "hide_seen": True}
    kinds = IdKinds() if model is None else find_id_kinds(settings, model)
    event = {
        "user_id": 12 if kinds.user == "integer" else "ann",
        "item_id": 17 if kinds.item == "integer" else "A17",
        "event": "view",
        "event_id": "7f3a",
    }
    return {
        "RecommendRequest": recommend,
        "BatchRequest": {"requests": [recommend]},
        "SimilarRequest": {"item_id": item_id, "k": 1},
        "ExplainRequest": {"history": history, "item_id": item_id},
        "AudienceRequest": {"item_id": item_id, "k": 1},
        "EventsRequest": {"events": [event]},
        "ItemFields": {"title": "Red tent", "available": True},
        "ItemLines": f'{{"item_id": {json.dumps(event["item_id"])}, "title": "Red tent"}}\n',
    }


def _build_operation(operation: _Operation, settings: Settings, examples: Json) -> Json:
    """Return the OpenAPI entry of an operation, with the errors that these settings allow.

    `operation` declares path, schemas and statuses; `examples` maps names of request schemas to
    example bodies. With comparison models (`settings.beside`), operations that answer from a model
    get the query parameter `beside`.
    """
    errors = {*operation.errors, *(_BODY_ERRORS if operation.request else ())}
    is_public, parameters = operation.access == "public", [*operation.parameters]
    if settings.host_names or is_loopback(settings.host):
        errors.add(421)
    if not is_public:
        errors |= {
            code for code, on in ((401, settings.needs_token), (429, settings.per_client)) if on
        }
    if operation.access == "model" and settings.beside:
        errors |= {400, 422}
        names = {"enum": [path.stem for path in settings.beside]}
        description = "Answer from this model instead of the main one."
        parameters.append(_query_parameter("beside", description, names))
    response = {
        "description": "The response.",
        "content": _build_response_content(operation.response),
    }
    responses: Json = {str(operation.status): response}
    for code in sorted(errors):
        content = _build_response_content("ErrorBody")
        responses[str(code)] = {"description": _STATUS_TEXT[code], "content": content}
    built: Json = {"operationId": operation.name, "summary": operation.summary}
    built["responses"] = responses
    if parameters:
        built["parameters"] = parameters
    if operation.request:
        examples = {"one": {"value": examples[operation.request]}}
        media = {"schema": _build_schema_reference(operation.request), "examples": examples}
        kind = "application/x-ndjson" if operation.request == "ItemLines" else "application/json"
        built["requestBody"] = {"required": True, "content": {kind: media}}
    if settings.needs_token and not is_public:
        built["security"] = [{"token": []}]
    return built


def _build_response_content(response: str | None) -> Json:
    """Return the OpenAPI content of a response: JSON of a schema, any JSON, or plain text.

    `response` is the name of a schema, "object" for any JSON object, None for plain text.
    """
    if response is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    schema = {"type": "object"} if response == "object" else _build_schema_reference(response)
    return {"application/json": {"schema": schema}}


def _build_schema_reference(name: str) -> Json:
    """Return a JSON reference to a schema, by its name among the document's components."""
    return {"$ref": _REF.format(name=name)}
