"""Commands that say how good a model is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from talerec.cli.app import app, cutoffs, examples, ids, make_model, read, talking
from talerec.cli.options import (
    AnyTime,
    Core,
    HideSeen,
    Item,
    Json,
    LogFile,
    ModelName,
    Orders,
    Params,
    Refit,
    Report,
    Settings,
    SplitName,
    Time,
    Unique,
    Unit,
    User,
    option,
)
from talerec.errors import TalerecError

_PANEL = "Judge"


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples(
        "talerec evaluate events.csv",
        "talerec evaluate events.csv --ties random:0..4 --report how-good.html",
        "talerec evaluate events.csv --split at:2019-10-01 --set decay=1/512 --json",
        "talerec evaluate events.csv --model slit --out slit.parquet",
    ),
)
def evaluate(
    log: LogFile,
    model: ModelName = None,
    params: Params = None,
    set: Settings = [],  # noqa: B006
    split: SplitName = "leave-one-out",
    refit: Refit = False,
    on: Annotated[
        str, option("--on", metavar="test|validation", help="Which rows are scored.")
    ] = "test",
    k: Annotated[str, option("--k", metavar="K,...", help="Cut-offs.")] = "1,5,10",
    hide_seen: HideSeen = False,
    out: Annotated[
        Path | None,
        option("--out", metavar="FILE.parquet", help="Keep one row per case, for talerec compare."),
    ] = None,
    report: Report = None,
    user: User = "user_id",
    item: Item = "item_id",
    time: Time = "timestamp",
    time_unit: Unit = None,
    any_time: AnyTime = False,
    core: Core = None,
    ties: Orders = "file",
    drop_duplicates: Unique = False,
    json: Json = False,
) -> None:
    """Hold rows back, fit on the rest, and rank every item for every case."""
    from dataclasses import replace

    from talerec.cli import terminal
    from talerec.data import preprocessing
    from talerec.data.splits import Plan
    from talerec.evaluation import evaluation
    from talerec.runtime.clock import Clock
    from talerec.runtime.files import check_writable

    made, plan = make_model(model, params, set), Plan(split, refit)
    ks = cutoffs(k)
    plan.check(on)
    preprocessing.tie_orders(ties)
    for path in filter(None, (out, report)):
        check_writable(path)
    names = (user, item, time)
    with talking(json):
        clock = Clock()
        with clock("load"):
            rows = read(log, names, time_unit, any_time, core=core, drop_duplicates=drop_duplicates)
        result = evaluation.evaluate_log(
            made, rows, plan, ties=ties, on=on, k=ks, hide_seen=hide_seen
        )
        result = replace(result, seconds={**result.seconds, **clock.seconds})
        if out is not None:
            result.save(out)
        if report is not None:
            _report(report, "evaluation", result, str(log))
    if json:
        terminal.as_json(result.to_dict())
    else:
        terminal.evaluation(result)


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples(
        "talerec tune events.csv --trials 100 -o best.json",
        "talerec tune events.csv --study shop.db --workers 2 --set solver=local",
        "talerec tune events.csv --grid paper --report sensitivity.html",
        "talerec fit events.csv -o shop.tale --params best.json",
    ),
)
def tune(
    log: LogFile,
    model: ModelName = None,
    set: Settings = [],  # noqa: B006
    trials: Annotated[int, option("--trials", metavar="N", help="Settings to try.")] = 50,
    grid: Annotated[
        str | None,
        option("--grid", metavar="paper", help="The paper's values, one parameter at a time."),
    ] = None,
    metric: Annotated[str, option("--metric", metavar="M@K", help="What is raised.")] = "NDCG@10",
    output: Annotated[
        Path | None,
        option("-o", "--output", metavar="FILE.json", help="For talerec fit --params."),
    ] = None,
    study: Annotated[
        Path | None,
        option(
            "--study",
            metavar="FILE.db",
            help="Keep every trial here (SQLite); the same call again goes on where it stopped.",
        ),
    ] = None,
    workers: Annotated[
        int, option("--workers", metavar="N", help="Processes that search one study.")
    ] = 1,
    seed: Annotated[int, option("--seed", metavar="N", help="Of the search.")] = 0,
    split: SplitName = "leave-one-out",
    hide_seen: HideSeen = False,
    report: Report = None,
    user: User = "user_id",
    item: Item = "item_id",
    time: Time = "timestamp",
    time_unit: Unit = None,
    any_time: AnyTime = False,
    core: Core = None,
    ties: Orders = "file",
    drop_duplicates: Unique = False,
    json: Json = False,
) -> None:
    """Choose a model's parameters on validation rows; test rows play no part. --set fixes some."""
    from talerec.cli import terminal
    from talerec.evaluation import tuning
    from talerec.models import model_class, params
    from talerec.runtime.files import check_writable

    kind = model_class(model or "tale")
    fixed = params.parse(kind, set)
    for path in filter(None, (output, study, report)):
        check_writable(path)
    names = (user, item, time)
    with talking(json):
        rows = read(log, names, time_unit, any_time, core=core, drop_duplicates=drop_duplicates)
        found = tuning.tune(
            kind, rows, split, trials=trials, grid=grid, fixed=fixed, metric=metric, ties=ties,
            hide_seen=hide_seen, study=study, workers=workers, seed=seed,
        )  # fmt: skip
        if output is not None:
            found.save(output)
        if report is not None:
            _report(report, "tuning", found, str(log))
    if json:
        terminal.as_json(found.to_dict())
    else:
        terminal.tuning(found, output)


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples(
        "talerec evaluate events.csv --model slit --out slit.parquet",
        "talerec evaluate events.csv --model tale --out tale.parquet",
        "talerec compare slit.parquet tale.parquet --report better.html",
    ),
)
def compare(
    a: Annotated[Path, typer.Argument(metavar="RESULT_A", help="From evaluate --out.")],
    b: Annotated[Path, typer.Argument(metavar="RESULT_B", help="Of the same cases.")],
    report: Report = None,
    json: Json = False,
) -> None:
    """Is B better than A? A paired test over users, with interval and effect size."""
    from talerec.cli import terminal
    from talerec.evaluation import comparison
    from talerec.evaluation.result import Evaluation
    from talerec.runtime.files import check_writable

    if report is not None:
        check_writable(report)
    with talking(json):
        found = comparison.compare(Evaluation.load(a), Evaluation.load(b))
        if report is not None:
            _report(report, "comparison", found, f"{a.name} and {b.name}")
    if json:
        terminal.as_json(found.to_dict())
    else:
        terminal.comparison(found)


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples(
        "talerec reproduce --data data",
        "talerec reproduce --data data --only beauty,yelp -o beauty-and-yelp",
    ),
)
def reproduce(
    data: Annotated[
        Path,
        option(
            "--data", metavar="DIR", help="Where MovieLens, Amazon or Yelp files are looked for."
        ),
    ] = Path("data"),
    only: Annotated[
        str | None,
        option("--only", metavar="NAME,...", help="Some of ml-1m, beauty, toys, sports, yelp."),
    ] = None,
    out: Annotated[
        Path,
        option("-o", "--out", metavar="DIR", help="Results; the same call again goes on there."),
    ] = Path("reproduction"),
    json: Json = False,
) -> None:
    """The paper's tables and figures beside its numbers, and what it does not show."""
    from talerec.cli import terminal
    from talerec.repro import experiments, pages

    if out.exists() and not out.is_dir():
        raise TalerecError(f"{out} is a file; the results go to a folder")
    with talking(json):
        studies = experiments.run(data, out, ids(only) or [])
        text, html = pages.write(studies, out)
    if json:
        found = {s.dataset.key: {row: s.row(row) for row in s.rows} for s in studies}
        terminal.as_json({"results": str(text), "page": str(html), "rows": found})
    else:
        terminal.line(f"{text} and {html}")


def _report(path: Path, kind: str, found: Any, source: str) -> None:
    from talerec.reports import report
    from talerec.runtime.files import write_text

    write_text(path, getattr(report, kind)(found, source))
