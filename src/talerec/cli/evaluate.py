"""Commands that evaluate and compare models, and reproduce the TALE paper."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from talerec.cli.app import Exit, Panel, command
from talerec.cli.completion import complete_values
from talerec.cli.evaluate_models import ManyModels, evaluate_many, exit_code, name_results
from talerec.cli.groups import EngineOptions, LogSource, ModelChoice
from talerec.cli.item_tables import ItemTableOptions
from talerec.cli.options import (
    HideSeen,
    Json,
    Report,
    SplitName,
    TieOrders,
    argument,
    flag,
    option,
    out,
    parse_ids,
)
from talerec.cli.result_output import check_outputs, print_result
from talerec.cli.terminal import print_json, print_line, reporting
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.data.split import SplitPlan
    from talerec.evaluation import Comparison, Evaluation, Leaderboard, Result
    from talerec.models.core import Model

logger = logging.getLogger("talerec")

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


ResultPath = Annotated[
    Path | None,
    out(
        "FILE.parquet|DIR",
        "Save the result, one row per case, for talerec compare; with --models, a folder of"
        " results, in which a repeated command resumes.",
        "cases",
    ),
]
Refit = Annotated[bool, flag("--refit", "Refit on training and validation rows before the test.")]
RefitEvery = Annotated[
    str | None,
    option("--refit-every", "7d", "With --split every:TIME, refit interval: 30m, 12h, 7d."),
]


@command(
    Panel.EVALUATE,
    "talerec evaluate events.csv",
    "talerec evaluate events.csv --ties random:0..4 --report how-good.html",
    "talerec evaluate events.csv --split at:2019-10-01 --model tale --set decay=1/512 --json",
    "talerec evaluate events.csv --model rules -o rules.parquet",
    "talerec evaluate events.csv --split every:last:10% --refit-every 7d",
    "talerec evaluate events.csv --models 'tempo,rules,ease(reg=500)' --report models.html",
    "talerec evaluate events.csv --models all --minutes 10 -o finished",
    "talerec evaluate shop.csv --basket order_id --models tempo,personal,tifuknn -k 10,20",
    "talerec evaluate events --split at:2026-10-01 --engine spark --master spark://host:7077",
)
def evaluate(
    source: LogSource,
    choice: ModelChoice,
    many: ManyModels,
    engine: EngineOptions,
    table: ItemTableOptions,
    split: SplitName = "leave-one-out",
    refit: Refit = False,
    refit_every: RefitEvery = None,
    on: On = "test",
    k: Annotated[str, option("--k", "K,...", "Lengths of the lists.", alias="-k")] = "1,5,10",
    hide_seen: HideSeen = False,
    target: Target = None,
    ties: TieOrders = "file",
    path: ResultPath = None,
    report: Report = None,
    json: Json = False,
) -> None:
    """Hold out rows, fit on the rest, and rank all items for each held-out row."""
    # source, choice, many, engine, table: options of the log, the models, Spark, the item table
    from talerec.data import expand_tie_orders

    plan = _build_plan(split, refit, target, refit_every)
    plan.check(on)
    n_orders = len(expand_tie_orders(ties))  # an invalid --ties is an error before any reading
    if source.basket is not None and n_orders > 1:
        raise TalerecError("--basket takes one order of ties")
    names = many.names(choice, path)
    model = choice.build(source) if names is None else None
    engine.check()
    table.check()
    _check_spark(engine, report, table.items, names)
    check_outputs([report] if names else [path, report], [*source.log, choice.params, table.items])
    settings = {"on": on, "k": _parse_cutoffs(k), "hide_seen": hide_seen, "ties": ties}
    result: Any
    with reporting(json):
        if model is None:
            result = evaluate_many(names or [], many, source, table, plan, path, settings)
        elif engine.is_spark:
            result = _evaluate_on_spark(model, source, plan, engine, path, settings)
        else:
            result = _evaluate_locally(model, source, table, plan, [path, report], settings)
        if report is not None:
            result.report(report, source=source.name)
    kind = "leaderboard" if model is None else "evaluation" if source.basket is None else "baskets"
    print_result(kind, result, json)
    raise Exit(exit_code(result))


#: Options that need one machine, and why.
_NOT_ON_SPARK = {
    "--report": "Spark returns only sums",
    "--items": "models on Spark do not use item tables",
    "--models": "on Spark, evaluate one model at a time",
}


def _check_spark(engine: EngineOptions, *values: Any) -> None:
    """Raise TalerecError if the command runs on Spark with an option that needs one machine.

    values: of the options of `_NOT_ON_SPARK`, in their order; None for one that is not set.
    """
    for (name, reason), value in zip(_NOT_ON_SPARK.items(), values, strict=True):
        if engine.is_spark and value is not None:
            raise TalerecError(f"{name} needs --engine local; {reason}")


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
    outputs: list[Path | None],
    settings: dict[str, Any],
) -> Result:
    """Evaluate an unfitted model on this machine; save the result unless its path is None.

    `source` and `table` have the options to read the log and the item table; `plan` is how the log
    is split; `outputs` are the paths of the result and of the page; `settings` are the arguments
    on, k, hide_seen and ties of `evaluate_log`, or of `evaluate_baskets` with --basket. Cases of a
    split of every row go to a file at once, unless a page needs them. The result's seconds include
    those of reading the log.
    """
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from talerec.evaluation import evaluate_log
    from talerec.runtime import Clock

    clock, (path, report) = Clock(), outputs
    streamed = plan.kind == "every" and report is None and source.basket is None
    with clock("load"):
        items = table.read(source.item)
        log = source.read(any_order=settings["ties"] != "file", needs_time=model.needs_time)
        log = table.attach(log, items)
    result: Result
    with TemporaryDirectory() as folder:
        cases = path or Path(folder) / "cases.parquet"
        if source.basket is not None:
            from talerec.evaluation import evaluate_baskets

            result = evaluate_baskets(model, log, plan, **settings)
        else:
            result = evaluate_log(model, log, plan, **settings, cases=cases if streamed else None)
    for sentence in model.describe_content():
        logger.info(sentence)
    result = replace(result, seconds={**result.seconds, **clock.seconds})
    if path is not None and not streamed:
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


@command(
    Panel.EVALUATE,
    "talerec evaluate events.csv --model tale -o tale.parquet",
    "talerec evaluate events.csv --model tempo -o tempo.parquet",
    "talerec compare tale.parquet tempo.parquet --report better.html",
    "talerec compare finished/*.parquet",
)
def compare(
    results: Annotated[
        list[Path],
        argument(
            "RESULT...",
            "Two or more results of the same cases, saved by talerec evaluate with --out.",
        ),
    ],
    report: Report = None,
    json: Json = False,
) -> None:
    """Compare results with the first by a paired test over users: is B better than A?"""
    from talerec.evaluation import compare as compare_evaluations
    from talerec.evaluation import compare_all, read_any_result

    if len(results) < 2:
        raise TalerecError(f"{results[0]} is one result; compare takes two or more")
    check_outputs([report], results)
    result: Comparison | Leaderboard
    with reporting(json):
        evaluations = [read_any_result(path) for path in results]
        names = name_results(results, evaluations)
        if len(results) == 2:
            result = compare_evaluations(*evaluations, names=(names[0], names[1]))
        else:
            result = compare_all(dict(zip(names, evaluations, strict=True)))
        if report is not None:
            result.report(report, source=" and ".join(path.name for path in results))
    print_result("comparison" if len(results) == 2 else "leaderboard", result, json)


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
