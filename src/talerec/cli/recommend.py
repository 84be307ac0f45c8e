"""Commands that query a saved model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from talerec.cli.app import Context, Panel, command, explicit_options
from talerec.cli.completion import complete_values
from talerec.cli.groups import EngineOptions, ItemRules, LogSource
from talerec.cli.list_options import ListOptions, Per
from talerec.cli.options import Artifact, Json, K, RequestContext, argument, option, out, parse_ids
from talerec.cli.refit_options import (
    fit_options,
    naming_options,
    read_rows,
    restore_options,
    split_context,
)
from talerec.cli.terminal import join_first, print_json, print_line, reporting
from talerec.columns import ITEM, USER
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.data import Log
    from talerec.models.core import Model, RecommendOptions
    from talerec.runtime import Array

logger = logging.getLogger("talerec")

MANY_USERS = 1000  # with more, lists are printed one by one as they are computed

Users = Annotated[
    str | None,
    option(
        "--users",
        "IDS|@FILE|all",
        "Users of the training log: ids separated by commas, @FILE (one id per line, or"
        " Parquet), or all.",
        alias="--user",
        complete=complete_values("all"),
    ),
]
Histories = Annotated[
    list[str], option("--history", "IDS", "Item ids separated by commas, oldest first; repeatable.")
]


@command(
    Panel.ASK,
    "talerec recommend shop.tale --users 17,42 --hide-seen",
    "talerec recommend shop.tale --users all -k 20 -o lists.parquet",
    "talerec recommend shop.tale --users 17 --where \"category = 'tents' and price < 100\""
    " --per brand=2",
    "talerec recommend shop.tale --users 17 --boost brand=Acme:0.2 --boost in_stock=false:-0.5",
    "talerec recommend shop.tale --history tent,stove --as-of 2026-11-15",
)
def recommend(
    model: Artifact,
    *,
    users: Users = None,
    history: Histories = [],  # noqa: B006 (Typer reads the default, nobody changes it)
    shape: ListOptions,
    rules: ItemRules,
    path: Annotated[
        Path | None, out("FILE", "Write the lists of --users to a .parquet, .csv or .ndjson file.")
    ] = None,
    json: Json = False,
) -> None:
    """Recommend items to users of the training log, or after histories."""
    # shape, rules: options of the list's length, its items, and the request
    from talerec.cli.items import Shortfall, format_histories, output_lists, print_recommendations
    from talerec.models import load

    if (users is None) == (not history):
        raise TalerecError("use either --users or --history")
    options = rules.build(shape.k, shape.per, shape.context)
    if path is not None:
        _check_users_output(path, model, users)
    headings: dict[Any, str]
    with reporting(json):
        loaded = load(model)
        if users is None:
            histories = [parse_ids(text) or [] for text in history]
            frame = loaded.recommend_histories(histories, **vars(options))
            headings = format_histories(loaded, histories)
            positions = [loaded.fitted.items.positions(h, "item", "skip") for h in histories]
        else:
            log = _saved_log(loaded, model)
            selected = _find_users(log, users, options.unknown)
            if path is not None or (json and len(selected) > MANY_USERS):
                output_lists(loaded, log, selected, options, path, json=json)
                return
            user_ids = log.users.ids.gather(selected).to_list()
            frame = loaded.recommend(user_ids, **vars(options))
            headings = {user: f"User {user}" for user in user_ids}
            positions = _history_items(loaded, log, selected, options)
    shortfall, rows = Shortfall(loaded, options), dict(zip(headings, positions, strict=True))
    print_recommendations(
        loaded, frame, headings, lambda key, n: shortfall.explain(rows[key], n), json=json
    )


def _check_users_output(path: Path, model: Path, users: str | None) -> None:
    """Raise TalerecError if the lists of --users cannot be written to `path`.

    Also without --users, whose value is `users`. The file must not be the saved model `model` or
    the file of user ids in `users` (@FILE).
    """
    if users is None:
        raise TalerecError("--out needs --users; lists of --history are printed")
    _check_lists_file(path, [model, users[1:] if users.startswith("@") else None])


def _check_lists_file(path: Path, inputs: list[Any]) -> None:
    """Raise TalerecError if recommendation lists cannot be written to the file `path`.

    Its ending must be .parquet, .csv, .ndjson or .jsonl, and it must not be one of `inputs`, paths
    that the command reads (None entries are ignored).
    """
    from talerec.data.read import refuse_overwriting
    from talerec.runtime import check_table_format, check_writable

    check_table_format(check_writable(path))
    refuse_overwriting([path], inputs)


def _find_users(log: Log, text: str, unknown: str) -> Array:
    """Return the users that --users names as positions among the log's users, each once.

    `text` is the value of --users: all, @FILE or ids separated by commas. `unknown` is what to do
    with ids that the log does not have: error, or skip (which is logged). TalerecError if no user
    is named.
    """
    import numpy as np

    if text == "all":
        return np.arange(len(log.users))
    ids = _read_ids(Path(text[1:])) if text.startswith("@") else parse_ids(text) or []
    if not ids:
        raise TalerecError(f"--users {text!r} names no user")
    positions = log.users.positions(ids, "user", unknown)
    skipped = [user for user, position in zip(ids, positions, strict=True) if position < 0]
    if skipped:
        logger.info("skipped users unknown to the model: %s", join_first(skipped))
    positions = positions[positions >= 0]
    return positions[np.sort(np.unique(positions, return_index=True)[1])]


def _history_items(model: Model, log: Log, users: Array, options: RecommendOptions) -> list[Array]:
    """Return the items (positions) of each user's rows before the request time of `options`.

    `users` are positions among the users of `log`, the model's training log.
    """
    from talerec.models.core import user_histories

    histories = user_histories(log, users, options.request_time(model.fitted.unit))
    bounds = zip(histories.start, histories.stop, strict=True)
    return [histories.item[start:stop] for start, stop in bounds]


def _saved_log(model: Model, path: Path, flag: str = "--users") -> Log:
    """Return the training log that a model was saved with.

    TalerecError without one, which names the model's `path` and the flag that needs the log.
    """
    if model.fitted.log is None:
        raise TalerecError(f"{path} was saved without histories; use --history, not {flag}")
    return model.fitted.log


def _read_ids(path: Path) -> list[Any]:
    """Return the user ids in a file: a text file with one id per line, or a Parquet file.

    TalerecError if the file is neither.
    """
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_id_column(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise TalerecError(f"{path} is not a text file with one id per line") from None
    return [line.strip() for line in lines if line.strip()]


def _read_id_column(path: Path) -> list[Any]:
    """Return the distinct ids in the column user_id, or the only column, of a Parquet file.

    TalerecError if the file does not exist, cannot be read, or has no such column.
    """
    import polars as pl

    if not path.exists():
        raise TalerecError(f"{path} does not exist")
    try:
        frame = pl.scan_parquet(path, glob=False)
        names = frame.collect_schema().names()
        name = USER if USER in names else names[0] if len(names) == 1 else None
        if name is None:
            raise TalerecError(f"{path} has no column {USER}; its columns are {', '.join(names)}")
        return frame.select(name).drop_nulls().unique(maintain_order=True).collect()[name].to_list()
    except pl.exceptions.PolarsError as error:
        raise TalerecError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


# -- lists of another log --------------------------------------------------------------------------


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
    per: Per = [],  # noqa: B006 (Typer reads the default, nobody changes it)
    json: Json = False,
) -> None:
    """Recommend to every user of a log, which need not be the model's training log.

    Rows are read as the fit read its log. Items unknown to the model keep their places in a
    history. --context COLUMN=VALUE says the situation of all requests.
    """
    explicit = explicit_options(invocation) - {"context"}
    source, said = split_context(source)
    if engine.is_spark and said:
        raise TalerecError("--context needs --engine local")
    options = rules.build(k, per, said)
    engine.check()
    if source.core is not None:
        raise TalerecError("--core is for fit; the model has fixed items")
    if not engine.is_spark:
        _check_lists_file(Path(path), [model, *source.log])
    with reporting(json):
        if engine.is_spark:
            _write_lists_on_spark(model, source, explicit, engine, path, options, json)
        else:
            _write_lists(model, source, explicit, Path(path), options, json)


def _write_lists(
    artifact: Path,
    source: LogSource,
    explicit: set[str],
    path: Path,
    options: RecommendOptions,
    json: bool,
) -> None:
    """Write the recommendation lists of all users of a log to `path`, and print the counts.

    The log is read with the options that the fit of the saved model `artifact` used; `explicit`
    names the options that the command line sets instead. With `json`, the counts are JSON.
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
    output_lists(model, log, np.arange(len(log.users)), options, path, json=json)


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
        rules = {name: value for name, value in vars(options).items() if name != "context"}
        frame = spark.recommend(artifact, output=path, ties=ties, **job, **rules)
        rows, users = frame.count(), frame.select(USER).distinct().count()
    if json:
        print_json({"path": path, "rows": rows, "users": users})
    else:
        print_line(f"{path}: {rows:,} rows for {users:,} users")


