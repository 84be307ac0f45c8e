"""The fit on a cluster: rows in parts, then Gram and weights, as jobs whose tasks need no Spark."""

from __future__ import annotations

import math
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import SparkSession

from talerec.artifact import format as artifact
from talerec.data.log import Log
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.models import load
from talerec.models.blend.model import Blend
from talerec.models.core.base import Model
from talerec.models.core.persistence import Fitted
from talerec.models.linear.base import Solved
from talerec.models.tempo.model import Tempo
from talerec.ranking.weights import Weights
from talerec.runtime.arrays import Array
from talerec.spark import blocks, tasks
from talerec.spark import log_statistics as habits
from talerec.spark.blend import blended
from talerec.spark.gram import Plain
from talerec.spark.histories import checked_place, keep_rows
from talerec.spark.log_stats import Tally, cut_users, tally
from talerec.spark.partitions import Order, Rows, save_part, spread
from talerec.spark.read import NAMES, Columns, Source
from talerec.spark.session import Run, map_rows, run_tasks
from talerec.spark.sizes import Sizes
from talerec.spark.solve import Named, Work, solve_rows
from talerec.spark.tables import check_table
from talerec.spark.tempo import Study
from talerec.spark.trend import count_trends, trend_plan


def fit(
    model: Model,
    source: Source,
    output: str | Path,
    *,
    session: SparkSession,
    names: Columns = NAMES,
    core: int | None = None,
    ties: str = "file",
    drop_duplicates: bool = False,
    histories: bool | str | Path = False,
    items: pl.DataFrame | None = None,
    weights: str | Path | None = None,
    work: str | Path | None = None,
    task_rows: int = 2_000_000,
    task_pairs: int = 8_000_000,
    solve_bytes: int = 4_000_000_000,
) -> Model:
    """Learn from every row of a log on a cluster, and save the model.

    Parameters
    ----------
    model : Model
        A `Tempo`, `TALE`, `SLIT` or `SLIST` whose solver is `auto` or `local`, or a `Blend` of these.
    source, names : DataFrame, str or Path; Columns
        The log as a DataFrame or as the address of Parquet files, and what its columns are called.
    output, weights : str or Path
        Where the artifact goes, and the weights as Parquet (source, target, weight): by default next to it.
    session, work : SparkSession; str or Path
        Where it runs (see `connected`), and a folder that all machines see: by default next to `output`.
    core, drop_duplicates, ties : int; bool; {"file", "item"}
        How the log is cleaned, and the order of rows of one user at one time.
    histories, items : bool, str or Path; DataFrame, optional
        Keep the users' rows in the artifact; or where tasks write them: a folder, or postgresql://HOST/NAME. And an item table.
    task_rows, task_pairs, solve_bytes : int
        How many rows, pairs of rows and bytes of G one task holds: as many as the memory per core allows.

    Returns
    -------
    Model
        The same model, fitted.

    Raises
    ------
    TalerecError
        When the model cannot be fitted on a cluster, the log is not valid, or Spark fails.
    """
    limits = Limits.checked(task_rows, task_pairs, solve_bytes)
    solved, beside = checked(model, names), Path(output).absolute()
    artifact.check_target(output)
    parquet = str(weights or _beside(beside))
    kept = _checked_outputs(session, source, parquet, histories, names)
    with shared_folder(Path(work or beside.parent).absolute()) as folder:
        run = Run(session, folder)
        known = tally(run, source, names, ties, core, drop_duplicates)
        model._fitted = learned(run, known, solved, ties, limits, parquet, kept, items)
        model.save(output, histories=kept is True)
    model._fitted = load(output).fitted
    return model


def _beside(output: Path) -> str:
    """Where the weights of an artifact go unless somebody says: shop.weights.parquet for shop.tale."""
    return f"file://{output.parent / output.name.removesuffix('.tale')}.weights.parquet"


def _checked_outputs(
    session: SparkSession,
    source: Source,
    parquet: str,
    histories: bool | str | Path,
    names: Columns,
) -> bool | str:
    """Where users' rows go, if anywhere; tables that would take the place of something else are refused."""
    check_table(session, parquet, source)
    if isinstance(histories, bool):
        return histories
    return checked_place(session, histories, source, names.are_weighed)


