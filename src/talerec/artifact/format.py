"""Artifacts: a folder NAME.tale of plain files that is complete at every moment.

    manifest.json        facts, and name, size and sha256 of every other file
    NAME-HASH.npy        arrays, memory-mapped on load
    NAME-HASH.parquet    tables

Data files carry their hash in their name and are written and synced first. Then the manifest is
replaced by renaming one file, and files that it does not name are removed. A crash at any moment
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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec import __version__
from talerec.errors import TalerecError
from talerec.runtime.arrays import Array
from talerec.runtime.bounded import read_table
from talerec.runtime.files import locked, replacing, sync_folder, write_synced

#: Format 2 knows several blocks of weights; format 1 has one, and is read as before.
FORMAT, _READABLE = 2, (1, 2)
MANIFEST = "manifest.json"
_LOCK = ".talerec.lock"
_CHUNK = 2**24
_DATA_FILE = re.compile(r"\w+-[0-9a-f]{16}\.(npy|parquet)")
_UNFINISHED = re.compile(r"([\w-]+\.npy|[\w-]+\.parquet|manifest\.json)\.new")
_NUMBERS = re.compile(r"[<|][biuf][1248]")  # dtypes
_KINDS = {"model": str, "params": dict, "training": dict, "files": dict, "version": str}
_PASSING = ("seconds", "saved", "versions", "version")  # not part of what a version stands for


@dataclass(frozen=True, eq=False)
class Bundle:
    """What an artifact holds: facts (JSON), arrays and tables by name."""

    facts: dict[str, Any]
    arrays: dict[str, Array]
    tables: dict[str, pl.DataFrame]


# -- the target ------------------------------------------------------------------------------------


def check_target(path: str | Path) -> Path:
    """Return the folder to write to, or raise an error that says why it cannot hold a model."""
    folder = Path(path)
    try:
        obstacle = _obstacle(folder)
    except OSError as error:
        obstacle = f"cannot be written: {error.strerror or error}"
    if obstacle:
        raise TalerecError(f"{folder} {obstacle}")
    return folder


def _obstacle(folder: Path) -> str | None:
    if folder.is_symlink() and not folder.exists():
        return "cannot be written: it is a link to nothing"
    if folder.exists() and not folder.is_dir():
        return "is a file; a model is a folder, such as model.tale"
    if folder.is_dir() and any(folder.iterdir()) and not _is_ours(folder):
        return "holds other files; name a folder for the model alone"
    where = next(place for place in (folder, *folder.parents) if place.exists())
    if not where.is_dir():
        return f"cannot be written: {where} is a file"
    if not os.access(where, os.W_OK | os.X_OK):
        return f"cannot be written: no permission in {where}"
    return None


def _is_ours(folder: Path) -> bool:
    """A manifest alone does not make a folder ours: other programs have files of that name."""
    return (folder / _LOCK).exists() or bool(_listed(folder))


def _listed(folder: Path) -> set[str] | None:
    """Data files that the manifest in the folder names; None where it cannot be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        names = {entry["file"] for entry in manifest["files"].values()}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return names


# -- writing ---------------------------------------------------------------------------------------


def write(path: str | Path, bundle: Bundle) -> Path:
    """Write a bundle to the folder `path`, replacing the artifact there in one step."""
    return replace(path, lambda folder: _write_locked(folder, bundle))


def replace(path: str | Path, fill: Callable[[Path], None]) -> Path:
    """Replace the artifact at `path`: `fill` writes files and, last, the manifest; if it fails, nothing has changed."""
    folder = check_target(path)
    try:
        with _made(folder), locked(folder / _LOCK):
            before = _without_strays(folder)
            try:
                fill(folder)
            except BaseException:
                with suppress(OSError):
                    _undo(folder, before)
                raise
    except OSError as error:
        raise TalerecError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Remove the empty folders that a failed write made."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for place in new:
                if place.exists():
                    place.rmdir()
        raise


def _without_strays(folder: Path) -> set[str]:
    """Remove what a crash left behind, and return the names that remain in the folder."""
    listed = _listed(folder)
    if listed is not None:
        _remove_strays(folder, listed)
    return set(os.listdir(folder))


