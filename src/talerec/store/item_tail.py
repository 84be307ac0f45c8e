"""A follower of a store's items: what a process has read of them, and what is new."""

from __future__ import annotations

import threading
from itertools import takewhile
from typing import NamedTuple

from talerec.store.items import CatalogueFacts, StoredItem
from talerec.store.store import Store

_PAGE_ROWS = 5000  # items read by one statement


class ItemChanges(NamedTuple):
    """Items of a store that changed after some commit, oldest changes first."""

    rows: list[StoredItem]  # the last state of each item
    seq: int  # the number of the last commit that changed items, up to which the rows are complete
    resets: int  # how often the store had lost commits, so that everything was re-read


class ItemTail:
    """All items of a store that this process has read, by id, and the changes since.

    `poll` is called in one thread; other threads may take changes and rows at any time.

    Parameters
    ----------
    store : Store
        A connection that nobody else uses.

    Attributes
    ----------
    facts : CatalogueFacts
        The number of the last commit that was read, the number of items, and the time of the last
        change.
    resets : int
        How often everything was re-read, because the store had lost commits.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, StoredItem] = {}  # the last state of each item, by id
        self._lock = threading.Lock()  # of `_rows`
        self.facts = CatalogueFacts(0, 0, 0)
        self.resets = 0

    def poll(self) -> bool:
        """Read all new items of the store; return whether there were any.

        StoreError if the store does not answer; what was read until then stays.
        """
        facts = self._store.catalogue_facts()
        if facts == self.facts:
            return False
        is_reset = facts.seq < self.facts.seq  # a standby that took over lacks the last commits
        rows = self._read_after(0 if is_reset else self.facts.seq)
        with self._lock:
            if is_reset:
                self._rows.clear()
                self.resets += 1
            for row in rows:
                self._rows.pop(row.item, None)  # to the end: the order is that of the seqs
                self._rows[row.item] = row
            last_seq = rows[-1].seq if rows else 0  # of a commit after `facts` were read
            self.facts = facts._replace(seq=max(facts.seq, last_seq))
        return bool(rows) or is_reset

    def _read_after(self, seq: int) -> list[StoredItem]:
        """Read all items of the store that changed after the commit number `seq`, in order."""
        rows: list[StoredItem] = []
        place = (seq + 1, "")
        while page := self._store.read_items(place, _PAGE_ROWS):
            rows += page
            place = (page[-1].seq, page[-1].item)
        return rows

    def changes(self, after: int) -> ItemChanges:
        """Return the items that changed after a commit; after 0, all items."""
        with self._lock:
            later = takewhile(lambda row: row.seq > after, reversed(self._rows.values()))
            return ItemChanges([*later][::-1], self.facts.seq, self.resets)

    def close(self) -> None:
        """Close the connection to the store."""
        self._store.close()
