"""Options of item tables, which commands that read one take as one dataclass."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from talerec import columns
from talerec.cli.groups import format_option
from talerec.cli.options import option, parse_ids, parse_separator
from talerec.errors import TalerecError

if TYPE_CHECKING:
    import polars as pl

    from talerec.data import Log
    from talerec.models.core import Model

logger = logging.getLogger("talerec")
_TABLE = "Item table"  # heading of help pages


@dataclass(frozen=True)
class ItemTableOptions:
    """Options of an item table: its file, columns of ids and titles, and field separator."""

    items: Annotated[
        Path | None,
        option("--items", "FILE", "Table with a column of item ids and, say, a title.", _TABLE),
    ] = None
    item_key: Annotated[
        str | None,
        option(
            "--item-key", "COLUMN", "Its column of ids (default: the log's, or item_id).", _TABLE
        ),
    ] = None
    item_title: Annotated[
        str | None,
        option(
            "--item-title", "COLUMN", "Its column of titles (default: title, name, ...).", _TABLE
        ),
    ] = None
    items_sep: Annotated[
        str | None, option("--items-sep", "SIGN", "Field separator of the table.", _TABLE)
    ] = None
    item_text: Annotated[
        str | None,
        option("--item-text", "COLUMN,...", "Columns that are text, not categories.", _TABLE),
    ] = None
    item_skip: Annotated[
        str | None, option("--item-skip", "COLUMN,...", "Columns that models ignore.", _TABLE)
    ] = None

    def format_arguments(self) -> str:
        """Return the options that are set as words of a shell command; "" without any."""
        options = {part.name: getattr(self, part.name) for part in fields(self)}
        return " ".join(format_option(name, v) for name, v in options.items() if v is not None)

    def check(self) -> None:
        """Raise TalerecError if an option of the item table is set without --items, its file."""
        for part in fields(self):
            value = getattr(self, part.name)
            if value is not None and self.items is None:
                raise TalerecError(f"{format_option(part.name, value)} needs --items")

    def read(self, item: str) -> pl.DataFrame | None:
        """Return the item table as a Polars frame, or None without --items, the path of its file.

        `item` is the log's column of item ids, the default for that of the table.
        """
        from talerec.data.read import read_log_items

        if self.items is None:
            return None
        return read_log_items(
            self.items, self.item_key, item, self.item_title, parse_separator(self.items_sep)
        )

    def attach(self, log: Log, table: pl.DataFrame | None) -> Log:
        """Return the log with the item table that `read` returned; None: as it is.

        The columns that `self.item_text` names (separated by commas) are read as text, and those of
        `self.item_skip` are left out.
        """
        if table is None:
            return log
        text, skip = (tuple(parse_ids(names) or ()) for names in (self.item_text, self.item_skip))
        return log.with_items(table, text=text, skip=skip)


def report_new_items(model: Model, log: Log) -> None:
    """Log how many items of the item table have no events and are not recommended, if any."""
    if log.catalogue is None:
        return
    n_missing = int((~log.catalogue[columns.ITEM].is_in(model.item_ids.implode())).sum())
    if n_missing:
        noun = "item" if n_missing == 1 else "items"
        logger.info(
            "%s %s of the item table without events: %s does not recommend them; --model content "
            "does, by what the table says",
            f"{n_missing:,}",
            noun,
            model.name,
        )
