"""The command `update`: read a model and new rows, and replace the model by the one after these rows too."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.groups import Source
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.models.base import Model

_UNITS = ("s", "ms", "us", "ns")
_PLAIN = 10**14  # microseconds: for times from 1973 on, the size of a number tells its unit


def run(path: Path, source: Source, tolerance: float) -> dict[str, Any]:
    """Update a saved model; what was done, and the model's version after it."""
    from talerec import artifact
    from talerec.models import load
    from talerec.models.updating import update

    _check(source)
    manifest = artifact.read_manifest(path)
    if not manifest["training"].get("updatable"):
        raise TalerecError(f"{path} was fitted without --updatable: fit it anew, and say so")
    model = load(path)
    rows = _read(model, source)
    done = update(model, rows, tolerance=tolerance)
    if done.rows:
        if artifact.read_manifest(path)["version"] != manifest["version"]:
            raise TalerecError(
                f"{path} was replaced by somebody else meanwhile: run the update again"
            )
        model.save(path, updatable=True)
    after = artifact.read_manifest(path)
    return {
        "path": str(path),
        **asdict(done),
        "version": after["version"],
        "training": after["training"],
    }


def _check(source: Source) -> None:
    if source.core is not None:
        raise TalerecError("--core is for fit: an update keeps what the fit settled")


def _read(model: Model, source: Source) -> Any:
    """New rows; where the size of times does not tell their unit, it is that of the model's."""
    unit, last = model.fitted.unit, model.fitted.training["last_time"]
    if source.time_unit is None and unit in _UNITS and last < _PLAIN:
        source = replace(source, time_unit=unit)
    return source.read(needs_time=unit != "none", any_order=True)


def show(path: Path, facts: dict[str, Any], json: bool) -> None:
    """What was done, for people or as JSON."""
    from talerec.cli import tables, terminal

    if json:
        terminal.as_json(facts)
        return
    if not facts["rows"]:
        tables.line(f"{path}: nothing new")
        return
    tables.line(
        f"{path}: {facts['rows']:,} new rows, {facts['users']:,} new users, {facts['items']:,} new items; "
        f"{facts['solved']:,} of {facts['targets']:,} targets solved again, version {facts['version']}"
    )
    tables.note(tables.timings(facts["seconds"]))
