"""The command's root: how commands are registered, and steps that several of them share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from talerec.cli.groups import Command, ungrouped
from talerec.errors import TalerecError

#: Flags of version 0.1 that still work, with a warning: old -> new.
_RENAMED = {"--output": "--out"}


class _PlainFlags:
    """Help pages on which an option without a value shows none: Typer's own (--help ...) say <bool>."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in found:
            if getattr(one, "is_flag", False) and one.metavar is None:
                one.metavar = ""
        return found


class _Command(_PlainFlags, TyperCommand):
    pass


class _Group(_PlainFlags, TyperGroup):
    """Takes flags under their old names too."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        known = {flag for part in command.params for flag in part.opts} if command else set()
        old = {before: now for before, now in _RENAMED.items() if now in known - {before}}
        if not ctx.resilient_parsing:  # in completion nobody reads a warning
            for flag in old.keys() & {part.partition("=")[0] for part in rest}:
                warn(f"{flag} is now {old[flag]}")
        return name, command, [_current(part, old) for part in rest]


def _current(part: str, renamed: dict[str, str]) -> str:
    """A part of the command line, with the flag's present name."""
    flag, sign, value = part.partition("=")
    return f"{renamed.get(flag, flag)}{sign}{value}"


def warn(message: str) -> None:
    """One line on standard error; the command goes on."""
    print(f"warning: {message}", file=sys.stderr)


app = typer.Typer(
    name="talerec",
    cls=_Group,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def examples(*commands: str) -> str:
    return "\n".join(["Examples:", *commands])


class Panel(StrEnum):
    """Headings of the help page, in order."""

    START = "Start here"
    LOGS = "Logs"
    MODELS = "Models"
    EVALUATE = "Evaluate"
    ASK = "Ask a saved model"


def command(
    panel: Panel,
    *shown: str,
    within: typer.Typer = app,
    name: str | None = None,
    **settings: Any,
) -> Callable[[Command], Command]:
    """Register a command under a heading of the help page, with examples to copy; `within` a group of commands, `name` if not its own."""

    def register(function: Command) -> Command:
        add = within.command(
            name,
            cls=_Command,
            rich_help_panel=panel.value,
            epilog=examples(*shown),
            context_settings=settings or None,
        )
        add(ungrouped(function))
        return function

    return register


def group(panel: Panel, name: str, help: str) -> typer.Typer:
    """A group of commands: talerec NAME COMMAND."""
    made = typer.Typer(name=name, cls=_Group, help=help, no_args_is_help=True)
    app.add_typer(made, rich_help_panel=panel.value)
    return made


#: A command line that is being run.
Context = typer.Context


def given(context: Context) -> set[str]:
    """The parameters of a command that its caller named, also if with their usual values."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def sort_commands() -> None:
    """Put the commands in the order of the help page's headings."""
    place = {panel.value: place for place, panel in enumerate(Panel)}
    app.registered_commands.sort(
        key=lambda known: place.get(str(known.rich_help_panel), len(place))
    )


def ids(text: str | None) -> list[str] | None:
    """Ids separated by commas; one that holds a comma, or spaces at its ends, stands in double quotes."""
    if text is None:
        return None
    found = (_quoted(match) for match in _ID.finditer(text))
    return [name for name in found if name]


#: An id in double quotes (a quote in it is doubled), or anything up to the next comma.
_ID = re.compile(r'\s*(?:"((?:[^"]|"")*)"\s*(?=,|$)|([^,]*))(?:,|$)')


def _quoted(match: re.Match[str]) -> str:
    quoted, plain = match.groups()
    return plain.strip() if quoted is None else quoted.replace('""', '"')


@contextmanager
def reporting(json: bool) -> Iterator[None]:
    """Show the library's notes and progress on standard error; with `json`, only progress and warnings."""
    from talerec.cli import terminal
    from talerec.runtime.threads import thread_count

    thread_count()  # a bad TALEREC_THREADS is refused before the work starts
    with terminal.notes(quiet=json), terminal.progress(quiet=json):
        yield


def cutoffs(text: str) -> list[int]:
    """The numbers of --k."""
    from talerec.evaluation import metrics

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise TalerecError(f"--k is {text!r}; it takes whole numbers such as 1,5,10") from None
    return metrics.cutoffs(found)


def run_service(model: Path, token_file: Path | None, **settings: Any) -> None:
    """Serve until told to stop; where the extra is missing, say which one."""
    _need_unix()
    os.environ.setdefault("TALEREC_THREADS", "1")  # workers are the way to more cores
    from talerec.cli import tables
    from talerec.serve.process import supervisor as server
    from talerec.serve.settings import Settings, read_token

    server.run(Settings(path=model, token=read_token(token_file), **settings), tables.line)


def _need_unix() -> None:
    try:
        import fcntl  # noqa: F401 (workers share files that they lock)
    except ImportError:
        raise TalerecError(
            "serve runs on Linux and macOS; everywhere, recommend --users all writes lists to a file"
        ) from None
