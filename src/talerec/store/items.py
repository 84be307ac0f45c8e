"""Items of a store: the rows of the item table that clients have put, changed or deleted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from talerec.errors import TalerecError
from talerec.store.connection import StoreConnection
from talerec.store.session import Session, lock_meta, select_in

MAX_STORED_ITEMS = 1_000_000  # items of a store that are not deleted
_PAGE_ROWS = 5000  # items read by one statement
_UPSERT = (
    "insert into talerec_items (item_id, seq, fields, is_whole) values (?, ?, ?, ?)"
    " on conflict (item_id) do update set seq = excluded.seq, fields = excluded.fields,"
    " is_whole = excluded.is_whole"
)


class CatalogueFullError(TalerecError):
    """More items than a store may have; nothing was stored."""


class ItemChange(NamedTuple):
    """New values of some fields of an item, to be written to a store.

    Ids are text. The values are those of JSON; None empties a field. Fields that are not named keep
    their values.
    """

    item: str
    fields: dict[str, Any]


class StoredItem(NamedTuple):
    """An item of a store: what was put of it, or that it was deleted."""

    item: str  # the id, as text
    seq: int  # numbers the commits that change items; all items of a commit have the same
    fields: str | None  # a JSON object of values by column; None: the item is deleted
    is_whole: bool  # whether the item was deleted before: a model's row of it does not count

    def values(self) -> dict[str, Any]:
        """Return the values by column, as JSON has them; empty for a deleted item."""
        return json.loads(self.fields) if self.fields is not None else {}


class ItemsWritten(NamedTuple):
    """The result of a write of items: how many changed, and the number of the commit."""

    seq: int  # of the last commit that changed items
    accepted: int  # items that were stored
    unchanged: int  # items that had the same values before


class CatalogueFacts(NamedTuple):
    """The number of the last commit that changed items, how many there are, and its time."""

    seq: int
    items: int  # without deleted ones
    changed: int  # microseconds since 1970; 0 if there was no change


class ItemStore(StoreConnection):
    """The items of a store, over one connection to the database.

    A commit that changes items gets the next number `seq`, under the lock of all writers: a reader
    that has seen everything up to a seq misses nothing by asking for the items after it.
    """

    def write_items(
        self, changes: Sequence[ItemChange], now: int, max_items: int = MAX_STORED_ITEMS
    ) -> ItemsWritten:
        """Store new values of fields of items in one commit, and return how many changed.

        `now` is the time in microseconds since 1970. Of an item that was deleted, only the new
        values count. CatalogueFullError, and nothing is stored, if there are then more than
        `max_items` items.
        """
        with self._transaction() as session:
            facts = _lock_items(session)
            stored = _find_items(session, {change.item for change in changes})
            before = {item: (row.values(), row.is_whole) for item, row in stored.items()}
            after: dict[str, tuple[dict[str, Any], bool]] = {}
            for item, fields in changes:
                values, is_whole = after.get(item) or before.get(item) or ({}, False)
                is_deleted = item in stored and stored[item].fields is None
                after[item] = ({**values, **fields}, is_whole or is_deleted)
            live = {item for item, row in stored.items() if row.fields is not None}
            n_items = facts.items + len(after.keys() - live)
            if n_items > max_items:
                raise CatalogueFullError(
                    f"there would be {n_items} items; the limit is {max_items}"
                )
            changed = {
                item: row for item, row in after.items() if item not in live or row != before[item]
            }
            if not changed:
                return ItemsWritten(facts.seq, 0, len(after))
            seq = facts.seq + 1
            rows = [
                (item, seq, json.dumps(values, ensure_ascii=False), int(is_whole))
                for item, (values, is_whole) in changed.items()
            ]
            session.execute_many(_UPSERT, rows)
            _set_facts(session, CatalogueFacts(seq, n_items, now))
        return ItemsWritten(seq, len(changed), len(after) - len(changed))

    def delete_item(self, item: str, now: int, *, always_record: bool = True) -> int | None:
        """Delete an item, and return the seq of the last commit that changed items.

        The store keeps that the item is deleted. If `always_record` is false, and the store never
        had the item, nothing is recorded and None is returned. `now` is in microseconds since 1970.
        """
        with self._transaction() as session:
            facts = _lock_items(session)
            row = _find_items(session, {item}).get(item)
            if row is None and not always_record:
                return None
            if row is not None and row.fields is None:
                return facts.seq
            session.execute_many(_UPSERT, [(item, facts.seq + 1, None, 1)])
            n_items = facts.items - (row is not None)
            _set_facts(session, CatalogueFacts(facts.seq + 1, n_items, now))
        return facts.seq + 1

    def catalogue_facts(self) -> CatalogueFacts:
        """Return the number of the last commit that changed items, and how many items there are."""
        query = "select item_seq, items, items_changed from talerec_meta"
        return CatalogueFacts(*self._read(query, ())[0])

    def read_items(
        self, after: tuple[int, str] = (0, ""), limit: int = _PAGE_ROWS
    ) -> list[StoredItem]:
        """Return the first `limit` items after a place in the order of seq and id.

        `after` is the seq and the id of the last item that was read; (0, "") for the beginning.
        """
        query = (
            "select item_id, seq, fields, is_whole from talerec_items"
            " where seq > ? or (seq = ? and item_id > ?) order by seq, item_id limit ?"
        )
        rows = self._read(query, (after[0], *after, limit))
        return [StoredItem(row[0], row[1], row[2], bool(row[3])) for row in rows]


def _lock_items(session: Session) -> CatalogueFacts:
    """Return the number of the last commit of items and their count; keep other writers out."""
    lock_meta(session)
    query = "select item_seq, items, items_changed from talerec_meta"
    return CatalogueFacts(*session.execute(query).fetchone())


def _find_items(session: Session, items: set[str]) -> dict[str, StoredItem]:
    """Return, by id, those of some items that are stored, also deleted ones."""
    query = "select item_id, seq, fields, is_whole from talerec_items where item_id"
    rows = select_in(session, query, items).fetchall()
    return {row[0]: StoredItem(row[0], row[1], row[2], bool(row[3])) for row in rows}


def _set_facts(session: Session, facts: CatalogueFacts) -> None:
    """Store the number of the commit, the count of items and the time of the change."""
    update = "update talerec_meta set item_seq = ?, items = ?, items_changed = ?"
    session.execute(update, tuple(facts))
