"""A log of parts: the columns that are asked for of every file, or of a query, one after the other."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from talerec import columns
from talerec.data.frames import refuse_missing
from talerec.data.log import Log
from talerec.data.read import databases, formats, sources
from talerec.data.read.file_errors import named_errors
from talerec.data.read.sources import File, Source
from talerec.errors import InvalidLogError, TalerecError

logger = logging.getLogger("talerec")


@dataclass(frozen=True)
class Asked:
    """What is asked of the source of a log."""

    columns: dict[str, str]  # role (user, item, time, weight, event) -> name
    sep: str | None = None
    query: str | None = None
    any_order: bool = False
    lacks_time: bool = False  # it may do without the usual column of times


def read(path: Source | Sequence[Source], asked: Asked, **options: Any) -> Log:
    """The log that a source holds; the options are those of `Log.from_frame`."""
    name = sources.named(path)
    if asked.query is not None or _database(path):
        with _relabelled(name):
            return _log([_queried(path, asked)], options)
    with sources.opened(path) as files, _relabelled(name, len(files) > 1):
        found = [_part(file, asked) for file in files]
        with named_errors(files[0], asked.sep) if len(files) == 1 else _located(found):
            return _log(found, options)


@dataclass(frozen=True)
class Part:
    """A part of a log: its name, the columns that are wanted of it by role, and those whose ids are only spelled."""

    name: str
    columns: dict[str, str]
    frame: pl.LazyFrame
    spelled: frozenset[str]
    is_text: bool = False


def _part(file: File, asked: Asked) -> Part:
    sep = asked.sep
    with named_errors(file, sep):
        frame = formats.scan(file.path, sep)
        frame = formats.unnested(frame, list(asked.columns.values()))
        there = formats.field_names(frame.collect_schema())
        folders = {name: value for name, value in file.partitions.items() if name not in there}
        names = _column_names([*there, *folders], asked)
        is_text = formats.is_text(file.path, sep)
        wanted = list(dict.fromkeys(names.values()))
        if is_text:
            own = [name for name in wanted if name not in folders]
            frame = formats.text_columns(frame, own).lazy()
        frame = frame.with_columns(pl.lit(v, pl.String).alias(n) for n, v in folders.items())
        spelled = frozenset(wanted if is_text else folders)
        return Part(file.name, names, frame.select(wanted), spelled, is_text)


def _column_names(there: list[str], asked: Asked) -> dict[str, str]:
    """The columns to read by role; where a usual name is missing, that of a known publisher is taken."""
    known = next((names for names in columns.PUBLISHED if set(there) >= {*names}), columns.USUAL)
    usual = dict(zip(columns.USUAL, known, strict=True))
    names = {
        role: usual.get(name, name) if name not in there else name
        for role, name in asked.columns.items()
    }
    if asked.lacks_time and names["time"] == columns.TIME not in there:
        del names["time"]
        logger.info("there is no column %s: rows are taken in their order", columns.TIME)
    with _hinted(names, there):
        refuse_missing(there, list(names.values()))
    _mention_unused(there, names)
    return names


#: Columns that say what a row is worth, in logs as they are published.
_EVENTS = (
    "event",
    "event_type",
    "event_name",
    "action",
    "behavior",
    "behaviour",
    "type",
    "interaction",
)
_RATINGS = ("rating", "ratings", "stars", "overall", "weight", "quantity", "score")


def _mention_unused(there: list[str], names: dict[str, str]) -> None:
    """Say once that a column looks like events or ratings, and is not used."""
    if "weight" in names or "event" in names:
        return
    for kind, option in ((_EVENTS, "--event {0} --event-weights ..."), (_RATINGS, "--weight {0}")):
        found = next((n for n in there if n.lower() in kind and n not in names.values()), None)
        if found is not None:
            way = option.format(found)
            logger.info(
                "column %r is not used: every row counts alike (%s weighs them)", found, way
            )


@contextmanager
def _hinted(names: dict[str, str], there: list[str]) -> Iterator[None]:
    """An error about a missing column says which option names another, or what stands between the fields."""
    try:
        yield
    except TalerecError as error:
        message = str(error)
        sign = formats.other_separator(there)
        role = next(
            (role for role, name in names.items() if f"no column {name!r}" in message), None
        )
        if sign is not None:
            message += f" (--sep {sign!r} reads such a file)"
        elif role is not None:
            message += f" (--{role} NAME says which to use)"
        raise type(error)(message) from None


# -- several parts ---------------------------------------------------------------------------------


def _log(parts: list[Part], options: dict[str, Any]) -> Log:
    """The log of some parts, one after the other."""
    names = parts[0].columns
    frames = [_same_names(part, names) for part in parts]
    if "time" in names:
        _refuse_other_times(parts, frames, names["time"])
    for role in ("user", "item"):
        frames = _same_kind(frames, names[role])
    table = frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical_relaxed")
    spelled = [names[role] for role in ("user", "item") if _may_be_whole(parts, frames, role)]
    parts.clear()  # text takes more room than all that is made of it
    frames.clear()
    table = _with_whole_ids(table, spelled) if spelled else table
    roles: dict[str, Any] = {"time": None, **names}
    return Log.from_frame(table, **roles, **options)


def _with_whole_ids(table: pl.LazyFrame, spelled: list[str]) -> pl.LazyFrame:
    """Ids that are spelled as numbers as numbers, where all of a column are."""
    whole = table.collect(engine="streaming")
    for name in dict.fromkeys(spelled):
        if formats.are_whole(whole[name]):
            whole = whole.with_columns(whole[name].cast(pl.Int64))
    return whole.lazy()


def _same_names(part: Part, names: dict[str, str]) -> pl.LazyFrame:
    if part.columns.keys() != names.keys():
        raise InvalidLogError(f"{part.name} has no column of times, and other files have one")
    renamed = {part.columns[role]: name for role, name in names.items()}
    return part.frame if part.columns == names else part.frame.rename(renamed)


def _kinds(frames: list[pl.LazyFrame], name: str) -> list[pl.DataType]:
    return [frame.collect_schema()[name] for frame in frames]


def _same_kind(frames: list[pl.LazyFrame], name: str) -> list[pl.LazyFrame]:
    """Ids that are text in one part and numbers in another as text."""
    kinds = set(_kinds(frames, name))
    if len(kinds) < 2 or all(kind.is_integer() for kind in kinds):
        return frames
    return [frame.with_columns(pl.col(name).cast(pl.String)) for frame in frames]


def _may_be_whole(parts: list[Part], frames: list[pl.LazyFrame], role: str) -> bool:
    """Are the ids of a column text only because files of text know nothing else?"""
    texts = [
        part.columns[role] in part.spelled
        for part in parts
        if part.frame.collect_schema()[part.columns[role]] == pl.String
    ]
    first = parts[0].columns[role]
    return bool(texts) and all(texts) and _kinds(frames, first)[0] == pl.String


def _refuse_other_times(parts: list[Part], frames: list[pl.LazyFrame], name: str) -> None:
    kinds = _kinds(frames, name)
    for part, kind in zip(parts, kinds, strict=True):
        alike = kind == kinds[0] or (kind.is_numeric() and kinds[0].is_numeric())
        text = pl.String in (kind, kinds[0])
        if not alike and (text or kind.is_numeric() != kinds[0].is_numeric()):
            raise InvalidLogError(
                f"times of {part.name} are {kind} values, those of {parts[0].name} {kinds[0]}: give them alike"
            )


@contextmanager
def _located(parts: list[Part]) -> Iterator[None]:
    """An error about a row of several files names the file, and the row in it."""
    heights = [(part.name, _height(part)) for part in parts]
    try:
        yield
    except TalerecError as error:
        said = re.search(r"row (\d+)", str(error))
        if said is None:
            raise
        row = int(said[1])
        for name, height in heights:
            rows = height if isinstance(height, int) else height.collect().item()
            if row <= rows:
                message = str(error).replace(said[0], f"row {row}", 1)
                raise type(error)(f"{name}: {message}") from None
            row -= rows
        raise


def _height(part: Part) -> int | pl.LazyFrame:
    """How many rows a part has; where that is not known yet, how to count them."""
    count = part.frame.select(pl.len())
    known: int | pl.LazyFrame = int(count.collect().item()) if part.is_text else count
    return known


@contextmanager
def _relabelled(name: str, several: bool = True) -> Iterator[None]:
    """Errors that name no file name the whole log."""
    try:
        yield
    except InvalidLogError as error:
        if not several or name.split(" and ")[0] in str(error):
            raise
        raise type(error)(f"{name}: {error}") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InvalidLogError(f"{name} cannot be read: {reason}") from None


# -- databases -------------------------------------------------------------------------------------


def _database(path: Source | Sequence[Source]) -> str | None:
    """The address of a database, if it is one."""
    text = str(path) if isinstance(path, str | Path) else str(path[0]) if len(path) == 1 else ""
    return text if databases.kind_of(text) else None


def _queried(path: Source | Sequence[Source], asked: Asked) -> Part:
    """What a query gives."""
    query = asked.query
    address = _database(path)
    if address is None:
        raise TalerecError(
            f"--query asks a database, and {sources.named(path)} is none: write sqlite:///shop.db"
        )
    name = databases.shown(address)
    if query is None:
        raise TalerecError(
            f"{name} is a database: --query 'select user_id, item_id, timestamp from events order by timestamp'"
        )
    if not asked.any_order and not databases.is_ordered(query):
        raise TalerecError(
            "rows of a query without order by have no order of their own: add order by, or say --ties item"
        )
    table = databases.read_query(address, query)
    names = _column_names(table.columns, asked)
    return Part(name, names, table.lazy().select(dict.fromkeys(names.values()).keys()), frozenset())
