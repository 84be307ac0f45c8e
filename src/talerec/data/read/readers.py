"""Reading logs and item tables; an error names the file and what is wrong in one line."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import polars as pl

from talerec import columns
from talerec.data import Log, infer_types, read_text_columns, require_columns
from talerec.data.read.formats import guess_separator, is_text, scan
from talerec.data.read.partitions import CONTEXT_ROLE, ReadOptions, read_parts
from talerec.data.read.sources import Source, SourceFile, open_source, report_read_errors
from talerec.errors import InvalidLogError, TalerecError

logger = logging.getLogger("talerec")


def read_log(
    path: Source | Sequence[Source],
    *,
    user: str = columns.USER, item: str = columns.ITEM, time: str | None = columns.TIME,
    time_unit: str | None = None, any_time: bool = False,
    weight: str | None = None, event: str | None = None,
    event_weights: Mapping[str, float] | None = None, group: str | None = None,
    context: Collection[str] = (), user_table: str | Path | None = None,
    items: str | Path | None = None, item_key: str | None = None,
    item_title: str | None = None, items_sep: str | None = None,
    item_text: Collection[str] = (), item_skip: Collection[str] = (),
    sep: str | None = None, query: str | None = None,
    any_order: bool = False, lacks_time: bool = False,
) -> Log:  # fmt: skip
    """Read a log from files, a folder, standard input, a web address or a database.

    Formats: CSV, TSV, Parquet, JSON lines, RecBole `.inter`, MovieLens `.dat`; plain, gzip or zstd;
    published files of MovieLens, Amazon and Yelp with their own column names.

    Parameters
    ----------
    path : str, Path, or a list of them
        A file, a folder (Hive partitions are columns), a pattern such as ``logs/*.csv``, ``-`` for
        standard input, a named pipe, an address (http, s3, gs, az), or a database. Paths are read
        in their order, files of a folder by name.
    user, item, time, time_unit, any_time, weight, event, event_weights, group, context
        As in `Log.from_frame`.
    user_table : str or Path, optional
        A table of users (`Log.with_users`); ids are in a column named as in the log, or `user_id`.
    items, item_key, item_title, items_sep, item_text, item_skip
        An item table (see `read_items`), its columns of ids (by default named as in the log, or
        `item_id`) and titles, its field separator, columns that are text whatever they look like,
        and columns that models ignore.
    sep : str, optional
        Field separator of text files; by default it follows from their ending.
    query : str, optional
        The query for a database: ``sqlite:///shop.db`` or ``postgresql://host/shop``.
    any_order, lacks_time : bool
        Whether a query needs no ``order by``, and the default column of times may be missing.

    Examples
    --------
    >>> import pathlib, tempfile, talerec as tr
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "log.parquet")
    ...     tr.synthetic_log(200).to_frame().write_parquet(path)
    ...     tr.read_log(path).rows
    200
    """
    table = None if items is None else read_log_items(items, item_key, item, item_title, items_sep)
    roles = ("user", "item", "time", "weight", "event", "group")
    chosen = zip(roles, (user, item, time, weight, event, group), strict=True)
    names = {role: name for role, name in chosen if name is not None}
    names |= {f"{CONTEXT_ROLE}{n}": name for n, name in enumerate(dict.fromkeys(context))}
    options = ReadOptions(names, sep, query, any_order, lacks_time)
    log = read_parts(
        path, options, time_unit=time_unit, any_time=any_time, event_weights=event_weights
    )
    log = log if user_table is None else log.with_users(read_user_table(user_table, user))
    return log if table is None else log.with_items(table, text=item_text, skip=item_skip)


def read_user_table(path: str | Path, user: str = columns.USER) -> pl.DataFrame:
    """Return a table of users, with ids in the column `user_id`.

    The file at `path` has ids in the column `user` (that of the log), else `user_id`. Errors name
    the file.
    """
    with open_source(path) as files:
        tables = [_read_table(file, None, {user, columns.USER}) for file in files]
        for number, (file, table) in enumerate(zip(files, tables, strict=True)):
            with report_read_errors(file, None):
                key = user if user in table.columns else columns.USER
                require_columns(table.columns, [key], "user")
            if key != columns.USER:
                tables[number] = table.drop(columns.USER, strict=False).rename({key: columns.USER})
        return _join_tables(tables, [file.name for file in files])


def read_items(
    path: str | Path, item: str = columns.ITEM, *, title: str | None = None, sep: str | None = None
) -> pl.DataFrame:
    """Read an item table: item ids, and whatever describes the items.

    Parameters
    ----------
    path : str or Path
        The file: `.item`, CSV, TSV, Parquet, JSON lines or `movies.dat`; plain, gzip or zstd.
    item : str
        The name of its column of ids.
    title : str, optional
        The name of its column of titles; by default `title`, `name` and the like.
    sep : str, optional
        Field separator of a text file; by default it follows from the ending.

    Returns
    -------
    polars.DataFrame
        The table; ids are in a column `item_id`, and titles, where there are any, in `title`.

    Raises
    ------
    TalerecError
        If there is no such file, or none of a known kind; InvalidLogError if it cannot be read, or
        has no such column.

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
    return _read_items(path, item, title, sep)


def read_log_items(
    path: str | Path, key: str | None, item: str, title: str | None, sep: str | None
) -> pl.DataFrame:
    """Return a log's item table, with its ids in the column `item_id` and titles in `title`.

    The file at `path` has ids in the column `key`, else `item` (that of the log), else `item_id`.
    `title` is its column of titles and `sep` its field separator. Errors name the parameters of
    `read_log` (`item_key`, `item_title`, `items_sep`).
    """
    try:
        return _read_items(path, key or item, title, sep, or_default=key is None)
    except TalerecError as error:
        error.rename_parameters({"sep": "items_sep", "item": "item_key", "title": "item_title"})
        raise


def _read_items(
    path: str | Path, item: str, title: str | None, sep: str | None, or_default: bool = False
) -> pl.DataFrame:
    """Return an item table with its ids in the column `item_id`, and titles in `title`.

    `path` is a file, a folder or an address. `item` and `title` are the file's columns (`title`
    None: the first common name), and `sep` its field separator. With `or_default`, ids are in
    `item_id` if there is no column `item`. MissingColumnError if a column is missing.
    """
    if title in (item, columns.ITEM):
        raise TalerecError(f"the item table's titles cannot be in its column of ids, {title!r}")
    with open_source(path) as files:
        tables = [_read_table(file, sep, {item, title or item}) for file in files]
        if or_default and not any(item in table.columns for table in tables):
            item = columns.ITEM
        for file, table in zip(files, tables, strict=True):
            with report_read_errors(file, sep):
                require_columns(table.columns, [item], "item")
                if title is not None:
                    require_columns(table.columns, [title], "title")
    table = _join_tables(tables, [file.name for file in files])
    if item != columns.ITEM:
        table = table.drop(columns.ITEM, strict=False).rename({item: columns.ITEM})
    return _rename_titles(table, title)


def _join_tables(tables: list[pl.DataFrame], names: list[str]) -> pl.DataFrame:
    """Return the rows of all files of a table; a column that a file lacks is null there.

    Of numbers and text in one column, both become text. names: of the files. InvalidLogError, with
    the file, for a column whose values cannot be in one column with those of earlier files.
    """
    joined = tables[0]
    for name, table in zip(names[1:], tables[1:], strict=True):
        for column in (column for column in table.columns if column in joined.columns):
            try:
                pl.concat([joined.select(column), table.select(column)], how="vertical_relaxed")
            except pl.exceptions.PolarsError:
                raise InvalidLogError(
                    f"{name}: column {column!r} has values of type {table.schema[column]}, and "
                    f"those of earlier files are {joined.schema[column]}",
                    source=name,
                ) from None
        joined = pl.concat([joined, table], how="diagonal_relaxed")
    return joined


def _rename_titles(table: pl.DataFrame, title: str | None) -> pl.DataFrame:
    """Return the item table with its titles in the column `title`, if it has titles.

    The parameter `title` is the table's column of titles; None: the first of the common names
    (title, name ...) that the table has. Without one the table is returned as it is, and a note is
    logged if it has columns besides the id. Another column called `title` is dropped.
    """
    default = columns.TITLES[0]
    column = title or next((name for name in columns.TITLES if name in table.columns), None)
    if column is None and table.width > 1:
        logger.info(
            "the item table has no column of titles (%s): ids are shown (`item_title` names one)",
            ", ".join(columns.TITLES),
            extra={"parameters": ("item_title",)},
        )
    if column in (None, default):
        return table
    return table.drop(default, strict=False).rename({column: default})


def _read_table(file: SourceFile, sep: str | None, plain: set[str]) -> pl.DataFrame:
    """Return all columns of a file of items.

    `sep` is the field separator of a text file; None: by its ending. In text files, the columns
    `plain` and those of ids and titles stay text; other columns get the type of their values.
    Errors are TalerecErrors that name the file.
    """
    with report_read_errors(file, sep):
        frame = scan(file.path, sep)
        if not is_text(file.path, sep):
            return frame.collect()
        names = frame.collect_schema().names()
        if sign := guess_separator(names):
            raise InvalidLogError(f"its only column is {names[0]!r} (set `sep` to {sign!r})", "sep")
        table = read_text_columns(frame, names)
        return infer_types(table, {*plain, columns.ITEM, *columns.TITLES})
