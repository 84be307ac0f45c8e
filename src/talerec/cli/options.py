"""Options of the command line: declaration, parsing, and options of several commands."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from talerec.cli import completion
from talerec.cli.completion import Complete, complete_values
from talerec.errors import TalerecError
from talerec.store import NEGATIVE_EVENTS

#: The flag of each declared option by the library's name of the parameter: time_unit, --time-unit.
_FLAGS: dict[str, str] = {}


def option(
    flag: str,
    metavar: str,
    help: str,
    panel: str | None = None,
    *,
    alias: str | None = None,
    complete: Complete | None = None,
    parameter: str | None = None,
    sets: Mapping[str, str] | None = None,
) -> Any:
    """Return Typer's declaration of an option with a value; record its flag for `flag_of`.

    `flag_of` returns the flag of a library parameter, for messages.

    Parameters
    ----------
    flag, metavar, help : str
        The long name with its dashes, the placeholder of the value, and the help text.
    panel : str, optional
        Heading of the help page under which the option stands.
    alias : str, optional
        Another name with its dashes: of one letter, or long.
    complete : function, optional
        Lists the values that a shell may complete.
    parameter : str, optional
        The library's name of the parameter, if it is not the flag's.
    sets : dict, optional
        Library parameters that a value of this option sets, with the value: {"any_order": "item"}.
    """
    _FLAGS[parameter or flag.removeprefix("--").replace("-", "_")] = flag
    _FLAGS.update({name: f"{flag} {value}" for name, value in (sets or {}).items()})
    names = (flag,) if alias is None else (alias, flag)
    return typer.Option(
        *names, help=help, metavar=metavar, rich_help_panel=panel, autocompletion=complete
    )


def flag(name: str, help: str, panel: str | None = None) -> Any:
    """Return Typer's declaration of an option without a value."""
    return option(name, "", help, panel)


def out(metavar: str, help: str, parameter: str | None = None) -> Any:
    """Return Typer's declaration of a command's output: -o and --out in every command."""
    return option("--out", metavar, help, alias="-o", parameter=parameter)


