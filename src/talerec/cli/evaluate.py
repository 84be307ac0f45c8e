"""Commands that say how good a model is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.app import Panel, command, cutoffs, ids, reporting
from talerec.cli.groups import Choice, Engine, Source
from talerec.cli.options import (
    Best,
    Cases,
    Cutoffs,
    DataFolder,
    Grid,
    HideSeen,
    Json,
    Metric,
    ModelName,
    NeuralRows,
    On,
    OnlyData,
    Orders,
    Refit,
    Report,
    ResultA,
    ResultB,
    ResultsFolder,
    Searchers,
    SearchSeed,
    Settings,
    SplitName,
    Study,
    Target,
    Trials,
)
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.data.split.splits import Plan
    from talerec.evaluation.result import Evaluation
    from talerec.models.core.base import Model


@command(
    Panel.EVALUATE,
    "talerec evaluate events.csv",
    "talerec evaluate events.csv --ties random:0..4 --report how-good.html",
    "talerec evaluate events.csv --split at:2019-10-01 --model tale --set decay=1/512 --json",
    "talerec evaluate events.csv --model rules -o rules.parquet",
    "talerec evaluate events --split at:2026-10-01 --engine spark --master spark://host:7077",
)
def evaluate(
    source: Source,
    choice: Choice,
    engine: Engine,
    split: SplitName = "leave-one-out",
    refit: Refit = False,
    on: On = "test",
    k: Cutoffs = "1,5,10",
    hide_seen: HideSeen = False,
    target: Target = None,
    ties: Orders = "file",
    out: Cases = None,
    report: Report = None,
    json: Json = False,
) -> None:
    """Hold rows back, fit on the rest, and rank every item for every case."""
    from talerec.data import preprocessing
    from talerec.data.split.splits import Plan

    made, plan = choice.make(), Plan(split, refit, target)
    plan.check(on)
    preprocessing.tie_orders(ties)
    engine.check()
    if engine.is_spark and report is not None:
        raise TalerecError("--report goes with --engine local: from Spark only sums come back")
    _check_outputs([out, report], [*source.log, choice.params])
    how = {"on": on, "k": cutoffs(k), "hide_seen": hide_seen, "ties": ties}
    with reporting(json):
        if engine.is_spark:
            result = _evaluate_on_spark(made, source, plan, engine, out, how)
        else:
            result = _evaluate_here(made, source, plan, out, how)
        _write_report(report, "evaluation", result, source.name)
    _show("evaluation", result, json)


def _evaluate_here(
    model: Model, source: Source, plan: Plan, out: Path | None, how: dict[str, Any]
) -> Evaluation:
    from dataclasses import replace

    from talerec.evaluation.evaluator import evaluate_log
    from talerec.runtime.clock import Clock

    clock = Clock()
    with clock("load"):
        rows = source.read(any_order=how["ties"] != "file", needs_time=model.needs_time)
    result = evaluate_log(model, rows, plan, **how)
    result = replace(result, seconds={**result.seconds, **clock.seconds})
    if out is not None:
        result.save(out)
    return result


def _evaluate_on_spark(
    model: Model, source: Source, plan: Plan, engine: Engine, out: Path | None, how: dict[str, Any]
) -> Evaluation:
    from talerec import spark  # says so itself where pyspark is missing
    from talerec.cli import spark as cluster

    spark.check_evaluation(model, plan, how["on"])
    with cluster.session(source, engine) as told:
        return spark.evaluate(model, plan=plan, cases=out, **told, **how)


@command(
    Panel.EVALUATE,
    "talerec tune events.csv --trials 100 -o best.json",
    "talerec tune events.csv --study shop.db --workers 2 --set solver=local",
    "talerec tune events.csv --model tale --grid paper --report sensitivity.html",
    "talerec fit events.csv -o shop.tale --params best.json",
)
def tune(
    source: Source,
    model: ModelName = None,
    set: Settings = [],  # noqa: B006 (Typer reads the default, nobody changes it)
    trials: Trials = 50,
    grid: Grid = None,
    metric: Metric = "NDCG@10",
    out: Best = None,
    study: Study = None,
    workers: Searchers = 1,
    seed: SearchSeed = 0,
    split: SplitName = "leave-one-out",
    hide_seen: HideSeen = False,
    ties: Orders = "file",
    report: Report = None,
    json: Json = False,
) -> None:
    """Choose a model's parameters on validation rows; test rows play no part. --set fixes some."""
    from talerec.evaluation import tuning
    from talerec.models import DEFAULT, model_class
    from talerec.models.core import params

    kind = model_class(model or DEFAULT)
    fixed = params.parse(kind, set)
    _check_outputs([out, study, report], source.log)
    with reporting(json):
        found = tuning.tune(
            kind, source.read(any_order=ties != "file", needs_time=kind().needs_time), split, trials=trials, grid=grid, fixed=fixed, metric=metric,
            ties=ties, hide_seen=hide_seen, study=study, workers=workers, seed=seed,
        )  # fmt: skip
        if out is not None:
            found.save(out)
        _write_report(report, "tuning", found, source.name)
    _show("tuning", found, json, out, source.spelled(ties))


