"""What was measured of models on the events of a store: kept beside the events, so that every process reads the same and a restart forgets nothing.

One process measures at a time, however many machines share the store: it holds a lease, and what it keeps is refused once another
has taken that. A measured event is kept by its seq and the part that a model played, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from talerec.store.store import Store


class Measured(NamedTuple):
    """Where an event's item stood in the list that a model would have given right before it.

    role    current or candidate
    moment  when it was measured, in Unix seconds
    user    a hash of the user: users are drawn for intervals, and are not to be known by this
    place   from 1; 0 where the item was not in the list
    """

    seq: int
    role: str
    version: str
    moment: int
    user: int
    place: int


class Progress(NamedTuple):
    """The seq up to which events were measured, and how many were left out because measuring lagged behind."""

    seq: int
    left_out: int


class Measures(Store):
    """A store, as whoever measures uses it."""

    def begin(self) -> None:
        """Let the events that come from now on be measured, unless that was begun before."""
        with self._used() as connection, self._transaction(connection):
            self._hold(connection)
            connection.execute(
                "update talerec_measuring set seq = (select seq from talerec_meta) where seq < 0"
            )

    def take_lease(self, holder: str, now: float, seconds: float) -> Progress | None:
        """Be the one who measures for so many seconds more; None while another is.

        Whoever is the first begins with the events that come from now on.
        """
        m = self._mark
        with self._used() as connection, self._transaction(connection):
            top = self._hold(connection)  # writers take turns by this row
            found = connection.execute(
                "select holder, until, seq, left_out from talerec_measuring"
            ).fetchone()
            if found[0] != holder and found[1] > now:
                return None
            seq = top if found[2] < 0 else int(found[2])
            connection.execute(
                f"update talerec_measuring set holder = {m}, until = {m}, seq = {m}",
                (holder, now + seconds, seq),
            )
        return Progress(seq, int(found[3]))

    def keep(
        self,
        holder: str,
        measured: Sequence[Measured],
        progress: Progress,
        forgotten: Iterable[int],
    ) -> bool:
        """Keep what was measured, and how far; rows of users who were deleted go. False, and nothing is kept, where another measures."""
        m = self._mark
        with self._used() as connection, self._transaction(connection):
            self._hold(connection)
            if connection.execute("select holder from talerec_measuring").fetchone()[0] != holder:
                return False
            cursor = connection.cursor()
            insert = (
                f"insert into talerec_measured values ({', '.join([m] * 6)}) on conflict do nothing"
            )
            cursor.executemany(insert, [tuple(row) for row in measured])
            for user in forgotten:
                cursor.execute(f"delete from talerec_measured where user_hash = {m}", (user,))
            connection.execute(
                f"update talerec_measuring set seq = {m}, left_out = {m}", tuple(progress)
            )
        return True

    def publish(self, holder: str, summary: str, oldest: int) -> None:
        """Let every process read this summary, and forget what was measured before a moment."""
        m = self._mark
        with self._used() as connection, self._transaction(connection):
            self._hold(connection)
            connection.execute(
                f"update talerec_measuring set summary = {m} where holder = {m}", (summary, holder)
            )
            connection.execute(f"delete from talerec_measured where moment < {m}", (oldest,))

    def measured_since(self, moment: int) -> list[Measured]:
        """What was measured from a moment on."""
        query = (
            "select seq, role, version, moment, user_hash, place from talerec_measured"
            f" where moment >= {self._mark} order by seq, role"
        )
        return [Measured(*row) for row in self._read(query, (moment,))]

    def summary(self) -> str | None:
        """What was published last."""
        found: str | None = self._read("select summary from talerec_measuring", ())[0][0]
        return found
