"""Commands that evaluate, compare and tune models, and reproduce the TALE paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from talerec.cli.app import Panel, command
from talerec.cli.baskets import evaluate_next_baskets
from talerec.cli.completion import complete_values
from talerec.cli.groups import EngineOptions, LogSource, ModelChoice
from talerec.cli.item_tables import ItemTableOptions
from talerec.cli.options import (
    HideSeen,
    Json,
    ModelName,
    Report,
    Settings,
    SplitName,
    TieOrders,
    argument,
    flag,
    option,
    out,
    parse_ids,
)
from talerec.cli.terminal import print_json, print_line, reporting
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.data.split import SplitPlan
    from talerec.evaluation import Evaluation
    from talerec.models.core import Model

_DATASETS = ("ml-1m", "beauty", "toys", "sports", "yelp")


On = Annotated[
    str,
    option(
        "--on",
        "test|validation",
        "Held-out rows to predict.",
        complete=complete_values("test", "validation"),
    ),
]
Target = Annotated[
    str | None,
    option(
        "--target", "EVENT", "Predict the last row of this event type, such as buy, of each user."
    ),
]


@command(
    Panel.EVALUATE,
    "talerec evaluate events.csv",
    "talerec evaluate events.csv --ties random:0..4 --report how-good.html",
    "talerec evaluate events.csv --split at:2019-10-01 --model tale --set decay=1/512 --json",
    "talerec evaluate events.csv --model rules -o rules.parquet",
    "talerec evaluate events.csv --split every:last:10% --refit-every 7d",
    "talerec evaluate events --split at:2026-10-01 --engine spark --master spark://host:7077",
)
def evaluate(
    source: LogSource,
    choice: ModelChoice,
    engine: EngineOptions,
    table: ItemTableOptions,
    split: SplitName = "leave-one-out",
    refit: Annotated[
        bool, flag("--refit", "Refit on training and validation rows before the test.")
    ] = False,
    refit_every: Annotated[
        str | None,
        option("--refit-every", "7d", "With --split every:TIME, refit interval: 30m, 12h, 7d."),
    ] = None,
    on: On = "test",
    k: Annotated[str, option("--k", "K,...", "Lengths of the lists.", short="-k")] = "1,5,10",
    hide_seen: HideSeen = False,
    target: Target = None,
    ties: TieOrders = "file",
    path: Annotated[
        Path | None,
        out("FILE.parquet", "Save the result, one row per case, for talerec compare.", "cases"),
    ] = None,
    report: Report = None,
    json: Json = False,
) -> None:
    """Hold out rows, fit on the rest, and rank all items for each held-out row."""
    # source, choice, engine, table: options of the log, the model, Spark, and the item table
    from talerec.data import expand_tie_orders

    model, plan = choice.build(), _build_plan(split, refit, target, refit_every)
    plan.check(on)
    expand_tie_orders(ties)  # an invalid --ties is an error before the log is read
    engine.check()
    table.check()
    if engine.is_spark and report is not None:
        raise TalerecError("--report needs --engine local; Spark returns only sums")
    if engine.is_spark and table.items is not None:
        raise TalerecError("--items needs --engine local; models on Spark do not use item tables")
    _check_outputs([path, report], [*source.log, choice.params, table.items])
    settings = {"on": on, "k": _parse_cutoffs(k), "hide_seen": hide_seen, "ties": ties}
    if source.basket is not None and not engine.is_spark:
        evaluate_next_baskets(model, source, plan, [path, report, table.items], settings, json)
        return
    with reporting(json):
        if engine.is_spark:
            result = _evaluate_on_spark(model, source, plan, engine, path, settings)
        else:
            result = _evaluate_locally(model, source, table, plan, path, settings)
        _write_report(report, "evaluation", result, source.name)
    _print_result("evaluation", result, json)


def _build_plan(split: str, refit: bool, target: str | None, refit_every: str | None) -> SplitPlan:
    """Return the split that --split, --refit, --target and --refit-every describe.

    TalerecError for an invalid one, or for --refit-every without a split every:TIME.
    """
    from talerec.data.split import SplitPlan

    if refit_every is None:
        return SplitPlan(split, refit, target)
    if not split.startswith("every:"):
        raise TalerecError("--refit-every needs --split every:TIME")
    return SplitPlan(f"{split},{refit_every}", refit, target)


def _parse_cutoffs(text: str) -> list[int]:
    """Return the list lengths k in the text of --k, such as "1,5,10".

    TalerecError unless they are whole numbers from 1.
    """
    from talerec.evaluation import check_cutoffs

    try:
        ks = [int(number) for number in text.split(",")]
    except ValueError:
        raise TalerecError(f"--k is {text!r}; it takes whole numbers such as 1,5,10") from None
    return check_cutoffs(ks)


def _evaluate_locally(
    model: Model,
    source: LogSource,
    table: ItemTableOptions,
    plan: SplitPlan,
    path: Path | None,
    settings: dict[str, Any],
) -> Evaluation:
    """Evaluate an unfitted model on this machine; save the result to `path` unless it is None.

    `source` and `table` have the options to read the log and the item table; `plan` is how the log
    is split; `settings` are the arguments on, k, hide_seen and ties of `evaluate_log`. The result's
    seconds include those of reading the log.
    """
    from dataclasses import replace

    from talerec.evaluation import evaluate_log
    from talerec.runtime import Clock

    clock = Clock()
    with clock("load"):
        items = table.read(source.item)
        log = source.read(any_order=settings["ties"] != "file", needs_time=model.needs_time)
        log = table.attach(log, items)
    result = evaluate_log(model, log, plan, **settings)
    result = replace(result, seconds={**result.seconds, **clock.seconds})
    if path is not None:
        result.save(path)
    return result


def _evaluate_on_spark(
    model: Model,
    source: LogSource,
    plan: SplitPlan,
    engine: EngineOptions,
    path: Path | None,
    settings: dict[str, Any],
) -> Evaluation:
    """Evaluate an unfitted model on a Spark cluster and return the result.

    `source` and `engine` have the options to read the log and to reach the cluster; `plan` is how
    the log is split; `settings` are the arguments on, k, hide_seen and ties of `spark.evaluate`.
    Unless `path` is None, Spark writes one row per held-out row to it.
    """
    from talerec import spark  # reports by itself that pyspark is missing

    spark.check_evaluation(model, plan, settings["on"])
    with engine.session(source) as job:
        return spark.evaluate(model, plan=plan, cases=path, **job, **settings)


Grid = Annotated[
    str | None,
    option(
        "--grid",
        "paper",
        "Try the paper's values, one parameter at a time.",
        complete=complete_values("paper"),
    ),
]
Metric = Annotated[
    str,
    option(
        "--metric",
        "M@K",
        "Metric to maximise.",
        complete=complete_values("NDCG@10", "HR@10", "MRR@10"),
    ),
]
Study = Annotated[
    Path | None,
    option(
        "--study", "FILE.db", "Keep all trials in this SQLite file; a repeated command resumes."
    ),
]


@command(
    Panel.EVALUATE,
    "talerec tune events.csv --trials 100 -o best.json",
    "talerec tune events.csv --study shop.db --workers 2 --set solver=local",
    "talerec tune events.csv --model tale --grid paper --report sensitivity.html",
    "talerec fit events.csv -o shop.tale --params best.json",
)
def tune(
    source: LogSource,
    table: ItemTableOptions,
    model: ModelName = None,
    set: Settings = [],  # noqa: B006 (Typer reads the default, nobody changes it)
    trials: Annotated[int, option("--trials", "N", "Number of settings to try.")] = 50,
    grid: Grid = None,
    metric: Metric = "NDCG@10",
    path: Annotated[
        Path | None, out("FILE.json", "Save the best parameters, for talerec fit --params.")
    ] = None,
    study: Study = None,
    workers: Annotated[int, option("--workers", "N", "Processes that search in parallel.")] = 1,
    seed: Annotated[int, option("--seed", "N", "Random seed of the search.")] = 0,
    split: SplitName = "leave-one-out",
    hide_seen: HideSeen = False,
    ties: TieOrders = "file",
    report: Report = None,
    json: Json = False,
) -> None:
    """Search for a model's best parameters on validation rows; --set fixes some of them."""
    # source, table: options of the log and item table; ties: the order of rows with equal times
    from talerec.evaluation import check_tuning_ready, tune
    from talerec.models import DEFAULT, model_class
    from talerec.models.core import build_model, parse_settings

    kind = model_class(model or DEFAULT)
    fixed = parse_settings(kind, set)
    fixed_model = build_model(kind, fixed)
    check_tuning_ready(fixed_model, grid)
    table.check()
    _check_outputs([path, study, report], [*source.log, table.items])
    with reporting(json):
        items = table.read(source.item)
        log = source.read(any_order=ties != "file", needs_time=fixed_model.needs_time)
        log = table.attach(log, items)
        result = tune(
            kind, log, split, trials=trials, grid=grid, fixed=fixed, metric=metric,
            ties=ties, hide_seen=hide_seen, study=study, workers=workers, seed=seed,
        )  # fmt: skip
        if path is not None:
            result.save(path)
        _write_report(report, "tuning", result, source.name)
    arguments = f"{source.format_arguments(ties)} {table.format_arguments()}".strip()
    _print_result("tuning", result, json, path, arguments)


