"""The command that recommends to every user of a log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from talerec.cli.app import Context, Panel, command, explicit_options
from talerec.cli.groups import EngineOptions, LogSource
from talerec.cli.item_rules import ItemRules, PlaceRules
from talerec.cli.options import Artifact, Json, K, Titles, out
from talerec.cli.recommend import check_lists_file
from talerec.cli.refit_options import (
    fit_options,
    naming_options,
    read_rows,
    restore_options,
    split_context,
)
from talerec.cli.terminal import print_json, print_line, reporting
from talerec.columns import USER
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.models.core import RecommendOptions


@command(
    Panel.ASK,
    "talerec lists shop.tale events.parquet -o lists.parquet",
    "talerec lists shop.tale today.csv yesterday.csv -o lists.csv -k 20 --hide-seen",
    "talerec lists shop.tale s3a://shop/events -o s3a://shop/next --engine spark"
    " --master spark://host:7077",
)
def lists(
    invocation: Context,
    model: Artifact,
    source: LogSource,
    path: Annotated[
        str, out("FILE", "A .parquet, .csv or .ndjson file for the lists; on Spark, a folder.")
    ],
    engine: EngineOptions,
    *,
    k: K = 10,
    rules: ItemRules,
    places: PlaceRules,
    titles: Titles = False,
    json: Json = False,
) -> None:
    """Recommend to every user of a log, which need not be the model's training log.

    Rows are read as the fit read its log. Items unknown to the model keep their places in a
    history. --context COLUMN=VALUE says the situation of all requests.
    """
    explicit = explicit_options(invocation) - {"context"}
    source, request_context = split_context(source)
    if engine.is_spark and request_context:
        raise TalerecError("--context needs --engine local")
    options = rules.build(k, places, request_context)
    engine.check()
    if engine.is_spark and places.slot:
        raise TalerecError("--slot needs --engine local")
    if engine.is_spark and titles:
        raise TalerecError("--titles needs --engine local")
    if source.core is not None:
        raise TalerecError("--core is for fit; the model has fixed items")
    if not engine.is_spark:
        check_lists_file(Path(path), [model, *source.log])
    with reporting(json):
        if engine.is_spark:
            _write_lists_on_spark(model, source, explicit, engine, path, options, json)
        else:
            _write_lists(model, source, explicit, Path(path), options, json, titles)


def _write_lists(
    artifact: Path,
    source: LogSource,
    explicit: set[str],
    path: Path,
    options: RecommendOptions,
    json: bool,
    titles: bool,
) -> None:
    """Write the recommendation lists of all users of a log to `path`, and print the counts.

    The log is read with the options that the fit of the saved model `artifact` used; `explicit`
    names the options that the command line sets instead. With `json`, the counts are JSON, and with
    `titles` the file has a column of titles.
    """
    import numpy as np

    from talerec.cli.items import output_lists
    from talerec.data import order_ties
    from talerec.models import load
    from talerec.models.core import encode_log

    model = load(artifact)
    training = model.fitted.training
    saved = fit_options(training, source, explicit)
    with naming_options(saved):
        rows = read_rows(model, restore_options(source, saved))
    log = order_ties(encode_log(model, rows), training["ties"])
    output_lists(model, log, np.arange(len(log.users)), options, path, json=json, titles=titles)


def _write_lists_on_spark(
    artifact: Path,
    source: LogSource,
    explicit: set[str],
    engine: EngineOptions,
    path: str,
    options: RecommendOptions,
    json: bool,
) -> None:
    """Write the recommendation lists of a log's users to a folder of Parquet files, on Spark.

    The log is read with the options that the fit of the saved model `artifact` used; `explicit`
    names the options that the command line sets instead. The counts are printed, with `json` as
    JSON. `engine` says how to reach the cluster; `path` is the folder.
    """
    from talerec import spark  # reports by itself that pyspark is missing
    from talerec.artifact import read_manifest

    training = read_manifest(artifact)["training"]
    ties = training.get("ties", "file")
    saved = fit_options(training, source, explicit | {"sep"})  # Parquet has no separators
    with naming_options(saved), engine.session(restore_options(source, saved)) as job:
        job.pop("core")
        local = ("context", "slots")  # which Spark does not take
        rules = {name: value for name, value in vars(options).items() if name not in local}
        frame = spark.recommend(artifact, output=path, ties=ties, **job, **rules)
        rows, users = frame.count(), frame.select(USER).distinct().count()
    if json:
        print_json({"path": path, "rows": rows, "users": users})
    else:
        print_line(f"{path}: {rows:,} rows for {users:,} users")