def learned(
    run: Run,
    known: Tally,
    model: Model,
    ties: str,
    limits: Limits,
    parquet: str,
    histories: bool | str = False,
    items: pl.DataFrame | None = None,
) -> Fitted:
    """What a model learns of a log; its weights go to the Parquet files `parquet` too, and users' rows to where `histories` says."""
    left = [histories]  # the first part that counts keeps them

    def learn(place: Run, rows: Tally, part: Model, table: str) -> Fitted:
        whose = left.pop() if rows is known and left else False
        return _learned(place, rows, check_model(part), ties, limits, table, whose)

    def begin(place: Run, rows: Tally) -> Study:
        tempo = Tempo()
        return _study(_gathered(place, rows, tempo, ties, limits, whole=True), tempo)

    if isinstance(model, Blend):
        fitted = blended(run, known, model, parquet, learn, begin)
    else:
        fitted = learn(run, known, model, parquet)
    return _described(fitted, items)


def _learned(
    run: Run,
    known: Tally,
    model: Solved,
    ties: str,
    limits: Limits,
    parquet: str,
    histories: bool | str,
) -> Fitted:
    """What one model learns; see `learned`."""
    parts = _gathered(run, known, model, ties, limits, whole=bool(histories))
    fitted = _fitted(parts, model, parquet, histories is True)
    if isinstance(histories, str):
        keep_rows(run, parts.rows, parts.number, histories)
    return fitted


def _described(fitted: Fitted, table: pl.DataFrame | None) -> Fitted:
    """What was learned, with what a table says of the items."""
    if table is None:
        return fitted
    none, nobody = np.empty(0, np.int64), Vocabulary(pl.Series([], dtype=pl.Int64))
    log = Log(np.zeros(1, np.int64), none.astype(np.int32), none, nobody, fitted.items)
    return replace(fitted, info=log.with_items(table).info)


def checked(model: Model, names: Columns) -> Model:
    """The model, where it can be fitted to a log with these columns."""
    check_fit(model)
    if names.are_weighed and not model.takes_weights:
        raise TalerecError(f"{model.name} takes no weights of rows (with these parameters)")
    return model


def check_fit(model: Model) -> None:
    """Spark fits the models of `check_model`, and blends of them."""
    if not isinstance(model, Blend):
        check_model(model)
        return
    for part in model.made():
        try:
            check_model(part)
        except TalerecError as error:
            raise TalerecError(
                f"{part.name}, a part of the blend, cannot be fitted: {error}"
            ) from None


def check_model(model: Model) -> Solved:
    """Spark fits models that are one Gram and one call of the local solver, and tempo; all others are refused by name."""
    if not isinstance(model, Solved) or not (isinstance(model, Tempo) or _is_plain(model)):
        raise TalerecError(
            f"Spark does not fit {model.name}; it fits tempo, tale, slit, slist and blends of them (--model tempo)"
        )
    if model.solver not in ("auto", "local"):
        raise TalerecError(f"solver is {model.solver}; on Spark it takes auto or local")
    if getattr(model, "norm", "none") == "symmetric":
        raise TalerecError("norm is symmetric; on Spark it takes none or l1")
    return model


def _is_plain(model: Solved) -> bool:
    kind = type(model)
    own = ("learn_weights", "solution", "gram")
    return all(getattr(kind, name) is getattr(Solved, name) for name in own)


@contextmanager
def shared_folder(parent: Path) -> Iterator[Path]:
    """A new folder that is removed at the end, whatever happens.

    It gets another name first: an attempt of a task that Spark has given up, and that is still writing, finds no folder.
    """
    folder = parent / f"talerec-{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise TalerecError(f"{folder} cannot be made: {error.strerror or error}") from None
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder = folder.rename(f"{folder}.old")
        shutil.rmtree(folder, ignore_errors=True)


# -- rows ------------------------------------------------------------------------------------------


class _Parts(NamedTuple):
    """The rows of a log, in parts, and how the work on them is cut."""

    run: Run
    known: Tally
    ties: str
    rows: Rows
    number: int  # of parts
    sizes: Sizes
    sampled: Array  # times (see `parts.time_cuts`)

    @property
    def trends(self) -> tasks.TrendPlan:
        """Which rows are counted together."""
        return trend_plan(self.known.rows_of, self.sampled, self.run.cores, self.sizes.task_rows)

    def lately(self) -> Array:
        """Rows of each item in the log's last days."""
        return blocks.read_array(self.rows.folder, "lately-0")


class Limits(NamedTuple):
    """What one task may hold."""

    rows: int
    pairs: int
    bytes: int

    @classmethod
    def checked(cls, task_rows: int, task_pairs: int, solve_bytes: int) -> Limits:
        """Limits that are whole numbers from 1."""
        given = {"task_rows": task_rows, "task_pairs": task_pairs, "solve_bytes": solve_bytes}
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise TalerecError(f"{name} is {value}; it takes a whole number from 1")
        return cls(*given.values())


