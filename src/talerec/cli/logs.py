"""Commands about logs and event stores: describe, generate, import, export, delete a user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from talerec.cli.app import Context, Panel, add_group, command, explicit_options, print_warning
from talerec.cli.completion import complete_values
from talerec.cli.groups import LogSource
from talerec.cli.item_tables import ItemTableOptions
from talerec.cli.options import (
    NEGATIVE_NAMES,
    Json,
    Rows,
    Seed,
    StoreAddress,
    TablePath,
    argument,
    flag,
    option,
    out,
    split_events,
)
from talerec.cli.streams import StreamOptions, import_stream
from talerec.cli.terminal import print_json, print_line, reporting
from talerec.errors import TalerecError
from talerec.store import ID_KINDS, NEGATIVE_EVENTS, STORE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polars import DataFrame

    from talerec.data import Log
    from talerec.store import Store

events = add_group(Panel.LOGS, "events", "Import logs into an event store, or export its events.")


@command(
    Panel.LOGS,
    "talerec describe events.csv",
    "talerec describe ratings.tsv --user uid --time ts --core 5",
    "talerec describe events.csv --items items.csv",
)
def describe(source: LogSource, table: ItemTableOptions, json: Json = False) -> None:
    """Show counts, density, intervals, ties and repeats of a log, and types of an item table."""
    # source, table: options of the log and the item table; ties: a user's rows with equal times
    from talerec.data import describe as describe_log

    table.check()
    with reporting(json):
        items = table.read(source.item)
        log = source.read(any_order=True, needs_time=False)
        statistics = describe_log(table.attach(log, items))
    if json:
        print_json(statistics)
    else:
        from talerec.cli.results import print_log_statistics

        print_log_statistics(source.name, statistics)


@command(
    Panel.LOGS,
    "talerec synth -o log.parquet --rows 1000000 --seed 1",
    "talerec synth -o clicks.parquet --sessions --rows 20000",
    allow_extra_args=True,
)
def synth(
    context: Context,
    path: Annotated[Path | None, out("FILE", "A .parquet or .csv file.")] = None,
    rows: Rows = 100_000,
    items: Annotated[
        int | None, option("--items", "N", "Number of items (default: a twentieth of the rows).")
    ] = None,
    users: Annotated[
        int | None,
        option(
            "--users", "N", "Number of users (default: a tenth of the rows; of sessions, a fifth)."
        ),
    ] = None,
    seed: Seed = 0,
    sessions: Annotated[
        bool,
        flag(
            "--sessions",
            "Write short anonymous sessions, each a user id of its own, with planted order.",
        ),
    ] = False,
) -> None:
    """Write a synthetic log with bursts, drift, trends, ties and repeats, as in real logs."""
    from talerec.data import synthetic_log, synthetic_sessions

    target = _check_target(path, context.args)
    with reporting(json=False):
        if sessions:
            log = synthetic_sessions(rows, items=items, users=users, seed=seed)
        else:
            log = synthetic_log(rows, items=items, users=users, seed=seed, titles=False)
        _write_log(log, target)
    print_line(
        f"{target}: {log.rows:,} rows of {len(log.users):,} users and {len(log.items):,} items"
    )


def _check_target(path: Path | None, arguments: list[str]) -> Path:
    """Return the file that `talerec synth` writes: that of --out or the only argument.

    `path` is the value of --out; `arguments` are positional ones, which version 0.1 took, with a
    warning. TalerecError unless exactly one file is named, it ends in .parquet or .csv, and it can
    be written.
    """
    from talerec.runtime import check_writable

    paths = [p for p in (path, *map(Path, arguments)) if p is not None]
    if len(paths) != 1:
        raise TalerecError("synth writes one file; set --out FILE once")
    if arguments:
        print_warning("synth FILE is now synth --out FILE")
    target = paths[0]
    if target.suffix not in (".parquet", ".csv"):
        raise TalerecError(f"{target} must end in .parquet or .csv")
    return check_writable(target)


def _write_log(log: Log, path: Path) -> None:
    """Write a log to a CSV or Parquet file, which appears only once it is complete."""
    from talerec.runtime import atomic_write

    frame = log.to_frame()
    with atomic_write(path) as unfinished:
        if path.suffix == ".csv":
            frame.write_csv(unfinished)
        else:
            frame.write_parquet(unfinished)


# -- event stores ----------------------------------------------------------------------------------


@command(
    Panel.LOGS,
    "talerec events import events.parquet --store sqlite:///shop.db",
    "talerec events import clicks.csv --event action --store postgresql://shop@db/shop",
    "tail -n +1 -F events.ndjson | talerec events import - --follow --stream web",
    within=events,
    name="import",
)
def import_(
    invocation: Context,
    source: LogSource,
    stream: StreamOptions,
    store: StoreAddress = None,
    ids: Annotated[
        str | None,
        option(
            "--ids",
            "integer|text",
            "Ids that the store may have (default: those that it has, else the log's).",
            complete=complete_values(*ID_KINDS),
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Add the rows of a log to an event store; rows that it has already are not added."""
    # source: options of the log; an event store is a database of events that a service reads
    from talerec.store import Store, import_log

    address = store_address(store)
    stream.check(source, explicit_options(invocation))
    if ids not in (None, *ID_KINDS):
        raise TalerecError(f"--ids is {ids!r}; it takes integer or text")
    if stream.follow:
        import_stream(address, source, stream, ids, json=json)
        return
    if source.weight is not None or source.event_weights is not None:
        raise TalerecError(
            "--weight and --event-weights are for fit; a store keeps unweighted events"
        )
    if source.has_sessions or source.basket is not None:
        raise TalerecError("sessions and baskets are for fit; a store keeps users' events")
    with Store.open(address) as opened, reporting(json):
        counts = import_log(opened, source.read(any_order=True), ids)
    if json:
        print_json(counts._asdict())
        return
    deleted = f", {counts.deleted:,} of deleted users" if counts.deleted else ""
    print_line(
        f"{opened.name}: {counts.added:,} of {counts.rows:,} rows added, "
        f"{counts.there:,} already there{deleted}"
    )


