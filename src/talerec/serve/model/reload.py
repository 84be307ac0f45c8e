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
from talerec.serve.model.item_updates import ItemUpdates
from talerec.serve.model.served import ServedModel
from talerec.serve.model.warming import warm_model

logger = logging.getLogger("talerec")

_POLL_S = 0.05  # seconds between checks whether another worker requests a reload
_RETRY_S = 2.0  # seconds until a refused model is tried a second time; the time then doubles,
_MAX_RETRY_S = 60.0  # up to this


class ModelHolder:
    """Holds the model that this process serves, and replaces it when its saved files change.

    A request reads `current` once and uses that model throughout. The artifact is the folder of the
    saved model; models are loaded from copies of it.

    Parameters
    ----------
    path : Path
        The artifact folder.
    folder : Path
        The folder in which all workers share the copies of the artifact.
    shared : SharedState
        The metrics and model versions of all workers.
    prepare : function
        Called with each loaded model before it is used.
    owner : str, optional
        The name of this process in log lines; by default that of a worker.
    updates : ItemUpdates, optional
        Changes of the store's items, which each model gets before it is used.
    """

    def __init__(
        self, path: Path, folder: Path, shared: SharedState,
        prepare: Callable[[ServedModel], None] = lambda model: None, owner: str | None = None,
        updates: ItemUpdates | None = None,
    ) -> None:  # fmt: skip
        self._process_name = owner or f"worker {shared.worker}"
        self.path, self.shared, self._prepare = path, shared, prepare
        self._updates = updates or ItemUpdates()
        self.current: ServedModel | None = None  # None until a model is loaded
        self._copies = Copies(path, folder / "models")
        self._lock = threading.Lock()
        self._signature: Signature | None = None  # of the files that were tried last
        self._failure = _LoadFailure()

    def start(self) -> ServedModel:
        """Load and return the first model; TalerecError if there is no model to serve.

        If the saved model cannot be used, the copy that the service served last is loaded instead;
        a worker process that replaces a crashed one needs this.
        """
        try:
            return self.refresh()[0]
        except TalerecError as error:
            served = self._copies.reopen(self._load)
            if served is None:
                raise
            logger.warning("the model at %s is refused, the last one stays: %s", self.path, error)
            return self._serve(served)

    def refresh(self) -> tuple[ServedModel, bool]:
        """Serve the present version of the saved model; return it and whether it is a new one.

        If the saved model cannot be used, the error is raised, the served model stays, and the
        failure is stored in `_failure` (the last failure, and when to try again). `_signature`
        identifies the files. One thread at a time.
        """
        with self._lock:
            try:
                model, is_new = self._load_if_new()
            except (TalerecError, OSError, MemoryError) as error:
                self._failure = self._failure.add_failure(error, self._signature)
                raise
            self._failure = _LoadFailure()
        if is_new:
            gc.collect()
            gc.freeze()  # the objects of a model live long: later collections can skip them
        return model, is_new

    def _load_if_new(self) -> tuple[ServedModel, bool]:
        """Load and serve the saved model at `path` unless its version is in use already.

        Returns the served model and whether it is new. The signature (names, times, inodes, sizes)
        of its files is stored in `_signature`, by which a later change is noticed. The model is
        loaded from a copy that all worker processes share. Replacing another model is counted in
        the metrics.
        """
        self._signature = read_signature(self.path)
        version = read_manifest(self.path)["version"]
        previous = self.current
        if previous is not None and version == previous.version:
            return previous, False
        loaded = self._copies.open(self._load)
        served = self._serve(loaded)
        if previous is not None:
            self.shared.increment("reloads_done")
        return served, True

    def _serve(self, loaded: ServedModel) -> ServedModel:
        """Serve the model `loaded` from now on: set `current`, and publish its version.

        Changes of items that were read since it was loaded are applied. The version goes to the
        state that all worker processes of the service share.
        """
        with self._updates.lock:
            self.current = self._updates.apply_to(loaded)
            served = self.current
        self.shared.set_version(loaded.version)
        logger.info("%s uses model %s", self._process_name, loaded.version)
        return served

    def _load(self, copy: Path, verify: bool) -> ServedModel:
        """Return the model of a copy of the saved model, warmed and prepared to answer.

        `copy` is the copy's folder; `verify`: whether to check hashes and every number of the
        files. Warming compiles all kernels; `_prepare` is a function of the caller, and `_updates`
        are changes of items. Every failure of the model is a TalerecError, and names the original
        folder `path`.
        """
        try:
            loaded = ServedModel(copy, verify=verify)
            warm_model(loaded)
            self._prepare(loaded)
            self._updates.warm(loaded)
            loaded = self._updates.apply_to(loaded)
        except ArtifactError as error:
            raise error.with_folder(self.path) from None
        except TalerecError:
            raise
        except Exception as error:
            logger.exception("the model at %s fails to answer", self.path)
            raise TalerecError(f"the model at {self.path} fails to answer: {error}") from error
        return loaded

    def watch(self, seconds: float, stop: threading.Event) -> None:
        """Check for a new saved model every `seconds`, and at each requested reload, until `stop`.

        The body of a thread. A reload is requested by any worker process through the shared counter
        `reload_requests`.
        """
        n_requests, last_check = self.shared.reload_requests, -seconds
        while True:
            requests = self.shared.reload_requests
            is_requested = requests != n_requests
            if is_requested or time.monotonic() - last_check >= seconds:
                n_requests, last_check = requests, time.monotonic()
                self._refresh_if_changed(force=is_requested)
            if stop.wait(_POLL_S):
                return

    def _refresh_if_changed(self, *, force: bool) -> None:
        """Refresh the model if its saved files changed, if forced, or to retry files that failed.

        Failures are noted by `refresh`, and reported once the files have stopped changing, that is,
        have the signature (names, times, inodes, sizes) of the last attempt. The gauge of this
        process's memory is updated too.
        """
        with suppress(OSError):
            self.shared.set_gauge("resident_bytes", resident_bytes())
        is_same = read_signature(self.path) == self._signature
        if is_same:
            self.report_refusal()
        if force or not is_same or self._failure.is_due():
            with suppress(TalerecError, OSError, MemoryError):
                self.refresh()

    def report_refusal(self) -> None:
        """Count and log the last failure to load the saved model, unless it has been reported.

        A refusal is a new saved model that could not be loaded; the previous model is still served.
        """
        if not self._failure.is_reported:
            self._failure.is_reported = True
            self.shared.increment("reloads_refused")
            logger.warning("the new model is refused, the old one stays: %s", self._failure.error)

    def is_served_everywhere(self, version: str) -> bool:
        """Do all workers that serve a model serve this version?"""
        return set(self.shared.versions()) <= {version}


