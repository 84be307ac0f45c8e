"""The contract that every model keeps: Log -> weights -> scores -> ranks, ids outside, positions inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl

from talerec import artifact, columns
from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.data.times import Moment, microseconds
from talerec.errors import NotFittedError, TalerecError
from talerec.models import asking, frames, keeping, params
from talerec.models.asking import Ids
from talerec.models.cache import FitCache
from talerec.models.keeping import Fitted
from talerec.ranking.weights import Query, Weights
from talerec.runtime.arrays import Array
from talerec.runtime.clock import Clock


class Model(params.HasParams, ABC):
    """A recommender: it is fitted on a log, and then says what comes next.

    Subclasses are dataclasses whose fields are the hyper-parameters. They define `learn` and `query`; where a source
    of a query is not an item of the history (`weighs_items` is false), `contributions` too.

    Examples
    --------
    >>> import talerec as tr
    >>> model = tr.Markov().fit(tr.synthetic_log(users=50, items=20))
    >>> model.recommend_histories([[model.item_ids[0]]], k=1).columns
    ['history', 'item_id', 'score', 'rank']
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    weighs_items: ClassVar[bool] = True  # sources stand for items of the history
    extra: ClassVar[str | None] = None  # the optional library that it needs
    _fitted: Fitted | None = None
    _cache: FitCache | None = None

    # -- what a model defines --

    @abstractmethod
    def learn(self, log: Log, clock: Clock) -> tuple[Weights, str | None]:
        """Weights from a log, and the name of the solver that made them (None: no system was solved).

        Parameters
        ----------
        log : Log
            The rows to learn from.
        clock : Clock
            Takes the time of steps: `with clock("gram"): ...`.
        """

    @abstractmethod
    def query(self, histories: Histories) -> Query:
        """How much each source counts for each history: the rows x of scores x @ B.

        Parameters
        ----------
        histories : Histories
            What is known of each asker.
        """

    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """What each row of one history (column) gives to the scores of items (rows), given the history's query.

        An item's last row gets what the item's sources give.
        """
        weights = self.fitted.weights
        parts, items = weights.contributions(x, targets), weights.source_items(x)
        shares = np.zeros((len(targets), len(history.item)))
        for block in range(len(weights.blocks)):
            mine = (items >= 0) & self._in_block(x, block)
            shares[:, asking.last_rows(history, items[mine])] += parts[:, mine]
        return shares

    def base_score(self, history: Histories, target: int) -> float | None:
        """What an item scores whatever is in the history; None for a model that has no such scores."""
        weights = self.fitted.weights
        others = self.weighs_items and any(map(_stands_for_nothing, weights.blocks))
        if weights.base is None and not others:
            return None
        base = 0.0 if weights.base is None else float(np.nan_to_num(weights.base[target]))
        if not others:
            return base
        x = self.query(history)
        parts = weights.contributions(x, np.array([target]))[0, weights.source_items(x) < 0]
        return base + float(parts.sum())

    def row_weights(self, history: Histories) -> Array | None:
        """How much each row of one history counts, by its place; None where rows are not what the model weighs."""
        if not self.weighs_items:
            return None
        x = self.query(history)
        first = self._in_block(x, 0)
        left = np.zeros(len(history.item))
        left[asking.last_rows(history, x.source[first])] = x.weight[first]
        return left

    def _in_block(self, x: Query, block: int) -> Array:
        """Which sources of a query are in a block."""
        low = self.fitted.weights.first_source(block)
        inside: Array = (x.source >= low) & (
            x.source < low + self.fitted.weights.blocks[block].sources
        )
        return inside

    def _upgraded(self, fitted: Fitted) -> Fitted:
        """What an artifact of an earlier version holds, in today's form."""
        return fitted

    # -- fitting --

    def fit(self, log: Log, *, cache: FitCache | None = None) -> Self:
        """Learn from every row of a log.

        Parameters
        ----------
        log : Log
            The rows to learn from.
        cache : FitCache, optional
            What it holds from an earlier fit of the same rows is not computed again.

        Returns
        -------
        Model
            The model itself.

        Raises
        ------
        TalerecError
            Where the log has no rows, or the model cannot be fitted to them.
        """
        if not log.rows:
            raise TalerecError("the log is empty: it has no rows to learn from")
        clock = Clock()
        self._cache = cache
        try:
            weights, solver = self.cached(params.SOLVE, log, lambda: self.learn(log, clock))
        finally:
            self._cache = None
        facts = keeping.training_facts(log)
        self._fitted = Fitted(weights, log.items, log.info, log, solver, clock.seconds, facts)
        return self

    def cached(self, stage: str, log: Log, make: Callable[[], Any]) -> Any:
        """What a step of the fit makes of the log, unless an earlier fit has left exactly that."""
        if self._cache is None:
            return make()
        known = (type(self), log, params.until(self, stage))
        return self._cache.cached(stage, known, make)

    @property
    def fitted(self) -> Fitted:
        """What fitting left behind; NotFittedError before that."""
        if self._fitted is None:
            raise NotFittedError(f"this {self.name} model is not fitted yet: call fit(log) first")
        return self._fitted

    # -- parameters --

    def _forget_fit(self) -> None:
        self._fitted = None

    def with_params(self, **changes: Any) -> Self:
        """The fitted model with other parameters for its queries, such as `recency`; nothing is learned again."""
        other: Self = params.build(type(self), {**self.params, **changes})
        other._fitted = self.fitted
        return other

    # -- what is known --

    @property
    def weights(self) -> Any:
        """B, source (row) x target item (column): a NumPy array or a SciPy CSR array. Sources are items, as a rule."""
        return self.fitted.weights.matrix

    @property
    def item_ids(self) -> pl.Series:
        """External item ids in position order."""
        return self.fitted.items.ids

    def _repr_html_(self) -> str:
        """The model as a small table, for notebooks."""
        rows = [f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in self._card()]
        return f"<table><caption>{escape(self.name)}</caption>{''.join(rows)}</table>"

    def _card(self) -> list[tuple[str, Any]]:
        shown = list(self.params.items())
        if self._fitted is None:
            return [*shown, ("fitted", "no")]
        counts = self._fitted.training
        said = ", ".join(f"{counts[name]:,} {name}" for name in ("users", "items", "rows"))
        return [*shown, ("fitted on", said)]

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
        """The next items of users from the training log.

        Parameters
        ----------
        users : list of ids
            Users of the training log.
        k : int
            How many items each gets; fewer only where masks or missing scores leave fewer.
        hide_seen : bool
            Leave out what the user has already.
        allow, deny : list of ids, optional
            The only items that may come, and items that must not.
        unknown : "error" or "skip"
            What to do with ids that the model does not know.
        as_of : moment, optional
            When they ask, for models that look at it; without it, when the log ends.

        Returns
        -------
        polars.DataFrame
            Columns user_id, item_id, score, rank.

        Raises
        ------
        UnknownIdError
            Where a user or an item is not known.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(users=50, items=20)
        >>> len(tr.Markov().fit(log).recommend(log.users.ids[:2], k=3))
        6
        """
        log = self.fitted.log
        if log is None:
            raise TalerecError("this model was saved without histories: use recommend_histories")
        found = log.users.positions(users, "user", unknown)
        found = found[found >= 0]
        allowed = asking.allowed_items(self, allow, deny, unknown)
        rows = Histories.of_users(log, found).asked(_when(as_of))
        first = asking.top(self, rows, k, hide_seen=hide_seen, allowed=allowed)
        return frames.recommendations(
            first, self.item_ids, log.users.ids[found].alias(columns.USER)
        )

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
        """The next items after histories of your own.

        Parameters
        ----------
        histories : list of lists
            Each history a list of item ids, or of (item id, time), oldest first.
        k, hide_seen, allow, deny, unknown, as_of
            As for `recommend`.

        Returns
        -------
        polars.DataFrame
            Columns history (its number, from 0), item_id, score, rank.
        """
        given = Histories.from_ids(histories, self.fitted.items, unknown).asked(_when(as_of))
        allowed = asking.allowed_items(self, allow, deny, unknown)
        first = asking.top(self, given, k, hide_seen=hide_seen, allowed=allowed)
        numbers = pl.Series(columns.HISTORY, np.arange(len(given)))
        return frames.recommendations(first, self.item_ids, numbers)

    def similar_items(self, item: Any, k: int = 10) -> pl.DataFrame:
        """What the model expects after one item alone, without the item itself: columns item_id, score, rank."""
        found = Histories.from_ids([[item]], self.fitted.items, "error")
        first = asking.top(self, found, k, hide_seen=True)
        return frames.recommendations(first, self.item_ids, pl.Series("item", [0])).drop("item")

    def explain(
        self,
        history: Sequence[Any],
        item: Any,
        *,
        unknown: str = "error",
        as_of: Moment | None = None,
    ) -> pl.DataFrame:
        """What each row of a history gives to the score of an item.

        Of an item that occurs more than once, the last row counts. A model that gives scores without a history has one
        more row, whose item_id is null.

        Returns
        -------
        polars.DataFrame
            Columns item_id, contribution; the contributions add up to the score.
        """
        fitted = self.fitted
        rows = Histories.from_ids([history], fitted.items, unknown).asked(_when(as_of))
        target = int(fitted.items.positions([item], "item", "error")[0])
        given = self.contributions(self.query(rows), rows, np.array([target]))[0]
        names = frames.names(fitted.items, rows.item)
        if (base := self.base_score(rows, target)) is not None:
            names = names.append(pl.Series([None], dtype=names.dtype))
            given = np.append(given, base)
        return pl.DataFrame({columns.ITEM: names, columns.SHARE: given})

    # -- keeping --

    def save(
        self,
        path: str | Path,
        *,
        histories: bool = True,
        metrics: dict[str, float | None] | None = None,
    ) -> Path:
        """Write the model to a folder, whole or not at all.

        Parameters
        ----------
        path : path
            The folder, NAME.tale.
        histories : bool
            Keep the training histories, so that `recommend` works after loading.
        metrics : dict, optional
            What an evaluation found, for the model's card.

        Returns
        -------
        Path
            The folder.
        """
        kept = keeping.bundle(self.name, self.params, self.fitted, histories=histories)
        if metrics is not None:
            kept.facts["metrics"] = {
                name: float(value) for name, value in metrics.items() if value is not None
            }
        return artifact.write(path, kept)


def restore(model: Model, kept: artifact.Bundle) -> Model:
    """Put what `save` kept back into a model with the same parameters."""
    model._fitted = model._upgraded(keeping.restored(kept))
    return model


def _stands_for_nothing(block: Any) -> bool:
    """Are a block's sources no items of a history?"""
    return block.source_item is not None and bool((block.source_item < 0).any())


def _when(as_of: Moment | None) -> int | None:
    return None if as_of is None else microseconds(as_of)
