"""Options of the command line: each is declared once, for every command that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from talerec.cli import completion
from talerec.cli.completion import Complete, among


def option(
    *names: str,
    help: str,
    metavar: str | None = None,
    panel: str | None = None,
    complete: Complete | None = None,
) -> Any:
    """An option with a value; `complete` lists what a shell may offer for it."""
    return typer.Option(
        *names, help=help, metavar=metavar, rich_help_panel=panel, autocompletion=complete
    )


def flag(name: str, help: str, panel: str | None = None) -> Any:
    """An option without a value."""
    return option(name, help=help, metavar="", panel=panel)


def out(metavar: str, help: str) -> Any:
    """Where a command writes: the same two names in every command."""
    return option("-o", "--out", metavar=metavar, help=help)


def argument(metavar: str, help: str, complete: Complete | None = None, **more: Any) -> Any:
    """A value that is named by its place."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete, **more)


# -- logs ------------------------------------------------------------------------------------------

LOG = "Log"  # a panel of the help page
_FORMATS = "CSV, TSV, Parquet, JSON lines, RecBole .inter, MovieLens .dat; plain, .gz or .zst."
_ORDER = "Order of a user's rows with equal times"
_ORDERS = ("file", "item", "random:")
LogFiles = Annotated[
    list[str],
    argument("LOG...", f"{_FORMATS} A folder, a pattern, - for standard input, an address."),
]
Sep = Annotated[
    str | None,
    option(
        "--sep", metavar="SIGN", help="What stands between the fields of text files.", panel=LOG
    ),
]
Query = Annotated[
    str | None,
    option(
        "--query",
        metavar="SQL",
        help="What to ask where LOG is a database: sqlite:///FILE, duckdb:///FILE, postgresql://HOST/NAME.",
        panel=LOG,
    ),
]
User = Annotated[str, option("--user", metavar="COLUMN", help="Column of user ids.", panel=LOG)]
Item = Annotated[str, option("--item", metavar="COLUMN", help="Column of item ids.", panel=LOG)]
Time = Annotated[str, option("--time", metavar="COLUMN", help="Column of times.", panel=LOG)]
Unit = Annotated[
    str | None,
    option(
        "--time-unit",
        metavar="s|ms|us|ns|%m/%d/%Y",
        help="Unit of times that are numbers (by default their size tells), or how dates are written: '%m/%d/%Y %H:%M'.",
        panel=LOG,
        complete=among("s", "ms", "us", "ns"),
    ),
]
AnyTime = Annotated[bool, flag("--any-time", "Accept times before 1970 and after 2100.", LOG)]
Core = Annotated[
    int | None,
    option(
        "--core",
        metavar="K",
        help="Drop users and items with fewer than K rows, repeatedly until none is left.",
        panel=LOG,
    ),
]
Unique = Annotated[
    bool, flag("--drop-duplicates", "Keep one of several rows with equal user, item and time.", LOG)
]
Ties = Annotated[
    str,
    option(
        "--ties",
        metavar="file|item|random:SEED",
        help=f"{_ORDER}.",
        panel=LOG,
        complete=among(*_ORDERS),
    ),
]
Orders = Annotated[
    str,
    option(
        "--ties",
        metavar="file|item|random:SEED|random:0..4",
        help=f"{_ORDER}; a range of seeds gives mean and spread over several orders.",
        panel=LOG,
        complete=among(*_ORDERS),
    ),
]
Weight = Annotated[
    str | None,
    option(
        "--weight", metavar="COLUMN", help="What a row is worth; only ratios matter.", panel=LOG
    ),
]
Event = Annotated[
    str | None, option("--event", metavar="COLUMN", help="What happened in a row.", panel=LOG)
]
EventWeights = Annotated[
    str | None,
    option(
        "--event-weights",
        metavar="view=1,buy=10",
        help="What rows of each event are worth; 0 leaves them out.",
        panel=LOG,
    ),
]

# -- models ----------------------------------------------------------------------------------------

