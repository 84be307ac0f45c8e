"""Lines and tables on standard output, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

# Ids, titles and paths are other people's text: nothing in them is markup.
out = Console(highlight=False, markup=False, emoji=False)


# -- lines -----------------------------------------------------------------------------------------


def line(text: str) -> None:
    """One line, however long."""
    out.print(text, soft_wrap=True)


def note(text: str) -> None:
    """A line that explains what is above it."""
    out.print(Text(text, style="dim"))


def heading(text: str) -> None:
    """A line above a table."""
    out.print(Text(text, style="bold"))


# -- words and numbers -----------------------------------------------------------------------------


def number(value: float | None) -> str:
    """A number with four decimals, or a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def decimals(values: Iterable[float]) -> int:
    """How many decimals show three digits of the largest of some values: four, unless all are small."""
    largest = max(map(abs, values), default=0.0)
    if not 0 < largest < math.inf:
        return _DECIMALS
    return min(max(_DECIMALS, 2 - math.floor(math.log10(largest))), _MOST_DECIMALS)


_DECIMALS, _MOST_DECIMALS = 4, 12


def duration(days: float | None) -> str:
    """Days in the largest unit of which there is at least one."""
    if days is None:
        return "-"
    for unit, length in (("days", 1.0), ("hours", 1 / 24), ("minutes", 1 / 1440)):
        if days >= length:
            return f"{days / length:,.1f} {unit}"
    return f"{days * 86_400:.3g} seconds"


def listed(values: Sequence[Any], most: int = 10) -> str:
    """Values separated by commas; of many, the first."""
    more = f" and {len(values) - most:,} more" if len(values) > most else ""
    return ", ".join(str(value) for value in values[:most]) + more


def timings(seconds: dict[str, float]) -> str:
    """How long each step took, and how much of that was compiling."""
    from talerec.runtime.compiling import compiled

    said = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    compiling = compiled().seconds
    if compiling < _WORTH_SAYING:
        return said
    return f"{said} (this run spent {compiling:.1f} s on compiling, once: talerec warm does all of it ahead)"


_WORTH_SAYING = 0.05  # seconds of compiling


def settings(params: dict[str, Any]) -> str:
    """Parameters and their values."""
    shown = {n: f"{v:g}" if isinstance(v, float) else v for n, v in params.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


# -- tables ----------------------------------------------------------------------------------------


def table(title: str, header: list[str], rows: list[list[str]], *, total: bool = False) -> None:
    """Print a table; numbers are aligned right and never cut. `total`: a line above the last row."""
    grid = Table(box=box.SIMPLE_HEAD, show_header=any(header), header_style="bold")
    for place, name in enumerate(header):
        numbers = all(row[place][:1].isdigit() or row[place][:1] in "-+." for row in rows)
        grid.add_column(name, justify="right" if numbers else "left", no_wrap=numbers)
    for place, row in enumerate(rows):
        grid.add_row(*row, end_section=total and place == len(rows) - 2)
    heading(title)
    out.print(grid)


def table_of_columns(title: str, names: list[str], columns: dict[str, list[str]]) -> None:
    """Print columns with `names` at the left, as several tables where one is too wide for the screen."""
    for some in _that_fit(columns, out.width - 4 - max(map(len, names))):
        cells = [names, *(columns[name] for name in some)]
        title = title if next(iter(columns)) in some else f"{title.removesuffix(_MORE)}{_MORE}"
        table(title, ["", *some], [list(row) for row in zip(*cells, strict=True)])


_MORE = ", continued"


def _that_fit(columns: dict[str, list[str]], room: int) -> Iterator[list[str]]:
    """Names of columns, in as many groups as it takes for each to fit; those with the same second line stay together."""
    widths = {
        name: 3 + max(len(text) for text in [*name.splitlines(), *cells])
        for name, cells in columns.items()
    }
    some: list[str] = []
    taken = 0
    for _, run in groupby(columns, key=lambda name: name.partition("\n")[2]):
        names = list(run)
        together = sum(widths[name] for name in names)
        for name in names:
            needed = together if name == names[0] and together <= room else widths[name]
            if some and taken + needed > room:
                yield some
                some, taken = [], 0
            some.append(name)
            taken += widths[name]
    yield some
