"""Commands that say how good a model is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from talerec.commands.app import Cleaning, app, examples, make_model, read, talking
from talerec.errors import TalerecError
from talerec.options import (
    AnyTime,
    Core,
    HideSeen,
    Item,
    Json,
    LogFile,
    ModelName,
    Settings,
    Ties,
    Time,
    Unique,
    Unit,
    User,
    option,
)

if TYPE_CHECKING:
    from talerec.log import Log
    from talerec.prepare import Split


_PANEL = "Judge"


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples(
        "talerec evaluate events.csv",
        "talerec evaluate events.csv --split at:2019-10-01 --set decay=1/512 --json",
    ),
)
def evaluate(
    log: LogFile,
    model: ModelName = "tale",
    set: Settings = [],  # noqa: B006
    split: Annotated[
        str,
        option("--split", metavar="leave-one-out|at:TIME", help="What is held back; TIME is UTC."),
    ] = "leave-one-out",
    on: Annotated[
        str, option("--on", metavar="test|validation", help="Which rows are scored.")
    ] = "test",
    k: Annotated[str, option("--k", metavar="K,...", help="Cut-offs.")] = "1,5,10",
    hide_seen: HideSeen = False,
    user: User = "user_id",
    item: Item = "item_id",
    time: Time = "timestamp",
    time_unit: Unit = None,
    any_time: AnyTime = False,
    core: Core = None,
    ties: Ties = "file",
    drop_duplicates: Unique = False,
    json: Json = False,
) -> None:
    """Hold rows back, fit on the rest, and rank every item for every case."""
    from talerec import evaluation, show
    from talerec.clock import Clock

    made = make_model(model, set)
    cutoffs, splitter = _cutoffs(k), _splitter(split)
    names = (user, item, time)
    cleaning: Cleaning = {"core": core, "drop_duplicates": drop_duplicates, "ties": ties}
    with talking(json):
        clock = Clock()
        with clock("load"):
            parts = splitter(read(log, names, time_unit, any_time, **cleaning))
        parts.cases(on)  # a wrong --on is said before the fit
        result = evaluation.evaluate(
            made.fit(parts.train), parts, on=on, k=cutoffs, hide_seen=hide_seen
        )
        result.seconds.update(clock.seconds)
    if json:
        show.as_json(result.to_dict())
    else:
        show.evaluation(result)


def _cutoffs(text: str) -> list[int]:
    from talerec import metrics

    try:
        cutoffs = [int(part) for part in text.split(",")]
    except ValueError:
        raise TalerecError(f"--k is {text!r}; it takes whole numbers such as 1,5,10") from None
    metrics.per_case(cutoffs)  # refuses what is below 1
    return cutoffs


def _splitter(text: str) -> Callable[[Log], Split]:
    from talerec import prepare, times

    if text == "leave-one-out":
        return prepare.leave_one_out
    kind, _, moment = text.partition(":")
    if kind != "at":
        raise TalerecError(f"--split is {text!r}; it takes leave-one-out or at:TIME")
    times.parse_moment(moment)  # a mistake is found before the log is read
    return lambda log: prepare.split_at(log, moment)
