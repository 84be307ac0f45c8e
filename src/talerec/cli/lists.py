"""Lists for many users: who they are, and where their lists go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from talerec.cli.app import ids
from talerec.cli.groups import Engine, Source, again
from talerec.columns import USER
from talerec.errors import TalerecError

if TYPE_CHECKING:
    import polars as pl

    from talerec.data.log import Log
    from talerec.models.core.base import Model
    from talerec.models.core.filters import Limits
    from talerec.runtime.arrays import Array

logger = logging.getLogger("talerec")

MANY = 1000  # users whose lists are printed as they are made


def check(out: Path, model: Path, text: str | None) -> None:
    """Refuse, before anything is read, a file that lists cannot go to."""
    from talerec.data.read.sources import refuse_overwriting
    from talerec.runtime.files import check_writable
    from talerec.runtime.tables import check_ending

    if text is None:
        raise TalerecError("--out goes with --users: the lists of histories are printed")
    check_ending(check_writable(out))
    refuse_overwriting([out], [model, text[1:] if text.startswith("@") else None])


def users(model: Model, path: Path, text: str, unknown: str) -> Array:
    """The positions of the users that `--users` stands for, each once."""
    import numpy as np

    log = kept_log(model, path)
    if text == "all":
        return np.arange(len(log.users))
    given = _in_file(Path(text[1:])) if text.startswith("@") else ids(text) or []
    if not given:
        raise TalerecError(f"--users {text!r} names no user")
    found = log.users.positions(given, "user", unknown)
    skipped = [user for user, position in zip(given, found, strict=True) if position < 0]
    if skipped:
        from talerec.cli import tables

        logger.info("skipped, not known to the model: %s", tables.listed(skipped))
    known = found[found >= 0]
    return known[np.sort(np.unique(known, return_index=True)[1])]


def items_of(model: Model, path: Path, user: str) -> list[Any]:
    """The items of a user's rows, oldest first."""
    log = kept_log(model, path, "--user")
    (rows,) = rows_of(model, log.users.positions([user], "user", "error"))
    return log.items.ids.gather(rows).to_list()


def rows_of(model: Model, asked: Array) -> list[Array]:
    """The positions of the items of users' rows."""
    log = model.fitted.log
    return [] if log is None else [log.item[log.ptr[u] : log.ptr[u + 1]] for u in asked]


def kept_log(model: Model, path: Path, option: str = "--users") -> Log:
    """The histories that a model keeps."""
    if model.fitted.log is None:
        raise TalerecError(f"{path} was saved without histories: use --history, not {option}")
    return model.fitted.log


