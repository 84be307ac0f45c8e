"""The item table of an update: its rows in place of those of the fit, and its new items."""

from __future__ import annotations

import logging
from typing import NamedTuple

import polars as pl

from talerec import columns
from talerec.data import Log, Vocabulary, unique_rows
from talerec.errors import TalerecError
from talerec.models.core import Model

logger = logging.getLogger("talerec")

_MAX_NAMES = 3  # items that a message names


class ItemUpdate(NamedTuple):
    """The rows of a later item table, and all items of the model that is updated with them.

    rows: the table's first row of each id; None without a table. items: those of the model and of
    new events, then `n_added` items that only the table has.
    """

    rows: pl.DataFrame | None
    items: Vocabulary
    n_added: int

    @classmethod
    def read(cls, model: Model, table: pl.DataFrame | None, items: Vocabulary) -> ItemUpdate:
        """Return a table's rows for a model; how many items are known or new is logged.

        table: None for none. items: of the model and of new events. Items that only the table has
        are added if the model scores items by their content.
        """
        if table is None:
            return cls(None, items, 0)
        rows = unique_rows(table, items)
        ids = rows[columns.ITEM]
        new = ids.filter(~ids.is_in(items.ids.implode()))
        _report(model, len(table), len(rows) - len(new), new)
        if new.is_empty() or not model.scores_catalogue:
            return cls(rows, items, 0)
        return cls(rows, Vocabulary(pl.concat([items.ids, new.alias("id")])), len(new))


def _report(model: Model, n_rows: int, n_known: int, new: pl.Series) -> None:
    """Log how many items of a table are in the model, and what becomes of the others.

    n_rows: of the table. n_known: its items that the model or a new event has. new: ids of all
    others.
    """
    if not n_known and not (model.scores_catalogue and len(new)):
        logger.warning(
            "the item table describes no item of the model: 0 of its %s ids match (`item_key` names"
            " its column of ids)",
            f"{n_rows:,}",
            extra={"parameters": ("item_key",)},
        )
        return
    if new.is_empty():
        logger.info("the item table describes %s items of the model", f"{n_known:,}")
        return
    names = ", ".join(map(str, new.head(_MAX_NAMES)))
    if model.scores_catalogue:
        outcome = "and are added: they can be recommended by their content"
    else:
        outcome = f"and are not in the model: {_explain_no_content(model)}"
    logger.info(
        "%s of %s items of the item table have no events, such as %s, %s",
        f"{len(new):,}", f"{n_known + len(new):,}", names, outcome,
    )  # fmt: skip


def _explain_no_content(model: Model) -> str:
    """Return why a model does not score items by their content, as the end of a sentence."""
    reason = " ".join(model.describe_content()).removesuffix(".")
    reason = reason or "`tempo`, `ranker` and `content` may score new items, too"
    return f"{model.name} scores items by their events alone. {reason}"


def merge_item_tables(
    info: pl.DataFrame | None, log: Log, rows: pl.DataFrame | None = None
) -> pl.DataFrame | None:
    """Return the item table with a row for each item of a log, in position order.

    An item table has a row of attributes per item. `rows`, at most one per item and with ids of the
    log's type, replace those of `info`, the old table; items in neither get empty rows. None if
    there is no table at all. TalerecError if columns of both have incompatible types.
    """
    if rows is not None:
        rows = rows.filter(rows[columns.ITEM].is_in(log.items.ids.implode()))
        info = rows if info is None else _replace_item_rows(info, rows)
    if info is None:
        return None
    ids = pl.DataFrame({columns.ITEM: log.items.ids})
    return ids.join(info, on=columns.ITEM, how="left", maintain_order="left")


def _replace_item_rows(old: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a new item table, and the old rows of items that are not in it.

    TalerecError if columns of both tables have incompatible types.
    """
    unchanged = old.join(rows, on=columns.ITEM, how="anti", maintain_order="left")
    try:
        return pl.concat([unchanged, rows], how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise TalerecError(f"the new item table does not fit the old one: {reason}") from None


def count_undescribed(info: pl.DataFrame | None, new: slice) -> int:
    """Return how many new items have an empty row in the item table.

    info: the item table, None for none. new: the positions of the items. The number and some ids
    are logged.
    """
    if info is None or info.width < 2:
        return 0
    rows = info[new]
    ids = rows.filter(pl.all_horizontal(pl.exclude(columns.ITEM).is_null()))[columns.ITEM]
    if len(ids):
        logger.info(
            "%s of %s new items have no row in the item table, such as %s; give rows in `items`",
            f"{len(ids):,}", f"{len(rows):,}", ", ".join(map(str, ids.head(_MAX_NAMES))),
            extra={"parameters": ("items",)},
        )  # fmt: skip
    return len(ids)
