"""Commands about logs: describe one, or make one up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from talerec.cli.app import Panel, command, reporting, warn
from talerec.cli.groups import Source
from talerec.cli.options import ItemCount, Json, NewLog, Rows, Seed, UserCount
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.data.log import Log


@command(
    Panel.LOGS,
    "talerec describe events.csv",
    "talerec describe ratings.tsv --user uid --time ts --core 5",
)
def describe(source: Source, json: Json = False) -> None:
    """Show counts, density, intervals, ties and repeats of a log."""
    from talerec.data.summary import describe as facts_of

    with reporting(json):
        facts = facts_of(source.read(any_order=True, needs_time=False))
    if json:
        from talerec.cli import terminal

        terminal.as_json(facts)
    else:
        from talerec.cli import results

        results.facts(source.name, facts)


@command(Panel.LOGS, "talerec synth -o log.parquet --rows 1000000 --seed 1", allow_extra_args=True)
def synth(
    context: typer.Context,
    out: NewLog = None,
    rows: Rows = 100_000,
    items: ItemCount = None,
    users: UserCount = None,
    seed: Seed = 0,
) -> None:
    """Write a synthetic log with bursts, drift, fashions, ties and repeats, as real logs have them."""
    from talerec.cli import tables
    from talerec.data.synthetic import synthetic_log

    target = _target(out, context.args)
    with reporting(json=False):
        log = synthetic_log(rows, items=items, users=users, seed=seed, titles=False)
        _write_frame(log, target)
    tables.line(
        f"{target}: {log.rows:,} rows of {len(log.users):,} users and {len(log.items):,} items"
    )


def _target(out: Path | None, rest: list[str]) -> Path:
    """The file to write, named by --out or, as in version 0.1, by its place."""
    from talerec.runtime.files import check_writable

    named = [path for path in (out, *map(Path, rest)) if path is not None]
    if len(named) != 1:
        raise TalerecError("synth writes one file: --out FILE names it")
    if rest:
        warn("synth FILE is now synth --out FILE")
    target = named[0]
    if target.suffix not in (".parquet", ".csv"):
        raise TalerecError(f"{target} must end in .parquet or .csv")
    check_writable(target)
    return target


def _write_frame(log: Log, path: Path) -> None:
    from talerec.runtime.files import atomic_write

    frame = log.to_frame()
    with atomic_write(path) as unfinished:
        if path.suffix == ".csv":
            frame.write_csv(unfinished)
        else:
            frame.write_parquet(unfinished)
