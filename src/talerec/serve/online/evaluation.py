"""Online evaluation of the served models on arriving events.

Each event is ranked in the list that a model would have shown right before it. Events that the
model has learned from, or that were stored twice, are counted and not measured.

A background process at low priority follows the store, queries the same models as the workers,
and stores the ranks. It skips events, and counts them, rather than lag behind for hours.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import polars as pl

from talerec.serve import Settings, SharedState, schemas
from talerec.serve.model import ModelHolder
from talerec.serve.online import metrics
from talerec.serve.online.metrics import DAY, MEASURED, hash_user, measurement_frame
from talerec.serve.online.ranker import ServedModelRanker
from talerec.serve.users import UserHistories, read_store_id
from talerec.store import (
    NO_FEEDBACK,
    EventTail,
    Exclusion,
    Measurement,
    MeasurementProgress,
    MeasurementStore,
    Store,
    StoredRow,
    StoreError,
    now_us,
)

logger = logging.getLogger("talerec")

LEASE_S = 15.0  # seconds for which a process is the only one that evaluates
MAX_BEHIND = 50_000  # rows: farther behind, events are skipped
_STEP_ROWS = 2000  # rows read at a time
_STEP_S = 1.0  # seconds until the measurements of a step are stored: far less than a lease
_SUMMARY_S = 2.0  # seconds between summaries, at least
_SUMMARY_FACTOR = 20  # and this many times the duration of a summary
_MAX_PAUSE_S = 600.0  # at most: a longer pause means that the clock was set back
_SUMMARY_ROWS = 500_000  # measurements in a summary, the last ones
_MAX_CLOCK_SKEW = 60_000_000  # microseconds by which other clocks may be ahead
_IDLE_S = 0.2  # seconds between looks for new events
_RETRY_S = 1.0  # seconds after the store failed


class EvaluatedModel(Protocol):
    """A model that can rank the item of an event before the event happened.

    `version` is the hash that names the saved model.
    """

    version: str

    def rank_event(self, event: StoredRow, history: list[StoredRow]) -> int:
        """Return the rank, from 1, of an event's item in the list for its user right before it.

        `history` has the user's earlier events, oldest first. The rank is 0 if the list does not
        have the item, and an `Exclusion`, below 0, if the model was trained on the event or on
        later events of the user.
        """


class OnlineEvaluator:
    """Evaluates models on the events of a share of the users.

    Parameters
    ----------
    address : str
        The store.
    share : float
        The share of users whose events are evaluated.
    models : function
        Returns the models to evaluate now, by role (current, candidate).
    max_age : float
        Seconds: older events, such as an import of history, are ignored.
    max_history : int
        The most rows of a user's history.
    holder : str, optional
        The name under which it holds the lease. A process that replaces a killed one uses the
        same name, and need not wait for the lease to expire.
    """

    def __init__(
        self, address: str, share: float, models: Callable[[], dict[str, EvaluatedModel]],
        *, max_age: float, max_history: int, holder: str | None = None,
    ) -> None:  # fmt: skip
        """Open the store for reading events and for measurements; no lease is held yet.

        share: of users to evaluate. models: returns those to evaluate now. max_age: seconds. The
        lease is the right to evaluate, of one process at a time; `holder` names this one.
        """
        self._store, self._reader = MeasurementStore(address), Store(address)
        self._reader.meta()  # an error now if the store does not answer
        self.share, self._models = share, models
        self._max_age, self._max_history = int(1e6 * max_age), max_history
        self._holder, self._lease_end = holder or uuid.uuid4().hex, 0.0
        self.feedback = NO_FEEDBACK  # which events are negative, and are not evaluated
        self._progress: MeasurementProgress | None = None  # while it holds the lease
        self._recent, self._next_summary = measurement_frame([]), 0.0

    def step(self, now: float) -> int:
        """Evaluate the next events if this process holds the lease; return how many rows it read.

        The lease is the right to evaluate, of one process at a time; `now` is in Unix seconds. If
        more than 50,000 rows are unread, the older ones are skipped.
        """
        progress = self._renew_lease(now)
        if progress is None:
            return 0
        last_seq = self._reader.meta().seq
        if last_seq - progress.seq > MAX_BEHIND:
            seq = last_seq - MAX_BEHIND // 2
            n_skipped = seq - progress.seq
            logger.warning("online evaluation lags behind: %d events are skipped", n_skipped)
            progress = MeasurementProgress(seq, progress.left_out + n_skipped)
        rows = self._reader.read_after(progress.seq, _STEP_ROWS)
        n_read = self._evaluate(rows, progress, now) if rows else 0
        self._publish_summary(now, last_seq)
        return n_read

    def _renew_lease(self, now: float) -> MeasurementProgress | None:
        """Return how far events were evaluated if this process holds the lease, else None.

        The lease is the right to evaluate, of one process at a time; `now` is in Unix seconds. It
        is renewed after half its time. A new holder reads the last day's measurements.
        """
        is_fresh = LEASE_S / 2 < self._lease_end - now <= LEASE_S  # not if the clock was set back
        if self._progress is not None and is_fresh:
            return self._progress
        progress = self._store.take_lease(self._holder, now, LEASE_S)
        if progress is None:
            self._progress = None
        elif self._progress is None:
            recent = self._store.read_since(int(now - DAY))
            self._progress, self._recent = progress, measurement_frame(recent)
        self._lease_end = now + LEASE_S
        return self._progress

    def _evaluate(self, rows: list[StoredRow], progress: MeasurementProgress, now: float) -> int:
        """Rank the events among `rows` and store the ranks, for about a second; return rows done.

        Events that are too old, in the future, or of users outside the share are skipped. Of
        deleted users, earlier measurements no longer count. If the lease is lost, nothing is
        stored.
        """
        now_us = int(1e6 * now)
        valid_times = range(now_us - self._max_age, now_us + _MAX_CLOCK_SKEW)
        models = self._models()
        measurements: list[Measurement] = []
        deleted_users: list[int] = []
        end, n_read = time.monotonic() + _STEP_S, 0
        for row in rows:
            n_read += 1
            if metrics.is_in_share(row.user, self.share, MEASURED):
                if row.item is None:
                    user = hash_user(row.user, MEASURED)
                    measurements = [each for each in measurements if each.user != user]
                    deleted_users.append(user)
                elif row.time in valid_times and not self.feedback.is_negative(row):
                    measurements += self._measure(row, models, int(now))
            if time.monotonic() > end:
                break
        after = MeasurementProgress(rows[n_read - 1].seq, progress.left_out)
        is_saved = self._store.save(self._holder, measurements, after)
        self._progress = after if is_saved else None  # None: another process has the lease
        if is_saved and (measurements or deleted_users):
            recent = self._recent.filter(~pl.col("user").is_in(deleted_users))
            recent = pl.concat([recent, measurement_frame(measurements)])
            self._recent = recent.tail(_SUMMARY_ROWS)
        return n_read

    def _measure(
        self, event: StoredRow, models: dict[str, EvaluatedModel], now: int
    ) -> list[Measurement]:
        """Return the rank of an event's item for each model, or why it is not measured.

        `models` is keyed by role (current, candidate); `now` is in Unix seconds. The rank is that
        in the list that the model would have shown; 0: not in the list. Its history are the user's
        events that were stored before the event and are earlier.
        """
        user = hash_user(event.user, MEASURED)
        history = self._store.read_earlier(event, self._max_history)
        measurements = []
        for role, model in models.items():
            rank: int = Exclusion.REPEATED
            if history is not None:
                rank = model.rank_event(event, history)
            measurements.append(Measurement(event.seq, role, model.version, now, user, int(rank)))
        return measurements

    def _publish_summary(self, now: float, last_seq: int) -> None:
        """Store a summary of the last day's metrics for all workers, if the next one is due.

        `now` is in Unix seconds; `last_seq` is the number of the last row of the store, to report
        how many rows are unread ("behind"). The summary is JSON: share, at, behind, left_out, hour,
        day.
        """
        if self._progress is None or 0 < self._next_summary - now <= _MAX_PAUSE_S:
            return
        started, oldest = time.perf_counter(), int(now - DAY)
        latest = oldest + 2 * DAY  # later ones were measured while the clock was ahead
        self._recent = self._recent.filter(pl.col("measured_at").is_between(oldest, latest))
        behind = max(0, last_seq - self._progress.seq)
        state = {"share": self.share, "at": now, "behind": behind}
        state |= {"left_out": self._progress.left_out, **metrics.summarize(self._recent, now)}
        self._store.publish(self._holder, schemas.encode(state).decode(), oldest)
        seconds = time.perf_counter() - started
        self._next_summary = now + min(max(_SUMMARY_S, _SUMMARY_FACTOR * seconds), _MAX_PAUSE_S)


# -- the process -----------------------------------------------------------------------------------


class EvaluationProcess:
    """The models, the store and the loop of the process that evaluates models on new events.

    `folder` is the folder of the run, with the workers' copies of the models. Set `stopping` to end
    the loop.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Open the store's newest events, and the current and (if any) the candidate model.

        The name that holds the lease is read from a file of the run's folder, or drawn and written.
        """
        self._settings, self._folder, self._address = settings, folder, str(settings.store)
        self.stopping = threading.Event()
        store_id = read_store_id(folder)
        self._tail = EventTail(self._address, settings.max_history, known_store=store_id)
        self._histories = UserHistories(
            self._tail, settings.max_history, feedback=settings.feedback
        )
        self._store = Store(self._address)
        self._holders = {"current": self._make_holder(settings.path, folder, "current")}
        if settings.candidate is not None:
            copies = folder / "candidate"
            self._holders["candidate"] = self._make_holder(settings.candidate, copies, "candidate")
        self._rankers: dict[str, ServedModelRanker] = {}
        name = folder / "measurer"  # the holder of the lease: the same after a restart
        if not name.exists():
            name.write_text(uuid.uuid4().hex)
        self._lease_holder = name.read_text()

    def _make_holder(self, path: Path, copies: Path, role: str) -> ModelHolder:
        """Return a holder of the model at `path`, which reloads it when the artifact changes.

        `copies` is the folder with the workers' copies of the artifact, which it reads too. Its
        counters lie in a folder of their own, so that they do not count as a worker's. `role` is
        "current" (the served model) or "candidate" (the model under test).
        """
        counters = self._folder / f"measured-{role}"
        for place in (counters, copies):
            place.mkdir(exist_ok=True)
        shared = SharedState(counters, 1, 0, ())
        return ModelHolder(path, copies, shared, owner="online evaluation")

    def run(self) -> None:
        """Load the models, then evaluate events until `stopping` is set.

        A thread per model reloads it when its artifact changes. While the store does not answer, it
        is tried again every second.
        """
        evaluator, is_logged = self.open_evaluator(), False
        for holder in self._holders.values():
            holder.start()
            watching = (self._settings.watch, self.stopping)
            threading.Thread(target=holder.watch, args=watching, daemon=True).start()
        while evaluator is not None and not self.stopping.is_set():
            n_read = 0
            try:
                n_read = evaluator.step(now_us() / 1e6)
                is_logged = False
            except StoreError as error:
                if not is_logged:
                    logger.warning("online evaluation waits for the store: %s", error)
                is_logged = True
                self.stopping.wait(_RETRY_S)
            if not n_read:
                self.stopping.wait(_IDLE_S)

    def open_evaluator(self) -> OnlineEvaluator | None:
        """Return an evaluator as soon as the store answers; None if `stopping` is set before.

        The evaluator ranks the item of each new event of the store in the list a model would have
        shown. A store that fails is tried again every second.
        """
        settings = self._settings
        while not self.stopping.is_set():
            try:
                evaluator = OnlineEvaluator(
                    self._address, settings.measure, self._current_models,
                    max_age=DAY * settings.live_days, max_history=settings.max_history,
                    holder=self._lease_holder,
                )  # fmt: skip
                evaluator.feedback = settings.feedback
                return evaluator
            except StoreError:
                self.stopping.wait(_RETRY_S)
        return None

    def _current_models(self) -> dict[str, EvaluatedModel]:
        """Return the models that are served now, by role (current, candidate), ready to rank.

        A model that is not loaded yet is missing. Deletions of users are read up to now, since they
        decide whether rows of the training log count. StoreError if the store does not answer.
        """
        self._tail.poll()
        for role, holder in self._holders.items():
            model, ranker = holder.current, self._rankers.get(role)
            if model is not None and (ranker is None or ranker.version != model.version):
                parts = (self._histories, self._tail, self._store)
                self._rankers[role] = ServedModelRanker(model, *parts)
        return {**self._rankers}
