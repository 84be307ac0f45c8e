"""Files of tuning trials (Optuna studies in SQLite), and the names of the studies in them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from talerec.data import Log, fingerprint_log
from talerec.errors import TalerecError
from talerec.evaluation.trials import Task

logger = logging.getLogger(__name__)

_LOCK_TIMEOUT_S = 60  # that a process waits for another that writes to the same study


def import_optuna() -> Any:
    """Return the module optuna, with its log messages off."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def study_storage(study: str | Path | None) -> Any:
    """Return Optuna's storage URL of a study file (SQLite); None for a study in memory.

    A study is Optuna's collection of trials; study: the path, None for none. TalerecError if the
    file exists and is not SQLite.
    """
    if study is None:
        return None
    path = Path(study)
    if path.exists() and path.stat().st_size and path.read_bytes()[:15] != b"SQLite format 3":
        raise TalerecError(f"{path} is not a study file (SQLite); name a new file")
    return f"sqlite:///{path}?timeout={_LOCK_TIMEOUT_S}"


def study_name(task: Task, log: Log) -> str:
    """Return a name that is equal for the same task on the same rows, to continue a study.

    A task is what is tuned: model, fixed parameters, split and metric. The name is JSON: a list of
    the task, and of a dict with the log's fingerprint (a hash of its rows).
    """
    log_key = {"log": fingerprint_log(log)}
    return json.dumps([asdict(task), log_key], sort_keys=True, default=str)


def warn_of_other_rows(study: str | Path, names: Sequence[str], name: str) -> None:
    """Warn if a study file has trials of the same task, but only on other rows.

    `names` are those of the studies in the file, and `name` is that of the new search. Studies of
    version 0.2 have counts and sums of a log in the place of its fingerprint.
    """
    if name in names:
        return
    task = json.loads(name)[0]
    others = [log_key for other, log_key in map(_parse_study_name, names) if other == task]
    if not others:
        return
    reason = "of another log"
    if not any(isinstance(log_key, dict) for log_key in others):
        reason = "of version 0.2, which does not tell for certain of which log"
    message = "%s has trials %s: they are not used, and a new search starts in the same file"
    logger.warning(message, study, reason)


def _parse_study_name(name: str) -> tuple[dict[str, Any] | None, Any]:
    """Return the task (as a dict) and the key of the log in the name of a study.

    A study is Optuna's collection of trials; its name is a JSON list of the tuned task and of the
    log's fingerprint. (None, None) for a study that has another kind of name. Tasks of version 0.2
    have no target event: it is None.
    """
    try:
        task, log_key = json.loads(name)
        return {"target": None, **task}, log_key
    except (ValueError, TypeError):
        return None, None
