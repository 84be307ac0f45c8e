"""Items on the screen and in JSON: their titles, recommendations, explanations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from talerec import columns
from talerec.cli.terminal import as_json

if TYPE_CHECKING:
    from talerec.models.core.base import Model

_TITLE = columns.TITLES[0]
_NOTHING = "nothing to recommend: no item is left that the history gives a score"
_LAST = 5  # rows of a history that a heading names
_ANY = "any history"
_EXPLAINED = 20  # rows of a history that an explanation shows one by one
_RANKED = (columns.SCORE, columns.RANK)

Titles = dict[str, str]  # by item id as text


def titles(model: Model, items: Iterable[Any]) -> Titles:
    """The titles of these items, where the model has titles for them."""
    info = model.fitted.info
    if info is None or _TITLE not in info.columns:
        return {}
    names = list(dict.fromkeys(str(item) for item in items))
    rows = model.fitted.items.positions(names, "item", "skip")
    known = [(name, row) for name, row in zip(names, rows, strict=True) if row >= 0]
    found = info[_TITLE].gather([row for _, row in known]).cast(pl.String)
    return {name: title for (name, _), title in zip(known, found, strict=True) if title is not None}


def described(item: Any, names: Titles) -> str:
    """An item as people read it: title (id), or the id alone."""
    text = f"{names[str(item)]} ({item})" if str(item) in names else str(item)
    return "".join(sign if sign.isprintable() else " " for sign in text)


def after(history: Sequence[Any], names: Titles) -> str:
    """A history in words: its last rows."""
    if not history:
        return "After nothing"
    more = "... " if len(history) > _LAST else ""
    return "After " + more + ", ".join(described(item, names) for item in last_rows(history))


def last_rows(history: Sequence[Any]) -> Sequence[Any]:
    """The rows that `after` names."""
    return history[-_LAST:]


# -- recommendations -------------------------------------------------------------------------------


def recommendations(
    model: Model,
    frame: pl.DataFrame,
    askers: dict[Any, str],
    why: Callable[[Any, int], str | None],
    *,
    json: bool,
) -> None:
    """What each asker (key in the frame's first column -> heading) is recommended, also if it is nothing.

    `why` says of an asker why so few items were found, where they are fewer than were asked for.
    """
    names, asker = titles(model, frame[columns.ITEM].unique()), frame.columns[0]
    parts = {key[0]: part for key, part in frame.partition_by(asker, as_dict=True).items()}
    nothing = frame.clear()
    if json:
        found = ((key, parts.get(key, nothing)) for key in askers)
        as_json([{asker: key, "items": items_json(part, names)} for key, part in found])
        return
    for key, heading in askers.items():
        part = parts.get(key, nothing)
        ranking(heading, part, names, why(key, len(part)))


def of_users(model: Model, frame: pl.DataFrame, askers: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """The lists of a block of users as JSON objects; those without one among them have none in the frame."""
    names, asker = titles(model, frame[columns.ITEM].unique()), frame.columns[0]
    for part in frame.partition_by(asker, maintain_order=True):
        for key in askers:
            if key == part[asker][0]:
                yield {asker: key, "items": items_json(part, names)}
                break
            yield {asker: key, "items": []}


def ranking(heading: str, frame: pl.DataFrame, names: Titles, why: str | None = None) -> None:
    """Recommendations of one asker as a table, and why they are so few."""
    from talerec.cli import tables

    if frame.is_empty():
        tables.line(f"{heading}: {_NOTHING}" + (f" ({why})" if why else ""))
        return
    digits = tables.decimals(frame[columns.SCORE])
    rows = [
        [
            str(row[columns.RANK]),
            described(row[columns.ITEM], names),
            f"{row[columns.SCORE]:.{digits}f}",
        ]
        for row in frame.iter_rows(named=True)
    ]
    tables.table(heading, ["rank", "item", "score"], rows)
    if why:
        tables.note(why)


def items_json(frame: pl.DataFrame, names: Titles) -> list[dict[str, Any]]:
    """Recommendations of one asker as JSON objects."""
    return [
        {**_item_json(row[columns.ITEM], names), **{n: row[n] for n in _RANKED}}
        for row in frame.iter_rows(named=True)
    ]


def _boost_json(boost: str | None) -> dict[str, str]:
    return {} if boost is None else {columns.BOOST: boost}


def _item_json(item: Any, names: Titles) -> dict[str, Any]:
    title = {"title": names[str(item)]} if str(item) in names else {}
    return {columns.ITEM: item, **title}


# -- explanations ----------------------------------------------------------------------------------


def explanation(
    model: Model, history: Sequence[Any], item: Any, frame: pl.DataFrame, *, json: bool
) -> None:
    """What each row of a history adds to a score. A row beyond them is the model's base score, or a boost."""
    names = titles(model, [*history, item])
    score = float(frame[columns.SHARE].sum())
    boosts = (
        frame[columns.BOOST].to_list() if columns.BOOST in frame.columns else [None] * len(frame)
    )
    shares = frame[columns.SHARE].to_list()
    if json:
        shown = zip(frame[columns.ITEM], shares, boosts, strict=True)
        rows = [
            {**_item_json(name, names), columns.SHARE: given, **_boost_json(boost)}
            for name, given, boost in shown
        ]
        as_json({**_item_json(item, names), columns.SCORE: score, "contributions": rows})
        return
    from talerec.cli import tables

    words = [*(described(row, names) for row in history), _ANY][: boosts.count(None)]
    words += [f"boost of {boost}" for boost in boosts if boost is not None]
    digits = tables.decimals([*shares, score])
    sums = [*_largest(words, shares, len(history)), ("score", score)]
    lines = [[word, f"{given:+.{digits}f}"] for word, given in sums]
    tables.table(f"Why {described(item, names)}", ["history row", "adds"], lines, total=True)
    if _ANY in words:
        tables.note(f"{_ANY}: what the item scores whatever is in it, such as by being popular")


def _largest(words: list[str], shares: list[float], rows: int) -> list[tuple[str, float]]:
    """What is shown of an explanation: everything or, after a long history, the rows that matter most and the sum of the others."""
    every = list(zip(words, shares, strict=True))
    if rows <= _EXPLAINED:
        return every
    order = sorted(range(rows), key=lambda row: -abs(shares[row]))
    shown, others = sorted(order[:_EXPLAINED]), order[_EXPLAINED:]
    rest = (f"{len(others):,} other rows", sum(shares[row] for row in others))
    return [*(every[row] for row in shown), rest, *every[rows:]]
