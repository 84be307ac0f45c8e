"""Follow a pipe of JSON lines: each line becomes an event, acknowledged once on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from talerec import columns
from talerec.data import time_to_microseconds
from talerec.errors import TalerecError
from talerec.store.clock import now_us
from talerec.store.events import INTEGER, MAX_NAME, TEXT, AppendResult, Event
from talerec.store.ids import IdKinds, validate_id
from talerec.store.impressions import validate_recommendation_id
from talerec.store.store import MAX_CLOCK_SKEW
from talerec.store.streams import LineConflictError, StreamCursor, StreamStore, fingerprint

_COMMIT_LINES = 5000  # lines of one commit
_READ_BYTES = 2**18  # asked of the pipe at a time; it returns what it has
MAX_LINE = 2**20  # bytes

Read = Callable[[int], bytes]


class LineNames(NamedTuple):
    """Names of the fields of a line that hold an event's user, item, time and type."""

    user: str = columns.USER
    item: str = columns.ITEM
    time: str = columns.TIME
    event: str = "event"


class FollowOptions(NamedTuple):
    """The stream to follow, its first line and fields, and whether to skip invalid lines."""

    stream: str = "stdin"  # its name in the store
    first_line: int = 1  # the number of the pipe's first line
    skips_errors: bool = False  # whether to go on after an invalid line
    names: LineNames = LineNames()
    ids: str | None = None  # "integer" or "text" settles the store's ids; None: they stay
    unit: str = "s"  # of small numeric times


class StreamProgress(NamedTuple):
    """The result of one commit of lines, which are on disk."""

    line: int  # the last line that is stored
    added: int = 0
    there: int = 0  # events whose `event_id` was stored before
    deleted: int = 0  # events of deleted users, from before their deletion
    skipped: tuple[str, ...] = ()  # messages on invalid lines


class LineError(TalerecError):
    """A line that is not a valid event; all lines before it are stored."""


def follow_lines(
    store: StreamStore, read: Read, options: FollowOptions
) -> Iterator[StreamProgress]:
    """Store the events of a pipe's lines as they arrive; yield the progress after each commit.

    The first value is the present position of the stream. Lines that are stored already are
    skipped. LineError for an invalid line, unless `options.skips_errors`, for a pipe that ends
    within a line, and for one that ends before the last stored line; the lines before the error are
    stored and yielded first.

    Parameters
    ----------
    store : StreamStore
        The event store.
    read : function
        Takes a number of bytes and returns at most as many, as soon as there are any; b"" at the
        end.
    options : FollowOptions
        The stream's name, the number of the first line, names of fields.
    """
    if options.first_line < 1:
        raise TalerecError("`from_line` counts lines from 1", "from_line")
    validate_id(options.stream, "the name of the stream")
    follower = _Follower(store, options)
    yield StreamProgress(follower.cursor.line)
    number, buffer = options.first_line - 1, _LineBuffer()
    while data := read(_READ_BYTES):
        lines = buffer.split(data)
        for begin in range(0, len(lines), _COMMIT_LINES):
            part = lines[begin : begin + _COMMIT_LINES]
            yield from follower.store_lines(number + 1, part)
            number += len(part)
    rest = bytes(buffer.rest)
    if not rest.strip():
        if options.first_line <= number < follower.cursor.line:
            raise LineError(
                f"the pipe ended after line {number:,}, but the stream {options.stream!r} is stored"
                f" up to line {follower.cursor.line:,}: it was cut off or replaced, and none of its"
                " lines is new; give another `stream` its own name",
                "stream",
            )
        return
    if not _is_whole(rest):
        message = f"the stream ends within line {number + 1:,}, which is not stored"
        raise LineError(message)
    yield from follower.store_lines(number + 1, [rest])


