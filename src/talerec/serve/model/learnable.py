"""Which artifacts can be fitted again from their own histories, and how the process that does it tells of it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from talerec.artifact import format as artifact
from talerec.errors import TalerecError
from talerec.runtime.files import replacing

STATE = "learning.json"  # in the folder of a run


def check_learnable(path: Path) -> dict[str, Any]:
    """The manifest of an artifact that can be fitted again; TalerecError where it cannot, which says why."""
    manifest = artifact.read_manifest(path)
    training = manifest["training"]
    if "ptr" not in manifest["files"]:
        raise TalerecError(
            f"--learn: {path} was saved without histories: fit it without --no-histories"
        )
    if training.get("weighed") or "weight_unit" in training:  # also where all rows weigh the same
        raise TalerecError(
            f"--learn: {path} was fitted with weights of rows, which events do not have"
        )
    if training.get("time_read_as") == "none":
        raise TalerecError(f"--learn: {path} was fitted without times, and events have times")
    if training.get("ties", "file") not in ("file", "item"):
        raise TalerecError(
            f"--learn: {path} was fitted with ties {training['ties']}: rows that come later have no place among them"
        )
    parent = path.absolute().parent
    if not os.access(parent, os.W_OK | os.X_OK):
        raise TalerecError(
            f"--learn: {parent} cannot be written, so that {path} cannot be replaced"
        )
    return manifest


def room_of(path: Path) -> Path:
    """The folder beside an artifact in which the next one is made; who holds its file `lock` has it."""
    return path.absolute().parent / f".{path.name}.learning"


def remove_unfinished(path: Path) -> None:
    """Remove what a process that was ended has left in the room of an artifact, unless another learns there."""
    room = room_of(path)
    with suppress(OSError), (room / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(room / "new", ignore_errors=True)


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Write down how learning goes, for the workers of this run."""
    with replacing(folder / STATE) as unfinished:
        unfinished.write_text(json.dumps(state), encoding="utf-8")


def read_state(folder: Path) -> dict[str, Any] | None:
    """How learning goes; None where nothing is learned."""
    try:
        found: dict[str, Any] = json.loads((folder / STATE).read_bytes())
    except (OSError, ValueError):
        return None
    return found