def _gathered(
    run: Run, known: Tally, model: Solved, ties: str, limits: Limits, *, whole: bool
) -> _Parts:
    """Send all rows to the parts of their users, and save them there; `whole`: those that are not learned from too."""
    task_rows = limits.rows
    is_tempo = isinstance(model, Tempo)
    whole = whole or is_tempo  # it looks at all rows of a user
    limit, n = model.max_history, len(known.position)
    wanted = max(run.cores, math.ceil(known.rows / task_rows))
    users = cut_users(run, known, wanted, task_rows if whole else None)
    order = Order(
        str(run.folder / "items.parquet"), ties == "item", None if whole else limit, known.mean
    )
    rows = Rows(str(run.folder), n, limit, known.time[1], known.mean is not None)
    giants = int(np.count_nonzero(known.rows_of > task_rows))
    sent = map_rows(known.events, lambda b: spread(b, users, order, task_rows), blocks.CELLS)

    def save(part: int, batches: blocks.Batches) -> None:
        log = save_part(batches, part, users, rows, giants)
        if is_tempo:
            habits.save_habits(log, part, rows)

    with run.stage("rows"):
        run_tasks(sent, users.parts, save)
    facts = np.sum(list(rows.arrays("facts", users.parts)), axis=0)
    pairs = int(facts[2])
    _require_all(int(facts[1]), known.rows, cut=not whole)
    sizes = Sizes.of(run.cores, known.rows_of, pairs, *limits)
    sampled = np.concatenate(list(rows.arrays("giants", users.parts)), axis=1)
    return _Parts(run, known, ties, rows, users.parts, sizes, sampled)


def _require_all(arrived: int, counted: int, *, cut: bool) -> None:
    """Refuse a log that changed between two passes over it; `cut`: early rows of long histories did not travel."""
    if arrived > counted or (arrived < counted and not cut):
        raise TalerecError(
            f"the log had {counted:,} rows when they were counted and {arrived:,} when they were read: do not write to it meanwhile"
        )


def _fitted(parts: _Parts, model: Solved, parquet: str, histories: bool) -> Fitted:
    """What a fit of rows in parts leaves behind."""
    known = parts.known
    log = _log(parts) if histories else None
    made = _weights(parts, model, Named(parquet, known.ids))
    lately = parts.lately() if isinstance(model, Tempo) else None
    facts, seconds = _training(parts), parts.run.clock.seconds
    return Fitted(made, Vocabulary(known.ids), None, log, "local", seconds, facts, lately)


def _log(parts: _Parts) -> Log:
    """All rows as one machine's log, mapped from files."""
    known = parts.known
    ptr, item, time, worth, ids = parts.rows.histories(parts.number, known.position)
    users, items = Vocabulary(ids), Vocabulary(known.ids)
    return Log(
        ptr, item, time, users, items, unit=known.unit, ties=parts.ties, weight=worth,
        weight_unit=known.weight_unit,
    )  # fmt: skip


def _training(parts: _Parts) -> dict[str, Any]:
    """What is said of the rows that a model was fitted on."""
    known = parts.known
    facts = list(parts.rows.arrays("facts", parts.number))
    return {
        "users": sum(int(one[0]) for one in facts),
        "items": len(known.position),
        "rows": known.rows,
        "first_time": known.time[0],
        "last_time": known.time[1],
        "ties": parts.ties,
        "time_read_as": known.unit,
        **({} if known.mean is None else {"weighed": True}),
        **({} if known.weight_unit is None else {"weight_unit": known.weight_unit}),
    }


def _study(parts: _Parts, model: Tempo) -> Study:
    at = (parts.run, model, parts.rows, parts.number, parts.sizes)
    return Study(*at, parts.known.position, parts.sampled, parts.trends)


# -- weights ---------------------------------------------------------------------------------------


def _weights(parts: _Parts, model: Solved, named: Named) -> Weights:
    """The weights of a model whose rows lie in parts."""
    run, rows, position = parts.run, parts.rows, parts.known.position
    if isinstance(model, Tempo):
        return _study(parts, model).weights(named)
    told = model.params
    if told.get("trend"):
        window, side = told["window"], told["trend_side"]
        rows = count_trends(run, rows, parts.number, parts.trends, window, side)
    work = Work(rows, Plain(model), model)
    return Weights(solve_rows(run, work, parts.sizes, parts.number, position, named))
