"""An evaluation on a cluster: fit on the rows before a moment, and judge the cases after it where their users' rows are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from talerec.data.split.splits import Plan
from talerec.data.split.windows import (
    NoCases,
    Window,
    check_sides,
    earlier_row,
    no_askers,
    no_window,
)
from talerec.data.times import DAY
from talerec.data.vocabulary import Vocabulary
from talerec.errors import TalerecError
from talerec.evaluation import metrics, saving
from talerec.evaluation.evaluator import joined
from talerec.evaluation.result import Evaluation
from talerec.evaluation.sums import added
from talerec.models.core.base import Model
from talerec.runtime.clock import summed
from talerec.runtime.files import check_writable
from talerec.spark import blocks
from talerec.spark import evaluation_tasks as judging
from talerec.spark.evaluation_tasks import Cut, Judging
from talerec.spark.fit_job import Limits, check_fit, checked, learned, shared_folder
from talerec.spark.log_stats import Tally, before, cut_users, tally
from talerec.spark.partitions import Rows
from talerec.spark.read import NAMES, Columns, Source, item_table
from talerec.spark.session import Run, run_tasks


def evaluate(
    model: Model,
    source: Source,
    plan: Plan | str,
    *,
    session: SparkSession,
    on: str = "test",
    k: Sequence[int] = (1, 5, 10),
    hide_seen: bool = False,
    names: Columns = NAMES,
    core: int | None = None,
    ties: str = "file",
    drop_duplicates: bool = False,
    cases: str | Path | None = None,
    work: str | Path | None = None,
    task_rows: int = 2_000_000,
    task_pairs: int = 8_000_000,
    solve_bytes: int = 4_000_000_000,
) -> Evaluation:
    """Split a log by time, fit on the rows before, judge by each user's next row: figures of `talerec.evaluate_log`.

    Parameters
    ----------
    model : Model
        What `fit` takes; it is left as it is.
    source, names, core, drop_duplicates, ties
        The log, and how it is read and cleaned: as for `fit`.
    plan : Plan or str
        ``at:TIME`` or ``rolling:TIME,DAYS``.
    session, work, task_rows, task_pairs, solve_bytes
        Where it runs, and how large its tasks are: as for `fit`. `work` is the current folder by default.
    on, k, hide_seen, cases
        As for `talerec.evaluate`; and a file for one row per case, which `talerec compare` reads.

    Returns
    -------
    Evaluation
        Metrics, intervals and groups; its frame has one row for cases that are alike.

    Raises
    ------
    TalerecError
        When the model or the split has no place on a cluster, the log is not valid, or Spark fails.
    """
    plan = Plan(plan) if isinstance(plan, str) else plan
    check_evaluation(model, plan, on)
    solved, ks = checked(copy(model), names), tuple(metrics.cutoffs(k))
    limits = Limits.checked(task_rows, task_pairs, solve_bytes)
    kept = None if cases is None else check_writable(Path(cases))
    how = _How(solved, ties, limits, on, ks, hide_seen, kept is not None)
    with shared_folder(Path(work or Path.cwd()).absolute()) as folder:
        run = Run(session, folder)
        known = tally(run, source, names, ties, core, drop_duplicates)
        windows = plan.windows(on, known.unit, known.time[1], lambda t: _earlier(run, known, t))
        judged = _judged(_in_parts(run, known, how), windows)
        result = joined([one.result for one in judged])
        result = replace(result, seconds=summed([result.seconds, run.clock.seconds]))
        if kept is not None:
            _keep(kept, result, judged)
    return result


def check_evaluation(model: Model, plan: Plan, on: str) -> None:
    """Spark judges the models that it fits, on splits of time; all else is refused by name."""
    if not plan.is_by_time:
        raise TalerecError(
            f"Spark does not split by {plan.text}; it takes splits of time: --split at:TIME or rolling:TIME,DAYS"
        )
    plan.check(on)
    check_fit(model)


# -- rows ------------------------------------------------------------------------------------------


class _How(NamedTuple):
    """What is judged, and how."""

    model: Model
    ties: str
    limits: Limits
    on: str
    ks: tuple[int, ...]
    hide_seen: bool
    keep_cases: bool


class _Trial(NamedTuple):
    """A log whose users' rows lie in parts, and what is to be judged on it."""

    run: Run
    known: Tally
    rows: Rows
    parts: int
    how: _How


def _in_parts(run: Run, known: Tally, how: _How) -> _Trial:
    """Send the rows of each user to one place, and save them there."""
    task_rows = how.limits.rows
    parts = max(run.cores, math.ceil(known.rows / task_rows))
    cut_users(run, known, parts, task_rows)  # refuses a user whose rows no task can hold
    items = item_table(run.session, run.folder / "items.parquet", len(known.ids))
    numbered = known.events.withColumnRenamed("item", "id").join(items, "id")
    by_item = how.ties == "item"
    is_weighed = "weight" in known.events.columns
    sent = numbered.select(
        "user", F.col("position").alias("item"), "time", "place",
        *(["weight"] if is_weighed else []),
        F.pmod(F.xxhash64("user"), F.lit(parts)).cast("int").alias("block"),
    )  # fmt: skip
    rows = Rows(str(run.folder), len(known.ids), known.rows, None, is_weighed)
    with run.stage("rows"):
        run_tasks(
            sent, parts, lambda part, batches: judging.save_rows(batches, part, rows, by_item)
        )
    return _Trial(run, known, rows, parts, how)


