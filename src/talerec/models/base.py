"""The contract that every model keeps: Log -> weights -> scores -> ranks, ids outside, positions inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl

from talerec import artifact, columns
from talerec.data.histories import Histories
from talerec.data.log import Log, Vocabulary
from talerec.data.times import Moment, microseconds
from talerec.errors import NotFittedError, TalerecError
from talerec.models import params
from talerec.ranking import rank
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock
from talerec.runtime.threads import even

Ids = Sequence[Any] | pl.Series

_BLOCK = (
    65_536  # histories turned into queries at a time: memory does not grow with the number of users
)


#: Days before the log's last row: what was popular in them is shown where nothing is known of the asker.
RECENT_DAYS = 7.0


@dataclass(frozen=True, eq=False)
class Fitted:
    """What fitting leaves behind."""

    weights: Weights
    items: Vocabulary
    info: pl.DataFrame | None
    log: Log | None  # training histories; None in an artifact saved without them
    solver: str | None
    seconds: dict[str, float]
    training: dict[str, Any]
    kept_recent_counts: Array | None = None

    @cached_property
    def recent_counts(self) -> Array | None:
        """Rows of each item in the training log's last days: what to show where nothing is known of the asker."""
        return self.kept_recent_counts if self.log is None else self.log.counts(RECENT_DAYS)