class _LineBuffer:
    """Cuts data into lines; the beginning of a line waits for the rest of it."""

    def __init__(self) -> None:
        self.rest = bytearray()  # of the last line, which has not ended
        self._is_cut = False  # whether the beginning of that line was dropped: it is too long

    def split(self, data: bytes) -> list[bytes | None]:
        """Return the lines that are complete now; None stands for one of more than 1 MiB."""
        *ends, last = data.split(b"\n")
        lines: list[bytes | None] = []
        for end in ends:
            self.rest += end
            is_long = self._is_cut or len(self.rest) > MAX_LINE
            lines.append(None if is_long else bytes(self.rest))
            self.rest, self._is_cut = bytearray(), False
        self.rest += last
        if len(self.rest) > MAX_LINE:  # the rest of it is not needed
            self.rest, self._is_cut = self.rest[:1], True
        return lines


class _Follower:
    """Stores the lines of one stream, and moves its cursor with them."""

    def __init__(self, store: StreamStore, options: FollowOptions) -> None:
        self._store, self._options = store, options
        self.cursor = store.open_stream(options.stream)
        if self.cursor.line and options.first_line > self.cursor.line + 1:
            raise TalerecError(
                f"the stream {options.stream!r} is stored up to line {self.cursor.line:,}:"
                f" with `from_line` {options.first_line:,}, lines would be left out",
                "from_line",
            )
        self._kinds = store.id_kinds()
        if options.ids is not None:
            self._kinds = IdKinds(options.ids, options.ids)
            store.settle_id_kinds(self._kinds, is_final=True)

    def store_lines(self, first: int, lines: Sequence[bytes | None]) -> Iterator[StreamProgress]:
        """Store lines, the first of which has the number `first`, and yield the progress.

        LineError after it if a line is invalid and such lines are not skipped.
        """
        self._check_stored(first, lines)
        n_stored = min(max(self.cursor.line + 1 - first, 0), len(lines))
        first, lines = first + n_stored, lines[n_stored:]
        if not lines:
            return
        events, event_lines, problems = self._parse_lines(first, lines)
        problem = None if self._options.skips_errors or not problems else problems[0]
        end = first + len(lines) if problem is None else problem[0]
        try:
            progress = self._commit(first, lines[: end - first], events, event_lines, problems)
        except LineConflictError as error:
            problem = (event_lines[error.index], str(error))
            end = problem[0]
            earlier = events[: error.index]
            progress = self._commit(first, lines[: end - first], earlier, event_lines, [])
        if end > first:
            yield progress
        if problem is not None:
            message = f"line {problem[0]:,}: {problem[1]}; all lines before it are stored"
            raise LineError(message)

    def _commit(
        self, first: int, lines: Sequence[bytes | None], events: list[Event],
        event_lines: list[int], problems: list[tuple[int, str]],
    ) -> StreamProgress:  # fmt: skip
        """Store the events of some lines with the stream's new cursor; return the progress.

        event_lines: the line of each event. problems: invalid lines, with a message.
        """
        if not lines:
            return StreamProgress(self.cursor.line)
        name, last = self._options.stream, lines[-1] or b""
        start = fingerprint(lines[0] or b"") if first == 1 else self.cursor.first
        after = StreamCursor(first + len(lines) - 1, start, fingerprint(last))
        results = self._store.append_lines(
            name, self.cursor, after, events, skips_conflicts=self._options.skips_errors
        )
        self.cursor = after
        done = [result for result in results if isinstance(result, AppendResult)]
        conflicts = [
            (event_lines[n], str(LineConflictError(n, events[n].event_id)))
            for n, result in enumerate(results)
            if not isinstance(result, AppendResult)
        ]
        skipped = [f"line {line:,}: {text}" for line, text in sorted([*problems, *conflicts])]
        totals = AppendResult(*map(sum, zip(*done, strict=True))) if done else AppendResult(0, 0)
        return StreamProgress(after.line, *totals, skipped=tuple(skipped))

    def _check_stored(self, first: int, lines: Sequence[bytes | None]) -> None:
        """Raise TalerecError if stored lines among these differ from those of the stream."""
        marks = ((1, self.cursor.first), (self.cursor.line, self.cursor.last))
        for number, stored in marks:
            if stored is None or not first <= number < first + len(lines):
                continue
            if number <= self.cursor.line and fingerprint(lines[number - first] or b"") != stored:
                name = self._options.stream
                raise TalerecError(
                    f"line {number:,} is not line {number:,} of the stream {name!r}, which is"
                    f" stored up to line {self.cursor.line:,}: give another `stream` its own name",
                    "stream",
                )

    def _parse_lines(
        self, first: int, lines: Sequence[bytes | None]
    ) -> tuple[list[Event], list[int], list[tuple[int, str]]]:
        """Return the events of lines, the line of each, and invalid lines with messages.

        Nothing is parsed after the first problem, unless such lines are skipped.
        """
        events: list[Event] = []
        event_lines: list[int] = []
        problems: list[tuple[int, str]] = []
        now = now_us()
        for number, line in enumerate(lines, first):
            if line is not None and not line.strip():
                continue
            try:
                events.append(self._parse_line(line, now))
                event_lines.append(number)
            except TalerecError as error:
                problems.append((number, str(error)))
                if not self._options.skips_errors:
                    break
        return events, event_lines, problems

    def _parse_line(self, line: bytes | None, now: int) -> Event:
        """Return the event of a line; TalerecError if it is invalid. `now` is in microseconds."""
        values, names = _decode(line), self._options.names
        user, item = (_read_id(values, name) for name in names[:2])
        kinds = self._kinds.or_else(
            IdKinds(*(INTEGER if isinstance(id_, int) else TEXT for id_ in (user, item)))
        )
        event, event_id = values.get(names.event), values.get("event_id")
        if event is not None:
            if not isinstance(event, str) or len(event) > MAX_NAME:
                raise TalerecError(f"{names.event} is no text of at most {MAX_NAME} characters")
            validate_id(event, names.event)
        if event_id is not None:
            event_id = validate_id(_read_id(values, "event_id"), "event_id")
        shown = values.get("recommendation_id")
        if shown is not None:
            validate_recommendation_id(shown)
        time = values.get(names.time)
        time_us = now if time is None else _read_time(time, names.time, self._options.unit, now)
        if kinds != self._kinds:
            kinds = self._kinds = self._store.settle_id_kinds(kinds)
        user_id, item_id = (
            validate_id(*each) for each in zip((user, item), names[:2], kinds, strict=True)
        )
        return Event(user_id, item_id, time_us, event, event_id, time is not None, shown)


