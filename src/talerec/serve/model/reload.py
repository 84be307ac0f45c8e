"""The model in use, and its replacement: a new model is copied, checked and warmed first."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from talerec.artifact import read_manifest
from talerec.errors import ArtifactError, TalerecError
from talerec.serve import SharedState, resident_bytes
from talerec.serve.model.copies import Copies, Signature, read_signature
from talerec.serve.model.served import ServedModel

logger = logging.getLogger("talerec")

_POLL_S = 0.05  # seconds between checks whether another worker requests a reload
_RETRY_S = 2.0  # seconds until a refused model is tried a second time; the time then doubles,
_MAX_RETRY_S = 60.0  # up to this


class ModelHolder:
    """Holds the model that this worker serves, and replaces it when the artifact changes.

    A request reads `current` once and uses that model throughout.

    path: the artifact
    folder: the folder in which all workers share the copies of the artifact
    prepare: called with each loaded model before it is used
    owner: the name of this process in log lines
    """

    def __init__(
        self, path: Path, folder: Path, shared: SharedState,
        prepare: Callable[[ServedModel], None] = lambda model: None, owner: str | None = None,
    ) -> None:  # fmt: skip
        self._owner = owner or f"worker {shared.worker}"
        self.path, self.shared, self._prepare = path, shared, prepare
        self.current: ServedModel | None = None
        self._copies = Copies(path, folder / "models")
        self._lock = threading.Lock()
        self._seen: Signature | None = None
        self._refusal = _Refusal()

    def start(self) -> ServedModel:
        """Load and return the first model; TalerecError if there is no model to serve.

        If the artifact cannot be used, the copy that the service served last is loaded instead; a
        worker that replaces a crashed one needs this.
        """
        try:
            return self.refresh()[0]
        except TalerecError as error:
            served = self._copies.reopen(self._load)
            if served is None:
                raise
            logger.warning("the model at %s is refused, the last one stays: %s", self.path, error)
            self._use(served)
            return served

    def refresh(self) -> tuple[ServedModel, bool]:
        """Serve the artifact's present model; return this model and whether it is a new one.

        If the artifact cannot be used, the error is raised, the served model stays, and the failure
        is stored in `_refusal` (the last failure, and when to try again).
        """
        with self._lock:
            try:
                model, is_new = self._refresh()
            except (TalerecError, OSError, MemoryError) as error:
                self._refusal = self._refusal.follow(error, self._seen)
                raise
            self._refusal = _Refusal()
        if is_new:
            gc.collect()
            gc.freeze()  # the objects of a model live long: later collections can skip them
        return model, is_new

    def _refresh(self) -> tuple[ServedModel, bool]:
        """Load the present artifact unless its version is in use already.

        Returns the served model and whether it is new. The signature (names, times, inodes, sizes)
        of the artifact's files is stored in `_seen`, by which a later change is noticed.
        """
        self._seen = read_signature(self.path)
        version = read_manifest(self.path)["version"]
        before = self.current
        if before is not None and version == before.version:
            return before, False
        loaded = self._copies.open(self._load)
        self._use(loaded)
        if before is not None:
            self.shared.increment("reloads_done")
        return loaded, True

    def _use(self, loaded: ServedModel) -> None:
        """Serve the model `loaded` from now on: set `current`, and publish its version.

        The version goes to the state that all worker processes of the service share.
        """
        self.current = loaded
        self.shared.set_version(loaded.version)
        logger.info("%s uses model %s", self._owner, loaded.version)

    def _load(self, copy: Path, verify: bool) -> ServedModel:
        """Return the model of a copy of the artifact, warmed and prepared to answer.

        `copy` is the copy's folder; `verify`: whether to check hashes and every number of the
        files. Warming compiles all kernels. Every failure of the model is a TalerecError.
        """
        try:
            loaded = ServedModel(copy, verify=verify)
            loaded.warm()
            self._prepare(loaded)
        except ArtifactError as error:
            raise error.with_folder(self.path) from None
        except TalerecError:
            raise
        except Exception as error:
            logger.exception("the model at %s fails to answer", self.path)
            raise TalerecError(f"the model at {self.path} fails to answer: {error}") from error
        return loaded

    def watch(self, seconds: float, stop: threading.Event) -> None:
        """Check for a new artifact every `seconds`, and at each requested reload, until `stop`.

        A reload is requested by any worker through the shared counter `reload_requests`.
        """
        n_requests, last_look = self.shared.reload_requests, -seconds
        while True:
            requests = self.shared.reload_requests
            is_requested = requests != n_requests
            if is_requested or time.monotonic() - last_look >= seconds:
                n_requests, last_look = requests, time.monotonic()
                self._look(force=is_requested)
            if stop.wait(_POLL_S):
                return

    def _look(self, *, force: bool) -> None:
        """Refresh the model if the artifact changed, if forced, or to retry one that failed.

        Failures are noted by `refresh`, and reported once the artifact has stopped changing. The
        memory gauge is updated too.
        """
        with suppress(OSError):
            self.shared.set_gauge("resident_bytes", resident_bytes())
        is_same = read_signature(self.path) == self._seen
        if is_same:
            self.report_refusal()
        if force or not is_same or self._refusal.is_due():
            with suppress(TalerecError, OSError, MemoryError):
                self.refresh()

    def report_refusal(self) -> None:
        """Count and log the last failure to load the artifact, unless it has been reported.

        A refusal is a new artifact that could not be loaded; the previous model is still served.
        """
        if not self._refusal.is_reported:
            self._refusal.is_reported = True
            self.shared.increment("reloads_refused")
            logger.warning("the new model is refused, the old one stays: %s", self._refusal.error)

    def is_served_everywhere(self, version: str) -> bool:
        """Do all workers that serve a model serve this version?"""
        return set(self.shared.versions()) <= {version}


@dataclass
class _Refusal:
    """The last failure to load an artifact; `error` is None if the last load succeeded.

    While somebody copies files into the artifact, every attempt fails. So a failure is reported
    only once the artifact has stopped changing. `seen` is the signature (names, times, inodes,
    sizes) of the files that failed; `wait` has the seconds until the same files are tried again,
    and `due` is when, as `time.monotonic` counts.
    """

    error: Exception | None = None
    seen: Signature | None = None
    wait: float = 0.0
    is_reported: bool = True
    due: float = field(init=False)

    def __post_init__(self) -> None:
        self.due = time.monotonic() + self.wait

    def follow(self, error: Exception, seen: Signature | None) -> _Refusal:
        """Return the state after one more failure, `error`, of the same files (`seen`) or others.

        `seen` is the signature (names, times, inodes, sizes) of the artifact's files. For the same
        files the waiting time doubles, up to a minute, and an error of the same kind is not
        reported twice; other files start anew.
        """
        if self.error is None or seen != self.seen:
            return _Refusal(error, seen, _RETRY_S, False)
        is_same = _kind_of(error) == _kind_of(self.error)
        wait = min(2 * self.wait, _MAX_RETRY_S)
        return _Refusal(error, seen, wait, self.is_reported and is_same)

    def is_due(self) -> bool:
        """Return whether to retry the files of an artifact that failed to load, as time is up.

        They may be readable, or have room, by now. False if the last load succeeded.
        """
        return self.error is not None and time.monotonic() >= self.due


def _kind_of(error: Exception) -> tuple[object, ...]:
    """Return the type, file and errno of an error: equal values count as the same failure."""
    return type(error), getattr(error, "file", None), getattr(error, "errno", None)
