"""Commands about the impressions of a store: export what was shown and clicked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from talerec import columns
from talerec.cli.app import Panel, add_group, command
from talerec.cli.logs import open_store, store_address
from talerec.cli.options import (
    NEGATIVE_NAMES,
    Attribution,
    Json,
    NegativeEvents,
    StoreAddress,
    TablePath,
    option,
    split_events,
)
from talerec.cli.terminal import print_json, print_line, reporting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polars import DataFrame

    from talerec.store import ImpressionStore

impressions = add_group(
    Panel.LOGS, "impressions", "Export what a service has shown, and what was clicked."
)
_KEY = ["recommendation_id", columns.ITEM]


@command(
    Panel.LOGS,
    "talerec impressions export --store sqlite:///shop.db -o shown.parquet",
    "talerec impressions export --since 7d --attribution 1h -o shown.csv",
    within=impressions,
)
def export(
    path: TablePath,
    store: StoreAddress = None,
    since: Annotated[
        str | None, option("--since", "7d", "Only responses of the last DURATION.")
    ] = None,
    attribution: Attribution = "30m",
    negative_events: NegativeEvents = NEGATIVE_NAMES,
    json: Json = False,
) -> None:
    """Write a row per shown item: list, user, model, rank, probability, whether clicked."""
    from talerec.data import parse_duration
    from talerec.runtime import append_tables, check_table_format, check_writable
    from talerec.store import ImpressionStore, now_us

    check_table_format(check_writable(path))
    window = parse_duration(attribution, "attribution")
    begin = 0 if since is None else now_us() - parse_duration(since, "since")
    address = store_address(store)
    open_store(address).close()  # migrates the tables
    rows = clicks = 0
    with ImpressionStore(address) as opened, reporting(json), append_tables(path) as append:
        for frame in _mark_clicks(opened, begin, window, split_events(negative_events)):
            append(frame)
            rows, clicks = rows + len(frame), clicks + int(frame["clicked"].sum())
    if json:
        print_json({"path": str(path), "rows": rows, "clicks": clicks})
    else:
        print_line(f"{path}: {rows:,} shown items, {clicks:,} clicked")


def _mark_clicks(
    store: ImpressionStore, since: int, window: int, negative: tuple[str, ...]
) -> Iterator[DataFrame]:
    """Yield what was shown since a time (microseconds), with the column `clicked`.

    The clicks are found in one pass over the columns that decide on them; a second pass reads all
    columns. Impressions that were stored in between are left out.
    """
    import polars as pl

    from talerec.evaluation import attribute_clicks
    from talerec.store import expand_impressions, export_impressions, load_possible_clicks

    needed = [*_KEY, columns.USER, columns.TIME]
    groups = [expand_impressions([]), *map(expand_impressions, store.read_impressions(since))]
    shown = pl.concat([group.select(needed) for group in groups])
    shown = shown.with_columns(pl.col(columns.TIME).cast(pl.Int64).alias("time"))
    events = load_possible_clicks(store, since)
    marked = attribute_clicks(shown, events, window, negative)[0].select(*_KEY, "clicked")
    for frame in export_impressions(store, since):
        yield frame.join(marked, on=_KEY, maintain_order="left")
