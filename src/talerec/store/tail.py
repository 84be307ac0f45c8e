"""What a process remembers of a store: the rows of users that were asked for lately, kept up to date by reading on.

Every process reads what comes after the last seq that it knows, every fifth of a second and right after a commit of its own. So all
of them see all events and deletions in the same order, by whomever they were written.

To look at events as they come (to measure, say), `attach` a function: it gets the rows of each step in their order, before the
rows of users have them, in the thread that reads on. It must be quick; it sees every row once, in every worker.
"""

from __future__ import annotations

import logging
import threading
import weakref
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from talerec.data.read.databases import PATIENCE_S
from talerec.errors import TalerecError
from talerec.store.events import Kept, StoreError
from talerec.store.store import Store

logger = logging.getLogger("talerec")

_POLL_S = 0.2  # seconds between looks for new rows
_PAUSE_S = 1.0  # seconds after a failure until whoever reads on asks again
_STEP = 5000  # rows of one look
_SHORT_S = 0.1  # seconds that a user's rows may wait for a file: the event loop waits too
_ROOM = 200_000  # rows that are remembered, of all users together
BEGIN = 200_000  # rows: who is farther behind than this leaves rows out

Listener = Callable[[list[Kept]], None]


def _order(row: Kept) -> tuple[int, int]:
    return row.time, row.seq