@command(
    Panel.EVALUATE,
    "talerec evaluate events.csv --model tale -o tale.parquet",
    "talerec evaluate events.csv --model tempo -o tempo.parquet",
    "talerec compare tale.parquet tempo.parquet --report better.html",
)
def compare(
    a: Annotated[Path, argument("RESULT_A", "A file from talerec evaluate --out.")],
    b: Annotated[Path, argument("RESULT_B", "Another file, of the same cases.")],
    report: Report = None,
    json: Json = False,
) -> None:
    """Compare two results by a paired test over users: is B better than A?"""
    from talerec.evaluation import Evaluation
    from talerec.evaluation import compare as compare_evaluations

    _check_outputs([report], [a, b])
    with reporting(json):
        result = compare_evaluations(Evaluation.load(a), Evaluation.load(b))
        _write_report(report, "comparison", result, f"{a.name} and {b.name}")
    _print_result("comparison", result, json)


@command(
    Panel.EVALUATE,
    "talerec reproduce --data data",
    "talerec reproduce --data data --only beauty,yelp -o beauty-and-yelp",
)
def reproduce(
    data: Annotated[
        Path, option("--data", "DIR", "Folder with files of MovieLens, Amazon or Yelp.")
    ] = Path("data"),
    only: Annotated[
        str | None,
        option(
            "--only",
            "NAME,...",
            f"Some of {', '.join(_DATASETS)}.",
            complete=complete_values(*_DATASETS),
        ),
    ] = None,
    folder: Annotated[
        Path, out("DIR", "Folder for the results; a repeated command resumes there.")
    ] = Path("reproduction"),
    neural: Annotated[
        bool,
        flag("--neural", "Also train the paper's neural models: minutes on a GPU, hours without."),
    ] = False,
    json: Json = False,
) -> None:
    """Reproduce the tables and figures of the TALE paper, next to its published numbers."""
    # experiments.run saves results in `folder`; pages.write renders RESULTS.md and results.html
    from talerec.repro import experiments, pages

    if folder.exists() and not folder.is_dir():
        raise TalerecError(f"{folder} is a file; --out takes a folder")
    with reporting(json):
        studies = experiments.run(data, folder, parse_ids(only) or [], neural=neural)
        text, html = pages.write(studies, folder)
    if json:
        rows = {s.dataset.key: {row: s.row(row) for row in s.rows} for s in studies}
        print_json({"results": str(text), "page": str(html), "rows": rows})
    else:
        print_line(f"{text} and {html}")


def _check_outputs(outputs: Sequence[Path | None], inputs: Sequence[str | Path | None]) -> None:
    """Raise TalerecError if an output file cannot be written or is one of the inputs.

    Nothing is read; entries that are None stand for options that are not set.
    """
    from talerec.data.read import refuse_overwriting
    from talerec.runtime import check_writable

    for path in outputs:
        if path is not None:
            check_writable(path)
    refuse_overwriting(outputs, inputs)


def _write_report(path: Path | None, kind: str, result: Any, source: str) -> None:
    """Write the HTML page about a result to `path`; do nothing if it is None.

    `kind` says what the result is: evaluation, tuning or comparison. The page names the log or
    files `source`.
    """
    if path is None:
        return
    from talerec.reports import report
    from talerec.runtime import write_text

    write_text(path, getattr(report, f"render_{kind}")(result, source))


def _print_result(kind: str, result: Any, json: bool, *details: Any) -> None:
    """Print a result as JSON if `json`, else as tables.

    `kind` says what the result is: evaluation, tuning or comparison. `details` are further
    arguments of the function in `results` that prints its tables.
    """
    from talerec.cli import results

    if json:
        print_json(result.to_dict())
    else:
        getattr(results, f"print_{kind}")(result, *details)
