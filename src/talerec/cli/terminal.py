"""Output of commands: lines, tables and JSON; on standard error, notes.

Rich is imported on first use: a command with --json does not need it.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from talerec.cli.options import flag_of
from talerec.cli.progress import print_status, show_progress
from talerec.errors import TalerecError, spell_parameters

if TYPE_CHECKING:
    from rich.console import Console

_MAX_INDENTED = 10_000  # characters of JSON that are printed with indents
_DECIMALS, _MAX_DECIMALS = 4, 12
_MIN_COMPILATION = 0.05  # seconds of compilation that are reported
_CONTINUED = ", continued"


# -- lines -----------------------------------------------------------------------------------------


@cache
def console() -> Console:
    """Return Rich's console on standard output; it prints texts as they are, without markup."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_line(text: str) -> None:
    """Print one line on standard output, without wrapping it."""
    console().print(text, soft_wrap=True)


def print_note(text: str) -> None:
    """Print a dim line that explains what is above it."""
    console().print(text, style="dim")


def print_heading(text: str) -> None:
    """Print a bold line, such as the title of a table."""
    console().print(text, style="bold")


# -- numbers ---------------------------------------------------------------------------------------


def format_number(value: float | None) -> str:
    """Return a number with four decimals (none from 1,000 on), or a dash for None."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def count_decimals(values: Iterable[float]) -> int:
    """Return how many decimals show three digits of the largest absolute value: 4 to 12."""
    largest = max(map(abs, values), default=0.0)
    if not 0 < largest < math.inf:
        return _DECIMALS
    return min(max(_DECIMALS, 2 - math.floor(math.log10(largest))), _MAX_DECIMALS)


def join_first(values: Sequence[Any], limit: int = 10) -> str:
    """Return the first `limit` values separated by commas: "1, 2 and 8 more"."""
    more = f" and {len(values) - limit:,} more" if len(values) > limit else ""
    return ", ".join(str(value) for value in values[:limit]) + more


def format_timings(seconds: dict[str, float]) -> str:
    """Return the seconds of each step as text, and those that compilation of kernels took.

    `seconds` are by the name of the step; compilation is that of the process so far.
    """
    from talerec.runtime import compilation_stats

    steps = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    compilation = compilation_stats().seconds
    if compilation < _MIN_COMPILATION:
        return steps
    return (
        f"{steps} (including {compilation:.1f} s of one-time compilation; "
        "talerec warm compiles everything in advance)"
    )


def format_settings(params: dict[str, Any]) -> str:
    """Return a model's parameters and their values as one line: reg 200, decay 0.5."""
    values = {n: f"{v:g}" if isinstance(v, float) else v for n, v in params.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())


# -- tables ----------------------------------------------------------------------------------------


def print_table(
    title: str, header: list[str], rows: list[list[str]], *, has_total: bool = False
) -> None:
    """Print a table of texts; columns of numbers are aligned right and never wrapped.

    A header of empty texts is not shown. With `has_total`, a line sets off the last row.
    """
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, show_header=any(header), header_style="bold")
    for column, name in enumerate(header):
        is_numeric = all(row[column][:1].isdigit() or row[column][:1] in "-+." for row in rows)
        grid.add_column(name, justify="right" if is_numeric else "left", no_wrap=is_numeric)
    for index, row in enumerate(rows):
        grid.add_row(*row, end_section=has_total and index == len(rows) - 2)
    print_heading(title)
    console().print(grid)


def print_columns(title: str, names: list[str], columns: dict[str, list[str]]) -> None:
    """Print a table from its columns, texts by heading, with `names` of the rows at the left.

    Columns that do not fit the screen go to further tables with the same row names.
    """
    for headings in _fit_columns(columns, console().width - 4 - max(map(len, names))):
        cells = [names, *(columns[heading] for heading in headings)]
        if next(iter(columns)) not in headings:
            title = f"{title.removesuffix(_CONTINUED)}{_CONTINUED}"
        print_table(title, ["", *headings], [list(row) for row in zip(*cells, strict=True)])


