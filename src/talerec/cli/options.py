"""Options of the command line that more than one command has, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(*names: str, help: str, metavar: str | None = None, panel: str | None = None) -> Any:
    """What Typer makes an option of."""
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


def flag(name: str, help: str, panel: str | None = None) -> Any:
    """An option that is there or not."""
    return option(name, help=help, metavar="", panel=panel)


_LOG, _MODEL = "Log", "Model"  # panels of the help page
_FORMATS = "CSV, TSV, Parquet, JSON lines, RecBole .inter, MovieLens .dat; plain, .gz or .zst."
LogFile = Annotated[Path, typer.Argument(metavar="LOG", help=_FORMATS)]
Artifact = Annotated[Path, typer.Argument(metavar="MODEL", help="A saved model, NAME.tale.")]
User = Annotated[
    str, option("--user", metavar="COLUMN", help="Where the user ids are.", panel=_LOG)
]
Item = Annotated[
    str, option("--item", metavar="COLUMN", help="Where the item ids are.", panel=_LOG)
]
Time = Annotated[str, option("--time", metavar="COLUMN", help="Where the times are.", panel=_LOG)]
Unit = Annotated[
    str | None,
    option(
        "--time-unit",
        metavar="s|ms|us|ns",
        help="What numbers in the time column mean; guessed by their size.",
        panel=_LOG,
    ),
]
AnyTime = Annotated[bool, flag("--any-time", "Let times before 1970 or after 2100 through.", _LOG)]
Core = Annotated[
    int | None,
    option(
        "--core",
        metavar="K",
        help="Drop users and items with fewer than K rows, again until nothing changes.",
        panel=_LOG,
    ),
]
Ties = Annotated[
    str,
    option(
        "--ties",
        metavar="file|item|random:SEED",
        help="Order of a user's rows of one instant.",
        panel=_LOG,
    ),
]
Orders = Annotated[
    str,
    option(
        "--ties",
        metavar="file|item|random:SEED|random:0..4",
        help="Order of a user's rows of one instant; of several orders, mean and spread are shown.",
        panel=_LOG,
    ),
]
Unique = Annotated[
    bool, flag("--drop-duplicates", "Keep one of equal rows (user, item, time).", _LOG)
]
Items = Annotated[
    Path | None,
    option(
        "--items",
        metavar="FILE",
        help="Side table with a column item_id: titles and so on.",
        panel=_LOG,
    ),
]
ModelName = Annotated[
    str | None,
    option("--model", metavar="NAME", help="Which model; tale. See talerec models.", panel=_MODEL),
]
Settings = Annotated[
    list[str],
    option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter, such as reg=200 or decay=1/512; repeat for more.",
        panel=_MODEL,
    ),
]
SplitName = Annotated[
    str,
    option(
        "--split",
        metavar="leave-one-out|at:TIME|rolling:TIME,DAYS",
        help="What is held back: each user's last rows; what comes after a moment (UTC);"
        " or window by window from a moment on.",
    ),
]
Refit = Annotated[
    bool,
    flag("--refit", "Learn from the validation rows too before the test, as in production."),
]
Report = Annotated[
    Path | None,
    option("--report", metavar="FILE.html", help="Write a page with plots; it works offline."),
]
Params = Annotated[
    Path | None,
    option(
        "--params",
        metavar="FILE.json",
        help="Model and parameters that talerec tune has written; --set goes before them.",
        panel=_MODEL,
    ),
]
Json = Annotated[bool, flag("--json", "Print one JSON value and nothing else.")]
K = Annotated[int, option("-k", "--k", metavar="K", help="How many items.")]
HideSeen = Annotated[bool, flag("--hide-seen", "Leave out what the history holds.")]
Unknown = Annotated[
    str,
    option("--unknown", metavar="error|skip", help="What becomes of ids the model does not know."),
]
AsOf = Annotated[
    str | None,
    option(
        "--as-of",
        metavar="TIME",
        help="When they ask: 2019-10-01, a datetime or unix seconds; else when the log ends.",
    ),
]
