"""Who was deleted, in a small file of the run for each worker: a worker that begins while the store is down does not know them again.

A worker writes only its own file, whole, and reads those of all.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from talerec.store.tail import Recent

logger = logging.getLogger("talerec")


class Deletions:
    """The deletions that a worker knows, kept in the folder of the run."""

    def __init__(self, folder: Path, worker: int) -> None:
        self._folder, self._own = folder, folder / f"deletions-{worker}"
        self._kept = -1  # the seq of the last deletion that was written

    def keep(self, recent: Recent) -> None:
        """Write what is known of deletions, where it is new. Only after the store has answered once: before, it is what was read."""
        if recent.seq < 0 or recent.last_deletion == self._kept:
            return
        last = recent.last_deletion
        part = self._own.with_suffix(".part")
        try:
            part.write_text(json.dumps({"store": recent.store, "deleted": recent.deleted}))
            os.replace(part, self._own)
        except OSError as error:
            logger.warning("deletions are kept in the store alone: %s", error)
            return
        self._kept = last

    def recall(self, recent: Recent) -> None:
        """Tell whoever began without the store what was deleted before."""
        for file in sorted(self._folder.glob("deletions-*")):
            if file.suffix:
                continue
            with suppress(OSError, ValueError):
                found = json.loads(file.read_text())
                recent.recall(found["store"], found["deleted"])