def argument(metavar: str, help: str, complete: Complete | None = None, **more: Any) -> Any:
    """Return Typer's declaration of a positional argument."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, **more)


def flag_of(parameter: str) -> str:
    """Return the flag of a library parameter: --time-unit for time_unit; else its name."""
    return _FLAGS.get(parameter, parameter)


# -- values of options -----------------------------------------------------------------------------


def parse_ids(text: str | None) -> list[str] | None:
    """Return the ids in a text, separated by commas; None for None.

    An id that contains a comma, or spaces at its ends, stands in double quotes.
    """
    if text is None:
        return None
    ids = (_unquote(match) for match in _ID.finditer(text))
    return [item for item in ids if item]


#: An id in double quotes (a quote in it is doubled), or anything up to the next comma.
_ID = re.compile(r'\s*(?:"((?:[^"]|"")*)"\s*(?=,|$)|([^,]*))(?:,|$)')


def _unquote(match: re.Match[str]) -> str:
    """Return the id in a match of `_ID`, without quotes and spaces around it.

    The groups of the pattern are an id in double quotes (a quote in it is doubled) and a plain one;
    None for the one that does not match.
    """
    quoted, plain = match.groups()
    return plain.strip() if quoted is None else quoted.replace('""', '"')


def parse_event_weights(text: str | None) -> dict[str, float] | None:
    """Return the weights in a text such as `view=1,buy=10` by event type; None for None.

    Raise an error for a negative or non-numeric weight, or an event type given twice.
    """
    if text is None:
        return None
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.rpartition("="))
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not name or not weight >= 0 or name in weights:
            raise TalerecError(
                f"--event-weights takes view=1,cart=3,buy=10, each once, not {part!r}"
            )
        weights[name] = weight
    return weights


def parse_separator(sep: str | None) -> str | None:
    """Return the field separator that an option names: a tab for \\t or tab, else unchanged."""
    return {"\\t": "\t", "tab": "\t"}.get(sep or "", sep)


def parse_limits(settings: list[str]) -> dict[str, int] | None:
    """Return the limits N by column from texts COLUMN=N of --per; None for an empty list.

    At most N items of a recommendation list share a value in that column of the item table.
    TalerecError for another text.
    """
    limits: dict[str, int] = {}
    for setting in settings:
        name, _, number = setting.rpartition("=")
        if not name or not number.strip().isdecimal():
            raise TalerecError(f"--per takes COLUMN=N such as category=2, not {setting!r}")
        limits[name.strip()] = int(number)
    return limits or None


def parse_context(settings: list[str]) -> dict[str, str] | None:
    """Return the values in texts COLUMN=VALUE of --context by column; None for an empty list.

    TalerecError for another text, and for a column that is named twice.
    """
    context: dict[str, str] = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or not name.strip() or name.strip() in context:
            message = (
                f"--context takes COLUMN=VALUE such as device=phone, each once, not {setting!r}"
            )
            raise TalerecError(message)
        context[name.strip()] = value.strip()
    return context or None


def parse_slot_rules(settings: list[str]) -> dict[str, dict[str, str]] | None:
    """Return the conditions in texts PLACE=CONDITION by place; None for an empty list."""
    slots: dict[str, dict[str, str]] = {}
    for setting in settings:
        place, sign, condition = setting.partition("=")
        if not sign or not condition.strip() or place.strip() in slots:
            raise TalerecError(f"--slot takes PLACE=CONDITION, each place once, not {setting!r}")
        slots[place.strip()] = {"where": condition.strip()}
    return slots or None


def parse_boosts(settings: list[str]) -> dict[str, dict[str, float]] | None:
    """Return the boosts in texts COLUMN=VALUE:NUMBER by column and value; None if empty.

    A positive boost raises the scores of items with this value in the item table; a negative one
    lowers them. TalerecError for another text.
    """
    boosts: dict[str, dict[str, float]] = {}
    for setting in settings:
        name, _, pair = setting.partition("=")
        value, _, number = pair.rpartition(":")
        try:
            boosts.setdefault(name.strip(), {})[value] = float(number)
        except ValueError:
            value = ""
        if not name.strip() or not value:
            raise TalerecError(
                f"--boost takes COLUMN=VALUE:NUMBER such as brand=X:0.2, not {setting!r}"
            )
    return boosts or None


# -- options that several commands share -----------------------------------------------------------

LOG, MODEL = "Log", "Model"  # headings of help pages
_ORDERS = ("file", "item", "random:")
_TIES = "Order of a user's rows with equal times"

Artifact = Annotated[Path, argument("MODEL", "A saved model, NAME.tale.")]
HideSeen = Annotated[bool, flag("--hide-seen", "Leave out the items of the history.")]
Json = Annotated[bool, flag("--json", "Print one JSON value and nothing else.")]
Titles = Annotated[
    bool, flag("--titles", "Add a column of titles, from the item table, to the file of --out.")
]
K = Annotated[int, option("--k", "K", "Number of items.", alias="-k")]
AsOf = Annotated[
    str | None,
    option(
        "--as-of",
        "TIME",
        "Request time, before which rows are history: 2019-10-01, a datetime or a number in"
        " the log's unit (default: the end of the log).",
    ),
]
_MODEL = option(
    "--model",
    "NAME",
    "Model (default tempo); talerec models lists all.",
    MODEL,
    complete=completion.complete_models,
)
ModelName = Annotated[str | None, _MODEL]
ModelNames = Annotated[list[str], _MODEL]
Settings = Annotated[
    list[str],
    option(
        "--set",
        "NAME=VALUE",
        "Model parameter such as reg=200 or decay=1/512; repeatable.",
        MODEL,
        complete=completion.complete_settings,
    ),
]
SplitName = Annotated[
    str,
    option(
        "--split",
        "leave-one-out|at:TIME|last:10%|rolling:TIME,DAYS|every:TIME",
        "Held-out rows: the last rows of each user; each user's first row from a time (UTC) on, or"
        " in the last 10 % of the rows; the same in rolling windows of DAYS days; or every row"
        " from a time on, TIME or last:10%.",
        complete=complete_values("leave-one-out", "at:", "last:", "rolling:", "every:"),
        sets={"time_split": "at:TIME"},
    ),
]
SessionColumn = Annotated[
    str | None,
    option(
        "--session",
        "COLUMN",
        "Column of sessions: histories are sessions, not users.",
        LOG,
        sets={"group": "or --basket"},
    ),
]
SessionGap = Annotated[
    str | None,
    option("--session-gap", "30m", "A session ends when its user pauses longer than this.", LOG),
]
Across = Annotated[
    bool, flag("--across", "With sessions, histories include the user's earlier sessions.", LOG)
]
Basket = Annotated[
    str | None,
    option(
        "--basket",
        "COLUMN|time",
        "Column of baskets, whose rows are simultaneous; time: rows of a user and time.",
        LOG,
    ),
]
ContextColumns = Annotated[
    list[str],
    option(
        "--context",
        "COLUMN",
        "Column of the situation of each row, such as device, which the ranker uses; repeatable.",
        LOG,
    ),
]
UserTable = Annotated[
    Path | None,
    option(
        "--user-table",
        "FILE",
        "Table with a row per user, whose columns (country, age) the ranker uses.",
        LOG,
    ),
]
RequestContext = Annotated[
    list[str],
    option(
        "--context",
        "COLUMN=VALUE",
        "Situation of the request, for a ranker fitted with this column: device=phone; repeatable.",
    ),
]
Report = Annotated[
    Path | None, option("--report", "FILE.html", "Write a page with charts; it works offline.")
]
Ties = Annotated[
    str,
    option(
        "--ties",
        "file|item|random:SEED",
        f"{_TIES}.",
        LOG,
        complete=complete_values(*_ORDERS),
        sets={"any_order": "item"},
    ),
]
TieOrders = Annotated[
    str,
    option(
        "--ties",
        "file|item|random:SEED|random:0..4",
        f"{_TIES}; a range of seeds reports mean and spread over several orders.",
        LOG,
        complete=complete_values(*_ORDERS),
    ),
]
Rows = Annotated[int, option("--rows", "N", "Number of rows.")]
Seed = Annotated[int, option("--seed", "N", "Random seed; equal seeds give equal logs.")]
Port = Annotated[int, option("--port", "N", "Port of the service; 0 for any free port.")]
StoreAddress = Annotated[
    str | None,
    option(
        "--store",
        "ADDRESS",
        "sqlite:///shop.db or postgresql://HOST/NAME (default: TALEREC_STORE).",
    ),
]
TablePath = Annotated[Path, out("FILE", "A .parquet, .csv, .ndjson or .jsonl file.")]
NEGATIVE_NAMES = ",".join(NEGATIVE_EVENTS)  # the default of --negative-events
_EVENTS = "Events"
Attribution = Annotated[
    str,
    option(
        "--attribution", "30m", "An event so long after a response counts as its click.", _EVENTS
    ),
]
NegativeEvents = Annotated[
    str,
    option(
        "--negative-events",
        "NAMES",
        "Names of events that are negative feedback (they hide their item from the user, are no"
        " clicks and are not learned from), or none.",
        _EVENTS,
    ),
]


def split_events(text: str) -> tuple[str, ...]:
    """Return the names of events in a list such as "hide,return"; none for "none"."""
    names = tuple(name.strip() for name in text.split(","))
    return () if names == ("none",) else names