@command(
    Panel.EVALUATE,
    "talerec evaluate events.csv --model tale -o tale.parquet",
    "talerec evaluate events.csv --model tempo -o tempo.parquet",
    "talerec compare tale.parquet tempo.parquet --report better.html",
)
def compare(a: ResultA, b: ResultB, report: Report = None, json: Json = False) -> None:
    """Is B better than A? A paired test over users, with interval and effect size."""
    from talerec.evaluation import comparison
    from talerec.evaluation.result import Evaluation

    _check_outputs([report], [a, b])
    with reporting(json):
        found = comparison.compare(Evaluation.load(a), Evaluation.load(b))
        _write_report(report, "comparison", found, f"{a.name} and {b.name}")
    _show("comparison", found, json)


@command(
    Panel.EVALUATE,
    "talerec reproduce --data data",
    "talerec reproduce --data data --only beauty,yelp -o beauty-and-yelp",
)
def reproduce(
    data: DataFolder = Path("data"),
    only: OnlyData = None,
    out: ResultsFolder = Path("reproduction"),
    neural: NeuralRows = False,
    json: Json = False,
) -> None:
    """Reproduce the TALE paper's tables and figures, beside its own numbers."""
    from talerec.cli import tables, terminal
    from talerec.repro import experiments, pages

    if out.exists() and not out.is_dir():
        raise TalerecError(f"{out} is a file; the results go to a folder")
    with reporting(json):
        studies = experiments.run(data, out, ids(only) or [], neural=neural)
        text, html = pages.write(studies, out)
    if json:
        found = {s.dataset.key: {row: s.row(row) for row in s.rows} for s in studies}
        terminal.as_json({"results": str(text), "page": str(html), "rows": found})
    else:
        tables.line(f"{text} and {html}")


def _check_outputs(outputs: Sequence[Path | None], inputs: Sequence[str | Path | None]) -> None:
    """Refuse, before anything is read, files that cannot be written or are to be read."""
    from talerec.data.read.sources import refuse_overwriting
    from talerec.runtime.files import check_writable

    for path in outputs:
        if path is not None:
            check_writable(path)
    refuse_overwriting(outputs, inputs)


def _write_report(path: Path | None, kind: str, found: Any, source: str) -> None:
    """Write the page of an evaluation, a tuning or a comparison, if one was asked for."""
    if path is None:
        return
    from talerec.reports import report
    from talerec.runtime.files import write_text

    write_text(path, getattr(report, kind)(found, source))


def _show(kind: str, found: Any, json: bool, *more: Any) -> None:
    """Print an evaluation, a tuning or a comparison."""
    from talerec.cli import results, terminal

    if json:
        terminal.as_json(found.to_dict())
    else:
        getattr(results, kind)(found, *more)
