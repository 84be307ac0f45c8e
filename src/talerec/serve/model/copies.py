"""The service's own copies of the models that it serves.

A mapped file that somebody cuts short ends the process that reads it, and copying over an artifact cuts its files short.
So workers map copies that nobody else knows of: made once for all workers, checked, and served from then on,
whatever becomes of the artifact. A file system that can share blocks between files (Btrfs, XFS) makes them at no cost.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from talerec.artifact import format as artifact
from talerec.errors import TalerecError

logger = logging.getLogger("talerec")

T = TypeVar("T")
Signature = tuple[tuple[str, int, int, int], ...]

_CLONE = 0x40049409  # Linux: let one file share the blocks of another
_DEATHS = 2  # of workers that tried a model, after which it is not tried again


def signature(path: Path) -> Signature | None:
    """Changes whenever a file of the artifact does; None where there is no folder."""
    try:
        with os.scandir(path) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return None
    return tuple(sorted((name, it.st_mtime_ns, it.st_ino, it.st_size) for name, it in found))


class Copies:
    """Copies of one artifact in a folder that all workers share, each under the version of its model.

    Beside them stand a few small files: `serving`, the version that was tried last and answered; `trial`, the version that
    a worker is trying; `deaths`, a line for each worker that ended while it tried one.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self._folder = source, folder
        folder.mkdir(parents=True, exist_ok=True)

    def open(self, load: Callable[[Path, bool], T]) -> T:
        """What `load` makes of the copy of the artifact as it is now.

        The first worker makes the copy and tries it: `load(copy, True)` has to check everything. The others wait for that,
        and call `load(copy, False)`.
        """
        with self._locked():
            version = str(artifact.read_manifest(self.source)["version"])
            if not self._is_tried(version):
                self._refuse_deadly(version)
                place = self._copy()
                loaded = self._try_out(place, load)
                self._remove_others(place.name)
                return loaded
        return self._load(version, load)

    def reopen(self, load: Callable[[Path, bool], T]) -> T | None:
        """What `load` makes of the copy that was served last; None if there is none."""
        version = self._read("serving")
        return None if version is None else self._load(version, load)

    def _load(self, version: str, load: Callable[[Path, bool], T]) -> T:
        try:
            return load(self._folder / version, False)
        except TalerecError:
            if self._read("serving") != version:  # a newer one has just taken its place
                return self.open(load)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # it ends with the process that holds it
            yield

    # -- trying --

    def _is_tried(self, version: str) -> bool:
        return self._read("serving") == version and (self._folder / version).is_dir()

    def _try_out(self, place: Path, load: Callable[[Path, bool], T]) -> T:
        (self._folder / "trial").write_text(place.name)
        try:
            loaded = load(place, True)
        finally:  # not reached if the model ends the process
            (self._folder / "trial").unlink()
        (self._folder / "serving").write_text(place.name)
        return loaded

    def _refuse_deadly(self, version: str) -> None:
        """A model whose kernels end the process is tried twice, so that it does not end worker after worker."""
        deaths = self._folder / "deaths"
        tried = self._read("trial")
        if tried is not None:
            with deaths.open("a") as file:
                file.write(f"{tried}\n")
            (self._folder / "trial").unlink()
        count = (self._read("deaths") or "").split().count(version)
        if count >= _DEATHS:
            message = f"{count} workers ended while they tried it"
            raise TalerecError(f"the model at {self.source} fails to answer: {message}")

    def _read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return None

    # -- copying --

    def _copy(self) -> Path:
        """Copy the artifact as it is now; again if another one takes its place meanwhile."""
        while True:
            text = _manifest_text(self.source)
            unfinished = self._folder / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                return self._fill(unfinished, text)
            except (TalerecError, OSError) as error:
                shutil.rmtree(unfinished, ignore_errors=True)
                if _manifest_text(self.source) == text:
                    raise _told(error, self.source) from None

    def _fill(self, unfinished: Path, text: bytes) -> Path:
        (unfinished / artifact.MANIFEST).write_bytes(text)
        manifest = artifact.read_manifest(unfinished)
        for entry in manifest["files"].values():
            name = entry["file"]
            if (self.source / name).stat().st_size != entry["bytes"]:
                raise TalerecError(f"{self.source}: {name} is damaged: its size is not right")
        for entry in manifest["files"].values():
            take(self.source / entry["file"], unfinished / entry["file"])
        place = self._folder / str(manifest["version"])
        shutil.rmtree(place, ignore_errors=True)
        return unfinished.rename(place)

    def _remove_others(self, version: str) -> None:
        for place in self._folder.iterdir():
            if place.is_dir() and place.name != version:  # who has mapped its files keeps them
                shutil.rmtree(place, ignore_errors=True)


def _manifest_text(folder: Path) -> bytes:
    artifact.read_manifest(folder)  # says in words what is wrong with it
    return (folder / artifact.MANIFEST).read_bytes()


def _told(error: Exception, source: Path) -> TalerecError:
    if isinstance(error, TalerecError):
        return error
    name = Path(str(getattr(error, "filename", None) or source)).name
    if isinstance(error, FileNotFoundError):
        return TalerecError(f"{source}: {name} is missing")
    return TalerecError(f"{source} cannot be copied: {getattr(error, 'strerror', None) or error}")


def take(source: Path, target: Path) -> None:
    """Make `target` what `source` is now: shared blocks, else a copy; where that finds no room, the same file."""
    try:
        with source.open("rb") as original, target.open("wb") as copy:
            with suppress(OSError):
                fcntl.ioctl(copy, _CLONE, original.fileno())
                return
            shutil.copyfileobj(original, copy, 2**22)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            raise error from None
        logger.warning(
            "%s: no room for a copy (%s), so nobody may write into this file while it is served",
            source, error.strerror,
        )  # fmt: skip