def _fit_columns(columns: dict[str, list[str]], width: int) -> Iterator[list[str]]:
    """Yield column headings, in order, in groups that fit a table of `width` characters.

    `columns` are the cells by heading, which may have two lines. Neighbours with the same second
    line stay in one group if they fit.
    """
    widths = {
        heading: 3 + max(len(text) for text in [*heading.splitlines(), *cells])
        for heading, cells in columns.items()
    }
    group: list[str] = []
    used = 0
    for _, run in groupby(columns, key=lambda heading: heading.partition("\n")[2]):
        headings = list(run)
        run_width = sum(widths[heading] for heading in headings)
        for heading in headings:
            is_first = heading == headings[0]
            needed = run_width if is_first and run_width <= width else widths[heading]
            if group and used + needed > width:
                yield group
                group, used = [], 0
            group.append(heading)
            used += widths[heading]
    yield group


# -- JSON ------------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output, with indents up to 10,000 characters."""
    text = _encode_json(value, None)
    print(_encode_json(value, 2) if len(text) <= _MAX_INDENTED else text)


def print_json_line(value: Any) -> None:
    """Print a value as JSON on one line of standard output."""
    print(_encode_json(value, None))


def print_json_list(values: Iterable[Any]) -> None:
    """Print a JSON list, each value on its own line as soon as the iterator yields it."""
    separator = "[\n"
    for value in values:
        sys.stdout.write(separator + _encode_json(value, None))
        separator = ",\n"
    print("[]" if separator == "[\n" else "\n]")


def _encode_json(value: Any, indent: int | None) -> str:
    """Return a value as JSON text, in ASCII if standard output is not UTF-8.

    NaN becomes null and an infinity a text. With `indent` None, the text is one line.
    """
    ascii_only = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    return json.dumps(
        _replace_nonfinite(value), indent=indent, ensure_ascii=ascii_only, allow_nan=False
    )


def _replace_nonfinite(value: Any) -> Any:
    """Return a value with None for NaN and "inf" or "-inf" for infinities, which JSON lacks.

    Dicts, lists and tuples are searched; tuples become lists.
    """
    if isinstance(value, dict):
        return {name: _replace_nonfinite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


# -- standard error: notes -------------------------------------------------------------------------


@contextmanager
def reporting(json: bool) -> Iterator[None]:
    """Show the library's log messages and progress on standard error during the block.

    `json` is whether the command prints JSON: then only warnings are shown, and progress bars only
    on a terminal. An invalid TALEREC_THREADS is an error before the block.
    """
    from talerec.runtime import thread_count

    thread_count()  # an invalid TALEREC_THREADS is an error before the work starts
    with show_notes(quiet=json), show_progress(quiet=json):
        yield


class _NoteHandler(logging.Handler):
    """Log handler that prints each different message of the library once, on standard error.

    Parameters that a message names in backticks are printed as flags.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []  # messages for `show_notes` to print, if not on a terminal
        self._printed: set[str] = set()  # messages that were printed or held

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record's message, or hold it; ignore a message that was handled before.

        On a terminal it is printed at once, else `self.held` gets it. Parameters that it names in
        backticks, listed in the record's `parameters`, become flags. `self._printed` has the
        messages so far.
        """
        parameters = getattr(record, "parameters", ())
        message = spell_parameters(record.getMessage(), parameters, flag_of)
        if message in self._printed:  # a hundred fits give the same note a hundred times
            return
        self._printed.add(message)
        if sys.stderr.isatty():
            print_status(message)
        else:
            self.held.append(message)


@contextmanager
def show_notes(quiet: bool) -> Iterator[None]:
    """Print the library's log messages on standard error during the block.

    With `quiet`, only warnings. If standard error is not a terminal, messages are printed at the
    end of the block, and none if it raises a TalerecError.
    """
    logger, handler = logging.getLogger("talerec"), _NoteHandler()
    handlers, level = logger.handlers[:], logger.level
    logger.handlers[:] = [handler]
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    except TalerecError:
        handler.held.clear()
        raise
    finally:
        for note in handler.held:
            print_status(note)
        logger.handlers[:] = handlers
        logger.setLevel(level)