_MODEL = "Model"
ModelName = Annotated[
    str | None,
    option(
        "--model",
        metavar="NAME",
        help="Which model; tempo by default. talerec models lists all.",
        panel=_MODEL,
        complete=completion.models,
    ),
]
Settings = Annotated[
    list[str],
    option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter, such as reg=200 or decay=1/512; repeat for more.",
        panel=_MODEL,
        complete=completion.settings,
    ),
]
Params = Annotated[
    Path | None,
    option(
        "--params",
        metavar="FILE.json",
        help="Model and parameters written by talerec tune; --set overrides them.",
        panel=_MODEL,
    ),
]
OneModel = Annotated[
    str | None, argument("NAME", "Only this model.", completion.models, show_default=False)
]

# -- evaluation ------------------------------------------------------------------------------------

SplitName = Annotated[
    str,
    option(
        "--split",
        metavar="leave-one-out|at:TIME|rolling:TIME,DAYS",
        help="What is held back: each user's last rows; the rows from a moment (UTC) on;"
        " or the same, window by window.",
        complete=among("leave-one-out", "at:", "rolling:"),
    ),
]
Refit = Annotated[
    bool,
    flag("--refit", "Before the test, learn from the validation rows too, as in production."),
]
On = Annotated[
    str,
    option(
        "--on",
        metavar="test|validation",
        help="Which rows are predicted.",
        complete=among("test", "validation"),
    ),
]
Target = Annotated[
    str | None,
    option(
        "--target",
        metavar="EVENT",
        help="Ask for each user's last row of this event, such as buy, and not for the last row.",
    ),
]
Cutoffs = Annotated[str, option("-k", "--k", metavar="K,...", help="Lengths of the lists.")]
Cases = Annotated[
    Path | None, out("FILE.parquet", "Save the result, one row per case, for talerec compare.")
]
Report = Annotated[
    Path | None,
    option("--report", metavar="FILE.html", help="Write a page with charts; it works offline."),
]
ResultA = Annotated[Path, argument("RESULT_A", "A file from talerec evaluate --out.")]
ResultB = Annotated[Path, argument("RESULT_B", "Another, of the same cases.")]

# -- tuning and reproducing ------------------------------------------------------------------------

Trials = Annotated[int, option("--trials", metavar="N", help="How many settings to try.")]
Grid = Annotated[
    str | None,
    option(
        "--grid",
        metavar="paper",
        help="Try the paper's values, one parameter at a time.",
        complete=among("paper"),
    ),
]
Metric = Annotated[
    str,
    option(
        "--metric",
        metavar="M@K",
        help="What to maximise.",
        complete=among("NDCG@10", "HR@10", "MRR@10"),
    ),
]
Best = Annotated[
    Path | None, out("FILE.json", "Save the best parameters, for talerec fit --params.")
]
Study = Annotated[
    Path | None,
    option(
        "--study",
        metavar="FILE.db",
        help="Keep every trial in this SQLite file; the same command again continues there.",
    ),
]
Searchers = Annotated[
    int, option("--workers", metavar="N", help="Processes that search together in one study.")
]
SearchSeed = Annotated[int, option("--seed", metavar="N", help="Seed of the search.")]
DataFolder = Annotated[
    Path,
    option("--data", metavar="DIR", help="Folder with files of MovieLens, Amazon or Yelp."),
]
OnlyData = Annotated[
    str | None,
    option(
        "--only",
        metavar="NAME,...",
        help="Some of ml-1m, beauty, toys, sports, yelp.",
        complete=among("ml-1m", "beauty", "toys", "sports", "yelp"),
    ),
]
ResultsFolder = Annotated[
    Path, out("DIR", "Folder for the results; the same command again continues there.")
]
NeuralRows = Annotated[
    bool,
    flag("--neural", "Train the paper's neural models too: minutes on a GPU, hours without one."),
]

# -- saved models ----------------------------------------------------------------------------------

