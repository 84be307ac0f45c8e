"""The model in use, and how a new one takes its place: it is checked and warmed before the swap."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from talerec import artifact
from talerec.errors import TalerecError
from talerec.serve.service import ServedModel
from talerec.serve.shared import SharedState, resident_bytes

logger = logging.getLogger("talerec")

_POLL_S = 0.05  # seconds between looks at whether another worker asks for a reload


class ModelHolder:
    """Holds the model that this worker serves. A request reads `current` once and uses that model throughout."""

    def __init__(self, path: Path, folder: Path, shared: SharedState) -> None:
        self.path, self.shared = path, shared
        self.current: ServedModel | None = None
        self._folder = folder
        self._lock = threading.Lock()
        self._last_signature: tuple[int, ...] | None = None
        self._last_error: str | None = None

    def refresh(self) -> tuple[ServedModel, bool]:
        """Serve the model that the artifact holds now: that model, and whether it is a new one.

        A damaged artifact raises TalerecError and changes nothing.
        """
        with self._lock:
            self._last_signature = self._signature()
            version = artifact.read_manifest(self.path)["version"]
            before = self.current
            if before is not None and version == before.version:
                return before, False
            loaded = self._load(version)
            self.current = loaded
            self.shared.set_version(loaded.version)
        if before is not None:
            self.shared.increment("reloads_done")
        logger.info("worker %d serves model %s", self.shared.worker, loaded.version)
        gc.collect()
        gc.freeze()  # the objects of a model live long: later collections can leave them out
        return loaded, True

    def _load(self, version: str) -> ServedModel:
        try:
            loaded = self._open(version)
            loaded.warm()
        except TalerecError:
            raise
        except Exception as error:
            logger.exception("a model fails to answer")
            raise TalerecError(f"the model at {self.path} fails to answer: {error}") from error
        return loaded

    def _open(self, version: str) -> ServedModel:
        """The first worker checks the hashes; the others wait for it and rely on its result."""
        with locked(self._folder / "lock"):
            verified = self._folder / "verified"
            if not verified.exists() or verified.read_text() != version:
                loaded = ServedModel.open(self.path, verify=True)
                verified.write_text(loaded.version)
                return loaded
        return ServedModel.open(self.path, verify=False)

    def _signature(self) -> tuple[int, ...] | None:
        """Changes whenever the artifact is written anew."""
        with suppress(OSError):
            found = os.stat(self.path / artifact.MANIFEST)
            return found.st_mtime_ns, found.st_ino, found.st_size
        return None

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
        if force or self.current is None or self._signature() != self._last_signature:
            self._try_refresh()

    def _try_refresh(self) -> None:
        try:
            self.refresh()
            self._last_error = None
        except TalerecError as error:
            if str(error) != self._last_error:  # the same error is reported once
                self._last_error = str(error)
                self.shared.increment("reloads_refused")
                logger.warning("the new model is refused, the old one stays in use: %s", error)

    def wait_for_workers(self, version: str, seconds: float) -> bool:
        """Ask every worker to look for a new model; do all of them serve this version within `seconds`?"""
        self.shared.request_reload()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if set(self.shared.versions()) <= {version}:
                return True
            time.sleep(_POLL_S / 5)
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that all processes share."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
