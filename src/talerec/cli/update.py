"""The command `update`: read a model and new rows, and replace the model by the one after these rows too."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from talerec.cli import refit_options as later
from talerec.cli.groups import ItemTable, Source, again
from talerec.errors import TalerecError


def run(
    path: Path, source: Source, table: ItemTable, tolerance: float, given: set[str]
) -> dict[str, Any]:
    """Update a saved model; what was done, and the model's version after it. `given`: the options that were."""
    from talerec.artifact import format as artifact
    from talerec.models import load
    from talerec.models.updates import update

    _check(source)
    table.check()
    manifest = artifact.read_manifest(path)
    if not manifest["training"].get("updatable"):
        raise TalerecError(f"{path} was fitted without --updatable: fit it anew, and say so")
    model = load(path)
    kept = later.kept_options(manifest["training"], source, given)
    source, table = again(source, kept), again(table, kept)
    with later.mentioning(kept):
        items = table.read(source.item)
        rows = later.read(model, source)
    done = update(model, rows, tolerance=tolerance, items=items)
    if done.rows or items is not None:
        if artifact.read_manifest(path)["version"] != manifest["version"]:
            raise TalerecError(
                f"{path} was replaced by somebody else meanwhile: run the update again"
            )
        model.save(path, updatable=True)
    after = artifact.read_manifest(path)
    return {
        "path": str(path),
        **asdict(done),
        "described": items is not None,
        "version": after["version"],
        "training": after["training"],
    }


def _check(source: Source) -> None:
    if source.core is not None:
        raise TalerecError("--core is for fit: an update keeps what the fit settled")


def show(path: Path, facts: dict[str, Any], json: bool) -> None:
    """What was done, for people or as JSON."""
    from talerec.cli import tables, terminal

    if json:
        terminal.as_json(facts)
        return
    if not facts["rows"] and not facts["described"]:
        tables.line(f"{path}: nothing new")
        return
    if not facts["rows"]:
        tables.line(f"{path}: no new rows; the item table is new, version {facts['version']}")
        return
    tables.line(
        f"{path}: {facts['rows']:,} new rows, {facts['users']:,} new users, {facts['items']:,} new items; "
        f"{facts['solved']:,} of {facts['targets']:,} targets solved again, version {facts['version']}"
    )
    tables.note(tables.timings(facts["seconds"]))
