"""A follower of a store that polls for new rows and caches the events of users.

Every process polls for the rows after the last seq it has read, five times a second and right
after each commit of its own. So all processes see all events and deletions in the same order,
whichever process wrote them.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any

from talerec.data.read import WAIT_SECONDS
from talerec.errors import TalerecError
from talerec.store.cached_user import CachedUser
from talerec.store.events import StoreDamagedError, StoredRow, StoreError
from talerec.store.feedback import NO_FEEDBACK, NegativeFeedback
from talerec.store.store import Store

logger = logging.getLogger("talerec")

_POLL_S = 0.2  # seconds between polls
_RETRY_S = 1.0  # seconds between polls while the store fails
_POLL_ROWS = 5000  # rows read by one statement
_LOCK_TIMEOUT_S = 0.1  # for a user's events in a locked SQLite file: the event loop waits too
_CACHE_ROWS = 200_000  # events cached, of all users together
MAX_BACKLOG = 200_000  # rows: a follower farther behind skips rows

Listener = Callable[[list[StoredRow]], None]


class EventTail:
    """Follows an event store: polls for new rows and caches the events of requested users.

    A row is an event or the deletion of a user; its `seq` is its number in commit order. Listeners
    are functions that get every new row once, in order, in the polling thread, before the cache is
    updated; they must be quick.

    Parameters
    ----------
    address : str
        The store; its tables are created or migrated. TalerecError is raised if that fails.
    max_user_events : int
        The most events cached of one user.
    max_events : int
        The most events cached of all users together.
    known_store : str
        The id of the store, if the service has used it before: then no other store is accepted, and
        neither a file nor tables are created. It is polled until it answers.
    feedback : NegativeFeedback
        Which events are negative feedback; the cache has as many of them per user as of others.
    on_poll : function
        Called with the EventTail after each poll that reached the end of the store.

    Attributes
    ----------
    store : str
        The id of the store.
    seq : int
        The seq up to which rows were read; -1 until the store has answered once.
    deleted : dict
        The seq of the last deletion of each deleted user, by user id.
    last_deletion : int
        The largest of these seqs.
    n_skips : int
        How often rows were skipped, which listeners did not get.
    fault : str or None
        Why an operator has to act: the store's file was removed, replaced or damaged.
    """

    def __init__(
        self, address: str, max_user_events: int, max_events: int = _CACHE_ROWS,
        *, known_store: str = "", feedback: NegativeFeedback = NO_FEEDBACK,
        on_poll: Callable[[EventTail], None] = lambda tail: None,
    ) -> None:  # fmt: skip
        self._max_user_events, self._max_events = max_user_events, max_events
        self._on_poll, self._feedback = on_poll, feedback
        self._poller = Store(address)
        self._poller.expect(known_store)
        self._reader = self._poller.sibling(_LOCK_TIMEOUT_S, WAIT_SECONDS)
        self.kind, self.name = self._reader.kind, self._reader.name
        self._listeners: list[Callable[[], Listener | None]] = []
        self._users: OrderedDict[str, CachedUser] = OrderedDict()  # least recently used first
        # By user, a list for each `load` in progress: the user's rows polled meanwhile.
        self._loading: dict[str, list[list[StoredRow]]] = {}
        self._size = 0  # of the cache, in events
        self._lock, self._poll_lock = threading.Lock(), threading.Lock()  # the first: the cache
        self._has_failed = False  # until a poll succeeds
        self.n_skips = self._n_connects = 0  # connections: of the polling one at the last poll
        self.store, self.seq = known_store, -1
        self.fault: str | None = None
        self.deleted, self.last_deletion = dict[str, int](), 0
        try:
            self._begin()
        except StoreError as error:
            if not known_store:
                raise
            self.note_failure(error)
            logger.warning("store unavailable, the service continues without it: %s", error)

    def _begin(self) -> None:
        """Create or migrate the tables; read the store's id, its last seq, and deleted users.

        A store that is known from before gets no new file and no new tables. Called by the
        constructor, and again by polls until it succeeds. The seq numbers rows in commit order;
        rows up to the last seq read here are not passed to listeners, the functions that get every
        new row. `_poller` is the connection of the polling thread.
        """
        if not self.store:
            Store.open(self._poller.address)
        _, self.store, seq = self._poller.meta()
        self._read_deletions()
        self.seq = seq  # last: from here on it has begun

    def restore_deletions(self, store: str, deleted: dict[str, int]) -> None:
        """Use saved deletions of users until the store has answered once; afterwards do nothing.

        `store` is the id of the store they belong to. `deleted` maps user ids to the seq of their
        deletion, its number among the store's rows; of two seqs of a user the larger stays.
        `self.seq` is negative until the store has answered.
        """
        with self._poll_lock:
            if self.seq < 0:
                self.store = store
                for user, seq in deleted.items():
                    self.deleted[user] = max(seq, self.deleted.get(user, 0))

    def open_writer(self) -> Store:
        """Return a new connection to the store, which refuses another store at the address."""
        return self._poller.sibling()

    def close(self) -> None:
        """Close both connections to the store: for reading users, and for polling."""
        self._reader.close()
        self._poller.close()

    # -- the cache --

    def get(self, user: str) -> CachedUser | None:
        """Return a user's events from the cache; None if `load` has to read them from the store.

        The user becomes the most recently used one, which is evicted last.
        """
        with self._lock:
            cached = self._users.get(user)
            if cached is not None:
                self._users.move_to_end(user)
            return cached

    def load(self, user: str) -> CachedUser:
        """Read a user's latest events from the store into the cache, and return them.

        Rows of the user that the polling thread reads meanwhile, which it appends to the list
        `polled` through `_loading`, are applied too. If polling has skipped rows meanwhile
        (`n_skips`), the events are read again. Raises StoreError if the store does not answer.
        """
        if not self.is_available:
            raise StoreError(f"{self._reader.name} is unavailable")
        n_skips = self.n_skips
        polled: list[StoredRow] = []  # rows of the user that are polled meanwhile
        with self._lock:
            self._loading.setdefault(user, []).append(polled)
        events: list[StoredRow] | None = None
        try:
            events = self._reader.read_user(user, self._max_user_events, self._feedback)
        except StoreError as error:
            self.note_failure(error)
            raise
        finally:
            with self._lock:
                pending = [rows for rows in self._loading.pop(user) if rows is not polled]
                if pending:
                    self._loading[user] = pending
                if events is not None:
                    cached = self._cache(user, events, polled)
        return cached if n_skips == self.n_skips else self.load(user)

    def _cache(self, user: str, events: list[StoredRow], polled: list[StoredRow]) -> CachedUser:
        """Cache a user's `events` read from the store, then apply the rows `polled` meanwhile.

        If the user is cached already, that entry is returned unchanged. `_size` is the size of the
        cache in events; users that were not used for long are evicted above the limit. The caller
        holds the lock.
        """
        cached = self._users.get(user)
        if cached is None:
            cached = self._users[user] = CachedUser(events)
            self._size += cached.size
            for row in polled:
                self._apply_row(cached, row)
            self._evict()
        return cached

    def _evict(self) -> None:
        """Drop the least recently used users while the cache holds too many events; keep one user.

        `_users` has the least recently used user first. The caller holds the lock.
        """
        while self._size > self._max_events and len(self._users) > 1:
            self._size -= self._users.popitem(last=False)[1].size

    def cache_derived(
        self, user: str, events: list[StoredRow], derived: dict[str, Any], keep: Collection[str]
    ) -> None:
        """Cache values derived from the `events` of a user, unless its events have changed.

        `derived` maps names of the caller's choice to values with a length, such as the merged
        history by model version. Of the values cached before, those with a name in `keep` stay.
        `events` must be the list object that `get` or `load` returned. Users may be evicted to make
        room.
        """
        with self._lock:
            cached = self._users.get(user)
            if cached is not None and cached.events is events:
                self._size -= cached.size
                retained = {name: value for name, value in cached.derived.items() if name in keep}
                cached.derived = retained | derived
                self._size += cached.size
                self._evict()

    def _apply_row(self, cached: CachedUser, row: StoredRow) -> None:
        """Apply a polled row to a cached user, and update the size of the cache in events."""
        size = cached.size
        cached.apply(row, self._max_user_events, self._feedback)
        self._size += cached.size - size

    def drop_before(self, time: int) -> None:
        """Remove events with a time before `time`, in microseconds since 1970, from the cache."""
        with self._lock:
            for user in [u for u, c in self._users.items() if c.events and c.events[0].time < time]:
                self._size -= self._users.pop(user).size

    # -- polling --

    def read_last_seq(self) -> int:
        """Return the number of the store's last row; this process may not have read it yet."""
        return self._poller.meta().seq

    def poll(self, *, checks_files: bool = True) -> None:
        """Read all new rows of the store: pass them to the listeners and update the cache.

        Rows are events and deletions; `self.seq` is the number of the last row that was read, -1
        before the store has first answered. If more than 200,000 rows are new, the oldest are
        skipped. Calls `_on_poll` at the end. StoreError if the store does not answer, or its files
        are damaged; right after a commit, which has checked them, `checks_files` may be false.
        """
        with self._poll_lock:
            if self.seq < 0:
                self._begin()
            if checks_files:
                self._poller.check()
            self._check_last_seq()
            while rows := self._poller.read_after(self.seq, _POLL_ROWS):
                self._apply(rows)
                if len(rows) < _POLL_ROWS:
                    break
                self._skip_backlog()
            self._has_failed, self.fault = False, None
            self._on_poll(self)

    def replay(self, listener: Listener, after: int) -> None:
        """Pass the rows after the seq `after` to a listener, and subscribe it to later rows.

        A listener is a function of a list of rows (events and deletions) in commit order; the seq
        numbers these rows. Passed are rows that this process has polled already and that are among
        the last 200,000 of the store. No row is passed twice or missed in between.
        """
        with self._poller.sibling() as store:
            seq = max(after, store.meta().seq - MAX_BACKLOG)
            while len(rows := self._read_polled(store, seq, _POLL_ROWS)) == _POLL_ROWS:
                listener(rows)
                seq = rows[-1].seq
            with self._poll_lock:
                if rows := self._read_polled(store, seq, MAX_BACKLOG):
                    listener(rows)
                self.subscribe(listener)

    def subscribe(self, listener: Listener) -> None:
        """Call a listener, a function of a list of rows, with all rows polled from now on.

        A bound method is held weakly: it is dropped once its object is freed.
        """
        is_method = hasattr(listener, "__self__") and hasattr(listener, "__func__")
        self._listeners.append(weakref.WeakMethod(listener) if is_method else lambda: listener)

    def _read_polled(self, store: Store, after: int, limit: int) -> list[StoredRow]:
        """Read at most `limit` rows of the store after the seq `after`, in commit order.

        Rows that this process has not polled yet, with a seq above `self.seq`, are left out.
        """
        return [row for row in store.read_after(after, limit) if row.seq <= self.seq]

    def _apply(self, rows: list[StoredRow]) -> None:
        """Pass new rows to the listeners, then update the cache and the deletions.

        `rows` are events and deletions in commit order. `_listeners` has references to functions
        that are called with new rows; a reference to a freed object gives None and is removed, and
        an exception of a listener is logged. `deleted` gets the seq of each deletion, `self.seq`
        that of the last row. Lists in `_loading` collect the rows of users that are being read from
        the store.
        """
        for reference in list(self._listeners):
            listener = reference()
            if listener is None:
                self._listeners.remove(reference)
                continue
            try:
                listener(rows)
            except Exception:  # the cache is updated all the same
                logger.exception("a listener failed")
        for row in rows:
            with self._lock:
                if row.item is None:
                    self.deleted[row.user] = self.last_deletion = row.seq
                if (cached := self._users.get(row.user)) is not None:
                    self._apply_row(cached, row)
                for polled in self._loading.get(row.user, ()):
                    polled.append(row)
        self.seq = rows[-1].seq

    def _skip_backlog(self) -> None:
        """Skip to the last 200,000 rows if more rows than that are unread, as after an import.

        Only then is the cache emptied, are the deletions re-read and is `n_skips` increased.
        Listeners do not get skipped rows. `self.seq` is the number of the last row that was read.
        """
        last_seq = self.read_last_seq()
        if last_seq - self.seq > MAX_BACKLOG:
            self._jump_to(last_seq - MAX_BACKLOG)

    def _check_last_seq(self) -> None:
        """After a new connection, follow a server that has lost rows which were read before.

        A standby server that took over may lack the last commits, and number other rows alike.
        """
        if self._poller.n_connects == self._n_connects:
            return
        last_seq = self.read_last_seq()
        if last_seq < self.seq:
            logger.error("%s has lost rows: %d of %d are left", self.name, last_seq, self.seq)
            self._jump_to(last_seq)
        self._n_connects = self._poller.n_connects

    def _jump_to(self, seq: int) -> None:
        """Go on after row number `seq`: empty the cache and re-read the deletions."""
        self._read_deletions()
        with self._lock:
            self._users.clear()
            self._size, self.n_skips = 0, self.n_skips + 1
            self.seq = seq

    def _read_deletions(self) -> None:
        """Read from the store which users were deleted; set `deleted` and `last_deletion`.

        Both hold seqs, the numbers of the deletions in commit order.
        """
        self.deleted = {user: row.seq for user, row in self._poller.read_deletions().items()}
        self.last_deletion = max(self.deleted.values(), default=0)

    def run(self, stop: threading.Event) -> None:
        """Poll five times a second until `stop` is set, and once a second while polls fail.

        The body of the polling thread. Of consecutive failures with the same message, only the
        first is logged.
        """
        logged: str | None = None
        while not stop.wait(_POLL_S):
            try:
                self.poll()
            except Exception as error:  # whatever it is: without this thread no event arrives
                if str(error) != logged:
                    unexpected = None if isinstance(error, TalerecError) else error
                    is_fault = isinstance(error, StoreDamagedError)
                    level = logging.ERROR if is_fault else logging.WARNING
                    logger.log(level, "store unavailable: %s", error, exc_info=unexpected)
                logged = str(error)
                self.note_failure(error)
                stop.wait(_RETRY_S)
                continue
            if logged is not None:
                logger.info("store available again")
            logged = None

    def note_failure(self, error: Exception | None = None) -> None:
        """Record that the store did not answer, and, for a StoreDamagedError, the `fault`.

        `load` fails at once until a poll succeeds.
        """
        self._has_failed = True
        if isinstance(error, StoreDamagedError):
            self.fault = str(error)

    @property
    def is_available(self) -> bool:
        """Did the store answer the last poll or read, and at least once since the start?"""
        return not self._has_failed and self.seq >= 0
