"""The model in use, and how a new one takes its place: it is copied, checked and warmed before the swap."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from talerec.artifact import format as artifact
from talerec.errors import TalerecError
from talerec.serve.model.copies import Copies, Signature, signature
from talerec.serve.model.served import ServedModel
from talerec.serve.shared import SharedState, resident_bytes

logger = logging.getLogger("talerec")

_POLL_S = 0.05  # seconds between looks at whether another worker asks for a reload
_RETRY_S, _MAX_RETRY_S = (
    2.0,
    60.0,
)  # a refused model is looked at again, after longer and longer times


class ModelHolder:
    """Holds the model that this worker serves. A request reads `current` once and uses that model throughout."""

    def __init__(
        self,
        path: Path,
        folder: Path,
        shared: SharedState,
        adopt: Callable[[ServedModel], None] = lambda model: None,
        who: str | None = None,
    ) -> None:
        self._who = who or f"worker {shared.worker}"
        self.path, self.shared, self._adopt = path, shared, adopt
        self.current: ServedModel | None = None
        self._copies = Copies(path, folder / "models")
        self._lock = threading.Lock()
        self._seen: Signature | None = None
        self._refused = _Refused()

    def start(self) -> ServedModel:
        """Load the first model. A worker that takes the place of another serves what that one did if there is nothing better.

        Raises
        ------
        TalerecError
            Where there is no model to serve.
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
        """Serve the model that the artifact holds now: that model, and whether it is a new one.

        A damaged artifact raises TalerecError and changes nothing.
        """
        with self._lock:
            try:
                found, is_new = self._refresh()
            except (TalerecError, OSError, MemoryError) as error:
                self._refused = self._refused.again(str(error), self._seen)
                raise
            self._refused = _Refused()
        if is_new:
            gc.collect()
            gc.freeze()  # the objects of a model live long: later collections can leave them out
        return found, is_new

    def _refresh(self) -> tuple[ServedModel, bool]:
        self._seen = signature(self.path)
        version = artifact.read_manifest(self.path)["version"]
        before = self.current
        if before is not None and version == before.version:
            return before, False
        loaded = self._copies.open(self._load)
        self._use(loaded)
        if before is not None:
            self.shared.increment("reloads_done")
        return loaded, True

    def _use(self, loaded: ServedModel) -> None:
        self.current = loaded
        self.shared.set_version(loaded.version)
        logger.info("%s uses model %s", self._who, loaded.version)

    def _load(self, copy: Path, verify: bool) -> ServedModel:
        try:
            loaded = ServedModel.open(copy, verify=verify)
            loaded.warm()
            self._adopt(loaded)
        except TalerecError as error:
            raise TalerecError(str(error).replace(str(copy), str(self.path))) from None
        except Exception as error:
            logger.exception("a model fails to answer")
            raise TalerecError(f"the model at {self.path} fails to answer: {error}") from error
        return loaded

    def watch(self, seconds: float, stop: threading.Event) -> None:
        """Until `stop` is set, look for a new artifact every `seconds`, and at once when a worker asks for a reload."""
        seen, looked = self.shared.reload_requests, -seconds
        while True:
            requests = self.shared.reload_requests
            force = requests != seen
            if force or time.monotonic() - looked >= seconds:
                seen, looked = requests, time.monotonic()
                self._look(force=force)
            if stop.wait(_POLL_S):
                return

    def _look(self, *, force: bool) -> None:
        with suppress(OSError):
            self.shared.set_gauge("resident_bytes", resident_bytes())
        same = signature(self.path) == self._seen
        if same:
            self.report_refusal()
        if force or not same or self._refused.is_due():
            with suppress(TalerecError, OSError, MemoryError):
                self.refresh()

    def report_refusal(self) -> None:
        """Count and log the last refusal, unless that was done."""
        if self._refused.report():
            self.shared.increment("reloads_refused")
            logger.warning("the new model is refused, the old one stays: %s", self._refused.message)

    def is_served_everywhere(self, version: str) -> bool:
        """Do all workers serve this version?"""
        return set(self.shared.versions()) <= {version}


class _Refused:
    """The last refusal. While files are being copied every look ends in one: it is told once the artifact stays as it is."""

    def __init__(self, message: str = "", seen: Signature | None = None, wait: float = 0.0) -> None:
        self.message, self._seen, self._wait = message, seen, wait
        self._due, self._told = time.monotonic() + wait, not message

    def again(self, message: str, seen: Signature | None) -> _Refused:
        """The refusal after this one: of the same files, or of others."""
        if seen != self._seen or not self.message:
            return _Refused(message, seen, _RETRY_S)
        found = _Refused(message, seen, min(2 * self._wait, _MAX_RETRY_S))
        found._told = self._told and message == self.message
        return found

    def is_due(self) -> bool:
        """Is it time to look at the same files again? They may be readable now, or there may be room for a copy."""
        return bool(self.message) and time.monotonic() >= self._due

    def report(self) -> bool:
        """Is there a refusal that nobody has been told of?"""
        told, self._told = self._told, True
        return not told
