"""The command `update`: read a model and new rows, and replace the model by the one after these rows too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.groups import READ_WITH, ItemTable, Source, again, as_option
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.models.base import Model

_UNITS = ("s", "ms", "us", "ns")
_PLAIN = 10**14  # microseconds: for times from 1973 on, the size of a number tells its unit


def run(
    path: Path, source: Source, table: ItemTable, tolerance: float, given: set[str]
) -> dict[str, Any]:
    """Update a saved model; what was done, and the model's version after it. `given`: the options that were."""
    from talerec import artifact
    from talerec.models import load
    from talerec.models.updating import update

    _check(source)
    table.check()
    manifest = artifact.read_manifest(path)
    if not manifest["training"].get("updatable"):
        raise TalerecError(f"{path} was fitted without --updatable: fit it anew, and say so")
    model = load(path)
    kept = _kept(manifest["training"].get(READ_WITH), source, given)
    source, table = again(source, kept), again(table, kept)
    with _mentioning(kept):
        items = table.read(source.item)
        rows = _read(model, source)
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


_EXCLUDE = (("weight", {"event", "event_weights"}), ("event", {"weight"}))


def _kept(facts: Any, source: Source, given: set[str]) -> dict[str, Any]:
    """How the fit read its log, as far as nobody says otherwise now, and as far as it goes for these files."""
    from talerec.data.formats import is_known

    known = dict(facts) if isinstance(facts, dict) else {}
    if not all(is_known(path, ";") for path in map(Path, source.log)):
        known.pop("sep", None)  # they are not text
    instead = {name for new, others in _EXCLUDE if new in given for name in others}
    return {name: value for name, value in known.items() if name not in given | instead}


@contextmanager
def _mentioning(kept: dict[str, Any]) -> Iterator[None]:
    """A column that is not there may be one that the fit was told of."""
    try:
        yield
    except TalerecError as error:
        if not kept or not any(sign in str(error) for sign in ("no column", "--sep")):
            raise
        told = " ".join(as_option(name, value) for name, value in kept.items())
        raise type(error)(f"{error}; the model was fitted with {told}") from None


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
