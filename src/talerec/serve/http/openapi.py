"""The OpenAPI document: made from the classes that decode requests, with items of the current model as examples."""

from __future__ import annotations

from typing import Any

import msgspec

from talerec import __version__
from talerec.serve import schemas
from talerec.serve.errors import ErrorBody
from talerec.serve.model.served import MAX_TIMESTAMP, ServedModel
from talerec.serve.settings import Settings, is_loopback
from talerec.store.events import MAX_ID

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_STATUS_TEXT = {
    400: "The body or the query string is malformed.",
    401: "The token is missing or wrong.",
    403: "The service was started without a token, which this request needs.",
    404: "The item or the user is not known, or the model has no histories.",
    408: "The body did not arrive in time.",
    409: "The new artifact is refused; an `event_id` is known with other contents; or the service has no store.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The Host header has a name that is not this service's.",
    422: "A value is not allowed; the message names it.",
    429: "This client has too many requests at a time.",
    503: "No model is loaded yet, there are too many requests at a time, the answer takes too long, or the store fails.",
}
_BODY_ERRORS = (400, 408, 413, 415, 422, 503)
_TIME = {
    "anyOf": [
        {"type": "number", "minimum": -MAX_TIMESTAMP, "maximum": MAX_TIMESTAMP},
        {"type": "string", "format": "date-time"},
    ],
    "description": "ISO 8601 (UTC if it names no time zone), or a number since 1970: of 10^8 and more, its size tells"
    " whether it counts s, ms, us or ns; a smaller one counts what the times of the log do.",
}
_AS_OF = {
    "anyOf": [*_TIME["anyOf"], {"type": "null"}],
    "description": "The time of the request, for models that use it; null: the end of the log.",
}
_SOME_SIGN = r"^[^\u0000]*[^\u0000-\u0020\u0085\s][^\u0000]*$"
#: An id that a store can keep: not empty, not only blanks, no zero character.
_KEPT_ID = {
    "anyOf": [
        {"type": "integer"},
        {"type": "string", "minLength": 1, "maxLength": MAX_ID, "pattern": _SOME_SIGN},
    ],
    "description": f"A whole number, or text of at most {MAX_ID} characters.",
}
_IDS = {"type": "array", "items": {"type": "string"}, "maxItems": 100}
_CLASSES = (
    schemas.RecommendRequest, schemas.Recommendations, schemas.BatchRequest, schemas.BatchRecommendations,
    schemas.SimilarRequest, schemas.SimilarItems, schemas.ExplainRequest, schemas.Explanation,
    schemas.ItemList, schemas.UserList, schemas.UserHistory, schemas.ModelCard, schemas.ReloadResult, schemas.Health,
    schemas.EventsRequest, schemas.EventsAdded, schemas.UserDeleted, schemas.Stats, ErrorBody,
)  # fmt: skip


def document(settings: Settings, model: ServedModel | None) -> Json:
    """The OpenAPI document of this service, with its own limits."""
    _, components = msgspec.json.schema_components(_CLASSES, ref_template=_REF)
    _write_limits(components, settings, model)
    made: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "talerec",
            "version": __version__,
            "description": "Recommends the next items after a history of items. Every answer names its model.",
        },
        "paths": _paths(settings, model),
        "components": {"schemas": components},
    }
    if settings.token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return made


def _write_limits(components: Json, settings: Settings, model: ServedModel | None) -> None:
    recommend, explain, similar, batch = (
        components[name]["properties"]
        for name in ("RecommendRequest", "ExplainRequest", "SimilarRequest", "BatchRequest")
    )
    history = _history(components.pop("HistoryRow"), settings.max_history)
    for properties in (recommend, explain):
        properties |= {"history": history, "as_of": _AS_OF}
        if model is not None and "recency" not in model.model.params:
            properties["recency"] = {"type": "null"}
    max_k = settings.max_k if model is None else min(settings.max_k, len(model.items))
    for properties in (recommend, similar):
        properties["k"] |= {"maximum": max_k, "default": min(10, max_k)}
    named = [] if model is None else model.rule_columns
    for rule in (recommend["per"], recommend["boost"], explain["boost"]):
        _write_columns(rule, named)
    batch["requests"]["maxItems"] = settings.max_batch
    _write_event_limits(components, settings)
    for name in ("RecommendRequest", "ExplainRequest"):
        components[name] = _either(components[name])


