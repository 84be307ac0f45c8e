"""Measurements of models on the events of a store, stored beside the events.

One process measures at a time, however many machines share the store: it holds a lease, and its
writes are refused once another process has taken the lease. A measurement is keyed by the seq of
its event and the role of the model, so no event is counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from talerec.store.events import StoredRow
from talerec.store.session import lock_seq
from talerec.store.store import EVENT_COLUMNS, Store

_MAX_LEASE_S = 3600.0  # a lease that ends later was taken by a clock that was ahead
_DAY_S = 86_400  # seconds


class Exclusion(IntEnum):
    """The reason why an event is not measured for a model; stored in the place of a rank."""

    TRAINED = -1  # the model was trained on the event
    OUTDATED = -2  # the model was trained on events of the user that are as late, or later
    REPEATED = -3  # an event with the same user, item and time was stored before


class Measurement(NamedTuple):
    """The rank of an event's item in the list a model would have shown right before the event."""

    seq: int  # the number of the event in the store
    role: str  # of the model: "current" or "candidate"
    version: str  # of the model
    measured_at: int  # Unix seconds
    user: int  # a hash of the user, by which confidence intervals group users
    rank: int  # from 1; 0: the item was not in the list; below 0, an `Exclusion`: not measured


class MeasurementProgress(NamedTuple):
    """The progress of online evaluation, which ranks the items of new events, in the store."""

    seq: int  # the commit-order number of the last row that was read
    left_out: int  # how many events were skipped so far


class MeasurementStore(Store):
    """An event store with the tables of online evaluation: measurements, lease and summary.

    Online evaluation ranks the item of each new event with the served models. A measurement is that
    rank. The lease is a lock with an expiry time: only the process that holds it writes
    measurements and the summary, which is JSON text of the metrics.
    """

    def start_measuring(self) -> None:
        """Mark the last stored row as the start of online evaluation, unless a start is marked.

        Models will be evaluated on the events stored after that row. Rows are numbered by their
        `seq` in commit order; -1 in the table `talerec_measuring` means that no start is marked.
        """
        with self._transaction() as session:
            lock_seq(session)
            last_seq = "(select seq from talerec_meta)"
            session.execute(f"update talerec_measuring set seq = {last_seq} where seq < 0")

    def take_lease(self, holder: str, now: float, seconds: float) -> MeasurementProgress | None:
        """Take or renew the right to evaluate events; return the progress, None if others have it.

        The right is a lease: a lock in the database that ends `seconds` after `now` (Unix seconds).
        `holder` names the process that calls. A lease that ends more than an hour after `now` was
        taken by a clock that was ahead, and does not hold. The progress is the number `seq` of the
        last row that was evaluated, by any holder, and the count of events that were left out. If
        evaluation has not started yet (a stored seq of -1), it starts after the last row of the
        store.
        """
        with self._transaction() as session:
            last_seq = lock_seq(session)  # one writer at a time
            current_holder, until, seq, left_out = session.execute(
                "select holder, until, seq, left_out from talerec_measuring"
            ).fetchone()
            if current_holder != holder and now < until <= now + _MAX_LEASE_S:
                return None
            seq = last_seq if seq < 0 else int(seq)
            update = "update talerec_measuring set holder = ?, until = ?, seq = ?"
            session.execute(update, (holder, now + seconds, seq))
        return MeasurementProgress(seq, int(left_out))

    def save(
        self, holder: str, measurements: Sequence[Measurement], progress: MeasurementProgress,
    ) -> bool:  # fmt: skip
        """Store measurements and the progress; return False if the lease is lost.

        A measurement is the rank of an event's item in a model's list. One that is stored already,
        for the same event and role of the model, is ignored, and so is one of an event that was
        deleted meanwhile. Nothing changes if the process named `holder` no longer has the lease,
        the right to write.
        """
        with self._transaction() as session:
            lock_seq(session)
            if session.fetch_value("select holder from talerec_measuring") != holder:
                return False
            insert = (
                "insert into talerec_measured select seq, ?, ?, ?, ?, ?"
                " from talerec_events where seq = ? on conflict do nothing"
            )
            session.execute_many(insert, [(*row[1:], row.seq) for row in measurements])
            session.execute("update talerec_measuring set seq = ?, left_out = ?", tuple(progress))
        return True

    def publish(self, holder: str, summary: str, oldest: int) -> None:
        """Store the summary of metrics for all processes, and delete old measurements.

        `summary` is JSON text; it is ignored if the process named `holder` has lost the lease, the
        right to write. Measurements (ranks of events' items) from before `oldest`, in Unix seconds,
        and from more than two days later (by a clock that was ahead) are deleted in either case.
        """
        with self._transaction() as session:
            lock_seq(session)
            update = "update talerec_measuring set summary = ? where holder = ?"
            session.execute(update, (summary, holder))
            delete = "delete from talerec_measured where moment < ? or moment > ?"
            session.execute(delete, (oldest, oldest + 2 * _DAY_S))

    def read_earlier(self, event: StoredRow, limit: int) -> list[StoredRow] | None:
        """Return the user's events before `event`, oldest first; None if `event` is a repeat.

        They were stored before it, and their times are earlier: the latest `limit` of them. A
        repeat has the user, item and time of an event that was stored before.
        """
        earlier = "from talerec_events where user_id = ? and seq < ?"
        parameters = (event.user, event.seq, event.time)
        same = f"select 1 {earlier} and time = ? and item_id = ? limit 1"
        if self._read(same, (*parameters, event.item)):
            return None
        query = (
            f"select {EVENT_COLUMNS} {earlier} and time < ? order by time desc, seq desc limit ?"
        )
        return [StoredRow(*row) for row in reversed(self._read(query, (*parameters, limit)))]

    def read_since(self, oldest: int) -> list[Measurement]:
        """Return the measurements since `oldest` (Unix seconds), sorted by event and role.

        Each is the rank of an event's item in the list of a model, whose role is "current" or
        "candidate".
        """
        query = (
            "select seq, role, version, moment, user_hash, place from talerec_measured"
            " where moment >= ? order by seq, role"
        )
        return [Measurement(*row) for row in self._read(query, (oldest,))]

    def read_measurements(self, user: str) -> list[tuple[str, Measurement]]:
        """Return the measurements of a user's events, each after the id of the event's item."""
        query = (
            "select e.item_id, m.seq, m.role, m.version, m.moment, m.user_hash, m.place"
            " from talerec_measured m join talerec_events e on e.seq = m.seq"
            " where e.user_id = ? order by m.seq, m.role"
        )
        return [(item, Measurement(*row)) for item, *row in self._read(query, (user,))]

    def read_summary(self) -> str | None:
        """Return the JSON text of the metrics published last; None if none were published.

        The metrics are HR@10 and MRR@10 of the served models on new events.
        """
        summary: str | None = self._read("select summary from talerec_measuring", ())[0][0]
        return summary
