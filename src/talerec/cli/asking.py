"""Commands that ask a saved model."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from talerec.cli.app import app, examples, ids, talking
from talerec.cli.options import Artifact, AsOf, HideSeen, Json, K, Unknown, option
from talerec.errors import TalerecError

if TYPE_CHECKING:
    from talerec.models.base import Model

logger = logging.getLogger("talerec")


_PANEL = "Ask a saved model"


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples(
        "talerec recommend shop.tale --users 17,42 --hide-seen",
        "talerec recommend shop.tale --users all -k 20 --json",
        "talerec recommend shop.tale --history tent,stove --as-of 2026-11-15",
    ),
)
def recommend(
    model: Artifact,
    users: Annotated[
        str | None,
        option(
            "--users",
            metavar="IDS|FILE|all",
            help="Users of the training log: ids with commas between, @FILE with one id per line, or all.",
        ),
    ] = None,
    history: Annotated[
        list[str],
        option(
            "--history",
            metavar="IDS",
            help="Item ids, oldest first, commas between; repeat for more histories.",
        ),
    ] = [],  # noqa: B006
    k: K = 10,
    hide_seen: HideSeen = False,
    allow: Annotated[str | None, option("--allow", metavar="IDS", help="Only these items.")] = None,
    deny: Annotated[str | None, option("--deny", metavar="IDS", help="Never these items.")] = None,
    unknown: Unknown = "error",
    as_of: AsOf = None,
    json: Json = False,
) -> None:
    """What next, for users of the training log or for histories of your own."""
    from talerec.cli import terminal
    from talerec.models import load

    if (users is None) == (not history):
        raise TalerecError("give --users or --history, one of the two")
    masks: dict[str, Any] = {
        "hide_seen": hide_seen, "allow": ids(allow), "deny": ids(deny), "unknown": unknown,
        "as_of": as_of,
    }  # fmt: skip
    with talking(json):
        made = load(model)
        if users is not None:
            chosen = _users(made, model, users, unknown)
            askers = {user: f"User {user}" for user in chosen}
            frame = made.recommend(chosen, k, **masks)
        else:
            names, given = terminal.titles(made), [ids(text) or [] for text in history]
            askers = {number: terminal.after(items, names) for number, items in enumerate(given)}
            frame = made.recommend_histories(given, k, **masks)
    terminal.recommendations(made, frame, askers, json=json)


def _users(model: Model, path: Path, text: str, unknown: str) -> list[Any]:
    """The ids that `--users` stands for, as the log has them, each once."""
    from talerec.cli import terminal

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
        logger.info("skipped, not known to the model: %s", terminal.listed(skipped))
    return list(dict.fromkeys(log.users.ids.gather(found[found >= 0]).to_list()))


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise TalerecError(f"{path} is no text file of one id per line") from None
    return [line.strip() for line in lines if line.strip()]


def _own_id(model: Model, item: str) -> Any:
    """An item id as the model has it: 5, where the command line says "5"."""
    items = model.fitted.items
    return items.ids[int(items.positions([item], "item", "error")[0])]


@app.command(rich_help_panel=_PANEL, epilog=examples("talerec similar shop.tale tent -k 5"))
def similar(
    model: Artifact,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="An item id.")],
    k: K = 10,
    json: Json = False,
) -> None:
    """What the model expects right after one item."""
    from talerec.cli import terminal
    from talerec.models import load

    made = load(model)
    frame, names = made.similar_items(item, k), terminal.titles(made)
    if json:
        items = terminal.items_json(frame, names)
        terminal.as_json({"item_id": _own_id(made, item), "items": items})
    else:
        terminal.ranking(terminal.after([item], names), frame, names)


@app.command(
    rich_help_panel=_PANEL,
    epilog=examples("talerec explain shop.tale --history tent,stove --item lantern"),
)
def explain(
    model: Artifact,
    history: Annotated[
        str,
        option("--history", metavar="IDS", help="Item ids, oldest first, commas between."),
    ],
    item: Annotated[str, option("--item", metavar="ID", help="The item whose score is explained.")],
    unknown: Unknown = "error",
    as_of: AsOf = None,
    json: Json = False,
) -> None:
    """What each row of a history gives to an item's score."""
    from talerec.cli import terminal
    from talerec.models import load

    made, rows = load(model), ids(history) or []
    given = made.explain(rows, item, unknown=unknown, as_of=as_of)
    terminal.explanation(made, rows, _own_id(made, item), given, json=json)
