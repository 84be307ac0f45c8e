"""Commands that ask a saved model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from talerec.cli.app import Panel, command, ids, reporting
from talerec.cli.options import (
    Allow,
    Artifact,
    AsOf,
    Deny,
    ExplainedItem,
    HideSeen,
    History,
    HistoryList,
    ItemId,
    Json,
    K,
    Unknown,
    Users,
)
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.models.base import Model

logger = logging.getLogger("talerec")


@command(
    Panel.ASK,
    "talerec recommend shop.tale --users 17,42 --hide-seen",
    "talerec recommend shop.tale --users all -k 20 --json",
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
    unknown: Unknown = "error",
    as_of: AsOf = None,
    json: Json = False,
) -> None:
    """Recommend items to users of the training log, or after histories of your own."""
    from talerec.cli import items
    from talerec.models import load

    if (users is None) == (not history):
        raise TalerecError("give --users or --history, one of the two")
    options: dict[str, Any] = {
        "hide_seen": hide_seen, "allow": ids(allow), "deny": ids(deny), "unknown": unknown,
        "as_of": as_of,
    }  # fmt: skip
    with reporting(json):
        made = load(model)
        if users is not None:
            chosen = _users(made, model, users, unknown)
            askers = {user: f"User {user}" for user in chosen}
            frame = made.recommend(chosen, k, **options)
        else:
            histories = [ids(text) or [] for text in history]
            askers = _headings(made, histories)
            frame = made.recommend_histories(histories, k, **options)
    items.recommendations(made, frame, askers, json=json)


def _users(model: Model, path: Path, text: str, unknown: str) -> list[Any]:
    """The ids that `--users` stands for, as the log has them, each once."""
    log = model.fitted.log
    if log is None:
        raise TalerecError(f"{path} was saved without histories: use --history, not --users")
    if text == "all":
        return log.users.ids.to_list()
    given = _lines(Path(text[1:])) if text.startswith("@") else ids(text) or []
    if not given:
        raise TalerecError(f"--users {text!r} names no user")
    found = log.users.positions(given, "user", unknown)
    skipped = [user for user, position in zip(given, found, strict=True) if position < 0]
    if skipped:
        from talerec.cli import tables

        logger.info("skipped, not known to the model: %s", tables.listed(skipped))
    return list(dict.fromkeys(log.users.ids.gather(found[found >= 0]).to_list()))


def _lines(path: Path) -> list[str]:
    """The lines of a file that are not blank."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise TalerecError(f"{path} is not a text file with one id per line") from None
    return [line.strip() for line in lines if line.strip()]


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


@command(Panel.ASK, "talerec explain shop.tale --history tent,stove --item lantern")
def explain(
    model: Artifact,
    history: History,
    item: ExplainedItem,
    unknown: Unknown = "error",
    as_of: AsOf = None,
    json: Json = False,
) -> None:
    """Show what each row of a history adds to an item's score."""
    from talerec.cli import items
    from talerec.models import load

    rows = ids(history) or []
    with reporting(json):
        made = load(model)
        frame = made.explain(rows, item, unknown=unknown, as_of=as_of)
    items.explanation(made, rows, _own_id(made, item), frame, json=json)
