"""The command that searches for a model's best parameters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from talerec.cli.app import Panel, command
from talerec.cli.completion import complete_values
from talerec.cli.groups import LogSource
from talerec.cli.item_tables import ItemTableOptions
from talerec.cli.options import (
    HideSeen,
    Json,
    ModelName,
    Report,
    Settings,
    SplitName,
    TieOrders,
    option,
    out,
)
from talerec.cli.progress import print_status
from talerec.cli.result_output import check_outputs, print_result
from talerec.cli.terminal import reporting

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
        "--study",
        "FILE.db|none",
        "Keep all trials in this SQLite file, in which a repeated command resumes; by default"
        " best.trials.db beside -o best.json, else tune.trials.db.",
        complete=complete_values("none"),
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
    from talerec.reports import render_result

    kind = model_class(model or DEFAULT)
    fixed = parse_settings(kind, set)
    fixed_model = build_model(kind, fixed)
    check_tuning_ready(fixed_model, grid)
    source.check_context(fixed_model)
    table.check()
    study, note = _choose_study(study, path, grid)
    check_outputs([path, study, report], [*source.log, table.items])
    with reporting(json):
        if note and not json:
            print_status(note)
        items = table.read(source.item)
        log = source.read(any_order=ties != "file", needs_time=fixed_model.needs_time)
        log = table.attach(log, items)
        result = tune(
            kind, log, split, trials=trials, grid=grid, fixed=fixed, metric=metric,
            ties=ties, hide_seen=hide_seen, study=study, workers=workers, seed=seed,
        )  # fmt: skip
        if path is not None:
            result.save(path)
        if report is not None:
            render_result(result, source.name).save(report)
    arguments = f"{source.format_arguments(ties)} {table.format_arguments()}".strip()
    print_result("tuning", result, json, path, arguments)


def _choose_study(
    study: Path | None, path: Path | None, grid: str | None
) -> tuple[Path | None, str | None]:
    """Return the file that keeps trials (None: no file), and a note if nobody named it.

    `study` and `path` are the values of --study (None: a file beside `path`, --out, or in the
    current folder) and --out. A `grid` has no study.
    """
    if study is not None and str(study) != "none":
        return study, None
    if study is not None or grid is not None:
        return None, None
    study_path = (path or Path("tune.json")).with_suffix(".trials.db")
    if not os.access(study_path.parent, os.W_OK):
        return None, f"{study_path} cannot be written: trials are not kept (--study names a file)"
    return study_path, (
        f"trials are kept in {study_path}, where the same command continues (--study none: nowhere)"
    )
