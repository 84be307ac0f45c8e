"""The model in use, and how a new one takes its place: checked, warmed, then swapped in one step."""

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
from talerec.serve.service import Served
from talerec.serve.shared import Board, resident_bytes

logger = logging.getLogger("talerec")

_NAP = 0.05  # seconds between looks at what other workers want


class Holder:
    """Holds the model that this worker serves. Whoever answers takes `current` once, and uses that."""

    def __init__(self, path: Path, folder: Path, board: Board) -> None:
        self.path, self.board = path, board
        self.current: Served | None = None
        self._folder = folder
        self._turn = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._refused: str | None = None

    def refresh(self) -> bool:
        """Serve what the artifact holds now; True where that is another model. A bad artifact raises, and changes nothing."""
        with self._turn:
            self._seen = self._signature()
            version = artifact.read_manifest(self.path)["version"]
            if self.current is not None and version == self.current.version:
                return False
            try:
                fresh = self._open(version)
                fresh.warm()
            except TalerecError:
                raise
            except Exception as error:
                logger.exception("a model that cannot answer")
                raise TalerecError(f"{self.path} does not answer: {error}") from error
            before, self.current = self.current, fresh
            self.board.ready(fresh.version)
        if before is not None:
            self.board.add("reloads_done")
        logger.info("worker %d serves model %s", self.board.line, fresh.version)
        gc.collect()
        gc.freeze()  # what a model is made of need not be looked at again
        return True

    def _open(self, version: str) -> Served:
        """Hashes are checked by the first worker that comes; the others wait for it and trust it."""
        with locked(self._folder / "lock"):
            known = self._folder / "verified"
            if not known.exists() or known.read_text() != version:
                fresh = Served.open(self.path, verify=True)
                known.write_text(fresh.version)
                return fresh
        return Served.open(self.path, verify=False)

    def _signature(self) -> tuple[int, ...] | None:
        with suppress(OSError):
            found = os.stat(self.path / artifact.MANIFEST)
            return found.st_mtime_ns, found.st_ino, found.st_size
        return None

    def watch(self, seconds: float, stop: threading.Event) -> None:
        """Until `stop`: look at the artifact every so often, and at once where some worker wants it."""
        wanted, looked = self.board.wanted, 0.0
        while True:
            due = time.monotonic() - looked >= seconds
            if due or wanted != self.board.wanted:
                force, wanted, looked = (
                    wanted != self.board.wanted,
                    self.board.wanted,
                    time.monotonic(),
                )
                with suppress(OSError):
                    self.board.put("resident_bytes", resident_bytes())
                if force or self.current is None or self._signature() != self._seen:
                    self._try()
            if stop.wait(_NAP):
                return

    def _try(self) -> None:
        try:
            self.refresh()
            self._refused = None
        except TalerecError as error:
            if str(error) != self._refused:  # said once
                self._refused = str(error)
                self.board.add("reloads_refused")
                logger.warning("the new model is refused, the old one serves on: %s", error)

    def all_moved(self, version: str, seconds: float) -> bool:
        """Wait until every ready worker serves this version."""
        self.board.want()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if set(self.board.versions()) <= {version}:
                return True
            time.sleep(_NAP / 5)
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
