"""`talerec events import - --follow`: events from a pipe, acknowledged by line."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from typing import Annotated

from talerec.cli.completion import complete_values
from talerec.cli.groups import LogSource
from talerec.cli.options import flag, flag_of, option
from talerec.cli.terminal import print_json_line, print_line
from talerec.errors import TalerecError

_FOLLOW = "Streams"  # heading of the help page
_READ_BY_FOLLOW = ("log", "user", "item", "time", "time_unit", "event")
_UNITS = (None, "s", "ms", "us", "ns")


@dataclass(frozen=True)
class StreamOptions:
    """Options of events that arrive line by line on standard input."""

    follow: Annotated[
        bool,
        flag(
            "--follow",
            "Read lines of JSON from standard input (-) as they arrive, and print the last line"
            " that is stored after each commit.",
            _FOLLOW,
        ),
    ] = False
    stream: Annotated[
        str,
        option(
            "--stream",
            "NAME",
            "Name of the stream; the store remembers its last stored line.",
            _FOLLOW,
        ),
    ] = "stdin"
    from_line: Annotated[
        int, option("--from-line", "N", "Number of the first line that the pipe sends.", _FOLLOW)
    ] = 1
    on_error: Annotated[
        str,
        option(
            "--on-error",
            "stop|skip",
            "Stop at an invalid line, or report it and go on.",
            _FOLLOW,
            complete=complete_values("stop", "skip"),
        ),
    ] = "stop"

    def check(self, source: LogSource, explicit: set[str]) -> None:
        """Raise TalerecError for options that do not go together.

        `explicit` names the parameters that the command line sets; `source` has those of a log.
        """

        if not self.follow:
            for name in (field.name for field in fields(self)):
                if name in explicit:
                    raise TalerecError(f"{flag_of(name)} needs --follow")
            return
        if source.log != ["-"]:
            raise TalerecError("--follow reads standard input: talerec events import - --follow")
        for field in fields(source):
            if field.name in explicit and field.name not in _READ_BY_FOLLOW:
                raise TalerecError(f"--follow takes no {flag_of(field.name)}")
        if source.time_unit not in _UNITS:
            raise TalerecError("--follow takes a --time-unit of s, ms, us or ns")
        if self.on_error not in ("stop", "skip"):
            raise TalerecError(f"--on-error is {self.on_error!r}; it takes stop or skip")


def import_stream(
    address: str, source: LogSource, options: StreamOptions, ids: str | None, *, json: bool
) -> None:
    """Store the events of standard input as they arrive, and print each commit on a line.

    `address` is that of the event store, `source` has the names of fields, `ids` the kind of ids
    (None: as stored). With `json`, each line is a JSON object.
    """
    from talerec.store import FollowOptions, LineNames, StreamStore, follow_lines

    names = LineNames(source.user, source.item, source.time, source.event or "event")
    following = FollowOptions(
        options.stream, options.from_line, options.on_error == "skip", names, ids,
        source.time_unit or "s",
    )  # fmt: skip
    with StreamStore.open(address) as store:
        for count, progress in enumerate(
            follow_lines(store, lambda size: os.read(sys.stdin.fileno(), size), following)
        ):
            for message in progress.skipped:
                print(f"skipped {message}", file=sys.stderr, flush=True)
            if json:
                counts = progress._asdict() | {"skipped": len(progress.skipped)}
                print_json_line({"stream": options.stream, **counts})
            elif not count:
                print_line(f"{store.name}: stream {options.stream} is stored up to"
                           f" line {progress.line}")  # fmt: skip
            else:
                print_line(
                    f"line {progress.line}: {progress.added:,} added,"
                    f" {progress.there:,} already there, {progress.deleted:,} of deleted users,"
                    f" {len(progress.skipped):,} skipped"
                )
            sys.stdout.flush()