def _earlier(run: Run, known: Tally, when: int) -> int:
    """The moment that splits the rows before `when` as `when` splits all: days are counted, then seconds of one, then moments."""
    events, number = known.events.where(F.col("time") < when), None
    with run.stage("read"):
        for width in (DAY, 1_000_000, 1):
            begin = F.col("time") - F.pmod("time", F.lit(width))
            counts = _counts(events.groupBy(begin.alias("begin")).count())
            ends = np.cumsum(counts["count"].to_numpy())
            if number is None:
                number = earlier_row(int(ends[-1]) if len(ends) else 0, known.rows)
            at = int(np.searchsorted(ends, number, "right"))
            number -= int(ends[at - 1]) if at else 0
            moment = int(counts["begin"][at])
            events = events.where(begin == moment)
    return moment


def _counts(frame: DataFrame) -> pl.DataFrame:
    found = pl.from_arrow(frame.toArrow())
    assert isinstance(found, pl.DataFrame)
    return found.sort("begin")


# -- windows ---------------------------------------------------------------------------------------


class _Judged(NamedTuple):
    """What was found in one window, and the files of its cases."""

    result: Evaluation
    files: list[Path]


def _judged(trial: _Trial, windows: list[Window]) -> list[_Judged]:
    """Every window that has a case."""
    found = []
    for number, window in enumerate(windows):
        try:
            found.append(_judged_in(trial, window, trial.run.folder / f"window-{number}"))
        except NoCases:
            if not window.is_rolling:
                raise
    if not found:
        raise no_window(windows[0].name)
    return found


def _keep(path: Path, result: Evaluation, judged: list[_Judged]) -> None:
    """Write all cases to one file, a part at a time."""
    files = (file for one in judged for file in one.files)
    saving.write(path, result.facts(), map(pl.read_parquet, files))


def _judged_in(trial: _Trial, window: Window, folder: Path) -> _Judged:
    """Fit on the rows before a window, and judge the cases in it."""
    folder.mkdir()
    run, rows, parts = trial.run, trial.rows, trial.parts
    with run.stage("cut"):
        run_tasks(
            run.numbers(parts), parts,
            lambda part, _: judging.save_cut(rows, part, window, str(folder)),
        )  # fmt: skip
    cut = Cut.of(folder, parts)
    check_sides(cut.before, trial.known.rows)
    if not cut.cases:
        raise no_askers()
    judge = _fitted(trial, window, folder, cut)
    with run.stage("score"):
        run_tasks(run.numbers(parts), parts, lambda part, _: judge.judge(part))
    there = [part for part in range(parts) if judge.file("sums", part).exists()]
    listed = [blocks.read_array(folder, f"listed-{part}") for part in there]
    frame = added((pl.read_parquet(judge.file("sums", part)) for part in there), trial.how.ks)
    result = _result(trial, window, cut, frame)
    shares = judging.coverage(listed, len(trial.how.model.item_ids), trial.how.ks)
    files = [judge.file("cases", part) for part in there]
    return _Judged(replace(result, coverage=shares), files)


def _fitted(trial: _Trial, window: Window, folder: Path, cut: Cut) -> Judging:
    """Fit the model on the rows before a window; what tasks need to judge it lies in the folder then."""
    run = Run(trial.run.session, folder)
    known = before(run, trial.known, window.when)
    model, path = trial.how.model, folder / "model.tale"
    parquet = f"file://{folder / 'weights.parquet'}"
    model._fitted = learned(run, known, model, trial.how.ties, trial.how.limits, parquet)
    model.save(path, histories=False)
    whole, counts = Vocabulary(trial.known.ids), np.empty(len(known.ids), np.int64)
    renumber = np.full(len(whole), -1, np.int32)
    renumber[whole.codes(known.ids)] = np.arange(len(known.ids), dtype=np.int32)
    counts[known.position] = known.rows_of
    blocks.save_array(folder, "renumber", renumber)
    blocks.save_array(folder, "counts", counts)
    return Judging(
        trial.rows, str(folder), str(path), window, trial.how.ties, cut, known.mean, trial.how.ks,
        trial.how.hide_seen, trial.how.keep_cases,
    )  # fmt: skip


def _result(trial: _Trial, window: Window, cut: Cut, frame: pl.DataFrame) -> Evaluation:
    model = trial.how.model
    return Evaluation(
        model=model.name,
        params=model.params,
        solver=model.fitted.solver,
        split=window.name,
        refit=False,
        ties=trial.how.ties,
        tied=cut.tied,
        on=trial.how.on,
        hide_seen=trial.how.hide_seen,
        ks=trial.how.ks,
        coverage={},
        seconds={"load": 0.0, "gram": 0.0, "solve": 0.0, "lists": 0.0, **model.fitted.seconds},
        beside={},
        frame=frame,
    )