def _write_locked(folder: Path, bundle: Bundle) -> None:
    files: dict[str, dict[str, Any]] = {}
    for name, array in bundle.arrays.items():
        values = np.ascontiguousarray(array)
        written = _write_file(folder, name, ".npy", _array_parts(values))
        files[name] = {**written, "dtype": values.dtype.str, "shape": list(values.shape)}
    for name, table in bundle.tables.items():
        files[name] = _write_file(folder, name, ".parquet", _table_parts(table))
    put_manifest(folder, _manifest_text(bundle.facts, files), files)


def put_manifest(folder: Path, text: bytes, files: dict[str, dict[str, Any]]) -> None:
    """The last step of a replacement: from here on the artifact is the one that names these files."""
    sync_folder(folder)
    with replacing(folder / MANIFEST) as unfinished:
        write_synced(unfinished, [text])
    sync_folder(folder)
    sync_folder(folder.parent)
    with suppress(OSError):  # the new model is in place; the next writer tries again
        _remove_strays(folder, {entry["file"] for entry in files.values()})


def _manifest_text(facts: dict[str, Any], files: dict[str, Any]) -> bytes:
    content = {
        "format": FORMAT,
        **facts,
        "params": _spelled(facts["params"]),
        "files": files,
        "saved": datetime.now(UTC).isoformat(),
        "versions": _versions(),
    }
    content["version"] = _identity(content)
    return json.dumps(content, indent=2, allow_nan=False).encode()


def _identity(manifest: dict[str, Any]) -> str:
    """The version: a hash of what the model is, not of when, how fast and with what it was made."""
    lasting = {name: value for name, value in manifest.items() if name not in _PASSING}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:16]


def _spelled(params: dict[str, Any]) -> dict[str, Any]:
    """Write infinity as text: JSON has none."""
    return {name: "inf" if value == math.inf else value for name, value in params.items()}


def _meant(params: dict[str, Any]) -> dict[str, Any]:
    return {name: math.inf if value == "inf" else value for name, value in params.items()}


_Parts = list[bytes | memoryview]


def _array_parts(values: Array) -> _Parts:
    """An array as an .npy file: its header, then its bytes, without a copy of them."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    flat = values.reshape(-1).data.cast("B") if values.size else memoryview(b"")
    return [header.getvalue(), *(flat[a : a + _CHUNK] for a in range(0, len(flat), _CHUNK))]


def _table_parts(table: pl.DataFrame) -> _Parts:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return [buffer.getvalue()]


def _write_file(folder: Path, name: str, ending: str, parts: _Parts) -> dict[str, Any]:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    final = folder / f"{name}-{digest.hexdigest()[:16]}{ending}"
    try:
        with replacing(final) as unfinished:
            write_synced(unfinished, parts)
    except PermissionError:  # Windows replaces no file that is mapped, by whoever serves the model
        if not final.exists():
            raise
        _check_hash(final, digest.hexdigest())
    return {"file": final.name, "bytes": sum(map(len, parts)), "sha256": digest.hexdigest()}


def is_file_name(name: str) -> bool:
    """Can a file of this name be part of an artifact?"""
    return name == MANIFEST or _DATA_FILE.fullmatch(name) is not None


def _remove_strays(folder: Path, keep: set[str]) -> None:
    for name in os.listdir(folder):
        ours = _DATA_FILE.fullmatch(name) or _UNFINISHED.fullmatch(name)
        if ours and name not in keep:
            with suppress(PermissionError):  # mapped on Windows: the next writer tries again
                (folder / name).unlink(missing_ok=True)


def _undo(folder: Path, before: set[str]) -> None:
    """Remove what a failed write left in the folder."""
    listed = _listed(folder)
    _remove_strays(folder, before if listed is None else listed)
    if not (folder / MANIFEST).exists():
        (folder / _LOCK).unlink(missing_ok=True)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "talerec": __version__}
    for package in ("numpy", "scipy", "numba", "polars"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


# -- reading ---------------------------------------------------------------------------------------


def read(path: str | Path, *, verify: bool = False) -> Bundle:
    """Open an artifact. Sizes and tables are always checked, the bytes of arrays only with `verify`."""
    folder = Path(path)
    while True:
        manifest = read_manifest(folder)
        try:
            return _open(folder, manifest, verify)
        except TalerecError:
            if read_manifest(folder) == manifest:  # otherwise it was replaced while we read it
                raise


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest after checking its format, its own hash and its entries."""
    folder = Path(path)
    manifest = _parsed(folder)
    if manifest.get("format") not in _READABLE:
        raise TalerecError(
            f"{folder} has format {manifest['format']!r}, "
            f"and this version of talerec reads formats up to {FORMAT}"
        )
    if not _is_whole(manifest):
        raise TalerecError(f"{folder}: {MANIFEST} is damaged")
    return {**manifest, "params": _meant(manifest["params"])}


