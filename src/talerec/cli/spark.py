"""Commands that run on a Spark cluster: the log as Spark reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from talerec.cli.options import option
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.cli.groups import Engine, Source

HistoriesTo = Annotated[
    str | None,
    option(
        "--histories-to",
        metavar="PLACE",
        help="Where Spark writes users' rows beside the model: a folder, or a store, postgresql://HOST/NAME.",
    ),
]


@contextmanager
def session(source: Source, engine: Engine) -> Iterator[dict[str, Any]]:
    """What every job is told: the session, and how the log is read and cleaned."""
    from talerec import spark  # says so itself where pyspark is missing

    if len(source.log) != 1 or source.sep or source.query:
        raise TalerecError(
            "--engine spark reads one path of Parquet files, without --sep and --query"
        )
    if source.event and not source.event_weights:
        raise TalerecError("--event goes with --event-weights on Spark")
    names = spark.Columns(
        *source.names, source.time_unit, source.any_time, source.weight, source.event, source.worth
    )
    with spark.connected(engine.master, engine.conf) as connected:
        yield {
            "source": source.log[0], "session": connected, "names": names, "core": source.core,
            "drop_duplicates": source.drop_duplicates, "work": engine.work,
        }  # fmt: skip


def check_histories(engine: Engine, kept: bool, place: str | None) -> None:
    """Refuse options about users' rows that say nothing here, or two things."""
    if kept and not engine.is_spark:
        raise TalerecError(
            "--histories goes with --engine spark: the local engine keeps them anyway"
        )
    if place is not None and not engine.is_spark:
        raise TalerecError(
            "--histories-to goes with --engine spark; talerec events import fills a store from here"
        )
    if kept and place is not None:
        raise TalerecError("give --histories or --histories-to, one of the two")