# -- one item --------------------------------------------------------------------------------------


@command(Panel.ASK, "talerec similar shop.tale tent -k 5")
def similar(
    model: Artifact,
    item: Annotated[str, argument("ITEM", "An item id.")],
    k: K = 10,
    json: Json = False,
) -> None:
    """Recommend items after one item alone."""
    from talerec.cli.items import find_titles, format_history, list_json, print_list
    from talerec.models import load

    with reporting(json):
        loaded = load(model)
        frame = loaded.similar_items(item, k)
    titles = find_titles(loaded, [item, *frame[ITEM]])
    if json:
        print_json({"item_id": _typed_id(loaded, item), "items": list_json(frame, titles)})
    else:
        print_list(format_history([item], titles), frame, titles)


def _typed_id(model: Model, item: str) -> Any:
    """Return an item id in the type of the model's ids: the number 5 for the text "5".

    UnknownIdError if the model does not know the item.
    """
    items = model.fitted.items
    return items.ids[int(items.positions([item], "item", "error")[0])]


@command(
    Panel.ASK,
    "talerec explain shop.tale --user 17 --item lantern",
    "talerec explain shop.tale --history tent,stove --item lantern",
)
def explain(
    model: Artifact,
    item: Annotated[str, option("--item", "ID", "The item whose score is explained.")],
    *,
    user: Annotated[
        str | None, option("--user", "ID", "A user of the training log, with the user's history.")
    ] = None,
    history: Annotated[
        str | None, option("--history", "IDS", "Item ids separated by commas, oldest first.")
    ] = None,
    rules: ItemRules,
    context: RequestContext = [],  # noqa: B006
    json: Json = False,
) -> None:
    """Show what each history row, and each boost, adds to the score of an item.

    For a ranker, also what each family of features adds, such as repeats and popularity.
    """
    from talerec.cli.items import print_explanation
    from talerec.models import load

    if (user is None) == (history is None):
        raise TalerecError("use either --user or --history")
    built = rules.build(context=context)
    options = {**vars(built)}
    del options["k"], options["per"]  # an explanation is about one item
    with reporting(json):
        loaded = load(model)
        if user is None:
            rows: list[Any] = parse_ids(history) or []
            frame = loaded.explain(rows, item, **options)
            families = loaded.explain(rows, item, **options, by="families")
        else:
            log = _saved_log(loaded, model, "--user")
            position = log.users.positions([user], "user", "error")
            (items,) = _history_items(loaded, log, position, built)
            rows = log.items.ids.gather(items).to_list()
            frame = loaded.explain_user(user, item, **options)
            families = loaded.explain_user(user, item, **options, by="families")
    print_explanation(loaded, rows, _typed_id(loaded, item), frame, families, json=json)