Artifact = Annotated[Path, argument("MODEL", "A saved model, NAME.tale.")]
NewArtifact = Annotated[Path, out("NAME.tale", "Where to save the model (a folder).")]
NoHistories = Annotated[
    bool,
    flag("--no-histories", "Save the model without users' rows (then no recommend --users)."),
]
KeepHistories = Annotated[
    bool, flag("--histories", "Keep users' rows in a model that is fitted on Spark.")
]
Updatable = Annotated[
    bool, flag("--updatable", "Keep what talerec update needs to add rows that come later.")
]
Tolerance = Annotated[
    float,
    option(
        "--tolerance",
        metavar="X",
        help="Share of a target's largest weight that may be off before it is solved again; 0 solves all.",
    ),
]
K = Annotated[int, option("-k", "--k", metavar="K", help="How many items.")]
HideSeen = Annotated[bool, flag("--hide-seen", "Do not recommend items of the history.")]
Unknown = Annotated[
    str,
    option(
        "--unknown",
        metavar="error|skip",
        help="What to do with ids that the model does not know.",
        complete=among("error", "skip"),
    ),
]
AsOf = Annotated[
    str | None,
    option(
        "--as-of",
        metavar="TIME",
        help="Moment of asking: 2019-10-01, a datetime or a number in the log's unit; by default the end of the log.",
    ),
]
Users = Annotated[
    str | None,
    option(
        "--users",
        metavar="IDS|@FILE|all",
        help="Users of the training log: ids separated by commas, @FILE (one id per line, or Parquet), or all.",
        complete=among("all"),
    ),
]
HistoryList = Annotated[
    list[str],
    option(
        "--history",
        metavar="IDS",
        help="Item ids separated by commas, oldest first; repeat for more histories.",
    ),
]
History = Annotated[
    str | None,
    option("--history", metavar="IDS", help="Item ids separated by commas, oldest first."),
]
OneUser = Annotated[
    str | None, option("--user", metavar="ID", help="A user of the training log, and its rows.")
]
Allow = Annotated[str | None, option("--allow", metavar="IDS", help="Recommend only these items.")]
Deny = Annotated[str | None, option("--deny", metavar="IDS", help="Never recommend these items.")]
Where = Annotated[
    str | None,
    option(
        "--where",
        metavar="SQL",
        help="Recommend only items whose row in the item table meets this: \"category = 'tents' and price < 100\".",
    ),
]
Per = Annotated[
    list[str],
    option(
        "--per",
        metavar="COLUMN=N",
        help="At most N items of a list have the same value in this column of the item table; repeat for more.",
    ),
]
Boost = Annotated[
    list[str],
    option(
        "--boost",
        metavar="COLUMN=VALUE:NUMBER",
        help="Raise (or lower) items with this value in the item table by so many spreads of the list: brand=X:0.2; repeat for more.",
    ),
]
ListsFile = Annotated[
    Path | None,
    out("FILE", "Write the lists of --users here as they are made: .parquet, .csv or .ndjson."),
]
ListsPlace = Annotated[
    str, out("FILE", "Where the lists go: .parquet, .csv or .ndjson; from Spark, a folder.")
]
ItemId = Annotated[str, argument("ITEM", "An item id.")]
ExplainedItem = Annotated[
    str, option("--item", metavar="ID", help="The item whose score is explained.")
]
Json = Annotated[bool, flag("--json", "Print one JSON value and nothing else.")]

# -- made-up logs ----------------------------------------------------------------------------------

Rows = Annotated[int, option("--rows", metavar="N", help="How many rows.")]
Seed = Annotated[int, option("--seed", metavar="N", help="Equal seeds give equal logs.")]
ItemCount = Annotated[
    int | None, option("--items", metavar="N", help="How many items; a twentieth of the rows.")
]
UserCount = Annotated[
    int | None, option("--users", metavar="N", help="How many users; a tenth of the rows.")
]
NewLog = Annotated[Path | None, out("FILE", "A .parquet or .csv file.")]
DemoFolder = Annotated[Path, out("DIR", "Folder for the report and the model.")]
DemoServe = Annotated[
    bool, flag("--serve", "Then serve the model on this machine, with a page to try it.")
]
Port = Annotated[int, option("--port", metavar="N", help="Port of the service; 0: any free one.")]
