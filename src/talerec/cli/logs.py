"""Commands about logs: what one is like, and how to make one up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from talerec.cli.app import app, examples, read, talking
from talerec.cli.options import AnyTime, Core, Item, Json, LogFile, Time, Unique, Unit, User, option
from talerec.errors import TalerecError
from talerec.runtime.files import atomic_write

if TYPE_CHECKING:
    from talerec.data.log import Log


_PANEL = "Logs"


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples(
        "talerec describe events.csv", "talerec describe ratings.tsv --user uid --time ts --core 5"
    ),
)
def describe(
    log: LogFile,
    user: User = "user_id",
    item: Item = "item_id",
    time: Time = "timestamp",
    time_unit: Unit = None,
    any_time: AnyTime = False,
    core: Core = None,
    drop_duplicates: Unique = False,
    json: Json = False,
) -> None:
    """Counts, density, intervals, ties and repeats of a log."""
    from talerec.cli import terminal
    from talerec.data.summary import describe as facts_of

    names = (user, item, time)
    with talking(json):
        facts = facts_of(
            read(log, names, time_unit, any_time, core=core, drop_duplicates=drop_duplicates)
        )
    if json:
        terminal.as_json(facts)
    else:
        terminal.facts(str(log), facts)


@app.command(
    rich_help_panel=_PANEL, epilog=examples("talerec synth log.parquet --rows 1000000 --seed 1")
)
def synth(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="A .parquet or .csv file.")],
    rows: Annotated[int, option("--rows", metavar="N", help="Rows, up to 100 million.")] = 100_000,
    items: Annotated[
        int | None, option("--items", metavar="N", help="Items; a twentieth of the rows.")
    ] = None,
    users: Annotated[
        int | None, option("--users", metavar="N", help="Users; a tenth of the rows.")
    ] = None,
    seed: Annotated[int, option("--seed", metavar="N", help="The same seed, the same log.")] = 0,
) -> None:
    """Write a synthetic log with what real ones have: bursts, drift, fashion, ties, repeats."""
    from talerec.cli import terminal
    from talerec.data.synthetic import synthetic_log
    from talerec.runtime.files import check_writable

    if output.suffix not in (".parquet", ".csv"):
        raise TalerecError(f"{output} must end in .parquet or .csv")
    check_writable(output)
    with talking(json=False):
        log = synthetic_log(rows, items=items, users=users, seed=seed, titles=False)
        _write_frame(log, output)
    terminal.line(
        f"{output}: {log.rows:,} rows of {len(log.users):,} users and {len(log.items):,} items"
    )


def _write_frame(log: Log, output: Path) -> None:
    frame = log.to_frame()
    with atomic_write(output) as unfinished:
        if output.suffix == ".csv":
            frame.write_csv(unfinished)
        else:
            frame.write_parquet(unfinished)