def _parsed(folder: Path) -> dict[str, Any]:
    if not folder.exists():
        raise TalerecError(f"{folder} does not exist")
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise TalerecError(f"{folder} is not a talerec model: it has no {MANIFEST}") from None
    except OSError as error:
        raise TalerecError(f"{folder}: {MANIFEST} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise TalerecError(f"{folder}: {MANIFEST} is damaged")
    return manifest


def _is_whole(manifest: dict[str, Any]) -> bool:
    return (
        all(isinstance(manifest.get(name), kind) for name, kind in _KINDS.items())
        and manifest["version"] == _identity(manifest)
        and all(_is_entry(entry) for entry in manifest["files"].values())
    )


def _is_entry(entry: Any) -> bool:
    """Is it the entry of a data file in this folder? A path that leads elsewhere is not."""
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        return False
    name = _DATA_FILE.fullmatch(entry["file"])
    known = isinstance(entry.get("bytes"), int) and isinstance(entry.get("sha256"), str)
    return name is not None and known and (name[1] == "parquet" or _is_array(entry))


def _is_array(entry: dict[str, Any]) -> bool:
    """Does the entry describe numbers in a shape that fits into the file?"""
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or not _NUMBERS.fullmatch(dtype) or not isinstance(shape, list):
        return False
    sizes = all(isinstance(size, int) and size >= 0 for size in shape)
    return bool(sizes and int(dtype[-1]) * math.prod(shape) <= entry["bytes"])


def _open(folder: Path, manifest: dict[str, Any], verify: bool) -> Bundle:
    arrays: dict[str, Array] = {}
    tables: dict[str, pl.DataFrame] = {}
    for entry in manifest[
        "files"
    ].values():  # first of all: while files are being copied, it costs little
        with _damage(folder, entry):
            _check_size(folder / entry["file"], entry["bytes"])
    most = _most_rows(manifest["files"])
    for name, entry in manifest["files"].items():
        path = folder / entry["file"]
        with _damage(folder, entry):
            if path.suffix == ".npy":
                arrays[name] = _read_array(path, entry, verify)
            else:
                tables[name] = _read_table(path, entry, most, verify)
    facts = {name: value for name, value in manifest.items() if name != "files"}
    return Bundle(facts, arrays, tables)


@contextmanager
def _damage(folder: Path, entry: dict[str, Any]) -> Iterator[None]:
    """What is wrong with a file, as an error that names it."""
    try:
        yield
    except FileNotFoundError:
        raise TalerecError(f"{folder}: {entry['file']} is missing") from None
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise TalerecError(f"{folder}: {entry['file']} is damaged: {error}") from None


def _check_size(path: Path, expected: int) -> None:
    size = path.stat().st_size
    if size != expected:
        raise ValueError(f"it has {size:,} bytes instead of {expected:,}")


def _check_hash(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise ValueError("its hash does not match")


def _read_array(path: Path, entry: dict[str, Any], verify: bool) -> Array:
    """The manifest says what the array is, so the file's own header is for others to read."""
    if verify:
        _check_hash(path, entry["sha256"])
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    header = entry["bytes"] - dtype.itemsize * math.prod(shape)
    return np.memmap(path, dtype, "r", header, shape)


def _read_table(path: Path, entry: dict[str, Any], most: int, verify: bool) -> pl.DataFrame:
    """A table is read whole in any case, so its hash costs little."""
    _check_hash(path, entry["sha256"])
    return read_table(path, most, verify=verify)


def _most_rows(files: dict[str, Any]) -> int:
    """A table describes what arrays have numbers of: a small file cannot claim more rows than that."""
    return max((size for entry in files.values() for size in entry.get("shape", ())), default=0)
