"""Measuring models on the events as they arrive: each is first looked up in the list that the model would have given before it.

A process of its own does it, at low priority and off the path of requests: it reads on in the store like everybody else, asks the same models as
the workers, and keeps what it finds in the store. It leaves events out, and counts them, rather than to lag behind for hours.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import polars as pl

from talerec.serve import schemas
from talerec.serve.online import summary as figures
from talerec.serve.online.sampling import MEASURED, hash_of, is_in_share
from talerec.store.events import Kept
from talerec.store.measurements import Measured, Measures, Progress
from talerec.store.store import Store

logger = logging.getLogger("talerec")

LEASE_S = 15.0  # seconds for which a process that measures is the one
_STEP = 2000  # rows that are read at a time,
_STEP_S = 1.0  # and seconds until what was measured is kept: far less than a lease
MAX_BEHIND = 50_000  # rows: farther behind, some are left out
_SUMMARY_S = 2.0  # seconds between summaries,
_SUMMARY_SHARE = 20  # or so many times as long as one takes
_MAX_KEPT = 500_000  # measured events that figures are made of, the last ones
_LATER = 60_000_000  # microseconds: what other clocks may be ahead


class Asked(Protocol):
    """A model that can be measured."""

    version: str

    def place(self, user: str, before: list[Kept], event: Kept) -> int | None:
        """Where the event's item stands in the list for the user right before the event, given the rows before it.

        0 for nowhere; None where the model has learned from the event already, so that it is no question any more.
        """


Models = Callable[[], dict[str, Asked]]


class Measurer:
    """Measures the models of a service on a share of its users.

    Parameters
    ----------
    address : str
        The store.
    share : float
        The share of users whose events are looked at.
    models : function
        The models by role (current, candidate) at this moment.
    max_age : float
        Seconds: older events are not live ones (an import of history, say).
    history : int
        The most rows of a user.
    holder : str, optional
        Under which name it takes its turns: whoever takes the place of a process that was killed has its name, and need not wait.
    """

    def __init__(
        self,
        address: str,
        share: float,
        models: Models,
        *,
        max_age: float,
        history: int,
        holder: str | None = None,
    ) -> None:
        self._store, self._reader = Measures.open(address), Store.open(address)
        self.share, self._models = share, models
        self._max_age, self._history = int(1e6 * max_age), history
        self._holder, self._until = holder or uuid.uuid4().hex, 0.0
        self._progress: Progress | None = None
        self._kept = figures.frame_of([])
        self._next_summary = 0.0

    def close(self) -> None:
        self._store.close()
        self._reader.close()

    def step(self, now: float) -> int:
        """Measure the next events, if it is our turn; how many rows were read."""
        progress = self._turn(now)
        if progress is None:
            return 0
        top = self._reader.meta().seq
        if top - progress.seq > MAX_BEHIND:
            seq = top - MAX_BEHIND // 2
            left_out = progress.left_out + seq - progress.seq
            logger.warning("measuring lags behind: %d events are left out", seq - progress.seq)
            progress = Progress(seq, left_out)
        rows = self._reader.tail(progress.seq, _STEP)
        taken = self._take(rows, progress, now) if rows else 0
        self._tell(now, top)
        return taken

    # -- taking turns --

    def _turn(self, now: float) -> Progress | None:
        """How far we are; None while another process measures."""
        if self._progress is not None and now < self._until - LEASE_S / 2:
            return self._progress
        found = self._store.take_lease(self._holder, now, LEASE_S)
        if found is None:
            self._progress = None
        elif self._progress is None:
            rows = self._store.measured_since(int(now - figures.DAY))
            self._progress, self._kept = found, figures.frame_of(rows)
        self._until = now + LEASE_S
        return self._progress

    # -- measuring --

    def _take(self, rows: list[Kept], progress: Progress, now: float) -> int:
        """Measure what the first of these rows hold, for a second at most, and keep it; how many they were."""
        newest = int(1e6 * now)
        live = range(newest - self._max_age, newest + _LATER)
        models, histories = self._models(), dict[str, list[Kept]]()
        measured: list[Measured] = []
        forgotten: list[int] = []
        end, taken = time.monotonic() + _STEP_S, 0
        for row in rows:
            taken += 1
            if is_in_share(row.user, self.share, MEASURED):
                if row.item is None:
                    forgotten.append(hash_of(row.user, MEASURED))
                elif row.time in live:
                    measured += self._measured(row, self._before(row, histories), models, now)
            if time.monotonic() > end:
                break
        after = Progress(rows[taken - 1].seq, progress.left_out)
        self._keep(measured, after, forgotten)
        return taken

    def _keep(self, measured: list[Measured], after: Progress, forgotten: list[int]) -> None:
        if not self._store.keep(self._holder, measured, after, forgotten):
            self._progress = None  # another has taken the lease
            return
        self._progress = after
        if measured or forgotten:
            kept = pl.concat([self._kept, figures.frame_of(measured)])
            kept = kept.filter(~pl.col("user").is_in(forgotten)) if forgotten else kept
            self._kept = kept.tail(_MAX_KEPT)

    def _before(self, event: Kept, histories: dict[str, list[Kept]]) -> list[Kept]:
        """The rows of the event's user that had arrived before it, up to its time."""
        if event.user not in histories:
            histories[event.user] = self._reader.of_user(event.user, self._history)
        rows = histories[event.user]
        return [row for row in rows if row.seq < event.seq and row.time <= event.time]

    def _measured(
        self, event: Kept, before: list[Kept], models: dict[str, Asked], now: float
    ) -> Iterator[Measured]:
        user = hash_of(event.user, MEASURED)
        for role, model in models.items():
            place = model.place(event.user, before, event)
            if place is not None:
                yield Measured(event.seq, role, model.version, int(now), user, place)

    # -- telling --

    def _tell(self, now: float, top: int) -> None:
        """Let every worker know the figures, now and then."""
        if self._progress is None or now < self._next_summary:
            return
        begun, oldest = time.perf_counter(), int(now - figures.DAY)
        self._kept = self._kept.filter(pl.col("moment") >= oldest)
        found: dict[str, Any] = {
            "share": self.share,
            "at": now,
            "behind": max(0, top - self._progress.seq),
            "left_out": self._progress.left_out,
            **figures.summary(self._kept, now),
        }
        self._store.publish(self._holder, schemas.encode(found).decode(), oldest)
        took = time.perf_counter() - begun
        self._next_summary = now + max(_SUMMARY_S, _SUMMARY_SHARE * took)
