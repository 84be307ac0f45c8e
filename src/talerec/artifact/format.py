"""Artifacts: a folder NAME.tale of plain files that is complete at every moment.

    manifest.json        facts, and name, size and sha256 of every other file
    NAME-HASH.npy        arrays, memory-mapped on load (`packing`: or unpacked)
    NAME-HASH.parquet    tables

Data files carry their hash in their name and are written and synced first. Then the manifest is
replaced by renaming one file, and files that it does not list are removed. A crash at any moment
leaves the old artifact or the new one, never a mixture. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import __version__
from talerec.artifact import integrity
from talerec.artifact.integrity import FORMAT, MANIFEST
from talerec.artifact.packing import pack_array, unpack_array
from talerec.errors import ArtifactError, ReplacedArtifactError
from talerec.runtime import Array, atomic_replace, file_lock, sync_folder, write_synced

LOCK = ".talerec.lock"  # held by a process while it replaces the artifact
_UPDATE_LOCK = ".talerec.update.lock"  # held from reading the artifact to replacing it
_CHUNK = 2**24  # bytes written at a time
_UNFINISHED = re.compile(r"([\w-]+\.npy|[\w-]+\.parquet|manifest\.json)\.new")


@dataclass(frozen=True, eq=False)
class Bundle:
    """The content of an artifact (a saved model's folder) in memory."""

    facts: dict[str, Any]  # the manifest's JSON fields other than the list of files
    arrays: dict[str, Array]  # the data files .npy by array name, such as "indptr"
    tables: dict[str, pl.DataFrame]  # the data files .parquet by table name


def read_artifact(path: str | Path, *, verify: bool = False) -> Bundle:
    """Return the content of an artifact (the folder of a saved model), arrays memory-mapped.

    The sizes of all files and the hashes of tables are always checked, the hashes of arrays only
    with `verify`. If the artifact is replaced during the read, it is read again. ArtifactError if
    damaged.
    """
    folder = Path(path)
    while True:
        manifest = integrity.read_manifest(folder)
        try:
            return _read_bundle(folder, manifest, verify)
        except ArtifactError:
            if integrity.read_manifest(folder) == manifest:  # else: replaced during the read
                raise


def _read_bundle(folder: Path, manifest: dict[str, Any], verify: bool) -> Bundle:
    """Return the content of a saved model: facts, arrays (memory-mapped) and tables.

    `manifest` is the JSON object of the folder's manifest.json; "files" has an entry per data file
    with its name, size, hash and, for arrays, dtype and shape. Sizes and the hashes of tables are
    always checked, the hashes of arrays only with `verify`. ArtifactError if a file is missing or
    damaged.
    """
    arrays: dict[str, Array] = {}
    tables: dict[str, pl.DataFrame] = {}
    files = manifest["files"]
    for entry in files.values():  # sizes first: cheap, and wrong while files are being copied
        with integrity.report_damage(folder, entry["file"]):
            integrity.check_size(folder / entry["file"], entry["bytes"])
    for name, entry in files.items():
        path = folder / entry["file"]
        with integrity.report_damage(folder, entry["file"]):
            if path.suffix == ".npy":
                stored = integrity.read_checked_array(path, entry, verify)
                arrays[name] = unpack_array(stored, entry.get("packing"))
            else:
                tables[name] = integrity.read_checked_table(path, entry, files, verify)
    facts = {name: value for name, value in manifest.items() if name != "files"}
    return Bundle(facts, arrays, tables)


# -- the target folder -----------------------------------------------------------------------------


def check_target(path: str | Path) -> Path:
    """Return the folder that an artifact is written to; ArtifactError if it cannot hold one.

    The folder need not exist; it may be empty or hold an earlier artifact (a saved model).
    """
    folder = Path(path)
    try:
        obstacle = _find_obstacle(folder)
    except OSError as error:
        obstacle = f"cannot be written: {error.strerror or error}"
    if obstacle:
        raise ArtifactError(obstacle, folder)
    return folder


def _find_obstacle(folder: Path) -> str | None:
    """Return why a folder, which need not exist, cannot hold a model; None if it can.

    The reason completes a sentence that begins with the folder's name.
    """
    if folder.is_symlink() and not folder.exists():
        return "cannot be written: it is a link to nothing"
    if folder.exists() and not folder.is_dir():
        return "is a file; a model is a folder, such as model.tale"
    if folder.is_dir() and any(folder.iterdir()) and not _is_artifact(folder):
        return "holds other files; name a folder for the model alone"
    parent = next(place for place in (folder, *folder.parents) if place.exists())
    if not parent.is_dir():
        return f"cannot be written: {parent} is a file"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"cannot be written: no permission in {parent}"
    return None


def _is_artifact(folder: Path) -> bool:
    """Return whether the folder holds an artifact (a saved model), complete or not.

    It does if it has a lock file, or a manifest that lists files: other programs have a
    manifest.json too.
    """
    return (folder / LOCK).exists() or bool(integrity.listed_files(folder))


# -- writing ---------------------------------------------------------------------------------------


def write_artifact(path: str | Path, bundle: Bundle, *, replaces: str | None = None) -> Path:
    """Write a saved model to the folder `path`, replacing the one there in one step.

    `bundle` is the model's content: facts (JSON), arrays and tables. Returns the folder. With
    `replaces`, only the model of this version is replaced (`replace_artifact`).
    """
    return replace_artifact(path, lambda folder: _write_files(folder, bundle), replaces=replaces)


def replace_artifact(
    path: str | Path, fill: Callable[[Path], None], *, replaces: str | None = None
) -> Path:
    """Replace the artifact (saved model) in the folder `path` whole or not at all.

    Parameters
    ----------
    path : path
        The folder; it need not exist.
    fill : function
        Gets the folder and writes the data files, then the manifest (`write_manifest`). If it
        fails, the files that it wrote are removed.
    replaces : str, optional
        The version that the new model was computed from. It is compared while this process holds
        the lock that every writer takes, so no other writer can come between.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ReplacedArtifactError
        If the folder holds another version than `replaces`, or none; it stays as it is.
    ArtifactError
        If the folder cannot be written.
    """
    folder = check_target(path)
    try:
        with _remove_new_folders(folder), file_lock(folder / LOCK):
            files_before = _remove_leftovers(folder)
            try:
                if replaces is not None:
                    _check_version(folder, replaces)
                fill(folder)
            except BaseException:
                with suppress(OSError):
                    _undo(folder, files_before)
                raise
    except OSError as error:
        raise ArtifactError(f"cannot be written: {error.strerror or error}", folder) from error
    return folder


def _check_version(folder: Path, expected: str) -> None:
    """Raise ReplacedArtifactError unless the folder holds the model of the expected version."""
    try:
        version = integrity.read_manifest(folder)["version"]
    except ArtifactError:
        version = None
    if version != expected:
        raise ReplacedArtifactError(
            "was replaced by another process meanwhile: run this again", folder
        )


@contextmanager
def hold_for_update(path: str | Path) -> Iterator[None]:
    """Hold the update lock of the saved model at `path` during the block.

    A context manager, which waits while another process holds the lock. It is for a process that
    reads the model, adds rows to it and replaces it, which can take minutes. A fit or an install
    takes no update lock, so the version still has to be compared when the model is replaced
    (`replaces` of `write_artifact`). ArtifactError if there is no readable model, or the lock
    cannot be taken.
    """
    integrity.read_manifest(path)  # before a lock file is created in a folder of another kind
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(Path(path) / _UPDATE_LOCK))
        except OSError as error:
            raise ArtifactError(f"cannot be written: {error.strerror or error}", path) from None
        yield


