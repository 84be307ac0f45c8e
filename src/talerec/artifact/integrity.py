"""The manifest of an artifact, and the checks that find damaged, missing or hostile files."""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from talerec.artifact.packing import is_valid_packing
from talerec.errors import ArtifactError
from talerec.runtime import Array, read_regular, read_table

#: Format 1 has one block of weights, format 2 several; format 3 renames arrays of histories
#: and updates.
FORMAT, _READABLE = 3, (1, 2, 3)
MANIFEST = "manifest.json"
DATA_FILE = re.compile(r"\w+-[0-9a-f]{16}\.(npy|parquet)")
_NUMERIC_DTYPE = re.compile(r"[<|][biuf][1248]")
_FIELD_TYPES = {"model": str, "params": dict, "training": dict, "files": dict, "version": str}
_UNVERSIONED = ("seconds", "saved", "versions", "version")  # fields that do not change the version


def is_artifact_file(name: str) -> bool:
    """Return whether a file name is that of a manifest or of a data file of a saved model."""
    return name == MANIFEST or DATA_FILE.fullmatch(name) is not None


def manifest_version(manifest: dict[str, Any]) -> str:
    """Return the model's version: the first 16 hex digits of the SHA-256 of its manifest.

    `manifest` is the JSON object that describes a saved model. Fields that say when and how fast
    the model was fitted, and with which libraries, do not count.
    """
    versioned = {name: value for name, value in manifest.items() if name not in _UNVERSIONED}
    return hashlib.sha256(json.dumps(versioned, sort_keys=True).encode()).hexdigest()[:16]


# -- the manifest ----------------------------------------------------------------------------------


def read_manifest(path: str | Path) -> dict[str, Any]:
    """Return the manifest of the saved model in the folder `path`; ArtifactError if damaged.

    Its format, its own hash (the field "version") and its entries of files are checked. Parameters
    stored as the text "inf" come back as infinity.
    """
    folder = Path(path)
    manifest = _parse_manifest(folder)
    if manifest.get("format") not in _READABLE:
        raise ArtifactError(
            f"has format {manifest['format']!r}, "
            f"and this version of talerec reads formats up to {FORMAT}",
            folder,
        )
    if not _is_valid(manifest):
        raise ArtifactError("is damaged", folder, MANIFEST)
    params = manifest["params"].items()  # JSON has no infinity: it is stored as text
    return {**manifest, "params": {n: math.inf if value == "inf" else value for n, value in params}}


def listed_files(folder: Path) -> set[str] | None:
    """Return the names of the data files that the folder's manifest lists.

    An empty set without a manifest; None if the manifest cannot be read.
    """
    try:
        manifest = json.loads(read_regular(folder / MANIFEST))
        return {entry["file"] for entry in manifest["files"].values()}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _parse_manifest(folder: Path) -> dict[str, Any]:
    """Return the JSON object in a folder's manifest; ArtifactError if it is not one.

    It must have a field `format`; other fields are not checked.
    """
    if not folder.exists():
        raise ArtifactError("does not exist", folder)
    try:
        manifest = json.loads(read_regular(folder / MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"is not a talerec model: it has no {MANIFEST}", folder) from None
    except OSError as error:
        raise ArtifactError(f"cannot be read: {error.strerror}", folder, MANIFEST) from None
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise ArtifactError("is damaged", folder, MANIFEST)
    return manifest


def _is_valid(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest has all fields, a matching hash and valid entries of files.

    A manifest is the JSON object that lists the files of a saved model; "version" is its own hash.
    """
    return (
        all(isinstance(manifest.get(name), kind) for name, kind in _FIELD_TYPES.items())
        and manifest["version"] == manifest_version(manifest)
        and all(_is_valid_entry(entry) for entry in manifest["files"].values())
    )


def _is_valid_entry(entry: Any) -> bool:
    """Return whether a manifest's entry of a file has a valid name, size and SHA-256.

    A name is that of a data file in the artifact's own folder; arrays also need dtype and shape.
    """
    if not isinstance(entry, dict) or not isinstance(entry.get("file"), str):
        return False
    name = DATA_FILE.fullmatch(entry["file"])
    has_sizes = isinstance(entry.get("bytes"), int) and isinstance(entry.get("sha256"), str)
    return name is not None and has_sizes and (name[1] == "parquet" or _is_valid_array(entry))


def _is_valid_array(entry: dict[str, Any]) -> bool:
    """Return whether the entry describes a numeric array whose shape fits into the file.

    `entry` is what the manifest says of an .npy file: "dtype", "shape" and "bytes", its size.
    """
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(dtype, str) or not _NUMERIC_DTYPE.fullmatch(dtype):
        return False
    if not isinstance(shape, list) or not all(isinstance(n, int) and n >= 0 for n in shape):
        return False
    fits = int(dtype[-1]) * math.prod(shape) <= entry["bytes"]
    return bool(fits) and is_valid_packing(entry.get("packing"))


# -- data files ------------------------------------------------------------------------------------


@contextmanager
def report_damage(folder: Path, file: str) -> Iterator[None]:
    """Turn errors in the block, which reads a file of a saved model, into an ArtifactError.

    A missing file, and any OSError, ValueError or Polars error. `folder` and `file` are the names
    that the error gives.
    """
    try:
        yield
    except FileNotFoundError:
        raise ArtifactError("is missing", folder, file) from None
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise ArtifactError(f"is damaged: {error}", folder, file) from None


def check_size(path: Path, expected: int) -> None:
    """Raise ValueError unless a path is a regular file with the expected number of bytes."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for ever
        raise ValueError("it is not a regular file")
    if status.st_size != expected:
        raise ValueError(f"it has {status.st_size:,} bytes instead of {expected:,}")


def check_hash(path: Path, expected: str) -> None:
    """Raise ValueError unless a file has the expected SHA-256."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != expected:
            raise ValueError("its hash does not match")


def read_checked_array(path: Path, entry: dict[str, Any], verify: bool) -> Array:
    """Return a memory-mapped array with the type and shape in its manifest entry.

    With `verify`, ValueError unless the file has the entry's SHA-256. The file's own header is not
    used: it is there for other programs.
    """
    if verify:
        check_hash(path, entry["sha256"])
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    header_bytes = entry["bytes"] - dtype.itemsize * math.prod(shape)
    return np.memmap(path, dtype, "r", header_bytes, shape)


def read_checked_table(
    path: Path, entry: dict[str, Any], files: dict[str, Any], verify: bool
) -> pl.DataFrame:
    """Return a Parquet table; ValueError if its hash is wrong, or it has too many rows.

    `entry` is the table's in the manifest, and `files` has the entries of all files. A table
    describes users or items that arrays have entries for: one with more rows than the longest array
    is hostile. With `verify`, so is one that would unpack to far more than its size.
    """
    check_hash(path, entry["sha256"])
    sizes = (size for other in files.values() for size in other.get("shape", ()))
    return read_table(path, max(sizes, default=0), verify=verify)