@command(
    Panel.LOGS,
    "talerec events export --store sqlite:///shop.db -o events.parquet",
    "talerec events export --user ann --artifact shop.tale -o ann.ndjson",
    within=events,
)
def export(
    path: TablePath,
    store: StoreAddress = None,
    user: Annotated[
        str | None, option("--user", "ID", "Everything that is kept of this user, and only that.")
    ] = None,
    artifact: Annotated[
        list[Path] | None,
        option("--artifact", "NAME.tale", "With --user: the user's rows of this model, too."),
    ] = None,
    without: Annotated[
        str | None,
        option("--without", "hide,return", "Leave out events with these names, as for a fit."),
    ] = None,
    json: Json = False,
) -> None:
    """Write all events to a file, in the order in which they were stored."""
    from talerec.runtime import append_tables, check_table_format, check_writable
    from talerec.store import export_events

    check_table_format(check_writable(path))
    if artifact and user is None:
        raise TalerecError("--artifact needs --user")
    if without and user is not None:
        raise TalerecError("--without and --user exclude each other")
    rows = n_negative = 0
    address = store_address(store)
    with open_store(address) as opened, reporting(json), append_tables(path) as append:
        left_out = split_events(without or "none")
        frames = (
            export_events(opened, left_out)
            if user is None
            else _collect_user_records(address, user, artifact)
        )
        for frame in frames:
            append(frame)
            rows += len(frame)
            n_negative += int(frame["event"].is_in(NEGATIVE_EVENTS).sum() or 0)
    if json:
        print_json({"path": str(path), "rows": rows, "negative": n_negative})
        return
    print_line(f"{path}: {rows:,} {'events' if user is None else 'records'}")
    if n_negative and user is None and without is None:
        print_warning(
            f"{n_negative:,} events are negative feedback, and a fit of this file would learn from"
            f" them: for a fit, export --without {NEGATIVE_NAMES}"
        )


def _collect_user_records(
    address: str, user: str, artifacts: list[Path] | None
) -> Iterator[DataFrame]:
    """Yield what is kept of a user: records of the store, and training rows of saved models.

    `address` is that of the store; `artifacts` are the folders of the saved models.
    """
    from talerec.artifact import read_manifest
    from talerec.models import load
    from talerec.store import ImpressionStore, export_history, export_user

    with ImpressionStore(address) as store:
        yield export_user(store, user)
    for path in artifacts or ():
        yield export_history(load(path).fitted.log, user, read_manifest(path)["version"])


@command(
    Panel.LOGS,
    "talerec events delete-user ann --store sqlite:///shop.db",
    within=events,
    name="delete-user",
)
def delete_user(
    user: Annotated[str, argument("USER", "The id of the user.")], store: StoreAddress = None
) -> None:
    """Delete a user's events; services, fits and imports then ignore the user's earlier rows."""
    from talerec.store import now_us, validate_id

    with open_store(store_address(store)) as opened:
        opened.delete_user(validate_id(user, "user"), now_us())
    print_line(f"{opened.name}: deleted user {user}")


def store_address(option: str | None) -> str:
    """Return the address of an event store: the value of --store, else of TALEREC_STORE.

    Raise an error if neither is set.
    """
    address = option or os.environ.get(STORE_VARIABLE)
    if not address:
        raise TalerecError(f"no store; set --store sqlite:///shop.db, or {STORE_VARIABLE}")
    return address


def open_store(address: str) -> Store:
    """Return the event store (a database of events) at `address`, opened.

    TalerecError if it is a database file that does not exist.
    """
    from talerec.data.read import database_file, hide_secrets
    from talerec.store import Store

    path = database_file(address)
    if path is not None and not path.is_file():
        raise TalerecError(f"{hide_secrets(address)}: there is no such file")
    return Store.open(address)