class FitCache:
    """What one fit leaves for the next: the last result of each step, and what it was made from."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, Any]] = {}

    def cached(self, step: str, key: Any, make: Callable[[], Any]) -> Any:
        """The last result of a step where it was made from the same `key`, else a new one."""
        if step not in self._last or self._last[step][0] != key:
            self._last.pop(step, None)  # the old one goes before the new one is made
            self._last[step] = (key, make())
        return self._last[step][1]


class Model(params.HasParams, ABC):
    """A recommender. Subclasses are dataclasses whose fields are the hyper-parameters."""

    name: ClassVar[str]
    paper: ClassVar[str]
    weighs_items: ClassVar[bool] = True  # sources are items of the history
    _fitted: Fitted | None = None
    _cache: FitCache | None = None

    # -- what a model defines --

    @abstractmethod
    def learn(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Weights from a log, and the name of the solver that made them (None: no system was solved)."""

    @abstractmethod
    def query(self, histories: Histories, marks: Array) -> Query:
        """x: how much each item of a history counts. `marks`: zeros, one per item, left as found."""

    # -- fitting --

    def fit(self, log: Log, *, cache: FitCache | None = None) -> Self:
        """Learn from every row of `log`. What `cache` holds from an earlier fit of the same rows is not computed again."""
        if not log.rows:
            raise TalerecError("the log is empty: it has no rows to learn from")
        clock = Clock()
        self._cache = cache
        try:
            weights, solver = self.cached(params.SOLVE, log, lambda: self.learn(log, clock))
        finally:
            self._cache = None
        training = {
            "users": len(log.users),
            "items": len(log.items),
            "rows": log.rows,
            "first_time": int(log.time.min()),
            "last_time": int(log.time.max()),
            "ties": log.ties,
            "time_read_as": log.unit,
        }
        self._fitted = Fitted(weights, log.items, log.info, log, solver, clock.seconds, training)
        return self

    def cached(self, stage: str, log: Log, make: Callable[[], Any]) -> Any:
        """What a step of the fit makes of the log, unless another fit has left just that."""
        if self._cache is None:
            return make()
        known = (type(self), log, params.until(self, stage))
        return self._cache.cached(stage, known, make)

    @property
    def fitted(self) -> Fitted:
        if self._fitted is None:
            raise NotFittedError(f"this {self.name} model is not fitted yet: call fit(log) first")
        return self._fitted

    def with_params(self, **changes: Any) -> Self:
        """The same fitted model with other parameters for its queries, such as `recency`; nothing is learned again."""
        other: Self = params.build(type(self), {**self.params, **changes})
        other._fitted = self.fitted
        return other

    def _forget_fit(self) -> None:
        self._fitted = None

    @property
    def weights(self) -> Any:
        """B, source (row) x target item (column): a NumPy array or a SciPy CSR array. Sources are items, as a rule."""
        return self.fitted.weights.matrix

    @property
    def item_ids(self) -> pl.Series:
        """External item ids in position order."""
        return self.fitted.items.ids

    # -- recommending --

    def recommend(
        self,
        users: Ids,
        k: int = 10,
        *,
        hide_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        unknown: str = "error",
        as_of: Moment | None = None,
    ) -> pl.DataFrame:
        """The next items of users from the training log: columns user_id, item_id, score, rank.

        as_of: the moment at which they ask, for models that look at it; None: when the log ends.
        """
        log = self.fitted.log
        if log is None:
            raise TalerecError("this model was saved without histories: use recommend_histories")
        found = log.users.positions(users, "user", unknown)
        found = found[found >= 0]
        allowed = self.allowed(allow, deny, unknown)
        rows = Histories.of_users(log, found).asked(_when(as_of))
        best = self.top(rows, k, hide_seen=hide_seen, allowed=allowed)
        return _frame(best, self.item_ids, log.users.ids[found].alias(columns.USER))

    def recommend_histories(
        self,
        histories: Sequence[Sequence[Any]],
        k: int = 10,
        *,
        hide_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        unknown: str = "error",
        as_of: Moment | None = None,
    ) -> pl.DataFrame:
        """The next items after histories of your own: columns history (its number, from 0), item_id, score, rank.

        A history is a list of item ids, or of (item id, time), oldest first.
        """
        given = Histories.from_ids(histories, self.fitted.items, unknown).asked(_when(as_of))
        allowed = self.allowed(allow, deny, unknown)
        best = self.top(given, k, hide_seen=hide_seen, allowed=allowed)
        numbers = pl.Series(columns.HISTORY, np.arange(len(given)))
        return _frame(best, self.item_ids, numbers)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """What the model expects after this item alone, without the item itself: item_id, score, rank."""
        found = Histories.from_ids([[item]], self.fitted.items, "error")
        best = self.top(found, k, hide_seen=True)
        return _frame(best, self.item_ids, pl.Series("item", [0])).drop("item")

    def explain(
        self,
        history: Sequence[Any],
        item: Any,
        *,
        unknown: str = "error",
        as_of: Moment | None = None,
    ) -> pl.DataFrame:
        """What each row of a history gives to the score of `item`: item_id, contribution; they add up to it.

        Of an item that occurs more than once, the last row counts. A model that gives scores without
        a history has one more row, whose item_id is null.
        """
        fitted = self.fitted
        rows = Histories.from_ids([history], fitted.items, unknown).asked(_when(as_of))
        target = int(fitted.items.positions([item], "item", "error")[0])
        given = self.contributions(rows, np.array([target]))[0]
        names = _names(fitted.items, rows.item)
        if (besides := self.besides(rows, target)) is not None:
            names = names.append(pl.Series([None], dtype=names.dtype))
            given = np.append(given, besides)
        return pl.DataFrame({columns.ITEM: names, columns.SHARE: given})

    def contributions(self, history: Histories, targets: Array) -> Array:
        """What each row of one history (column) gives to the scores of items (rows): here x_i B_ij, once per item."""
        return self.given(self._query(history), history, targets)

    def given(self, x: Query, history: Histories, targets: Array) -> Array:
        """The same, where the history's query is known."""
        shares = np.zeros((len(targets), len(history.item)))
        shares[:, last_rows(history, x.item)] = self.fitted.weights.parts(x, targets)
        return shares

    def answer(
        self,
        histories: Histories,
        k: int,
        *,
        hide_seen: bool = False,
        allowed: Array | None = None,
        most: int = 3,
    ) -> rank.Answer:
        """The first k items of every history, each with those of the history's items that gave it most."""
        self.check_k(k)
        weights, query = self.fitted.weights, self._query(histories)
        mask = rank.Mask.make(histories, hide_seen=hide_seen, allowed=allowed)
        if self.weighs_items:
            return rank.answer(weights, query, mask, k, most)

        def one(q: int) -> rank.Answer:
            x, history = query.one(q), histories.slice(q, q + 1)
            given = partial(self.given, x, history)
            return rank.answer_one(weights, x, mask.one(q), k, most, history.item, given)

        return rank.Answer.joined(map(one, range(len(histories))))

    def row_weights(self, history: Histories) -> Array | None:
        """x_i, what its place leaves of each row of one history; None where rows are not what the model weighs."""
        if not self.weighs_items:
            return None
        x = self._query(history)
        given = np.zeros(len(history.item))
        given[last_rows(history, x.item)] = x.weight
        return given

    def besides(self, history: Histories, target: int) -> float | None:
        """What an item scores whatever the history; None for a model that has no such scores."""
        base = self.fitted.weights.base
        return None if base is None else float(np.nan_to_num(base[target]))

    def rank_targets(self, histories: Histories, targets: Array) -> Array:
        """The rank (from 1) of each history's target among all items, 0 where it has none.

        Two columns: seen items ranked like others, and seen items hidden.
        """
        weights = self.fitted.weights

        def place(part: Histories, a: int, b: int) -> Array:
            mask = rank.Mask.make(part, hide_seen=True, allowed=None)
            return rank.ranks(weights, self._query(part), mask, targets[a:b])

        return np.concatenate([np.empty((0, 2), np.int64), *_blocks(histories, place)])

    def top(
        self, histories: Histories, k: int, *, hide_seen: bool = False, allowed: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """The first k of every history: item positions and scores, both histories x k, and how many of the k there are.

        This is what recommending makes frames of. `allowed`: see the method of that name.
        """
        weights = self.fitted.weights
        self.check_k(k)

        def best(part: Histories, a: int, b: int) -> tuple[Array, Array, Array]:
            mask = rank.Mask.make(part, hide_seen=hide_seen, allowed=allowed)
            return rank.top(weights, self._query(part), mask, k)

        if 0 < len(histories) <= _BLOCK:
            return best(histories, 0, len(histories))
        parts = list(_blocks(histories, best))
        if not parts:
            return np.empty((0, k), np.int32), np.empty((0, k)), np.empty(0, np.int64)
        items, scores, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return items, scores, counts

    def _query(self, histories: Histories) -> Query:
        return self.query(histories, self.fitted.weights.scratch()[4])

    def check_k(self, k: int) -> None:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise TalerecError(f"k is {k!r}; it takes a whole number from 1")
        if k > len(self.item_ids):
            raise TalerecError(f"k is {k}, but the model knows {len(self.item_ids)} items")

    def allowed(self, allow: Ids | None, deny: Ids | None, unknown: str) -> Array | None:
        """Allow and deny lists as one flag per item; None where there are neither."""
        if allow is None and deny is None:
            return None
        items = self.fitted.items
        allowed = np.full(len(items), allow is None, np.uint8)
        for ids, value in ((allow, 1), (deny, 0)):
            if ids is not None:
                found = items.positions(ids, "item", unknown)
                allowed[found[found >= 0]] = value
        return allowed

    # -- keeping --

    def save(
        self,
        path: str | Path,
        *,
        histories: bool = True,
        metrics: dict[str, float | None] | None = None,
    ) -> Path:
        """Write the model to the folder `path` (NAME.tale), whole or not at all.

        metrics: what an evaluation found, for the model's card.
        """
        kept = bundle(self, histories=histories)
        if metrics is not None:
            kept.facts["metrics"] = {
                name: float(value) for name, value in metrics.items() if value is not None
            }
        return artifact.write(path, kept)


def _when(as_of: Moment | None) -> int | None:
    return None if as_of is None else microseconds(as_of)


def _blocks(histories: Histories, work: Callable[[Histories, int, int], Any]) -> Iterator[Any]:
    for a, b in even(len(histories), _BLOCK):
        yield work(histories.slice(a, b), a, b)


def last_rows(history: Histories, items: Array) -> list[int]:
    """The last row of each of these items in one history."""
    last = {item: row for row, item in enumerate(history.item.tolist())}
    return [last[item] for item in items.tolist()]


def _names(items: Vocabulary, positions: Array) -> pl.Series:
    """External ids of positions, null for unknown ones."""
    known = pl.Series(np.where(positions >= 0, positions, 0), dtype=pl.Int64)
    names = items.ids.gather(known)
    return pl.select(pl.when(pl.Series(positions >= 0)).then(names)).to_series()


def _frame(best: tuple[Array, Array, Array], items: pl.Series, askers: pl.Series) -> pl.DataFrame:
    """One row per recommendation: asker, item_id, score, rank."""
    found, scores, counts = best
    there = np.arange(found.shape[1]) < counts[:, None]
    asker, place = np.nonzero(there)
    return pl.DataFrame(
        {
            askers.name: askers[asker],
            columns.ITEM: items[found[there]],
            columns.SCORE: scores[there],
            columns.RANK: place + 1,
        }
    )


# -- artifacts -------------------------------------------------------------------------------------


def bundle(model: Model, *, histories: bool) -> artifact.Bundle:
    """A fitted model as plain facts, arrays and tables."""
    fitted = model.fitted
    arrays = fitted.weights.kept()
    items = pl.DataFrame({columns.ITEM: fitted.items.ids}) if fitted.info is None else fitted.info
    tables = {"items": items}
    if histories and fitted.log is not None:
        log = fitted.log
        arrays |= {"ptr": log.ptr, "item": log.item, "time": log.time}
        tables["users"] = pl.DataFrame({columns.USER: log.users.ids})
    elif fitted.recent_counts is not None:
        arrays["lately"] = fitted.recent_counts
    facts = {
        "model": model.name,
        "params": model.params,
        "solver": fitted.solver,
        "seconds": fitted.seconds,
        "training": fitted.training,
        "has_item_info": fitted.info is not None,
    }
    return artifact.Bundle(facts, arrays, tables)


def restore(model: Model, kept: artifact.Bundle) -> Model:
    """Put what `bundle` kept back into a model with the same parameters."""
    arrays, facts = kept.arrays, kept.facts
    table = kept.tables["items"]
    items = Vocabulary(table[columns.ITEM])
    info = table if facts["has_item_info"] else None
    log = None
    if "ptr" in arrays:
        users = Vocabulary(kept.tables["users"][columns.USER])
        rows = (arrays["ptr"], arrays["item"], arrays["time"])
        training = facts["training"]
        log = Log(
            *rows,
            users,
            items,
            info,
            training.get("time_read_as", "us"),
            training.get("ties", "file"),
        )
    model._fitted = Fitted(
        Weights.restored(arrays, len(items)),
        items,
        info,
        log,
        facts["solver"],
        facts["seconds"],
        facts["training"],
        arrays.get("lately"),
    )
    return model
