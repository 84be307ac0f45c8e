"""Results of models in a folder, so that an interrupted evaluation of many goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from talerec.data import Log, fingerprint_log
from talerec.data.split import SplitPlan
from talerec.errors import TalerecError
from talerec.evaluation.leaderboard import ModelCost
from talerec.evaluation.model_lists import ListedModel
from talerec.evaluation.result_kinds import Result, read_any_result
from talerec.evaluation.saved_results import read_file, write_result

logger = logging.getLogger(__name__)

_RUN = "run"  # key of a saved result's facts: what it was computed from, and its costs
_UNSAFE = re.compile(r"[^A-Za-z0-9_=.,-]+")  # characters of a label that a file name does not get


class FinishedModels:
    """A folder with a Parquet file per finished model, or no folder at all.

    A file is used if it was written for the same rows (a fingerprint of the log and of the item
    table), split, options, model and version of the library.
    """

    def __init__(
        self, folder: str | Path | None, log: Log, plan: SplitPlan, options: dict[str, Any]
    ) -> None:
        """Create the folder; None: nothing is kept.

        options: ties, on, k and hide_seen of the evaluation. TalerecError if `folder` is a file.
        """
        self._folder = None if folder is None else Path(folder)
        if self._folder is None:
            return
        if self._folder.exists() and not self._folder.is_dir():
            raise TalerecError(f"{folder} is a file; `folder` takes a folder", "folder")
        self._folder.mkdir(parents=True, exist_ok=True)
        from talerec import __version__

        self._run = {
            "log": fingerprint_log(log), "items": _fingerprint_items(log), "plan": asdict(plan),
            "options": options, "version": __version__,
        }  # fmt: skip

    def find(self, entry: ListedModel) -> tuple[Result, ModelCost] | None:
        """Return the finished result of a model and its costs; None if there is none."""
        if self._folder is None or not (path := self._result_path(entry)).exists():
            return None
        try:
            run = read_file(path)[1][_RUN]
            if run["key"] != self._key(entry):
                return None
            return read_any_result(path), ModelCost(*run["cost"])
        except (TalerecError, LookupError, TypeError) as error:
            logger.warning("%s cannot be read, and is evaluated again: %s", path, error)
            return None

    def save(self, entry: ListedModel, result: Result, cost: ModelCost) -> None:
        """Write the result of a model and its costs to the folder, if there is one."""
        if self._folder is None:
            return
        run = {"key": self._key(entry), "cost": list(cost)}
        try:
            write_result(self._result_path(entry), {**result.facts(), _RUN: run}, [result.frame])
        except OSError as error:
            raise TalerecError(f"{self._result_path(entry)} cannot be written: {error}") from error

    def _key(self, entry: ListedModel) -> dict[str, Any]:
        """Return everything that the result of a model depends on, as a dict for JSON."""
        model = {"model": entry.model.name, "params": entry.model.params}
        return dict(json.loads(json.dumps({**self._run, **model}, default=str)))

    def _result_path(self, entry: ListedModel) -> Path:
        """Return the file of a model's result: its label, and a hash of what the result needs."""
        assert self._folder is not None
        text = json.dumps(self._key(entry), sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        return self._folder / f"{_UNSAFE.sub('-', entry.label)[:80].strip('-')}-{digest}.parquet"


def _fingerprint_items(log: Log) -> str | None:
    """Return a hash of the log's item table as text; None if it has none."""
    tables = [table for table in (log.info, log.catalogue) if table is not None]
    if not tables:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for table in tables:
        digest.update(json.dumps([table.columns, [str(kind) for kind in table.dtypes]]).encode())
        digest.update(table.write_ndjson().encode())
    return digest.hexdigest()