def _write_event_limits(components: Json, settings: Settings) -> None:
    components["EventsRequest"]["properties"]["events"]["maxItems"] = settings.max_events
    event = components["NewEvent"]["properties"]
    no_value = {"type": "null"}
    event |= {"user_id": _KEPT_ID, "item_id": _KEPT_ID, "event_id": {"anyOf": [_KEPT_ID, no_value]}}
    event["event"]["anyOf"][0]["pattern"] = _SOME_SIGN
    about = f"{_TIME['description']} Up to a day from now; without it, now."
    event["timestamp"] = {"anyOf": [*_TIME["anyOf"], no_value], "description": about}


def _either(request: Json) -> Json:
    """A request has a history, or it has a user."""
    no_user = {"type": "null"}
    request["properties"]["user_id"] = {"anyOf": [_KEPT_ID, no_user]}
    forms = [
        {"required": ["history"], "properties": {"user_id": no_user}},
        {"required": ["user_id"], "properties": {"user_id": _KEPT_ID, "history": False}},
    ]
    return {**request, "oneOf": forms}


def _history(row: Json, max_rows: int) -> Json:
    """Rows that all have a timestamp, or rows that all have none (or null)."""
    item_id = row["properties"]["item_id"]
    untimed = _object({"item_id": item_id, "timestamp": {"type": "null"}}, required=["item_id"])
    forms = [untimed, _object({"item_id": item_id, "timestamp": _TIME})]
    return {"anyOf": [{"type": "array", "items": form, "maxItems": max_rows} for form in forms]}


def _object(properties: Json, required: list[str] | None = None) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties] if required is None else required,
        "additionalProperties": False,
    }


def _write_columns(rule: Json, columns: list[str]) -> None:
    """The columns of the item table that a rule may name."""
    form: Json = next(form for form in rule["anyOf"] if form.get("type") == "object")
    if columns:
        form["propertyNames"] = {"enum": columns}
    else:
        form["maxProperties"] = 0


