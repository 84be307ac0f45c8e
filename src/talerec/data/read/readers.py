"""Read logs and item tables; an error names the file and what is wrong in one line."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from talerec import columns
from talerec.data.frames import refuse_missing
from talerec.data.log import Log
from talerec.data.read import formats, sources
from talerec.data.read import partitions as parts
from talerec.data.read.file_errors import named_errors
from talerec.data.read.sources import File, Source
from talerec.errors import InvalidLogError, TalerecError

logger = logging.getLogger("talerec")


def read_log(
    path: Source | Sequence[Source],
    *,
    user: str = columns.USER,
    item: str = columns.ITEM,
    time: str | None = columns.TIME,
    time_unit: str | None = None,
    any_time: bool = False,
    weight: str | None = None,
    event: str | None = None,
    event_weights: Mapping[str, float] | None = None,
    items: str | Path | None = None,
    item_key: str | None = None,
    item_title: str | None = None,
    items_sep: str | None = None,
    sep: str | None = None,
    query: str | None = None,
    any_order: bool = False,
    lacks_time: bool = False,
) -> Log:
    """Read a log: CSV, TSV, Parquet, JSON lines, RecBole `.inter`, MovieLens `.dat`; plain, gzip or zstd.

    Files of MovieLens, Amazon and Yelp are read as they are published, with their names of columns.

    Parameters
    ----------
    path : str, Path, or a list of them
        A file, a folder (Hive partitions are columns), a pattern such as ``logs/*.csv``, ``-`` for standard input, a
        named pipe, an address (http, s3, gs, az), or a database. Files are read by name, paths in their order.
    user, item, time, time_unit, any_time, weight, event, event_weights
        As in `Log.from_frame`.
    items, item_key, item_title, items_sep : str or Path, str, str, str, optional
        A file that describes the items (see `read_items`), its columns of ids and titles, and what stands between its fields.
        Without `item_key`, ids are in the column that the log has them in, or in `item_id`.
    sep : str, optional
        What stands between the fields of text files; by default their ending tells.
    query : str, optional
        What to ask a database: ``sqlite:///shop.db``, ``duckdb:///shop.duckdb``, ``postgresql://host/shop``.
    any_order : bool
        Whether a query may do without ``order by``, as it may before `order_ties`.
    lacks_time : bool
        Whether the log may do without the usual column of times, as it may for models that need none.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import talerec as tr
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "log.parquet")
    ...     tr.synthetic_log(200).to_frame().write_parquet(path)
    ...     tr.read_log(path).rows
    200
    """
    side = None if items is None else items_of_log(items, item_key, item, item_title, items_sep)
    roles = {"user": user, "item": item, "time": time, "weight": weight, "event": event}
    named = {role: name for role, name in roles.items() if name is not None}
    asked = parts.Asked(named, sep, query, any_order, lacks_time)
    options = {"time_unit": time_unit, "any_time": any_time, "event_weights": event_weights}
    log = parts.read(path, asked, **options)
    return log if side is None else log.with_items(side)


def read_items(
    path: str | Path,
    item: str = columns.ITEM,
    *,
    title: str | None = None,
    sep: str | None = None,
) -> pl.DataFrame:
    """Read a table of items: their ids, and whatever describes them.

    Parameters
    ----------
    path : str or Path
        The file: `.item`, CSV, TSV, Parquet, JSON lines or `movies.dat`; plain, gzip or zstd.
    item : str
        The name of its column of ids.
    title : str, optional
        The name of its column of titles; by default `title`, `name` and the like.
    sep : str, optional
        What stands between the fields of a text file; by default its ending tells.

    Returns
    -------
    polars.DataFrame
        The table; ids are in a column `item_id`, and titles, where there are any, in `title`.

    Raises
    ------
    InvalidLogError
        If the file cannot be read, or has no such column.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import talerec as tr
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "items.csv")
    ...     _ = path.write_text("asin,name\\nB1,Tent\\n")
    ...     tr.read_items(path, item="asin").to_dicts()
    [{'item_id': 'B1', 'title': 'Tent'}]
    """
    return _items(path, item, title, sep)


def items_of_log(
    path: str | Path, key: str | None, item: str, title: str | None, sep: str | None
) -> pl.DataFrame:
    """The table of the items of a log: ids are in `key`, or in the column that the log has them in, or in the usual one."""
    return _items(path, key or item, title, sep, or_usual=key is None)


def _items(
    path: str | Path, item: str, title: str | None, sep: str | None, or_usual: bool = False
) -> pl.DataFrame:
    if title in (item, columns.ITEM):
        raise TalerecError(f"the item table's titles cannot be in its column of ids, {title!r}")
    with sources.opened(path) as files:
        tables = [_table(file, sep, {item, title or item}) for file in files]
        if or_usual and not any(item in table.columns for table in tables):
            item = columns.ITEM
        for file, table in zip(files, tables, strict=True):
            _refuse_without(file, table.columns, item, "--item-key NAME says which holds the ids")
            if title is not None:
                _refuse_without(
                    file, table.columns, title, "--item-title NAME says which holds titles"
                )
    table = pl.concat(tables, how="vertical_relaxed")
    if item != columns.ITEM:
        table = table.drop(columns.ITEM, strict=False).rename({item: columns.ITEM})
    return _titled(table, title)


def _titled(table: pl.DataFrame, title: str | None) -> pl.DataFrame:
    """A table whose titles are in the usual column; a note where it has none."""
    usual = columns.TITLES[0]
    found = title or next((name for name in columns.TITLES if name in table.columns), None)
    if found is None and table.width > 1:
        logger.info(
            "the item table has no column of titles (%s): people see ids (--item-title NAME says which to use)",
            ", ".join(columns.TITLES),
        )  # fmt: skip
    if found in (None, usual):
        return table
    return table.drop(usual, strict=False).rename({found: usual})


def _table(file: File, sep: str | None, plain: set[str]) -> pl.DataFrame:
    """All columns of a file; in text, ids and titles are text, and other columns what their values are."""
    with _own_option(), named_errors(file, sep):
        frame = formats.scan(file.path, sep)
        if not formats.is_text(file.path, sep):
            return frame.collect()
        names = frame.collect_schema().names()
        if sign := formats.other_separator(names):
            raise InvalidLogError(
                f"its only column is {names[0]!r} (--items-sep {sign!r} reads such a file)"
            )
        every = formats.text_columns(frame, names)
        return formats.with_types(every, {*plain, columns.ITEM, *columns.TITLES})


@contextmanager
def _own_option() -> Iterator[None]:
    """Errors about separators name the option of item tables."""
    try:
        yield
    except TalerecError as error:
        raise type(error)(str(error).replace(" --sep ", " --items-sep ")) from None


def _refuse_without(file: File, there: list[str], name: str, way: str) -> None:
    """An error where a table of items lacks a column; it says which option names another."""
    try:
        refuse_missing(there, [name])
    except InvalidLogError as error:
        raise InvalidLogError(f"{file.name}: {error} ({way})") from None
