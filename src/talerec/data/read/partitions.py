"""Reading a log from its parts: the needed columns of every file, or of a query."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from talerec import columns
from talerec.data import (
    Log,
    are_integers,
    field_names,
    read_text_columns,
    require_columns,
    unnest_fields,
)
from talerec.data.read import formats, sources
from talerec.data.read.databases import database_kind, has_order_by, hide_secrets, read_query
from talerec.data.read.sources import Source, SourceFile, report_read_errors, source_name
from talerec.errors import InvalidLogError, MissingColumnError, TalerecError

logger = logging.getLogger("talerec")


CONTEXT_ROLE = "context"  # begins the roles of context columns: context0, context1 ...


@dataclass(frozen=True)
class ReadOptions:
    """Which columns to read from a source of a log, and how."""

    columns: dict[str, str]  # role (user, item, time, weight, event, group, context0 ...) -> name
    sep: str | None = None  # field separator of text files; None: by the file's ending
    query: str | None = None  # the SQL query to send, if the source is a database
    any_order: bool = False  # whether the query needs no `order by`
    lacks_time: bool = False  # whether the default column of times may be missing


def read_parts(path: Source | Sequence[Source], options: ReadOptions, **frame_options: Any) -> Log:
    """Return the log of a source; `frame_options` are passed to `Log.from_frame`.

    `path` is a file, a folder, a pattern, "-" (standard input), a web address or a database, or a
    list of them. A part is one file, or the result of a query; parts are joined in order. Errors
    name the source and, of several files, the one at fault. `options` has the columns by role, the
    field separator and the SQL query.
    """
    name = source_name(path)
    if options.query is not None or _find_database_address(path):
        with _name_source(name):
            return _join_parts([_query_part(path, options)], frame_options)
    with sources.open_source(path) as files, _name_source(name, len(files) > 1):
        parts = [_read_part(file, options) for file in files]
        is_single = len(files) == 1
        with report_read_errors(files[0], options.sep) if is_single else _locate_rows(parts):
            return _join_parts(parts, frame_options)


@dataclass(frozen=True)
class LogPart:
    """One file of a log, or the result of a query: its rows, and its columns by role."""

    name: str  # the file's path, or the database's address without passwords, for messages
    columns: dict[str, str]  # role (user, item, time, weight, event, group) -> column of `frame`
    frame: pl.LazyFrame  # the rows, with the columns to read
    text_columns: frozenset[str]  # columns that are text because the file format has only text
    is_text: bool = False  # whether every value was read as text, into memory


def _read_part(file: SourceFile, options: ReadOptions) -> LogPart:
    """Return the needed columns of one file of a log as a part of the log.

    `options` has the columns by role (user, item, time ...) and the field separator. Folders called
    name=value in the file's path (Hive partitions) are constant columns. Text files are read into
    memory as text; other files are scanned lazily.
    """
    sep = options.sep
    with report_read_errors(file, sep):
        frame = formats.scan(file.path, sep)
        frame = unnest_fields(frame, list(options.columns.values()))
        present = field_names(frame.collect_schema())
        constants = {name: value for name, value in file.partitions.items() if name not in present}
        names = _find_column_names([*present, *constants], options)
        is_text = formats.is_text(file.path, sep)
        columns_to_read = list(dict.fromkeys(names.values()))
        if is_text:
            file_columns = [name for name in columns_to_read if name not in constants]
            frame = read_text_columns(frame, file_columns).lazy()
        frame = frame.with_columns(pl.lit(v, pl.String).alias(n) for n, v in constants.items())
        text_columns = frozenset(columns_to_read if is_text else constants)
        return LogPart(file.name, names, frame.select(columns_to_read), text_columns, is_text)


def _find_column_names(present: list[str], options: ReadOptions) -> dict[str, str]:
    """Return the names of the columns to read, by role (user, item, time ...).

    `present` are the file's columns; `options.columns` has the names asked for, by role. Where a
    default name (user_id, item_id, timestamp) is missing, the names of published logs (MovieLens,
    Amazon, Yelp) are used. With `options.lacks_time`, the default column of times may be missing.
    MissingColumnError if there is no such column.
    """
    published = (names for names in columns.PUBLISHED if set(present) >= {*names})
    names_in_file = next(published, columns.DEFAULT)
    default_columns = dict(zip(columns.DEFAULT, names_in_file, strict=True))
    names = {
        role: default_columns.get(name, name) if name not in present else name
        for role, name in options.columns.items()
    }
    if options.lacks_time and names["time"] == columns.TIME not in present:
        del names["time"]
        logger.info("there is no column %s: rows stay in their order", columns.TIME)
    sign = formats.guess_separator(present)
    if sign is not None and not {*names.values()} <= {*present}:
        message = f"the only column is {present[0]!r} (set `sep` to {sign!r})"
        raise MissingColumnError(message, "sep")
    for role, name in names.items():
        parameter = CONTEXT_ROLE if role.startswith(CONTEXT_ROLE) else role
        require_columns(present, [name], parameter)
    _log_unused_column(present, names)
    return names


#: Names of columns in published logs that could weigh rows, and the parameters that use them.
_WEIGHT_COLUMNS = {
    "event event_type event_name action behavior behaviour type interaction": "event",
    "rating ratings stars overall weight quantity score": "weight",
}


def _log_unused_column(present: list[str], names: dict[str, str]) -> None:
    """Write to the program's log that a column looks like events or ratings and is not used.

    `present` are the file's columns, and `names` those to read, by role (user, item, time, weight,
    event). Nothing is written if weights or events are read.
    """
    if "weight" in names or "event" in names:
        return
    unused = [name for name in present if name not in names.values()]
    for common_names, parameter in _WEIGHT_COLUMNS.items():
        column = next((name for name in unused if name.lower() in common_names.split()), None)
        if column is not None:
            message = f"column %r is not used: all rows have the same weight (see `{parameter}`)"
            logger.info(message, column, extra={"parameters": (parameter,)})


# -- several parts ---------------------------------------------------------------------------------


def _join_parts(parts: list[LogPart], frame_options: dict[str, Any]) -> Log:
    """Return the log of the parts, one after the other.

    A part is a file of the log, or the result of a query: a lazy frame and its columns by role
    (user, item, time ...). `frame_options` are passed to `Log.from_frame`. The list `parts` is
    emptied, to free memory. InvalidLogError if the parts' times are of different types.
    """
    names = parts[0].columns
    frames = [_rename_columns(part, names) for part in parts]
    if "time" in names:
        _refuse_mixed_times(parts, frames, names["time"])
    ids = [role for role in ("user", "item", "group") if role in names]
    context = [role for role in names if role.startswith(CONTEXT_ROLE)]
    for role in (*ids, *context):
        frames = _unify_ids(frames, names[role])
    table = frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical_relaxed")
    text_ids = [names[role] for role in ids if _may_be_integers(parts, frames, role)]
    parts.clear()  # text takes more memory than the log
    frames.clear()
    table = _cast_integer_ids(table, text_ids) if text_ids else table
    roles: dict[str, Any] = {"time": None, **names}
    roles = {role: name for role, name in roles.items() if role not in context}
    roles[CONTEXT_ROLE] = [names[role] for role in context]
    return Log.from_frame(table, **roles, **frame_options)


def _cast_integer_ids(table: pl.LazyFrame, text_ids: list[str]) -> pl.LazyFrame:
    """Return the table with each column in `text_ids` cast to integers if all its values are.

    `text_ids` names columns of user or item ids that text files hold, which have no types.
    """
    frame = table.collect(engine="streaming")
    for name in dict.fromkeys(text_ids):
        if are_integers(frame[name]):
            frame = frame.with_columns(frame[name].cast(pl.Int64))
    return frame.lazy()


def _rename_columns(part: LogPart, names: dict[str, str]) -> pl.LazyFrame:
    """Return the rows of a part (a file of a log) with its columns renamed to `names`.

    `names` maps a role (user, item, time ...) to the column's name in all parts. InvalidLogError if
    the part has other roles: it lacks times, and other files have them.
    """
    if part.columns.keys() != names.keys():
        message = f"{part.name} has no column of times, and other files have one"
        raise InvalidLogError(message, source=part.name)
    renamed = {part.columns[role]: name for role, name in names.items()}
    return part.frame if part.columns == names else part.frame.rename(renamed)


def _find_column_types(frames: list[pl.LazyFrame], name: str) -> list[pl.DataType]:
    """Return the type of the column `name` in each of the frames."""
    return [frame.collect_schema()[name] for frame in frames]


def _unify_ids(frames: list[pl.LazyFrame], name: str) -> list[pl.LazyFrame]:
    """Return the frames with ids as text if some frames have text and others have numbers.

    `name` is the column of ids. Otherwise the frames are returned as they are. A frame has the rows
    of one file of a log.
    """
    kinds = set(_find_column_types(frames, name))
    if len(kinds) < 2 or all(kind.is_integer() for kind in kinds):
        return frames
    return [frame.with_columns(pl.col(name).cast(pl.String)) for frame in frames]


def _may_be_integers(parts: list[LogPart], frames: list[pl.LazyFrame], role: str) -> bool:
    """Return whether a role's ids are text only because text is all that their files hold.

    `role` is "user" or "item". `parts` are the files of the log, with `text_columns`, those that
    are text because CSV has no types; `frames` are their rows with unified columns. If true, the
    ids may be cast to integers.
    """
    texts = [
        part.columns[role] in part.text_columns
        for part in parts
        if part.frame.collect_schema()[part.columns[role]] == pl.String
    ]
    first = parts[0].columns[role]
    return bool(texts) and all(texts) and _find_column_types(frames, first)[0] == pl.String


def _refuse_mixed_times(parts: list[LogPart], frames: list[pl.LazyFrame], name: str) -> None:
    """Raise InvalidLogError if the times of one part are text and those of another numbers.

    `frames` are the rows of the parts, and `name` is the column of times in all of them. A part is
    a file of the log.
    """
    kinds = _find_column_types(frames, name)
    for part, kind in zip(parts, kinds, strict=True):
        are_alike = kind == kinds[0] or (kind.is_numeric() and kinds[0].is_numeric())
        has_text = pl.String in (kind, kinds[0])
        if not are_alike and (has_text or kind.is_numeric() != kinds[0].is_numeric()):
            raise InvalidLogError(
                f"times of {part.name} are {kind} values, but those of {parts[0].name} {kinds[0]}: "
                "convert one of them",
                source=part.name,
            )


@contextmanager
def _locate_rows(parts: list[LogPart]) -> Iterator[None]:
    """Make errors about a row number of the joined log name the file, and the row in it.

    A context manager. `parts` are the files of the log, joined in this order; rows count from 1.
    """
    heights = [(part.name, _count_rows(part)) for part in parts]
    try:
        yield
    except TalerecError as error:
        row = error.row or 0
        for name, height in heights if row else ():
            n_rows = height if isinstance(height, int) else height.collect().item()
            if row <= n_rows:
                error.locate(name, row)
                break
            row -= n_rows
        raise


def _count_rows(part: LogPart) -> int | pl.LazyFrame:
    """Return how many rows a part has; a lazy frame that counts them if it is not read yet.

    A part is one file of a log; text files are in memory, others are read when needed.
    """
    count = part.frame.select(pl.len())
    return int(count.collect().item()) if part.is_text else count


@contextmanager
def _name_source(name: str, is_several: bool = True) -> Iterator[None]:
    """Make errors in the block, which reads a log, name the log; a context manager.

    Errors of Polars and the disk become InvalidLogErrors. An InvalidLogError gets the name only if
    the log has several files (`is_several`): with one, the file is named elsewhere.
    """
    try:
        yield
    except InvalidLogError as error:
        if is_several:
            error.locate(name)
        raise
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidLogError(f"{name} cannot be read: {reason}") from None


# -- databases -------------------------------------------------------------------------------------


def _find_database_address(path: Source | Sequence[Source]) -> str | None:
    """Return the address of the database that a source is, or None if it is another source.

    A source is a path or address, or a list of them; a database is a list's only entry.
    """
    text = str(path) if isinstance(path, str | Path) else str(path[0]) if len(path) == 1 else ""
    return text if database_kind(text) else None


def _query_part(path: Source | Sequence[Source], options: ReadOptions) -> LogPart:
    """Return the rows of `options.query`, sent to the database at `path`, as a part of a log.

    `options` also has the columns by role and `any_order`, whether the query needs no `order by`.
    TalerecError if `path` is not a database, or the query is missing or has no `order by`.
    """
    query = options.query
    address = _find_database_address(path)
    if address is None:
        raise TalerecError(
            f"`query` reads a database, and {source_name(path)} is none: write sqlite:///shop.db",
            "query",
        )
    name = hide_secrets(address)
    if query is None:
        raise TalerecError(
            f"{name} is a database: set `query`, such as "
            "'select user_id, item_id, timestamp from events order by timestamp'",
            "query",
        )
    if not options.any_order and not has_order_by(query):
        raise TalerecError(
            "the query has no order by, so its rows have no order: add one, or set `any_order`",
            "any_order",
        )
    table = read_query(address, query)
    names = _find_column_names(table.columns, options)
    frame = table.lazy().select(list(dict.fromkeys(names.values())))
    return LogPart(name, names, frame, frozenset())
