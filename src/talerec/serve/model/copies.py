"""The service's own copies of the models that it serves.

Truncating a mapped file kills the process that reads it, and copying over an artifact truncates its
files. So workers map private copies: made once for all workers, checked, and served whatever
happens to the artifact. A file system that shares blocks between files (Btrfs, XFS) copies them at
no cost.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from talerec.artifact import MANIFEST, read_manifest
from talerec.errors import ArtifactError, TalerecError

logger = logging.getLogger("talerec")

T = TypeVar("T")
Signature = tuple[tuple[str, int, int, int], ...]

_CLONE = 0x40049409  # Linux ioctl: make one file share the blocks of another
_MAX_CRASHES = 2  # of workers that load a model, after which it is refused


def read_signature(path: Path) -> Signature | None:
    """Return (name, mtime in ns, inode, size) of all files of a saved model, sorted by name.

    The value changes with any of the files in the folder `path`; None if it cannot be read.
    """
    try:
        with os.scandir(path) as entries:
            statuses = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return None
    return tuple(
        sorted(
            (name, status.st_mtime_ns, status.st_ino, status.st_size) for name, status in statuses
        )
    )


class Copies:
    """Copies of one saved model in a folder that all workers share, each named by its version.

    The saved model, also called artifact, is the folder `source`; it may be replaced while a copy
    of it is served. `folder` has the copies and a few small files: `serving`, the version that was
    loaded last with success; `trial`, the version that a worker is loading; `deaths`, a line for
    each worker that crashed while it loaded a version; `lock`, held by the worker that copies.
    """

    def __init__(self, source: Path, folder: Path) -> None:
        self.source, self._folder = source, folder
        folder.mkdir(parents=True, exist_ok=True)

    def open(self, load: Callable[[Path, bool], T]) -> T:
        """Return what `load` returns (a model) for a copy of the present artifact.

        The artifact is the folder of the saved model, `self.source`. The first worker makes the
        copy and calls `load(copy, True)`, which checks all files; `copy` is its folder, named by
        the version. The other worker processes wait for it and call `load(copy, False)`, which
        skips these checks. TalerecError if two workers have crashed while they loaded this version.
        """
        with (self._folder / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the process that holds it ends
            version = str(read_manifest(self.source)["version"])
            if self._read_text("serving") != version or not (self._folder / version).is_dir():
                self._refuse_crashing(version)
                copy = self._copy_artifact()
                loaded = self._load_first(copy, load)
                self._remove_other_copies(copy.name)
                return loaded
        return self._load_copy(version, load)

    def reopen(self, load: Callable[[Path, bool], T]) -> T | None:
        """Return what `load` returns for the copy served last; None if none was served yet.

        A copy is a folder with one version of the saved model. `load(folder, checks)` loads a model
        from it; `checks` says whether all files are verified, here False. The file `serving` names
        the version.
        """
        version = self._read_text("serving")
        return None if version is None else self._load_copy(version, load)

    def _load_copy(self, version: str, load: Callable[[Path, bool], T]) -> T:
        """Return `load(copy, False)` for the copy of a version that was checked before.

        `load(folder, checks)` loads a model. If it fails because a newer version has just replaced
        this one (the file `serving` names another), the newer one is loaded.
        """
        try:
            return load(self._folder / version, False)
        except TalerecError:
            if self._read_text("serving") != version:  # a newer one has just replaced it
                return self.open(load)
            raise

    # -- checks --

    def _load_first(self, copy: Path, load: Callable[[Path, bool], T]) -> T:
        """Load a copy for the first time, with all checks, and record its version as `serving`.

        `copy` is a folder named by the version of the model. While it loads, the file `trial` names
        it, so that a crash of the process leaves a trace. Returns `load(copy, True)`.
        """
        (self._folder / "trial").write_text(copy.name)
        try:
            loaded = load(copy, True)
        finally:  # not reached if the model crashes the process
            (self._folder / "trial").unlink()
        (self._folder / "serving").write_text(copy.name)
        return loaded

    def _refuse_crashing(self, version: str) -> None:
        """Raise TalerecError if two workers crashed while they loaded this version of the model.

        The file `trial` names the version that a worker process is loading. If it is left over, the
        worker crashed: the version is added to the file `deaths`, a line per crash, first.
        """
        crashed = self._read_text("trial")
        if crashed is not None:
            with (self._folder / "deaths").open("a") as file:
                file.write(f"{crashed}\n")
            (self._folder / "trial").unlink()
        count = (self._read_text("deaths") or "").split().count(version)
        if count >= _MAX_CRASHES:
            message = f"{count} workers ended while they tried it"
            raise TalerecError(f"the model at {self.source} fails to answer: {message}")

    def _read_text(self, name: str) -> str | None:
        """Return the text of a small file of the folder, such as `serving`; None without it."""
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return None

    # -- copying --

    def _copy_artifact(self) -> Path:
        """Copy the present artifact and return the folder of the copy, named by the version.

        The artifact is the folder of the saved model, `self.source`; its manifest is the JSON
        description that lists its files. Starts over if another artifact replaces it meanwhile, so
        that the manifest differs; other failures raise TalerecError.
        """
        while True:
            manifest = _read_manifest_bytes(self.source)
            unfinished = self._folder / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                return self._copy_files(unfinished, manifest)
            except (TalerecError, OSError) as error:
                shutil.rmtree(unfinished, ignore_errors=True)
                if _read_manifest_bytes(self.source) == manifest:
                    raise _describe_failure(error, self.source) from None

    def _copy_files(self, unfinished: Path, manifest_text: bytes) -> Path:
        """Copy the files of the saved model into a folder, and rename the folder to the version.

        `unfinished` is the folder; `manifest_text` is the manifest (the JSON list of the model's
        files) to write there. ArtifactError if a file's size differs from the manifest's. Returns
        the renamed folder.
        """
        (unfinished / MANIFEST).write_bytes(manifest_text)
        manifest = read_manifest(unfinished)
        for entry in manifest["files"].values():
            name = entry["file"]
            if (self.source / name).stat().st_size != entry["bytes"]:
                raise ArtifactError("is damaged: its size is not right", self.source, name)
        for entry in manifest["files"].values():
            copy_file(self.source / entry["file"], unfinished / entry["file"])
        copy = self._folder / str(manifest["version"])
        shutil.rmtree(copy, ignore_errors=True)
        return unfinished.rename(copy)

    def _remove_other_copies(self, version: str) -> None:
        """Remove the copies of the saved model of all versions but `version`.

        A copy is a folder named by its version. A process that still maps files of a removed copy
        can go on reading them.
        """
        for copy in self._folder.iterdir():
            if copy.is_dir() and copy.name != version:  # workers that map its files keep them
                shutil.rmtree(copy, ignore_errors=True)


def _read_manifest_bytes(folder: Path) -> bytes:
    """Return the bytes of a saved model's manifest (JSON); TalerecError if it is damaged."""
    read_manifest(folder)  # raises if there is something wrong with it
    return (folder / MANIFEST).read_bytes()


def _describe_failure(error: Exception, source: Path) -> TalerecError:
    """Return the error of a failed copy as a TalerecError that names the artifact's file.

    A TalerecError is returned as it is; `source` is the artifact, the folder of the saved model.
    """
    if isinstance(error, TalerecError):
        return error
    name = Path(str(getattr(error, "filename", None) or source)).name
    if isinstance(error, FileNotFoundError):
        return ArtifactError("is missing", source, name)
    return ArtifactError(f"cannot be copied: {getattr(error, 'strerror', None) or error}", source)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file by sharing its disk blocks, else byte by byte; else make a hard link.

    Blocks can be shared on some file systems (Btrfs, XFS). The link, made if the copy fails (as on
    a full disk), is reported in the log. OSError if all fail; FileNotFoundError without `source`.
    """
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
            "%s: no room for a copy (%s); nobody may write into this file while it is served",
            source, error.strerror,
        )  # fmt: skip
