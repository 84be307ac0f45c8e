"""Rows of an item table: those of a log's items, those of other items, and new ones."""

from __future__ import annotations

import logging

import numpy as np
import polars as pl
import polars.selectors as cs

from talerec import columns
from talerec.data.frames import require_columns, require_id_type
from talerec.data.vocabulary import Vocabulary
from talerec.errors import InvalidLogError
from talerec.runtime import Array

logger = logging.getLogger("talerec")


def match_items(table: pl.DataFrame, items: Vocabulary) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of an item table for the items of a log, and its rows of other items.

    table: ids are in the column item_id. items: the items of the log. The first frame has a row per
    item of the log, in their order: the table's first row of that id, or nulls. Ids of both are of
    the type of `items`; rows whose id cannot have this type are left out. InvalidLogError without
    the column of ids. How many ids match, and ids that the table has twice, are written to the
    program's log.
    """
    side = unique_rows(table, items)
    _report_matches(items.ids, side[columns.ITEM])
    log_items = pl.DataFrame({columns.ITEM: items.ids})
    info = log_items.join(side, on=columns.ITEM, how="left", maintain_order="left")
    others = side.join(log_items, on=columns.ITEM, how="anti", maintain_order="left")
    _report_near_matches(items.ids, others[columns.ITEM])
    return info, others


def unique_rows(table: pl.DataFrame, items: Vocabulary) -> pl.DataFrame:
    """Return the first row of each id of an item table, with ids of the type of a vocabulary.

    table: ids are in the column item_id; rows whose id cannot have the type of `items` are left
    out. InvalidLogError without the column of ids. Ids that the table has twice, and columns of
    dates in another format, are written to the program's log.
    """
    if columns.ITEM not in table.columns:
        raise InvalidLogError(f"the item table has no column {columns.ITEM!r}: {table.columns}")
    require_id_type(table[columns.ITEM])
    rows = table.with_columns(items.cast_ids(table[columns.ITEM]).alias(columns.ITEM))
    rows = rows.drop_nulls(columns.ITEM)
    is_first = rows[columns.ITEM].is_first_distinct()
    if n_repeated := int((~is_first).sum()):
        example = rows[columns.ITEM].filter(~is_first)[0]
        message = "rows of the item table that repeat an id: %s, such as %r; the first row counts"
        logger.warning(message, f"{n_repeated:,}", example)
    _report_other_dates(rows)
    return rows.filter(is_first)


def select_new_rows(table: pl.DataFrame, info: pl.DataFrame, items: Vocabulary) -> pl.DataFrame:
    """Return rows of an item table whose items are not in a vocabulary, shaped like `info`.

    table, info: as for `shape_rows`. The first row of an id counts. InvalidLogError without ids, or
    if a value cannot have the type of its column.
    """
    rows = shape_rows(table, info, items)
    return rows.filter(~rows[columns.ITEM].is_in(items.ids.implode()))


def shape_rows(table: pl.DataFrame, info: pl.DataFrame, items: Vocabulary) -> pl.DataFrame:
    """Return the first row of each item of a table, with the columns and types of `info`.

    table: ids are in the column item_id; rows whose id cannot have the type of `items` are left
    out. info: an earlier table; columns that `table` does not have are null. InvalidLogError
    without ids, or if a value cannot have the type of its column.
    """
    require_columns(table.columns, [columns.ITEM])
    require_id_type(table[columns.ITEM])
    ids = items.cast_ids(table[columns.ITEM])
    rows = table.with_columns(ids.alias(columns.ITEM))
    rows = rows.filter(ids.is_not_null() & ids.is_first_distinct())
    names = [name for name in info.columns if name in rows.columns]
    try:
        typed = rows.select(names).cast({name: info.schema[name] for name in names})
    except pl.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise InvalidLogError(f"a value does not fit the item table: {reason}") from None
    return pl.concat([info.clear(), typed], how="diagonal")


def equal_rows(table: pl.DataFrame, others: pl.DataFrame) -> Array:
    """Return, for each row of a table, whether the same row of `others` has the same values.

    Both have the same columns and number of rows; nulls are equal.
    """
    is_equal = np.ones(len(table), bool)
    for column in table.get_columns():
        is_equal &= column.eq_missing(others[column.name]).to_numpy()
    return is_equal


def replace_rows(table: pl.DataFrame, rows: pl.DataFrame, positions: Array) -> pl.DataFrame:
    """Return a table with `rows` at some positions, at its end, too.

    Both have the same columns and types. positions: one per row, all different; those from the
    length of the table on must have no gap.
    """
    n_rows = max(len(table), int(positions.max(initial=-1)) + 1)
    order = np.arange(n_rows)
    order[positions] = len(table) + np.arange(len(rows))
    return pl.concat([table, rows])[order]


def _report_matches(ids: pl.Series, described: pl.Series) -> None:
    """Write to the program's log how many items an item table describes; a warning if none.

    `ids` are the ids of the items in the interaction log; `described` is the item table's column of
    ids.
    """
    n_matching = int(ids.is_in(described.implode()).sum())
    words = f"{n_matching:,} of {len(ids):,} ids match"
    if not n_matching:
        logger.warning(
            "the item table describes no item of the log: %s (`item_key` names its column of ids)",
            words,
            extra={"parameters": ("item_key",)},
        )
    else:
        verb = "does not describe" if n_matching < len(ids) else "describes"
        logger.info("the item table %s every item of the log: %s", verb, words)


def _report_near_matches(ids: pl.Series, others: pl.Series) -> None:
    """Log a warning for ids of an item table that differ little from an id of the log.

    ids: of the log's items. others: the table's other ids. Ids such as "a7 " and "A7" differ by
    spaces at their ends, or by upper and lower case.
    """
    if ids.dtype != pl.String:
        return
    near = others.filter(_fold_ids(others).is_in(_fold_ids(ids).implode()))
    if len(near):
        message = (
            "ids of the item table that differ from an id of the log by spaces or upper and lower"
            " case alone: %s, such as %r; they count as other items"
        )
        logger.warning(message, f"{len(near):,}", near[0])


def _fold_ids(ids: pl.Series) -> pl.Series:
    """Return ids in lower case, without spaces at their ends."""
    return ids.str.strip_chars().str.to_lowercase()


def _report_other_dates(table: pl.DataFrame) -> None:
    """Log a warning for each column of an item table with dates such as 25/12/2023."""
    from talerec.data.items import blank_to_null, has_other_dates  # most logs have no item table

    for column in table.select(cs.string().exclude(columns.ITEM)).get_columns():
        values = blank_to_null(column).drop_nulls()
        if has_other_dates(values):
            message = (
                "column %r of the item table is not used: write dates such as %r as 2023-12-25"
            )
            logger.warning(message, column.name, values[0])


def described_rows(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of an item table that have a value in any column besides the id."""
    others = [name for name in table.columns if name != columns.ITEM]
    if not others:
        return table.clear()
    return table.filter(pl.any_horizontal(pl.col(others).is_not_null()))
