"""Artifacts that can be refitted from events, and the state of the learning process."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from talerec.artifact import read_manifest
from talerec.errors import TalerecError
from talerec.runtime import atomic_replace, open_regular

STATE = "learning.json"  # in the folder of a run
LOCK = "lock"  # in `work_folder`


def check_learnable(path: Path) -> dict[str, Any]:
    """Return the manifest of a saved model; raise TalerecError if it cannot be refitted.

    The manifest is the JSON description of the model's files and training. Refitting means to fit
    the model again with new events of the store, and to replace the saved model.
    """
    manifest = read_manifest(path)
    obstacle = _find_obstacle(path, manifest)
    if obstacle is not None:
        raise TalerecError(f"`learn`: {obstacle}", "learn")
    return manifest


def _find_obstacle(path: Path, manifest: dict[str, Any]) -> str | None:
    """Return why a saved model cannot be refitted with events, as a message; None if it can.

    It needs saved histories with times, no row weights, an order of simultaneous rows (ties) that
    later rows fit, a writable parent folder, and no other thing in the place of the lock file.
    `manifest` is its JSON description.
    """
    training = manifest["training"]
    if "ptr" not in manifest["files"]:
        return f"{path} was saved without histories: save the model with them"
    if training.get("weighed") or "weight_unit" in training:  # even if all weights are equal
        return f"{path} was fitted with weights of rows, which events do not have"
    if training.get("time_read_as") == "none":
        return f"{path} was fitted without times, and events have times"
    if (ties := training.get("ties", "file")) not in ("file", "item"):
        return f"{path} was fitted with ties {ties}, an order that later rows do not fit"
    parent = path.absolute().parent
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"{parent} cannot be written, so {path} cannot be replaced"
    lock = work_folder(path) / LOCK
    if lock.exists() and not lock.is_file():
        return f"{lock} is not a regular file: remove it"
    return None


def work_folder(path: Path) -> Path:
    """Return the folder, beside the saved model at `path`, in which its next version is built.

    A process that refits the model with new events locks the file `lock` in this folder. The folder
    is not created.
    """
    return path.absolute().parent / f".{path.name}.learning"


def remove_unfinished(path: Path) -> None:
    """Remove the model that a killed learning process left unfinished beside `path`.

    The learning process refits the saved model at `path` with new events. Nothing is removed while
    another process holds the lock of the folder.
    """
    folder = work_folder(path)
    flags = os.O_RDWR | os.O_CREAT
    with suppress(OSError), open_regular(folder / LOCK, flags) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder / "new", ignore_errors=True)


def write_learning_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state of the learning process to a file in the run's folder, for the workers.

    The learning process refits the model with new events. Keys: state (waiting, learning), next
    (Unix seconds), every (seconds), rounds and failures (counts), error (the last message), learned
    (report of the last fit). The file is replaced in one step.
    """
    with atomic_replace(folder / STATE) as unfinished:
        unfinished.write_text(json.dumps(state), encoding="utf-8")


def read_learning_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of the learning process, which refits the model with new events.

    `write_learning_state` lists the keys. None if the file is missing or damaged, as without
    background fits.
    """
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_bytes())
    except (OSError, ValueError):
        return None
    return state
