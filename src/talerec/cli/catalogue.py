"""Commands about the items of a store: import an item table, export the items, delete one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from talerec import columns
from talerec.cli.app import Panel, add_group, command
from talerec.cli.logs import open_store, store_address
from talerec.cli.options import Json, StoreAddress, argument, option, out, parse_separator
from talerec.cli.terminal import print_json, print_line, reporting
from talerec.errors import TalerecError

items = add_group(
    Panel.LOGS, "items", "Import an item table into the store of a service, or export its items."
)


@command(
    Panel.LOGS,
    "talerec items import items.parquet --store sqlite:///shop.db --artifact shop.tale",
    "talerec items import items.csv --item-key sku --store postgresql://shop@db/shop",
    within=items,
    name="import",
)
def import_(
    table: Annotated[
        Path, argument("TABLE", "Item table: CSV, TSV, Parquet or NDJSON, with a column of ids.")
    ],
    store: StoreAddress = None,
    item_key: Annotated[
        str | None, option("--item-key", "COLUMN", "Its column of ids (default: item_id).")
    ] = None,
    item_title: Annotated[
        str | None,
        option("--item-title", "COLUMN", "Its column of titles (default: title, name, ...)."),
    ] = None,
    items_sep: Annotated[str | None, option("--items-sep", "SIGN", "Field separator.")] = None,
    artifact: Annotated[
        Path | None,
        option("--artifact", "NAME.tale", "Check columns and types by this model's item table."),
    ] = None,
    json: Json = False,
) -> None:
    """Put the rows of an item table into a store; services that use it know them at once.

    Items that the table does not have stay. An empty cell empties a field.
    """
    from talerec.data.read import read_log_items
    from talerec.models import load
    from talerec.serve.model import LiveItems
    from talerec.store import Store, import_items

    address = store_address(store)
    with reporting(json):
        fields = None if artifact is None else LiveItems.read(load(artifact).fitted).fields
        sep = parse_separator(items_sep)
        rows = read_log_items(table, item_key, columns.ITEM, item_title, sep)
        with Store.open(address) as opened:
            counts = import_items(opened, rows, fields)
    if json:
        print_json(counts._asdict())
    else:
        words = f"{counts.changed:,} items changed, {counts.unchanged:,} unchanged"
        print_line(f"{opened.name}: {counts.rows:,} rows, {words}")


@command(
    Panel.LOGS, "talerec items export --store sqlite:///shop.db -o items.parquet", within=items
)
def export(
    path: Annotated[Path, out("FILE", "A .parquet, .csv, .ndjson or .jsonl file.")],
    store: StoreAddress = None,
    json: Json = False,
) -> None:
    """Write all items that were put into a store to a file, without deleted ones."""
    from talerec.runtime import append_tables, check_table_format, check_writable
    from talerec.store import export_items

    check_table_format(check_writable(path))
    is_csv = path.suffix.lower() == ".csv"
    with open_store(store_address(store)) as opened, reporting(json), append_tables(path) as append:
        frame = export_items(opened, lists_as_text=is_csv)
        append(frame)
    if json:
        print_json({"path": str(path), "rows": len(frame)})
    else:
        print_line(f"{path}: {len(frame):,} items")


@command(Panel.LOGS, "talerec items delete 17 --store sqlite:///shop.db", within=items)
def delete(
    item: Annotated[str, argument("ITEM", "The id of the item.")], store: StoreAddress = None
) -> None:
    """Delete an item: services that use the store list it no more, whatever model they serve."""
    from talerec.store import now_us, validate_id

    with open_store(store_address(store)) as opened:
        kind = opened.id_kinds().item
        try:
            opened.delete_item(validate_id(item, "item", kind), now_us())
        except TalerecError as error:
            raise TalerecError(f"{opened.name}: {error}") from None
    print_line(f"{opened.name}: deleted item {item}")
