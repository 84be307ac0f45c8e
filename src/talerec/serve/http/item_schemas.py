"""The JSON of items: responses, and schemas of values by column, also of contexts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from msgspec import Struct

from talerec.data import MAX_FIELD_ENTRIES, MAX_FIELD_TEXT, ItemField, integer_range
from talerec.serve import schemas

Json = dict[str, Any]

_MAX_FLOAT = 1e300
_TEXT = {"type": "string", "maxLength": MAX_FIELD_TEXT, "pattern": r"^[^\u0000]*$"}
_DATE = {"type": "string", "format": "date", "pattern": "^(19|20)[0-9]{2}-[0-9]{2}-[0-9]{2}$"}
_ANY_OBJECT = {"type": "object", "description": "Values by column of the item table."}


class CatalogueItem(Struct):
    """The fields of one item, and whether it may be recommended now."""

    model: str  # the version of the model
    item_id: schemas.Id
    fields: dict[str, Any]  # values by column, without nulls
    available: bool  # not hidden, not sold out, and within its dates


class ItemsStored(Struct):
    """The numbers of items stored now, and of items that had these values before; all on disk."""

    accepted: int
    unchanged: int


class ItemDeleted(Struct):
    """A deleted item."""

    item_id: schemas.Id
    deleted: bool  # always true


def build_fields_schema(fields: Mapping[str, ItemField] | None, time: Json) -> Json:
    """Return the JSON schema of an item's fields that clients may write; null empties one.

    fields: the columns, by name; None if the client may not know them. time: the schema of a time.
    """
    if fields is None:
        return _ANY_OBJECT
    schemas = {name: _build_schema(field, field.dtype, time) for name, field in fields.items()}
    properties = {
        name: {"anyOf": [schema, {"type": "null"}]}
        for name, schema in schemas.items()
        if schema is not None
    }
    return {**_ANY_OBJECT, "properties": properties, "additionalProperties": False}


def build_context_schema(columns: Sequence[tuple[str, bool]]) -> Json:
    """Return the JSON schema of the option `context` for a model's context columns.

    columns: names, and whether the values are numbers. Without columns the option must be null.
    """
    null: Json = {"type": "null"}
    if not columns:
        return null
    kinds = {True: ["number", "null"], False: ["string", "integer", "boolean", "null"]}
    values = {name: {"type": kinds[is_number]} for name, is_number in columns}
    form: Json = {"type": "object", "properties": values, "additionalProperties": False}
    return {"anyOf": [form, null], "description": "Values by context column."}


def _build_schema(field: ItemField, dtype: Any, time: Json) -> Json | None:
    """Return the JSON schema of a value of a field's type; None if it cannot be written.

    dtype: the type of the field, or of the entries of its lists. time: the schema of a time.
    """
    if isinstance(dtype, pl.List | pl.Array):
        inner: Any = dtype.inner
        entry = None if inner.is_nested() else _build_schema(field, inner, time)
        if entry is None:
            return None
        if entry["type"] == "string":
            entry = {**entry, "maxLength": MAX_FIELD_TEXT // MAX_FIELD_ENTRIES}
        bounds = {"minItems": field.width, "maxItems": field.width or MAX_FIELD_ENTRIES}
        return {"type": "array", "items": entry, **bounds}
    if dtype == pl.Boolean:
        return {"type": "boolean"}
    if dtype.is_integer():
        low, high = integer_range(dtype)
        return {"type": "integer", "minimum": low, "maximum": high}
    if dtype.is_numeric():
        return {"type": "number", "minimum": -_MAX_FLOAT, "maximum": _MAX_FLOAT}
    if dtype in (pl.Date, pl.Datetime):
        return time
    if dtype != pl.String:
        return None
    return _DATE if field.is_date else _TEXT