def _in_file(path: Path) -> list[Any]:
    """The ids in a file: one per line, or a column of a Parquet file."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return _in_column(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise TalerecError(f"{path} is not a text file with one id per line") from None
    return [line.strip() for line in lines if line.strip()]


def _in_column(path: Path) -> list[Any]:
    import polars as pl

    if not path.exists():
        raise TalerecError(f"{path} does not exist")
    try:
        frame = pl.scan_parquet(path, glob=False)
        names = frame.collect_schema().names()
        name = USER if USER in names else names[0] if len(names) == 1 else None
        if name is None:
            raise TalerecError(f"{path} has no column {USER}: its columns are {', '.join(names)}")
        return frame.select(name).drop_nulls().unique(maintain_order=True).collect()[name].to_list()
    except pl.exceptions.PolarsError as error:
        raise TalerecError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def stream(
    model: Model,
    log: Log,
    asked: Array,
    k: int,
    out: Path | None,
    *,
    json: bool,
    hide_seen: bool,
    as_of: Any,
    unknown: str,
    **chosen: Any,
) -> None:
    """Write the lists of users of a log to a file, or print them as JSON, as they are made."""
    from talerec.data.times import microseconds
    from talerec.models.core import filters as choosing
    from talerec.models.core import inference as asking
    from talerec.models.core import lists

    asking.check_k(model, k)
    when = None if as_of is None else microseconds(as_of, model.fitted.unit)
    limits: Limits = choosing.limits(model, unknown=unknown, **chosen)
    made = lists.blocks(model, log, asked, k, limits, hide_seen=hide_seen, when=when)
    if out is None:
        _print(model, made, asked)
        return
    begun = perf_counter()
    written = lists.write(out, made, len(asked))
    _say(out, written, k, perf_counter() - begun, json)


# -- the users of another log ----------------------------------------------------------------------


def check_log(source: Source, engine: Engine, out: str, model: Path) -> None:
    """Refuse, before anything is read, what does not go together."""
    engine.check()
    if source.core is not None:
        raise TalerecError("--core is for fit: the model knows the items that it knows")
    if not engine.is_spark:
        from talerec.data.read.sources import refuse_overwriting
        from talerec.runtime.files import check_writable
        from talerec.runtime.tables import check_ending

        check_ending(check_writable(Path(out)))
        refuse_overwriting([Path(out)], [model, *source.log])


def of_log(
    path: Path,
    source: Source,
    given: set[str],
    out: Path,
    k: int,
    options: dict[str, Any],
    json: bool,
) -> None:
    """Write the lists of all users of a log; its rows are read as the fit read its own."""
    import numpy as np

    from talerec.cli import refit_options as later
    from talerec.data.preprocessing import order_ties
    from talerec.models import load
    from talerec.models.core import lists

    model = load(path)
    training = model.fitted.training
    kept = later.kept_options(training, source, given)
    with later.mentioning(kept):
        rows = later.read(model, again(source, kept))
    log = order_ties(lists.as_asked(model, rows), training["ties"])
    stream(model, log, np.arange(len(log.users)), k, out, json=json, **options)


def on_spark(
    path: Path,
    source: Source,
    given: set[str],
    engine: Engine,
    out: str,
    k: int,
    options: dict[str, Any],
    json: bool,
) -> None:
    """The same on a cluster, to a folder of Parquet files."""
    from talerec import spark  # says so itself where pyspark is missing
    from talerec.artifact import format as artifact
    from talerec.cli import refit_options as later
    from talerec.cli import spark as cluster
    from talerec.cli import tables, terminal

    training = artifact.read_manifest(path)["training"]
    ties = training.get("ties", "file")
    kept = later.kept_options(training, source, given | {"sep"})  # Parquet has no separators
    with later.mentioning(kept), cluster.session(again(source, kept), engine) as told:
        told.pop("core")
        made = spark.recommend(path, output=out, k=k, ties=ties, **told, **options)
        rows, users = made.count(), made.select(USER).distinct().count()
    if json:
        terminal.as_json({"path": out, "rows": rows, "users": users})
    else:
        tables.line(f"{out}: {rows:,} rows for {users:,} users")


def names(model: Model, asked: Array) -> list[Any]:
    """The ids of users."""
    log = model.fitted.log
    return [] if log is None else log.users.ids.gather(asked).to_list()


def _print(model: Model, made: Iterator[pl.DataFrame], asked: Array) -> None:
    from talerec.cli import items, terminal

    left = iter(names(model, asked))

    def every() -> Iterator[dict[str, Any]]:
        for frame in made:
            yield from items.of_users(model, frame, left)
        yield from ({USER: key, "items": []} for key in left)

    terminal.as_json_list(every())


def _say(out: Path, written: Any, k: int, seconds: float, json: bool) -> None:
    from talerec.cli import tables, terminal

    if json:
        terminal.as_json({"path": str(out), **written._asdict(), "seconds": seconds})
        return
    without = f" ({written.without:,} users have nothing to recommend)" if written.without else ""
    tables.line(
        f"{out}: {written.rows:,} rows for {written.users:,} users{without}, "
        f"{written.users / max(seconds, 1e-9):,.0f} users a second"
    )
    if written.rows < k * written.users:
        tables.note(
            f"lists are shorter than {k} where seen items are hidden, rules leave fewer items, or others have no score"
        )