@contextmanager
def _remove_new_folders(folder: Path) -> Iterator[None]:
    """If the block fails, remove `folder` and the parents that did not exist before."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for place in new:
                if place.exists():
                    place.rmdir()
        raise


def _remove_leftovers(folder: Path) -> set[str]:
    """Remove data files that the folder's manifest does not list: a crash left them behind.

    Nothing is removed if the manifest is unreadable. Returns the names of the files that remain in
    the folder.
    """
    listed = integrity.listed_files(folder)
    if listed is not None:
        _remove_unlisted(folder, listed)
    return set(os.listdir(folder))


def _write_files(folder: Path, bundle: Bundle) -> None:
    """Write a bundle's arrays as .npy and its tables as Parquet, then the manifest.

    A bundle is the content of a saved model: `arrays` and `tables` by name, and `facts`, a dict of
    JSON values. The manifest lists the name, size and hash of each file.
    """
    files: dict[str, dict[str, Any]] = {}
    for name, array in bundle.arrays.items():
        values, packing = pack_array(np.ascontiguousarray(array))
        entry = _write_file(folder, name, ".npy", _split_array(values))
        files[name] = {**entry, "dtype": values.dtype.str, "shape": list(values.shape)}
        files[name] |= {} if packing is None else {"packing": packing}
    for name, table in bundle.tables.items():
        buffer = io.BytesIO()
        table.write_parquet(buffer)
        files[name] = _write_file(folder, name, ".parquet", [buffer.getvalue()])
    write_manifest(folder, _encode_manifest(bundle.facts, files), files)


def write_manifest(folder: Path, text: bytes, files: dict[str, dict[str, Any]]) -> None:
    """Replace the folder's manifest by `text`, and remove data files that are not in `files`.

    The manifest is the JSON file that lists a saved model's data files. `files` has their entries,
    {"file": name, ...} by array or table; the files are complete. With the manifest's renaming the
    new model takes the place of the old one.
    """
    sync_folder(folder)
    with atomic_replace(folder / MANIFEST) as unfinished:
        write_synced(unfinished, [text])
    sync_folder(folder)
    sync_folder(folder.parent)
    with suppress(OSError):  # the new model is in place; the next writer tries again
        _remove_unlisted(folder, {entry["file"] for entry in files.values()})


def _encode_manifest(facts: dict[str, Any], files: dict[str, Any]) -> bytes:
    """Return the manifest as JSON bytes: the facts, the files' entries, versions and its hash.

    `facts` are JSON values about the model, with its parameters under "params"; `files` has, by
    name, each file's entry (size, hash, and dtype and shape of an array).
    """
    params = facts["params"].items()  # JSON has no infinity: it is stored as text
    content = {
        "format": FORMAT,
        **facts,
        "params": {name: "inf" if value == math.inf else value for name, value in params},
        "files": files,
        "saved": datetime.now(UTC).isoformat(),
        "versions": _find_library_versions(),
    }
    content["version"] = integrity.manifest_version(content)
    return json.dumps(content, indent=2, allow_nan=False).encode()


_Parts = list[bytes | memoryview]


def _split_array(values: Array) -> _Parts:
    """Return an array as the pieces of an .npy file: its header, then its bytes, not copied."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    flat = values.reshape(-1).data.cast("B") if values.size else memoryview(b"")
    return [header.getvalue(), *(flat[a : a + _CHUNK] for a in range(0, len(flat), _CHUNK))]


