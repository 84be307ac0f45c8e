"""Recommendation lists and explanations as tables, JSON and files, with titles of items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from talerec import columns
from talerec.cli.terminal import (
    count_decimals,
    print_heading,
    print_json,
    print_json_list,
    print_line,
    print_note,
    print_table,
)

if TYPE_CHECKING:
    from talerec.data import Log
    from talerec.models.core import Model, RecommendOptions, WrittenLists
    from talerec.runtime import Array

_TITLE = columns.TITLES[0]
_MAX_HEADING = 5  # history items that a heading names
_MAX_EXPLAINED = 10  # history rows that an explanation shows one by one
_MIN_SHARE = 0.01  # of the sum of all absolute contributions; smaller ones are summed
_BASE_SCORE = "any history"
_RANKED = (columns.SCORE, columns.RANK)
_FILTERS = ("allow", "deny", "where")
_FAMILY_HEADER = ["reason", "share", "adds"]

Titles = dict[str, str]  # by item id as text


def find_titles(model: Model, items: Iterable[Any]) -> Titles:
    """Return the titles of item ids in the model's item table, by id as text.

    Unknown items and items without a title are left out.
    """
    table = model.fitted.info
    if table is None or _TITLE not in table.columns:
        return {}
    ids = list(dict.fromkeys(str(item) for item in items))
    positions = model.fitted.items.positions(ids, "item", "skip")
    known_ids = [item for item, position in zip(ids, positions, strict=True) if position >= 0]
    titles = table[_TITLE].gather(positions[positions >= 0]).cast(pl.String)
    pairs = zip(known_ids, titles, strict=True)
    return {item: title for item, title in pairs if title is not None}


def format_item(item: Any, titles: Titles) -> str:
    """Return an item id as printable text, with its title if it has one: `Tent (17)`.

    `titles` are by item id as text; signs that cannot be printed become spaces.
    """
    text = f"{titles[str(item)]} ({item})" if str(item) in titles else str(item)
    return "".join(sign if sign.isprintable() else " " for sign in text)


def format_history(history: Sequence[Any], titles: Titles) -> str:
    """Return the heading of a history's recommendations: "After" and its last five items.

    `history` are item ids, oldest first; `titles` are by item id as text.
    """
    if not history:
        return "After an empty history"
    more = "... " if len(history) > _MAX_HEADING else ""
    return "After " + more + ", ".join(format_item(i, titles) for i in history[-_MAX_HEADING:])


def format_histories(model: Model, histories: Sequence[Sequence[Any]]) -> dict[Any, str]:
    """Return a heading with the last items of each history, by the history's number from 0.

    A history is a sequence of item ids, oldest first.
    """
    shown = [item for history in histories for item in history[-_MAX_HEADING:]]
    titles = find_titles(model, shown)
    return {number: format_history(history, titles) for number, history in enumerate(histories)}


# -- recommendations -------------------------------------------------------------------------------


def print_recommendations(
    model: Model,
    frame: pl.DataFrame,
    headings: dict[Any, str],
    explain_shortfall: Callable[[Any, int], str | None],
    *,
    json: bool,
) -> None:
    """Print the recommendation list of each user or history, as tables or as JSON.

    `json` says whether to print JSON; the model has the titles of items.

    Parameters
    ----------
    frame : polars.DataFrame
        The lists; the first column is the key, a user id or the number of a history.
    headings : dict
        The heading of each key; keys without a list are shown too.
    explain_shortfall : function
        Takes a key and its number of items; returns why they are so few, or None.
    """
    titles, key_column = find_titles(model, frame[columns.ITEM].unique()), frame.columns[0]
    parts = {key[0]: part for key, part in frame.partition_by(key_column, as_dict=True).items()}
    lists = {key: parts.get(key, frame.clear()) for key in headings}
    if json:
        print_json([{key_column: key, "items": list_json(lists[key], titles)} for key in lists])
        return
    for key, heading in headings.items():
        print_list(heading, lists[key], titles, explain_shortfall(key, len(lists[key])))


def print_list(
    heading: str, frame: pl.DataFrame, titles: Titles, shortfall: str | None = None
) -> None:
    """Print one recommendation list as a table of rank, item and score.

    `frame` has the columns rank, item_id and score; `titles` are by item id as text. `shortfall`
    says why the list has fewer items than requested, and is printed unless it is None.
    """
    if frame.is_empty():
        print_heading(heading)
        print_line(f"No recommendations{'' if shortfall is None else f': {shortfall}'}.")
        return
    decimals = count_decimals(frame[columns.SCORE])
    rows = [
        [
            str(row[columns.RANK]),
            format_item(row[columns.ITEM], titles),
            f"{row[columns.SCORE]:.{decimals}f}",
        ]
        for row in frame.iter_rows(named=True)
    ]
    print_table(heading, ["rank", "item", "score"], rows)
    if shortfall is not None:
        noun = "item" if len(frame) == 1 else "items"
        print_note(f"Only {len(frame)} {noun}: {shortfall}.")


def list_json(frame: pl.DataFrame, titles: Titles) -> list[dict[str, Any]]:
    """Return a recommendation list as JSON objects: item_id, title if any, score, rank.

    `frame` has a row per item with these columns; `titles` are by item id as text.
    """
    return [
        {**_describe_item(row[columns.ITEM], titles), **{name: row[name] for name in _RANKED}}
        for row in frame.iter_rows(named=True)
    ]


def _describe_item(item: Any, titles: Titles) -> dict[str, Any]:
    """Return an item as a JSON object: its id and, if it has one, its title.

    `titles` are by item id as text.
    """
    title = {"title": titles[str(item)]} if str(item) in titles else {}
    return {columns.ITEM: item, **title}


@dataclass(frozen=True, eq=False)
class Shortfall:
    """Explains why recommendation lists are shorter than requested."""

    model: Model
    options: RecommendOptions  # with which the lists were computed: k, filters, limits per column

    def explain(self, history: Array, n_items: int) -> str | None:
        """Return why a list has only `n_items` items; None if it has the requested number.

        `history` are the history's items as positions among the model's items, -1 if unknown.
        `self.options` has the filters (allow, deny, where), `hide_seen`, limits per value of a
        column (`per`), and k, the requested number. The text names flags of the command line.
        """
        options = self.options
        if n_items >= options.k:
            return None
        allowed = options.build_filter(self.model).allowed
        n_all = len(self.model.fitted.items)
        is_left = np.ones(n_all, bool) if allowed is None else allowed.astype(bool)
        reasons = []
        if not is_left.all():
            flags = [f"--{name}" for name in _FILTERS if getattr(options, name) is not None]
            verb = "matches" if len(flags) == 1 else "match"
            reasons.append(f"{' and '.join(flags)} {verb} {is_left.sum():,} of {n_all:,} items")
        if options.hide_seen:
            seen = np.unique(history[history >= 0])
            reasons.append(f"--hide-seen leaves out {is_left[seen].sum():,}")
            is_left[seen] = False
        if options.per:
            limits = " and ".join(f"{n} of each {column}" for column, n in options.per.items())
            reasons.append(f"--per allows at most {limits}")
        elif (n_unscored := int(is_left.sum()) - n_items) > 0:
            reasons.append(f"{n_unscored:,} items have no score after this history")
        return "; ".join(reasons)


# -- lists of many users ---------------------------------------------------------------------------


def output_lists(
    model: Model,
    log: Log,
    users: Array,
    options: RecommendOptions,
    path: Path | None,
    *,
    json: bool,
    titles: bool = False,
) -> None:
    """Write the recommendation lists of users to `path`, or print them as JSON if it is None.

    `users` are positions among the log's users; `log` has their histories; `options` has k and the
    filters. With a path, `json` says whether the counts are printed as JSON, and `titles` whether
    the file has a column with the titles of items. Lists are computed and written in groups of
    users: memory does not grow with their number.
    """
    from talerec.models.core import iterate_lists, write_lists

    lists = iterate_lists(model, log, users, options)
    if path is None:
        print_json_list(_describe_lists(model, lists, iter(log.users.ids.gather(users).to_list())))
        return
    start = perf_counter()
    if titles:
        model.add_titles(pl.DataFrame({columns.ITEM: []}))  # TalerecError before any list
        lists = map(model.add_titles, lists)
    written = write_lists(path, lists, len(users))
    seconds = perf_counter() - start
    if json:
        print_json({"path": str(path), **written._asdict(), "seconds": seconds})
    else:
        _print_written(path, written, options.k, seconds)


def _describe_lists(
    model: Model, lists: Iterator[pl.DataFrame], user_ids: Iterator[Any]
) -> Iterator[dict[str, Any]]:
    """Yield the recommendation list of each user as a JSON object, in the order of `user_ids`.

    `lists` are frames of many users' lists, in the same order, without users that have no items;
    such a user yields an empty list.
    """
    for frame in lists:
        titles = find_titles(model, frame[columns.ITEM].unique())
        for part in frame.partition_by(columns.USER, maintain_order=True):
            for user in user_ids:
                if user == part[columns.USER][0]:
                    yield {columns.USER: user, "items": list_json(part, titles)}
                    break
                yield {columns.USER: user, "items": []}
    yield from ({columns.USER: user, "items": []} for user in user_ids)


def _print_written(path: Path, written: WrittenLists, k: int, seconds: float) -> None:
    """Print the counts of a file of recommendation lists, and whether some lists are short.

    `written` counts rows and users; `k` is the number of items requested per user, and `seconds`
    the time that computing and writing took.
    """
    without = f" ({written.without:,} users without recommendations)" if written.without else ""
    print_line(
        f"{path}: {written.rows:,} rows for {written.users:,} users{without}, "
        f"{written.users / max(seconds, 1e-9):,.0f} users per second"
    )
    if written.rows < k * written.users:
        print_note(
            f"Some lists have fewer than {k} items: items without a score are not recommended, nor "
            "are those that --hide-seen or another filter excludes."
        )


# -- explanations ----------------------------------------------------------------------------------


def print_explanation(
    model: Model,
    history: Sequence[Any],
    item: Any,
    frame: pl.DataFrame,
    families: pl.DataFrame,
    *,
    json: bool,
) -> None:
    """Print what each row of a history contributes to the score of an item, as table or JSON.

    `history` are item ids, oldest first. `frame` has a row per history row, in this order, with
    the columns item_id, contribution and, for models of content, shared (what the two items have in
    common); further rows are the model's base score, which no history row contributes, and boosts,
    named in the column boost. `families` has the same score by families of features (columns
    family, reason, contribution, share); no rows if the model has no families.
    """
    titles = find_titles(model, [*history, item])
    score, shares = float(frame[columns.SHARE].sum()), frame[columns.SHARE].to_list()
    has_boosts = columns.BOOST in frame.columns
    boosts = frame[columns.BOOST].to_list() if has_boosts else [None] * len(frame)
    has_links = columns.SHARED in frame.columns
    links = frame[columns.SHARED].to_list() if has_links else [None] * len(frame)
    if json:
        rows = [
            {
                **_describe_item(source, titles),
                columns.SHARE: share,
                **({} if boost is None else {columns.BOOST: boost}),
                **({} if link is None else {columns.SHARED: link}),
            }
            for source, share, boost, link in zip(
                frame[columns.ITEM], shares, boosts, links, strict=True
            )
        ]
        explained = {**_describe_item(item, titles), columns.SCORE: score, "contributions": rows}
        if len(families):
            explained["families"] = families.to_dicts()
        print_json(explained)
        return
    labels, base = _label_rows(history, item, links, titles)
    labels = [*labels, base][: boosts.count(None)]
    labels += [f"boost of {boost}" for boost in boosts if boost is not None]
    decimals = count_decimals([*shares, score])
    total = sum(map(abs, shares)) or 1.0
    cells = [
        [label, f"{100 * share / total:+.0f} %", f"{share:+.{decimals}f}"]
        for label, share in _select_largest_shares(labels, shares, len(history))
    ]
    cells.append(["score", "", f"{score:+.{decimals}f}"])
    title = f"Why {format_item(item, titles)}"
    print_table(title, ["history row", "share", "adds"], cells, has_total=True)
    if base in labels:
        what = "popularity" if base == _BASE_SCORE else "popularity and newness"
        print_note(f"{_BASE_SCORE}: the item's score without a history, such as its {what}")
    if len(families):
        _print_families(families)


def _label_rows(
    history: Sequence[Any], item: Any, links: Sequence[str | None], titles: Titles
) -> tuple[list[str], str]:
    """Return the labels of the rows of a history, and of what no row adds to an item's score.

    `links` has what each row and the item have in common, then why the item has a score without a
    history; None for nothing.
    """
    labels = [
        f"{format_item(row, titles)}{', the same item' if row == item else ''}"
        f"{f': {link}' if link else ''}"
        for row, link in zip(history, links, strict=False)
    ]
    reason = next((link for link in links[len(history) :] if link), None)
    return labels, _BASE_SCORE if reason is None else f"{_BASE_SCORE} ({reason})"


def _print_families(families: pl.DataFrame) -> None:
    """Print what each family of features adds to an item's score, as a table.

    `families` has the columns family, reason, contribution and share.
    """
    adds = families[columns.SHARE].to_list()
    decimals = count_decimals([*adds, sum(adds)])
    cells = [
        [f"{reason} ({family})", f"{100 * share:+.0f} %", f"{number:+.{decimals}f}"]
        for family, reason, number, share in families.iter_rows()
    ]
    cells.append(["score", "", f"{sum(adds):+.{decimals}f}"])
    print_table("The same score by families of features", _FAMILY_HEADER, cells, has_total=True)


def _select_largest_shares(
    labels: list[str], shares: list[float], n_rows: int
) -> list[tuple[str, float]]:
    """Return pairs of label and contribution, those of history rows first, the largest first.

    `labels` and `shares` (contributions to a score) are parallel. The first `n_rows` are history
    rows. Of a long history, at most `_MAX_EXPLAINED` rows are returned, each with at least
    `_MIN_SHARE` of all absolute contributions, and one pair that sums the others. The base score
    and boosts follow.
    """
    contributions = list(zip(labels, shares, strict=True))
    order = sorted(range(n_rows), key=lambda row: -abs(shares[row]))
    n_shown = n_rows
    if n_rows > _MAX_EXPLAINED:
        least = _MIN_SHARE * sum(map(abs, shares))
        n_shown = sum(abs(shares[row]) >= least for row in order[:_MAX_EXPLAINED])
    rows = [contributions[row] for row in order[:n_shown]]
    if n_shown < n_rows:
        summed = sum(shares[row] for row in order[n_shown:])
        rows.append((f"{n_rows - n_shown:,} other rows", summed))
    return rows + contributions[n_rows:]
