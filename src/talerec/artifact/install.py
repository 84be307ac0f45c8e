"""Putting a saved model in the place of another, which may be in use: from a folder or from a tar archive.

Copying over an artifact that a program has mapped cuts its files short under its hands. Here every file is written under
another name, and the manifest is renamed last: who has the old model keeps it, who looks anew finds the new one.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from talerec.artifact import format as artifact
from talerec.errors import TalerecError
from talerec.runtime.files import replacing, sync_file

_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
STANDARD_INPUT = "-"


def install(source: str | Path, target: str | Path, check: Callable[[Path], object]) -> str:
    """Put the model at `source` in the place of the one at `target`, whole or not at all; returns its version.

    Parameters
    ----------
    source : path
        A folder (NAME.tale), a tar archive of one (plain or compressed), or "-" for an archive on standard input.
    target : path
        The folder of the model that is replaced; it need not be there.
    check : function
        Called with the new model's folder before anything is changed; it raises TalerecError for a model to refuse.
    """
    artifact.check_target(target)
    with _unpacked(source, Path(target)) as folder:
        check(folder)
        if _is_same(folder, Path(target)):
            raise TalerecError(f"{source} and {target} are the same folder")
        manifest = artifact.read_manifest(folder)
        artifact.replace(target, lambda place: _copy(folder, place))
    return str(manifest["version"])


def _copy(source: Path, target: Path) -> None:
    """Every file of the source, then its manifest. A file of the same name has the same hash, but may be damaged."""
    text = (source / artifact.MANIFEST).read_bytes()
    files = artifact.read_manifest(source)["files"]
    for entry in files.values():
        with replacing(target / entry["file"]) as unfinished:
            shutil.copyfile(source / entry["file"], unfinished)
            sync_file(unfinished)
    artifact.put_manifest(target, text, files)


def _is_same(source: Path, target: Path) -> bool:
    return target.exists() and os.path.samefile(source, target)


@contextmanager
def _unpacked(source: str | Path, target: Path) -> Iterator[Path]:
    """The folder of the model at `source`; that of an archive is removed at the end."""
    if str(source) != STANDARD_INPUT and not Path(source).is_file():
        yield Path(source)
        return
    near = next(
        place for place in (target.absolute().parent, *target.absolute().parents) if place.is_dir()
    )
    try:
        with tempfile.TemporaryDirectory(prefix=".talerec-", dir=near) as name:
            folder = Path(name) / "new.tale"
            folder.mkdir()
            with _opened(source) as stream:
                _unpack(stream, folder)
            yield folder
    except (tarfile.TarError, EOFError) as error:
        raise TalerecError(f"{source} is not a whole tar archive: {error}") from None


@contextmanager
def _opened(source: str | Path) -> Iterator[BinaryIO]:
    if str(source) == STANDARD_INPUT:
        yield sys.stdin.buffer
    else:
        with Path(source).open("rb") as stream:
            yield stream


def _unpack(stream: BinaryIO, folder: Path) -> None:
    """The files of one artifact; whatever else an archive holds is passed over, wherever it would lead."""
    parent: PurePosixPath | None = None
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if member.type not in _PLAIN or not artifact.is_file_name(path.name):
                continue
            if parent not in (None, path.parent):
                raise TalerecError(
                    f"the archive holds files of two models: {parent} and {path.parent}"
                )
            parent, content = path.parent, archive.extractfile(member)
            assert content is not None
            with (folder / path.name).open("xb") as file:
                shutil.copyfileobj(content, file, 2**20)