@dataclass
class _LoadFailure:
    """The last failure to load a saved model, and when to try the same files again.

    While somebody copies files into the model's folder, every attempt fails. So a failure is
    reported only once the files have stopped changing.
    """

    error: Exception | None = None  # None if the last load succeeded
    signature: Signature | None = None  # names, times, inodes and sizes of the files that failed
    delay: float = 0.0  # seconds until the same files are tried again
    is_reported: bool = True  # whether the failure was logged and counted
    retry_at: float = field(init=False)  # as `time.monotonic` counts

    def __post_init__(self) -> None:
        self.retry_at = time.monotonic() + self.delay

    def add_failure(self, error: Exception, signature: Signature | None) -> _LoadFailure:
        """Return the state after one more failure, `error`, to load files with this signature.

        The signature has names, times, inodes and sizes of the files. For the same files as before
        the delay doubles, up to a minute, and an error of the same kind is not reported twice;
        other files start with two seconds.
        """
        if self.error is None or signature != self.signature:
            return _LoadFailure(error, signature, _RETRY_S, False)
        is_same = _identify_failure(error) == _identify_failure(self.error)
        delay = min(2 * self.delay, _MAX_RETRY_S)
        return _LoadFailure(error, signature, delay, self.is_reported and is_same)

    def is_due(self) -> bool:
        """Return whether to retry files of a saved model that failed to load, as time is up.

        They may be readable, or have room, by now. False if the last load succeeded.
        """
        return self.error is not None and time.monotonic() >= self.retry_at


def _identify_failure(error: Exception) -> tuple[object, ...]:
    """Return the type, file and errno of an error: equal values count as the same failure."""
    return type(error), getattr(error, "file", None), getattr(error, "errno", None)
