"""The OpenAPI document, from the shapes that the service itself decodes, with this model's own items as examples."""

from __future__ import annotations

from typing import Any

import msgspec

from talerec import __version__
from talerec.serve import schemas
from talerec.serve.errors import Failure
from talerec.serve.service import FARTHEST, Served
from talerec.serve.settings import Settings

Json = dict[str, Any]

_REF = "#/components/schemas/{name}"
_SAID = {
    400: "The body or the query is malformed.",
    401: "The token is missing or wrong.",
    403: "This service takes no such request: it was given no token.",
    404: "The model does not know the item.",
    408: "The body did not come in time.",
    409: "The artifact is refused; the model in use serves on.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "A value is not what it may be; the message names it.",
    503: "No model yet, too many requests at a time, or the answer takes too long.",
}
_BODY = (400, 408, 413, 415, 422, 503)
_TIME = {
    "anyOf": [
        {"type": "number", "minimum": -FARTHEST, "maximum": FARTHEST},
        {"type": "string", "format": "date-time"},
    ],
    "description": "Unix seconds or ISO 8601 (UTC unless it says).",
}


def document(settings: Settings, served: Served | None) -> Json:
    """The whole document; limits are those of this service."""
    kinds = [
        schemas.Recommend, schemas.Recommended, schemas.Batch, schemas.Answers, schemas.Similar, schemas.Alike,
        schemas.Explain, schemas.Explained, schemas.Found, schemas.Card, schemas.Reloaded, schemas.Health, Failure,
    ]  # fmt: skip
    _, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    _limit(components, settings, served)
    made: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "talerec",
            "version": __version__,
            "description": "What next? Recommendations from a history of items. Every answer names its model.",
        },
        "paths": _paths(settings, served),
        "components": {"schemas": components},
    }
    if settings.token:
        made["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return made


def _limit(schemas: Json, settings: Settings, served: Served | None) -> None:
    """Write this service's limits into the schemas."""
    most = settings.max_k if served is None else min(settings.max_k, len(served.items))
    item = schemas["Row"]["properties"]["item_id"]
    forms = [_row(item, {}), _row(item, {"timestamp": _TIME})]
    for name in ("Recommend", "Explain"):
        rows = [
            {"type": "array", "items": form, "maxItems": settings.max_history} for form in forms
        ]
        schemas[name]["properties"]["history"] = {"anyOf": rows}
        schemas[name]["properties"]["as_of"] = {
            "anyOf": [*_TIME["anyOf"], {"type": "null"}],
            "description": "The moment of asking, for models that look at it; null: the end of the log.",
        }
    del schemas["Row"]
    for name in ("Recommend", "Similar"):
        k = schemas[name]["properties"]["k"]
        k.update(maximum=most, default=min(10, most))
    for name in ("allow", "deny"):
        for form in schemas["Recommend"]["properties"][name]["anyOf"]:
            if form.get("type") == "array":
                form["maxItems"] = settings.max_list
    schemas["Batch"]["properties"]["requests"]["maxItems"] = settings.max_batch
    if served is not None and "recency" not in served.model.params:
        for name in ("Recommend", "Explain"):
            schemas[name]["properties"]["recency"] = {"type": "null"}


def _row(item: Json, more: Json) -> Json:
    return {
        "type": "object",
        "properties": {"item_id": item, **more},
        "required": ["item_id", *more],
        "additionalProperties": False,
    }


def _paths(settings: Settings, served: Served | None) -> Json:
    some = [] if served is None else [served.ids[n] for n in range(min(3, len(served.items)))]
    history = [{"item_id": name} for name in some]
    one = some[0] if some else "A17"
    ask = {"history": history, "k": 1, "hide_seen": True}
    search = [
        _parameter("q", "Words of a title, or an id.", {"type": "string", "maxLength": 200}),
        _parameter("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": 100}),
    ]
    guard: list[Json] = [{"token": []}] if settings.token else []
    extra = (401,) if settings.token else ()
    post = _Maker(guard, extra).post
    get = _Maker(guard, extra).get
    free = _Maker([], ()).get
    return {
        "/v1/recommend": post("Next items after a history", "Recommend", "Recommended", ask),
        "/v1/recommend:batch": post(
            "Many histories at once, one model", "Batch", "Answers", {"requests": [ask]}
        ),
        "/v1/similar": post(
            "What follows one item", "Similar", "Alike", {"item_id": one, "k": 1}, (404,)
        ),
        "/v1/explain": post(
            "What each history row gives to an item's score",
            "Explain",
            "Explained",
            {"history": history, "item_id": one},
            (404,),
        ),
        "/v1/items": get("Search items by title", "Found", (400, 422, 503), search),
        "/v1/model": get("The model card", "Card", (503,)),
        "/v1/reload": post("Look for a new model now", None, "Reloaded", None, (403, 409, 503)),
        "/health/live": free("The process answers", "Health", ()),
        "/health/ready": free("A model is loaded and warm", "Health", (503,)),
        "/metrics": get("Prometheus metrics, summed over workers", None, ()),
        "/openapi.json": free("This document", "object", ()),
    }


class _Maker:
    """Makes operations that share who may call them."""

    def __init__(self, guard: list[Json], extra: tuple[int, ...]) -> None:
        self.guard, self.extra = guard, extra

    def post(
        self, summary: str, asked: str | None, said: str, example: Any, more: tuple[int, ...] = ()
    ) -> Json:
        made = self._operation(summary, said, (*(_BODY if asked else ()), *more))
        if asked:
            content: Json = {"schema": _ref(asked)}
            if example is not None:
                content["examples"] = {"one": {"value": example}}
            made["requestBody"] = {"required": True, "content": {"application/json": content}}
        return {"post": made}

    def get(
        self,
        summary: str,
        said: str | None,
        more: tuple[int, ...],
        parameters: list[Json] | None = None,
    ) -> Json:
        made = self._operation(summary, said, more)
        if parameters:
            made["parameters"] = parameters
        return {"get": made}

    def _operation(self, summary: str, said: str | None, errors: tuple[int, ...]) -> Json:
        if said is None:
            content: Json = {"text/plain": {"schema": {"type": "string"}}}
        elif said == "object":
            content = {"application/json": {"schema": {"type": "object"}}}
        else:
            content = {"application/json": {"schema": _ref(said)}}
        responses: Json = {"200": {"description": "The answer.", "content": content}}
        for status in sorted({*errors, *self.extra}):
            body = {"application/json": {"schema": _ref("Failure")}}
            responses[str(status)] = {"description": _SAID[status], "content": body}
        made: Json = {"summary": summary, "responses": responses}
        if self.guard:
            made["security"] = self.guard
        return made


def _parameter(name: str, said: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "description": said, "schema": schema}


def _ref(name: str) -> Json:
    return {"$ref": _REF.format(name=name)}
