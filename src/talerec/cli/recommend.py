"""Commands that query a saved model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from talerec.cli.app import Panel, command
from talerec.cli.completion import complete_values
from talerec.cli.item_rules import ItemRules, ListOptions, PlaceRules
from talerec.cli.options import Artifact, Json, K, RequestContext, argument, option, out, parse_ids
from talerec.cli.terminal import join_first, print_json, reporting
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
    places: PlaceRules,
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
    options = rules.build(shape.k, places, shape.context)
    if path is not None:
        _check_users_output(path, model, users)
    elif shape.titles:
        raise TalerecError("--titles needs --out; printed lists have titles")
    headings: dict[Any, str]
    with reporting(json):
        loaded = load(model)
        if users is None:
            histories = [parse_ids(text) or [] for text in history]
            frame = loaded.recommend_histories(histories, **vars(options))
            headings = format_histories(loaded, histories)
            positions = [loaded.fitted.items.positions(h, "item", "skip") for h in histories]
        else:
            log = _require_saved_log(loaded, model)
            selected = _find_users(log, users, options.unknown)
            if path is not None or (json and len(selected) > MANY_USERS):
                shown = {"json": json, "titles": shape.titles}
                output_lists(loaded, log, selected, options, path, **shown)
                return
            user_ids = log.users.ids.gather(selected).to_list()
            frame = loaded.recommend(user_ids, **vars(options))
            headings = {user: f"User {user}" for user in user_ids}
            positions = _select_history_items(loaded, log, selected, options)
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
    check_lists_file(path, [model, users[1:] if users.startswith("@") else None])


def check_lists_file(path: Path, inputs: list[Any]) -> None:
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


def _select_history_items(
    model: Model, log: Log, users: Array, options: RecommendOptions
) -> list[Array]:
    """Return the items (positions) of each user's rows before the request time of `options`.

    `users` are positions among the users of `log`, the model's training log.
    """
    from talerec.models.core import user_histories

    histories = user_histories(log, users, options.request_time(model.fitted.unit))
    bounds = zip(histories.start, histories.stop, strict=True)
    return [histories.item[start:stop] for start, stop in bounds]


def _require_saved_log(model: Model, path: Path, flag: str = "--users") -> Log:
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
        print_json({"item_id": _cast_id(loaded, item), "items": list_json(frame, titles)})
    else:
        print_list(format_history([item], titles), frame, titles)


def _cast_id(model: Model, item: str) -> Any:
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
    for name in ("k", "per", "slots"):  # an explanation is about one item
        del options[name]
    with reporting(json):
        loaded = load(model)
        if user is None:
            rows: list[Any] = parse_ids(history) or []
            frame = loaded.explain(rows, item, **options)
            families = loaded.explain(rows, item, **options, by="families")
        else:
            log = _require_saved_log(loaded, model, "--user")
            position = log.users.positions([user], "user", "error")
            (items,) = _select_history_items(loaded, log, position, built)
            rows = log.items.ids.gather(items).to_list()
            frame = loaded.explain_user(user, item, **options)
            families = loaded.explain_user(user, item, **options, by="families")
    print_explanation(loaded, rows, _cast_id(loaded, item), frame, families, json=json)
