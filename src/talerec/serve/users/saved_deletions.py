"""Deletions of users in files of a run, for workers that start while the store is down."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

from talerec.runtime import atomic_replace
from talerec.store import EventTail, StoredRow

logger = logging.getLogger("talerec")

_MIN_LINES = 1000  # a file with fewer lines is not shortened


class SavedDeletions:
    """The file `deletions-N` of a worker, to which new deletions are appended.

    The first line is the id of the store as JSON, each other line a list of a user id and the seq
    of the user's deletion (its number among the rows of the store). The file is for a worker that
    starts while the store cannot be reached: it hides deleted users all the same. `folder` is the
    folder that all workers of a run share, and `worker` the number N of this one.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        self._folder, self._path = folder, folder / f"deletions-{worker}"
        self._new: list[tuple[str, int]] = []  # deletions that the file lacks
        self._n_skips = -1  # of the follower when the file was written; -1: it was not
        self._n_lines = 0

    def collect(self, rows: list[StoredRow]) -> None:
        """Remember the deletions among new rows of the store, for the next `save`."""
        self._new += [(row.user, row.seq) for row in rows if row.item is None]

    def save(self, tail: EventTail) -> None:
        """Append the collected deletions to the file; `tail` is the follower that passed them.

        The file is rewritten by the first call, after the follower has skipped rows (it was too
        far behind, and read only the list of deletions), and when most lines are of users with a
        later deletion. A failure is logged, and the next call rewrites the file.
        """
        is_outdated = self._n_lines > _MIN_LINES + 2 * len(tail.deleted)
        is_complete = self._n_skips == tail.n_skips and not is_outdated
        if is_complete and not self._new:
            return
        try:
            if is_complete:
                with self._path.open("a") as file:
                    file.write("".join(map(_encode_line, self._new)))
                self._n_lines += len(self._new)
            else:
                self._n_skips, self._n_lines = tail.n_skips, 1 + len(tail.deleted)
                with atomic_replace(self._path) as unfinished:
                    lines = [_encode_line(tail.store), *map(_encode_line, tail.deleted.items())]
                    unfinished.write_text("".join(lines))
            self._new = []
        except OSError as error:
            self._n_skips = -1
            logger.warning("deletions could not be saved outside the store: %s", error)

    def restore(self, tail: EventTail) -> None:
        """Pass the deletions that all workers saved to `tail`, for as long as it has no store.

        Unfinished files (with a suffix, of an interrupted `save`) are left out, and so is a last
        line that a killed worker did not finish.
        """
        for file in sorted(self._folder.glob("deletions-*")):
            if file.suffix:
                continue
            with suppress(OSError, ValueError):
                store, *lines = file.read_text().splitlines()
                deleted: dict[str, int] = {}
                with suppress(ValueError):
                    for line in lines:
                        user, seq = json.loads(line)
                        deleted[user] = seq
                tail.restore_deletions(json.loads(store), deleted)


def _encode_line(value: str | tuple[str, int]) -> str:
    """Return a value as a line of JSON."""
    return json.dumps(value) + "\n"
