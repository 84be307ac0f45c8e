"""Import of item tables into a store, and export of its items as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from talerec import columns
from talerec.data import ItemField, check_fields, describe_fields, to_json_value
from talerec.errors import InvalidLogError, TalerecError
from talerec.runtime import stage
from talerec.store.clock import now_us
from talerec.store.ids import IdKinds, validate_id
from talerec.store.item_tail import ItemTail
from talerec.store.items import ItemChange
from talerec.store.store import Store
from talerec.store.transfer import find_kind

_COMMIT_ITEMS = 5000  # items of one commit


class ItemImport(NamedTuple):
    """The numbers of rows of an item table, and of items of the store that it changed."""

    rows: int
    changed: int
    unchanged: int


def import_items(
    store: Store, table: pl.DataFrame, fields: Mapping[str, ItemField] | None = None
) -> ItemImport:
    """Put the rows of an item table into a store, in commits of 5,000 items.

    Parameters
    ----------
    store : Store
        The store. Items that the table does not have stay as they are.
    table : polars.DataFrame
        A row per item, with ids in item_id; a null empties a field.
    fields : dict, optional
        The fields that items may have, by name: those of the model that is served. By default, the
        columns of the table itself.

    Raises
    ------
    InvalidLogError
        If an id or a value is invalid; the message names the item. Nothing is stored then.
    """
    ids = table[columns.ITEM]
    recorded = store.settle_id_kinds(IdKinds(None, find_kind(ids)))
    names = table.drop(columns.ITEM)
    fields = describe_fields(table, ()) if fields is None else fields
    changes = []
    for item_id, row in zip(ids.to_list(), names.iter_rows(named=True), strict=True):
        values = {name: to_json_value(value) for name, value in row.items()}
        try:
            item = validate_id("" if item_id is None else item_id, "item_id", recorded.item)
            changes.append(ItemChange(item, check_fields(values, fields)))
        except TalerecError as error:
            raise InvalidLogError(f"item {item_id!r}: {error}") from None
    tick = stage("import", float(len(changes)))
    changed = unchanged = 0
    for begin in range(0, len(changes), _COMMIT_ITEMS):
        part = changes[begin : begin + _COMMIT_ITEMS]
        written = store.write_items(part, now_us())
        changed, unchanged = changed + written.accepted, unchanged + written.unchanged
        tick(len(part))
    return ItemImport(len(table), changed, unchanged)


def export_items(store: Store, *, lists_as_text: bool = False) -> pl.DataFrame:
    """Return the items of a store as a table, with ids in item_id, without deleted items.

    A column has the type of its values; text if they have several. lists_as_text: write lists as
    JSON text, for files that cannot hold lists.
    """
    tail = ItemTail(store)
    tail.poll()
    rows = [row for row in tail.changes(0).rows if row.fields is not None]
    values = [row.values() for row in rows]
    names = dict.fromkeys(name for each in values for name in each)
    ids = pl.Series(columns.ITEM, [row.item for row in rows], pl.String)
    is_integer = store.id_kinds().item == "integer"
    series = [ids.cast(pl.Int64) if is_integer else ids]
    for name in names:
        cells = [each.get(name) for each in values]
        if lists_as_text:
            cells = [json.dumps(cell) if isinstance(cell, list) else cell for cell in cells]
        series.append(_build_column(name, cells))
    return pl.DataFrame(series)


def _build_column(name: str, cells: list[Any]) -> pl.Series:
    """Return values of JSON as a column: of their type, or of text if they have several."""
    try:
        return pl.Series(name, cells)
    except (TypeError, pl.exceptions.PolarsError):
        texts = [None if c is None else c if isinstance(c, str) else json.dumps(c) for c in cells]
        return pl.Series(name, texts, pl.String)