def _write_file(folder: Path, name: str, ending: str, parts: _Parts) -> dict[str, Any]:
    """Write a data file, named NAME-HASH plus `ending`, and return its entry in the manifest.

    `parts` are the consecutive pieces of its bytes; the entry has file, bytes and sha256.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    path = folder / f"{name}-{digest.hexdigest()[:16]}{ending}"
    try:
        with atomic_replace(path) as unfinished:
            write_synced(unfinished, parts)
    except PermissionError:  # Windows cannot replace a file that a serving process has mapped
        if not path.exists():
            raise
        integrity.check_hash(path, digest.hexdigest())
    return {"file": path.name, "bytes": sum(map(len, parts)), "sha256": digest.hexdigest()}


def _remove_unlisted(folder: Path, listed: set[str]) -> None:
    """Remove a model folder's data files whose names are not in `listed`.

    Also files with temporary names (.new), which an interrupted write left. Other files stay.
    """
    for name in os.listdir(folder):
        is_ours = integrity.DATA_FILE.fullmatch(name) or _UNFINISHED.fullmatch(name)
        if is_ours and name not in listed:
            with suppress(PermissionError):  # mapped on Windows: the next writer tries again
                (folder / name).unlink(missing_ok=True)


def _undo(folder: Path, files_before: set[str]) -> None:
    """Remove the files that a failed write left in a model's folder.

    Files that the manifest lists stay. If the manifest is unreadable, `files_before` stay: the
    names that were there before the write. Without a manifest, the lock file is removed too.
    """
    listed = integrity.listed_files(folder)
    _remove_unlisted(folder, files_before if listed is None else listed)
    if not (folder / MANIFEST).exists():
        (folder / LOCK).unlink(missing_ok=True)


def _find_library_versions() -> dict[str, str]:
    """Return the versions of Python, talerec and the installed libraries it uses, by name."""
    versions = {"python": platform.python_version(), "talerec": __version__}
    for package in ("numpy", "scipy", "numba", "polars"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
