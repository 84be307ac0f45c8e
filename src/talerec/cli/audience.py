"""The command that lists the users who are most likely to take an item next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from talerec import columns
from talerec.cli.app import Panel, command
from talerec.cli.options import Artifact, AsOf, Json, flag, option, out
from talerec.cli.terminal import print_json, print_line, print_note, print_table, reporting
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from polars import DataFrame


@command(
    Panel.ASK,
    "talerec audience shop.tale --item D4 -k 1000",
    "talerec audience shop.tale --item D4 -k 100000 --hide-seen -o audience.parquet",
)
def audience(
    model: Artifact,
    item: Annotated[str, option("--item", "ID", "The item that users are looked for.")],
    *,
    k: Annotated[int, option("--k", "K", "Number of users.", alias="-k")] = 100,
    hide_seen: Annotated[
        bool, flag("--hide-seen", "Leave out users who have the item, and items that users have.")
    ] = False,
    as_of: AsOf = None,
    path: Annotated[
        Path | None, out("FILE", "Write the users to a .parquet, .csv or .ndjson file.")
    ] = None,
    json: Json = False,
) -> None:
    """List the users of the training log who are most likely to take an item next.

    Users are ordered by the rank of the item in their recommendations.
    """
    from talerec.cli.items import find_titles, format_item
    from talerec.data.read import refuse_overwriting
    from talerec.models import load
    from talerec.runtime import append_tables, check_table_format, check_writable

    if path is not None:
        check_table_format(check_writable(path))
        refuse_overwriting([path], [model])
    with reporting(json):
        loaded = load(model)
        if loaded.fitted.log is None:
            raise TalerecError(f"{model} was saved without histories, so it has no users")
        frame = loaded.audience(item, k, hide_seen=hide_seen, as_of=as_of)
        n_users = len(loaded.fitted.log.users)
        if path is not None:
            with append_tables(path) as append:
                append(frame)
    titles = find_titles(loaded, [item])
    if path is not None:
        counts = {"path": str(path), "rows": len(frame), "users": n_users}
        print_json(counts) if json else print_line(f"{path}: {len(frame):,} of {n_users:,} users")
    elif json:
        items = loaded.fitted.items
        item_id = items.ids[int(items.positions([item], "item", "error")[0])]
        print_json({columns.ITEM: item_id, "users": frame.to_dicts()})
    else:
        _print_audience(frame, format_item(item, titles), k, n_users)


def _print_audience(frame: DataFrame, item: str, k: int, n_users: int) -> None:
    """Print the users of an audience as a table; `item` is the item's id and title as text."""
    if frame.is_empty():
        print_line(f"No user has a score for {item}.")
        return
    rows = [
        [str(rank), str(user), f"{list_rank:,}", "-" if lead is None else f"{lead:+.3f}"]
        for user, list_rank, lead, rank in frame.iter_rows()
    ]
    print_table(f"Users for {item}", ["", "user", "rank of the item", "lead"], rows)
    print_note(
        "rank of the item: in the user's recommendations; "
        "lead: its score less that of the best other item, as a share of the list's score range"
    )
    if len(frame) < k:
        print_note(f"{len(frame):,} of {n_users:,} users have a score for the item.")