def _decode(line: bytes | None) -> dict[str, Any]:
    """Return the JSON object of a line; TalerecError if it is missing, or too long (None)."""
    if line is None:
        raise TalerecError(f"the line has more than {MAX_LINE:,} bytes")
    try:
        values = json.loads(line)
    except RecursionError:
        raise TalerecError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise TalerecError(f"the line is not JSON: {str(error)[:100]}") from None
    if not isinstance(values, dict):
        raise TalerecError("the line is not a JSON object")
    return values


def _is_whole(line: bytes) -> bool:
    """Is this line, which no line break ends, a whole JSON object?"""
    try:
        return bool(_decode(line))
    except TalerecError:
        return False


def _read_id(values: dict[str, Any], name: str) -> int | str:
    """Return an id of a line's JSON object; TalerecError if it is missing or not an id."""
    value = values.get(name)
    if value is None:
        raise TalerecError(f"{name} is missing")
    if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TalerecError(f"{name} is neither text nor a whole number")
    return value


def _read_time(value: Any, name: str, unit: str, now: int) -> int:
    """Return the time of an event in microseconds; TalerecError unless it is from 1970 to now.

    Clocks may be a day ahead. `unit` is that of small event_lines.
    """
    time = time_to_microseconds(value, unit)
    if time < 0:
        raise TalerecError(f"{name} {value!r} is before 1970")
    if time > now + MAX_CLOCK_SKEW:
        raise TalerecError(f"{name} {value!r} is in the future")
    return time