def _paths(settings: Settings, model: ServedModel | None) -> Json:
    asking = _Operations(settings, token=True, beside=True)
    guarded, free = _Operations(settings, token=True), _Operations(settings, token=False)
    limit = _parameter(
        "limit", "At most so many.", {"type": "integer", "minimum": 1, "maximum": 100}
    )
    words = _parameter("q", "Words of a title, or an id.", {"type": "string", "maxLength": 200})
    start = _parameter("q", "How the id begins.", {"type": "string", "maxLength": 200})
    ids = _parameter("id", "The items with these ids, in place of a search.", _IDS)
    user = {
        "name": "user_id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }
    found = (400, 422, 503)
    paths = {
        **_model_paths(asking, model),
        "/v1/items": asking.get(
            "searchItems", "Search items by title", "ItemList", found, [words, limit, ids]
        ),
        "/v1/users": asking.get(
            "searchUsers", "Search users of the log", "UserList", (403, 404, *found), [start, limit]
        ),
        "/v1/users/{user_id}": asking.get(
            "getUser", "The history of a user", "UserHistory", (400, 403, 404, 422, 503), [user]
        ),
        "/v1/model": asking.get("getModel", "The model card", "ModelCard", (503,)),
        "/v1/reload": guarded.post(
            "reload", "Look for a new model now", None, "ReloadResult", None, (403, 409, 503)
        ),
        "/v1/stats": guarded.get("getStats", "Store, events and learning", "Stats", (503,)),
        "/health/live": free.get("isLive", "The process answers", "Health", ()),
        "/health/ready": free.get("isReady", "A model is loaded and warm", "Health", (503,)),
        "/metrics": guarded.get("getMetrics", "Prometheus metrics, summed over workers", None, ()),
        "/openapi.json": free.get("getDocument", "This document", "object", ()),
    }
    if settings.store is not None:
        _add_store_paths(paths, guarded, user)
    return paths


def _add_store_paths(paths: Json, guarded: _Operations, user: Json) -> None:
    """What a service with a store takes too."""
    event = {"user_id": "ann", "item_id": "A17", "event": "view", "event_id": "7f3a"}
    paths["/v1/events"] = guarded.post(
        "addEvents",
        "Keep events; the answer comes once they are on disk",
        "EventsRequest",
        "EventsAdded",
        {"events": [event]},
        (403, 409),
        202,
    )
    paths["/v1/users/{user_id}"] |= guarded.delete(
        "deleteUser", "Make a user unknown", "UserDeleted", (400, 403, 409, 422, 503), [user]
    )


def _model_paths(guarded: _Operations, model: ServedModel | None) -> Json:
    """The paths that ask the model, with items of the model in their examples."""
    ids = [] if model is None else model.catalogue.ids.take([*range(min(3, len(model.items)))])
    history = [{"item_id": item_id} for item_id in ids]
    item_id = ids[0] if ids else "A17"
    recommend = {"history": history, "k": 1, "hide_seen": True}
    return {
        "/v1/recommend": guarded.post(
            "recommend",
            "The next items after a history",
            "RecommendRequest",
            "Recommendations",
            recommend,
            (403, 404),
        ),
        "/v1/recommend:batch": guarded.post(
            "recommendBatch",
            "The next items after many histories, all from the same model",
            "BatchRequest",
            "BatchRecommendations",
            {"requests": [recommend]},
            (403, 404),
        ),
        "/v1/similar": guarded.post(
            "getSimilar",
            "The items expected right after one item",
            "SimilarRequest",
            "SimilarItems",
            {"item_id": item_id, "k": 1},
            (404,),
        ),
        "/v1/explain": guarded.post(
            "explain",
            "What each history row contributes to an item's score",
            "ExplainRequest",
            "Explanation",
            {"history": history, "item_id": item_id},
            (403, 404),
        ),
    }


class _Operations:
    """Makes operations, all of which need the token or none of which does."""

    def __init__(self, settings: Settings, *, token: bool, beside: bool = False) -> None:
        self._token = token and settings.token is not None
        errors = {401} if self._token else set()
        if token and settings.per_client:
            errors.add(429)
        if settings.host_names or is_loopback(settings.host):
            errors.add(421)
        self._errors = errors
        names = [path.stem for path in settings.beside] if beside else []
        if names:
            errors |= {400, 422}
        about = "Answer from this model beside the main one."
        self._beside = [_parameter("beside", about, {"enum": names})] if names else []

    def post(
        self,
        name: str,
        summary: str,
        request: str | None,
        response: str,
        example: Any,
        errors: tuple[int, ...] = (),
        status: int = 200,
    ) -> Json:
        errors = (*(_BODY_ERRORS if request else ()), *errors)
        made = self._operation(name, summary, response, errors, status)
        if request:
            content: Json = {"schema": _ref(request)}
            if example is not None:
                content["examples"] = {"one": {"value": example}}
            made["requestBody"] = {"required": True, "content": {"application/json": content}}
            self._add_parameters(made, [])
        return {"post": made}

    def get(
        self,
        name: str,
        summary: str,
        response: str | None,
        errors: tuple[int, ...],
        parameters: list[Json] | None = None,
    ) -> Json:
        made = self._operation(name, summary, response, errors)
        self._add_parameters(made, parameters or [])
        return {"get": made}

    def _add_parameters(self, made: Json, parameters: list[Json]) -> None:
        if parameters or self._beside:
            made["parameters"] = [*parameters, *self._beside]

    def delete(
        self,
        name: str,
        summary: str,
        response: str,
        errors: tuple[int, ...],
        parameters: list[Json],
    ) -> Json:
        made = self._operation(name, summary, response, errors)
        self._add_parameters(made, parameters)
        return {"delete": made}

    def _operation(
        self,
        name: str,
        summary: str,
        response: str | None,
        errors: tuple[int, ...],
        status: int = 200,
    ) -> Json:
        answer = {"description": "The answer.", "content": _content(response)}
        responses: Json = {str(status): answer}
        for status in sorted({*errors, *self._errors}):
            content = _content("ErrorBody")
            responses[str(status)] = {"description": _STATUS_TEXT[status], "content": content}
        made: Json = {"operationId": name, "summary": summary, "responses": responses}
        if self._token:
            made["security"] = [{"token": []}]
        return made


def _content(response: str | None) -> Json:
    """Plain text, any JSON object, or JSON of a named schema."""
    if response is None:
        return {"text/plain": {"schema": {"type": "string"}}}
    schema = {"type": "object"} if response == "object" else _ref(response)
    return {"application/json": {"schema": schema}}


def _parameter(name: str, description: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}
