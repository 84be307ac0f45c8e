"""The commands about stores of events: a log into one, a file out of one, a user removed from one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from talerec.cli.app import Panel, command, group, reporting
from talerec.cli.groups import Source
from talerec.cli.options import Json, argument, option, out
from talerec.errors import TalerecError
from talerec.store.events import STORE_VARIABLE

if TYPE_CHECKING:
    from talerec.store.store import Store

events = group(Panel.LOGS, "events", "Put a log into a store of events, or take one out of it.")

StoreAddress = Annotated[
    str | None,
    option(
        "--store",
        metavar="ADDRESS",
        help="sqlite:///shop.db or postgresql://HOST/NAME; else TALEREC_STORE says where.",
    ),
]
NewFile = Annotated[Path, out("FILE", "Where to write: .parquet, .csv, .ndjson or .jsonl.")]
UserId = Annotated[str, argument("USER", "The id of the user.")]


def _address(given: str | None) -> str:
    found = given or os.environ.get(STORE_VARIABLE)
    if not found:
        raise TalerecError(f"which store? say --store sqlite:///shop.db, or set {STORE_VARIABLE}")
    return found


@command(
    Panel.LOGS,
    "talerec events import events.parquet --store sqlite:///shop.db",
    "talerec events import clicks.csv --event action --store postgresql://shop@db/shop",
    within=events,
    name="import",
)
def import_(source: Source, store: StoreAddress = None, json: Json = False) -> None:
    """Keep the rows of a log as events; what is there already is not added again."""
    from talerec.cli import tables, terminal
    from talerec.store.store import Store
    from talerec.store.transfer import import_log

    address = _address(store)
    if source.weight is not None or source.event_weights is not None:
        raise TalerecError(
            "--weight and --event-weights are for fit: a store keeps events as they are"
        )
    with Store.open(address) as opened, reporting(json):
        found = import_log(opened, source.read(any_order=True))
    if json:
        terminal.as_json(found._asdict())
        return
    also = f", {found.deleted:,} of deleted users" if found.deleted else ""
    tables.line(
        f"{opened.name}: {found.added:,} of {found.rows:,} rows are new, {found.there:,} were there{also}"
    )


@command(
    Panel.LOGS,
    "talerec events export --store sqlite:///shop.db -o events.parquet",
    within=events,
)
def export(to: NewFile, store: StoreAddress = None, json: Json = False) -> None:
    """Write all events to a file, in the order in which they were kept."""
    from talerec.cli import tables, terminal
    from talerec.runtime.files import check_writable
    from talerec.runtime.tables import appending, check_ending
    from talerec.store.transfer import exported

    check_ending(check_writable(to))
    rows = 0
    with _existing(_address(store)) as opened, reporting(json), appending(to) as add:
        for frame in exported(opened):
            add(frame)
            rows += len(frame)
    if json:
        terminal.as_json({"path": str(to), "rows": rows})
    else:
        tables.line(f"{to}: {rows:,} events")


@command(
    Panel.LOGS,
    "talerec events delete-user ann --store sqlite:///shop.db",
    within=events,
    name="delete-user",
)
def delete_user(user: UserId, store: StoreAddress = None) -> None:
    """Delete a user's events; services, fits and imports leave out what came before, too."""
    import time

    from talerec.cli import tables
    from talerec.store.events import checked_id

    with _existing(_address(store)) as opened:
        opened.forget(checked_id(user, "user"), time.time_ns() // 1000)
    tables.line(f"{opened.name}: user {user} is deleted")


def _existing(address: str) -> Store:
    """A store that is there: a mistyped name is not to make a new one."""
    from talerec.data.read.databases import file_of, shown
    from talerec.store.store import Store

    path = file_of(address)
    if path is not None and not path.is_file():
        raise TalerecError(f"{shown(address)}: there is no such file")
    return Store.open(address)