@dataclass(eq=False, slots=True)
class Remembered:
    """The last events of a user, by time and then seq, and what others have made of them: `made` is emptied when they change."""

    rows: list[Kept]
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The room that it takes, in events: of what was made, sixteen rows of numbers take about that of one."""
        return 1 + len(self.rows) + sum(1 + len(one) // 16 for one in self.made.values())


class Recent:
    """The rows of users of a store, as far as they were asked for.

    Parameters
    ----------
    address : str
        The store; it is opened (made or upgraded if need be), and TalerecError raised where that fails.
    limit : int
        The most rows of one user.
    room : int
        The most rows of all users together.
    patient : bool
        Whether to go on where the store does not answer yet: it was there before, and is asked again.
    """

    def __init__(
        self, address: str, limit: int, room: int = _ROOM, *, patient: bool = False
    ) -> None:
        self._limit, self._room = limit, room
        self._reader, self._tail = Store(address, _SHORT_S, PATIENCE_S), Store(address)
        self.kind, self.name = self._reader.kind, self._reader.name
        self._listeners: list[Callable[[], Listener | None]] = []
        self.failures = 0
        self._users: OrderedDict[str, Remembered] = OrderedDict()
        self._loading: dict[str, list[list[Kept]]] = {}  # rows that come while users are read
        self._size = 0
        self._lock = threading.Lock()  # of what is remembered
        self._step = threading.Lock()  # of reading on
        self._failed = False  # until reading on succeeds
        self._left_out = 0  # how often rows were left out
        self.caught_up: Callable[[], None] = lambda: None  # told whenever the end was reached
        self.store, self.seq = "", -1
        self.deleted: dict[str, int] = {}  # user -> the seq of its last deletion
        self.last_deletion = 0  # the seq of the last one of all
        try:
            self._begin()
        except StoreError as error:
            if not patient:
                raise
            logger.warning("the store does not answer, the service goes on without it: %s", error)

    def _begin(self) -> None:
        """Make or upgrade the tables, and learn where the store stands."""
        Store.open(self._tail.address).close()
        _, self.store, seq = self._tail.meta()
        self.deleted = self._deletions()
        self.last_deletion = max(self.deleted.values(), default=0)
        self.seq = seq  # last: from here on it has begun

    def recall(self, store: str, deleted: dict[str, int]) -> None:
        """Know of deletions, as long as the store has not answered yet."""
        with self._step:
            if self.seq < 0:
                self.store = store
                for user, seq in deleted.items():
                    self.deleted[user] = max(seq, self.deleted.get(user, 0))

    def close(self) -> None:
        self._reader.close()
        self._tail.close()

    # -- a user --

    def get(self, user: str) -> Remembered | None:
        """What is remembered of a user; None where the store has to be asked (`load`)."""
        with self._lock:
            found = self._users.get(user)
            if found is not None:
                self._users.move_to_end(user)
            return found

    def load(self, user: str) -> Remembered:
        """The rows of a user from the store, remembered from now on; StoreError where it does not answer."""
        if not self.answers:
            raise StoreError(f"{self._reader.name} did not answer a moment ago")
        while True:
            left_out, found = self._left_out, self._loaded(user)
            if left_out == self._left_out:
                return found

    def _loaded(self, user: str) -> Remembered:
        meanwhile: list[Kept] = []
        with self._lock:
            self._loading.setdefault(user, []).append(meanwhile)
        rows: list[Kept] | None = None
        try:
            rows = self._reader.of_user(user, self._limit)
        except StoreError:
            self.note_failure()
            raise
        finally:
            with self._lock:
                found = self._finish(user, rows, meanwhile)
        assert found is not None
        return found

    def _finish(
        self, user: str, rows: list[Kept] | None, meanwhile: list[Kept]
    ) -> Remembered | None:
        waiting = self._loading[user]
        waiting[:] = [one for one in waiting if one is not meanwhile]
        if not waiting:
            del self._loading[user]
        return None if rows is None else self._remember(user, rows, meanwhile)

    def _remember(self, user: str, rows: list[Kept], meanwhile: list[Kept]) -> Remembered:
        found = self._users.get(user)
        if found is None:
            found = self._users[user] = Remembered(rows)
            self._size += found.size
            for row in meanwhile:
                self._change(found, row)
            self._make_room()
        return found

    def _make_room(self) -> None:
        while self._size > self._room and len(self._users) > 1:
            self._size -= self._users.popitem(last=False)[1].size

    def keep_made(
        self, user: str, rows: list[Kept], made: dict[str, Any], beside: Collection[str]
    ) -> None:
        """Remember what was made of these rows of a user, unless there are others by now; of what was made before, that with these names."""
        with self._lock:
            found = self._users.get(user)
            if found is not None and found.rows is rows:
                self._size -= found.size
                before = {name: one for name, one in found.made.items() if name in beside}
                found.made = before | made
                self._size += found.size
                self._make_room()

    def _change(self, found: Remembered, row: Kept) -> None:
        """Put a row in its place, unless it is there; a deletion removes the rows before it."""
        size, before = found.size, len(found.rows)
        if row.item is None:
            found.rows = [one for one in found.rows if one.seq > row.seq]
        else:
            place = bisect_left(found.rows, _order(row), key=_order)
            if place < before and found.rows[place].seq == row.seq:
                return
            rows = [*found.rows[:place], row, *found.rows[place:]]
            found.rows = rows[-self._limit :]
        found.made = {}
        self._size += found.size - size

    # -- reading on --

    def end(self) -> int:
        """The last seq of the store itself, which this process may not have read yet."""
        return self._tail.meta().seq

    def catch_up(self) -> None:
        """Read on to the end of the store."""
        with self._step:
            if self.seq < 0:
                self._begin()
            while rows := self._tail.tail(self.seq, _STEP):
                self._apply(rows)
                if len(rows) < _STEP:
                    break
                self._leave_out_what_is_far_behind()
            self._failed = False
            self.caught_up()

    def attach(self, listener: Listener, after: int | None = None) -> None:
        """Tell a function of all rows after a seq (None: that come from now on), at most the last 200,000 of them.

        The method of an object is forgotten with the object.
        """
        with Store(self._tail.address) as store:
            seq = self.seq if after is None else max(after, store.meta().seq - BEGIN)
            while len(rows := self._seen(store, seq, _STEP)) == _STEP:
                listener(rows)
                seq = rows[-1].seq
            with self._step:
                if rows := self._seen(store, seq, BEGIN):
                    listener(rows)
                self.listen(listener)

    def listen(self, listener: Listener) -> None:
        """Tell a function of the rows that are read from now on."""
        is_method = hasattr(listener, "__self__") and hasattr(listener, "__func__")
        self._listeners.append(weakref.WeakMethod(listener) if is_method else lambda: listener)

    def _seen(self, store: Store, after: int, limit: int) -> list[Kept]:
        """Rows after a seq that this process has read already."""
        return [row for row in store.tail(after, limit) if row.seq <= self.seq]

    def _apply(self, rows: list[Kept]) -> None:
        for reference in list(self._listeners):
            listener = reference()
            if listener is None:
                self._listeners.remove(reference)
                continue
            try:
                listener(rows)
            except Exception:  # users' rows come all the same
                logger.exception("a listener failed")
        for row in rows:
            with self._lock:
                if row.item is None:
                    self.deleted[row.user] = self.last_deletion = row.seq
                if (found := self._users.get(row.user)) is not None:
                    self._change(found, row)
                for waiting in self._loading.get(row.user, ()):
                    waiting.append(row)
        self.seq = rows[-1].seq

    def _leave_out_what_is_far_behind(self) -> None:
        """After an import of millions of rows, users are read anew rather than row by row."""
        top = self._tail.meta().seq
        if top - self.seq <= BEGIN:
            return
        deleted = self._deletions()
        with self._lock:
            self._users.clear()
            self._size, self._left_out = 0, self._left_out + 1
            self.seq, self.deleted = top - BEGIN, deleted
            self.last_deletion = max(deleted.values(), default=0)

    def _deletions(self) -> dict[str, int]:
        return {user: row.seq for user, row in self._tail.deletions().items()}

    def watch(self, stop: threading.Event) -> None:
        """Read on until `stop` is set; failures are told once, and tried again."""
        told = False
        while not stop.wait(_POLL_S):
            try:
                self.catch_up()
            except Exception as error:  # whatever it is: without this thread nothing is known
                if not told:
                    unexpected = None if isinstance(error, TalerecError) else error
                    logger.warning("the store does not answer: %s", error, exc_info=unexpected)
                told = True
                self.note_failure()
                stop.wait(_PAUSE_S)
                continue
            if told:
                logger.info("the store answers again")
            told = False

    def note_failure(self) -> None:
        """The store did not answer: until reading on succeeds, it is not asked for users."""
        self.failures += 1
        self._failed = True

    @property
    def answers(self) -> bool:
        """Did the store answer when it was last asked?"""
        return not self._failed and self.seq >= 0
