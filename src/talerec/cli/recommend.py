"""Commands that ask a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli import lists
from talerec.cli.app import Context, Panel, command, given, ids, reporting
from talerec.cli.groups import Engine, Source
from talerec.cli.options import (
    Allow,
    Artifact,
    AsOf,
    Boost,
    Deny,
    ExplainedItem,
    HideSeen,
    History,
    HistoryList,
    ItemId,
    Json,
    K,
    ListsFile,
    ListsPlace,
    OneUser,
    Per,
    Unknown,
    Users,
    Where,
)
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.models.core.base import Model


@command(
    Panel.ASK,
    "talerec recommend shop.tale --users 17,42 --hide-seen",
    "talerec recommend shop.tale --users all -k 20 -o lists.parquet",
    "talerec recommend shop.tale --users 17 --where \"category = 'tents' and price < 100\" --per brand=2",
    "talerec recommend shop.tale --users 17 --boost brand=Acme:0.2 --boost in_stock=false:-0.5",
    "talerec recommend shop.tale --history tent,stove --as-of 2026-11-15",
)
def recommend(
    model: Artifact,
    users: Users = None,
    history: HistoryList = [],  # noqa: B006 (Typer reads the default, nobody changes it)
    k: K = 10,
    hide_seen: HideSeen = False,
    allow: Allow = None,
    deny: Deny = None,
    where: Where = None,
    per: Per = [],  # noqa: B006
    boost: Boost = [],  # noqa: B006
    unknown: Unknown = "error",
    as_of: AsOf = None,
    out: ListsFile = None,
    json: Json = False,
) -> None:
    """Recommend items to users of the training log, or after histories of your own."""
    from talerec.cli import items
    from talerec.cli.shortfall import Fewer
    from talerec.models import load

    if (users is None) == (not history):
        raise TalerecError("give --users or --history, one of the two")
    options = _options(hide_seen, allow, deny, where, per, boost, unknown, as_of)
    if out is not None:
        lists.check(out, model, users)
    with reporting(json):
        made = load(model)
        if users is None:
            histories = [ids(text) or [] for text in history]
            frame = made.recommend_histories(histories, k, **options)
            askers = _headings(made, histories)
            known = [made.fitted.items.positions(one, "item", "skip") for one in histories]
            rows = dict(enumerate(known))
        else:
            asked = lists.users(made, model, users, unknown)
            if out is not None or (json and len(asked) > lists.MANY):
                lists.stream(made, lists.kept_log(made, model), asked, k, out, json=json, **options)
                return
            names = lists.names(made, asked)
            frame = made.recommend(names, k, **options)
            askers = {user: f"User {user}" for user in names}
            rows = dict(zip(names, lists.rows_of(made, asked), strict=True))
    short = Fewer(made, k, options)
    items.recommendations(
        made, frame, askers, lambda key, found: short.why(rows[key], found), json=json
    )


@command(
    Panel.ASK,
    "talerec lists shop.tale events.parquet -o lists.parquet",
    "talerec lists shop.tale today.csv yesterday.csv -o lists.csv -k 20 --hide-seen",
    "talerec lists shop.tale s3a://shop/events -o s3a://shop/next --engine spark --master spark://host:7077",
    name="lists",
)
def lists_of_log(
    context: Context,
    model: Artifact,
    source: Source,
    out: ListsPlace,
    engine: Engine,
    k: K = 10,
    hide_seen: HideSeen = False,
    allow: Allow = None,
    deny: Deny = None,
    where: Where = None,
    per: Per = [],  # noqa: B006 (Typer reads the default, nobody changes it)
    boost: Boost = [],  # noqa: B006
    unknown: Unknown = "error",
    as_of: AsOf = None,
    json: Json = False,
) -> None:
    """Recommend to every user of a log, which need not be the one that the model was fitted to.

    Rows are read as the fit read its log. Items that the model does not know keep their places in a history.
    """
    options = _options(hide_seen, allow, deny, where, per, boost, unknown, as_of)
    lists.check_log(source, engine, out, model)
    with reporting(json):
        if engine.is_spark:
            lists.on_spark(model, source, given(context), engine, out, k, options, json)
        else:
            lists.of_log(model, source, given(context), Path(out), k, options, json)


def _options(
    hide_seen: bool,
    allow: str | None,
    deny: str | None,
    where: str | None,
    per: list[str],
    boost: list[str],
    unknown: str,
    as_of: str | None,
) -> dict[str, Any]:
    """What lists are told beside their length, as the library takes it."""
    return {
        "hide_seen": hide_seen, "allow": ids(allow), "deny": ids(deny), "where": where,
        "per": _numbers(per), "boost": _boosts(boost), "unknown": unknown, "as_of": as_of,
    }  # fmt: skip


def _numbers(settings: list[str]) -> dict[str, int]:
    """The settings NAME=N of --per."""
    found: dict[str, int] = {}
    for setting in settings:
        name, _, number = setting.rpartition("=")
        if not name or not number.strip().isdecimal():
            raise TalerecError(f"--per takes COLUMN=N such as category=2, not {setting!r}")
        found[name.strip()] = int(number)
    return found


def _boosts(settings: list[str]) -> dict[str, dict[str, float]] | None:
    """The settings COLUMN=VALUE:NUMBER of --boost."""
    found: dict[str, dict[str, float]] = {}
    for setting in settings:
        name, _, rest = setting.partition("=")
        value, _, number = rest.rpartition(":")
        try:
            found.setdefault(name.strip(), {})[value] = float(number)
        except ValueError:
            value = ""
        if not name.strip() or not value:
            raise TalerecError(
                f"--boost takes COLUMN=VALUE:NUMBER such as brand=X:0.2, not {setting!r}"
            )
    return found or None


def _headings(model: Model, histories: list[list[str]]) -> dict[Any, str]:
    """What stands above the recommendations of each history."""
    from talerec.cli import items

    shown = [item for history in histories for item in items.last_rows(history)]
    names = items.titles(model, shown)
    return {number: items.after(history, names) for number, history in enumerate(histories)}


@command(Panel.ASK, "talerec similar shop.tale tent -k 5")
def similar(model: Artifact, item: ItemId, k: K = 10, json: Json = False) -> None:
    """Show what the model expects right after one item."""
    from talerec.cli import items, terminal
    from talerec.columns import ITEM
    from talerec.models import load

    with reporting(json):
        made = load(model)
        frame = made.similar_items(item, k)
    names = items.titles(made, [item, *frame[ITEM]])
    if json:
        found = items.items_json(frame, names)
        terminal.as_json({"item_id": _own_id(made, item), "items": found})
    else:
        items.ranking(items.after([item], names), frame, names)


def _own_id(model: Model, item: str) -> Any:
    """An item id as the model has it: 5, where the command line says "5"."""
    items = model.fitted.items
    return items.ids[int(items.positions([item], "item", "error")[0])]


@command(
    Panel.ASK,
    "talerec explain shop.tale --user 17 --item lantern",
    "talerec explain shop.tale --history tent,stove --item lantern",
)
def explain(
    model: Artifact,
    item: ExplainedItem,
    user: OneUser = None,
    history: History = None,
    hide_seen: HideSeen = False,
    allow: Allow = None,
    deny: Deny = None,
    where: Where = None,
    boost: Boost = [],  # noqa: B006
    unknown: Unknown = "error",
    as_of: AsOf = None,
    json: Json = False,
) -> None:
    """Show what each row of a user or of a history adds to an item's score, and what boosts add to it."""
    from talerec.cli import items
    from talerec.models import load

    if (user is None) == (history is None):
        raise TalerecError("give --user or --history, one of the two")
    options: dict[str, Any] = {
        "hide_seen": hide_seen, "allow": ids(allow), "deny": ids(deny), "where": where,
        "boost": _boosts(boost), "unknown": unknown, "as_of": as_of,
    }  # fmt: skip
    with reporting(json):
        made = load(model)
        if user is None:
            rows: list[Any] = ids(history) or []
            frame = made.explain(rows, item, **options)
        else:
            rows = lists.items_of(made, model, user)
            frame = made.explain_user(user, item, **options)
    items.explanation(made, rows, _own_id(made, item), frame, json=json)
