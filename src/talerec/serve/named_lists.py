"""Named lists: what a shop shows to everybody, described in a file of TOML or JSON."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from talerec.errors import TalerecError
from talerec.models.core import parse_slots
from talerec.serve.decoding import parse_validation_error
from talerec.serve.schemas import Condition, Id, Positive, SlotRule

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_MAX_BYTES = 1_000_000  # of the file
POPULAR, NEW = _ORDERS = ("popular", "new")


class NamedList(Struct, forbid_unknown_fields=True, frozen=True):
    """The rules of one list, as the file has them.

    `order` is "popular" (the most frequent items of the last days) or "new" (the latest items, by
    the column `by` of the item table, or by their first row in the training log).
    """

    order: str = POPULAR
    by: str | None = None  # of "new": a column with dates or numbers, the largest first
    days: Annotated[float, Meta(gt=0)] | None = None  # of "popular": the window; None: as trending
    k: Positive = 10  # the number of items, unless a request says otherwise
    where: Condition | None = None
    allow: list[Id] | None = None
    deny: list[Id] | None = None
    per: dict[str, Positive] | None = None
    slots: dict[str, SlotRule] | None = None


def read_named_lists(path: Path) -> dict[str, NamedList]:
    """Return the lists of a file by name; TalerecError names the file, the list and the field.

    The file is TOML with a table per list, or JSON with an object per list (NAME.json).
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TalerecError(f"{path}: {error.strerror}", "lists") from None
    if len(data) > _MAX_BYTES:
        raise TalerecError(f"{path} has more than {_MAX_BYTES:,} bytes", "lists")
    try:
        is_json = path.suffix.lower() == ".json"
        tables = json.loads(data) if is_json else tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise TalerecError(f"{path} is not {kind}: {str(error)[:200]}", "lists") from None
    if not isinstance(tables, Mapping) or not tables:
        raise TalerecError(f"{path} has no list: give each one a table of its own", "lists")
    return {name: _parse_list(path, name, table) for name, table in tables.items()}


def _parse_list(path: Path, name: str, table: Any) -> NamedList:
    """Return one named list, described by a table of the file `path`.

    TalerecError, which names the file and the list, if a field is invalid.
    """
    if not _NAME.fullmatch(name):
        message = f"{name[:50]!r} is not a name of a list; names have letters, digits, -, _ and ."
        raise TalerecError(f"{path}: {message}", "lists")
    try:
        parsed = msgspec.convert(table, NamedList)
        _check_list(parsed)
    except msgspec.ValidationError as error:
        field, problem, _ = parse_validation_error(error)
        text = f"{field}: {problem}" if field else problem
        raise TalerecError(f"{path}: list {name!r}: {text}", "lists") from None
    except TalerecError as error:
        raise TalerecError(f"{path}: list {name!r}: {error}", "lists") from None
    return parsed


def _check_list(named: NamedList) -> None:
    """Raise TalerecError for an unknown order, or fields that do not go together."""
    if named.order not in _ORDERS:
        raise TalerecError(f"order is {named.order!r}; it takes popular or new")
    if named.by is not None and named.order != NEW:
        raise TalerecError("by is a column for the order new")
    if named.days is not None and named.order != POPULAR:
        raise TalerecError("days is a window for the order popular")
    slots = {place: {"where": rule.where} for place, rule in (named.slots or {}).items()}
    parse_slots(slots, named.k)
