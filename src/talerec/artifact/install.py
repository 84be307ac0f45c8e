"""Installing a saved model over one that may be in use, from a folder or a tar archive.

Copying over files that a process has mapped would truncate them while it reads. Here every file is
written under a temporary name and the manifest is renamed last: processes that have loaded the old
model keep it, and the next load finds the new one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from talerec.artifact.format import check_target, replace_artifact, write_manifest
from talerec.artifact.integrity import MANIFEST, is_artifact_file, read_manifest
from talerec.errors import TalerecError
from talerec.runtime import atomic_replace, sync_file

_FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)
STANDARD_INPUT = "-"


def install_artifact(
    source: str | Path,
    target: str | Path,
    check: Callable[[Path], object],
    *,
    replaces: str | None = None,
) -> str:
    """Replace the model at `target` by the one at `source`, and return the new version.

    The model is replaced whole or not at all.

    Parameters
    ----------
    source : path
        A folder (NAME.tale), a tar archive of one (plain or compressed), or "-" for an archive on
        standard input.
    target : path
        The folder of the model to replace; it need not exist.
    check : function
        Called with the new model's folder before anything changes; it raises TalerecError to refuse
        the model.
    replaces : str, optional
        The version of the model that may be replaced. ReplacedArtifactError if another one is at
        `target` by now; None replaces any.
    """
    check_target(target)
    with _unpack_source(source, Path(target)) as folder:
        check(folder)
        if Path(target).exists() and os.path.samefile(folder, target):
            raise TalerecError(f"{source} and {target} are the same folder")
        manifest = read_manifest(folder)
        replace_artifact(target, lambda place: _copy_files(folder, place), replaces=replaces)
    return str(manifest["version"])


def _copy_files(source: Path, target: Path) -> None:
    """Copy a saved model's data files, then its manifest, from folder `source` to `target`.

    Each file is replaced in one step even if it exists: it may be damaged. The manifest lists the
    data files; those of the old model are removed.
    """
    text = (source / MANIFEST).read_bytes()
    files = read_manifest(source)["files"]
    for entry in files.values():
        with atomic_replace(target / entry["file"]) as unfinished:
            shutil.copyfile(source / entry["file"], unfinished)
            sync_file(unfinished)
    write_manifest(target, text, files)


@contextmanager
def _unpack_source(source: str | Path, target: Path) -> Iterator[Path]:
    """Yield the folder of the model at `source`; an archive is unpacked to a temporary folder.

    The temporary folder is on the disk of `target`, and removed at the end. TalerecError if the
    archive is incomplete.
    """
    if str(source) != STANDARD_INPUT and not Path(source).is_file():
        yield Path(source)
        return
    near = next(place for place in target.absolute().parents if place.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".talerec-", dir=near) as name:
            folder = Path(name) / "new.tale"
            folder.mkdir()
            is_piped = str(source) == STANDARD_INPUT
            with nullcontext(sys.stdin.buffer) if is_piped else Path(source).open("rb") as stream:
                _unpack(stream, folder)
            yield folder
    except (tarfile.TarError, EOFError) as error:
        raise TalerecError(f"{source} is not a complete tar archive: {error}") from None


def _unpack(stream: BinaryIO, folder: Path) -> None:
    """Extract the manifest and data files of one model from a tar stream to `folder`.

    Other members are ignored; TalerecError if the archive has such files in two folders.
    """
    parent: PurePosixPath | None = None
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if member.type not in _FILE_TYPES or not is_artifact_file(path.name):
                continue
            if parent not in (None, path.parent):
                message = f"the archive holds files of two models: {parent} and {path.parent}"
                raise TalerecError(message)
            parent, content = path.parent, archive.extractfile(member)
            assert content is not None
            with (folder / path.name).open("xb") as file:
                shutil.copyfileobj(content, file, 2**20)
