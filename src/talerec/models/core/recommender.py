"""Recommending by external ids: what users of every model call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import polars as pl

from talerec import columns
from talerec.data.histories import Histories
from talerec.data.log import Log
from talerec.data.times import Moment, microseconds
from talerec.errors import TalerecError
from talerec.models.core import filters as choosing
from talerec.models.core import frames
from talerec.models.core import inference as asking
from talerec.models.core.boosts import Wishes
from talerec.models.core.inference import Ids
from talerec.models.core.persistence import Fitted
from talerec.ranking.weights import Query
from talerec.runtime.arrays import Array


class Recommends:
    """What a fitted model answers, in the ids of its log."""

    weighs_items: ClassVar[bool]

    @property
    @abstractmethod
    def fitted(self) -> Fitted:
        """What fitting left behind."""

    @abstractmethod
    def query(self, histories: Histories) -> Query:
        """How much each source counts for each history."""

    @abstractmethod
    def contributions(self, x: Query, history: Histories, targets: Array) -> Array:
        """What each row of one history gives to the scores of items."""

    @abstractmethod
    def base_score(self, history: Histories, target: int) -> float | None:
        """What an item scores whatever is in the history."""

    @property
    def item_ids(self) -> pl.Series:
        """External item ids in position order."""
        return self.fitted.items.ids

    def recommend(
        self,
        users: Ids,
        k: int = 10,
        *,
        hide_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: str | None = None,
        per: Mapping[str, int] | None = None,
        boost: Wishes | None = None,
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
        allow, deny, where : lists of ids, str, optional
            The only items that may come, items that must not, and a condition (SQL) on the item table.
        per : dict, optional
            By the item table: ``{"category": 2}`` for at most two items of a category in a list.
        boost : dict, optional
            By the item table: ``{"brand": {"X": 0.2}}`` adds a fifth of the list's spread to the scores of brand X, a negative number
            lowers them. The spread is the first score less the hundredth (or the last) of the list without boosts and `per`.
        unknown : "error" or "skip"
            What to do with ids that the model does not know.
        as_of : moment, optional
            When they ask; without it, when the log ends. A date, a datetime, its text, or a number: of 10^8 and more,
            its size tells whether it counts s, ms, us or ns; a smaller one counts what the log's times do.

        Returns
        -------
        polars.DataFrame
            Columns user_id, item_id, score, rank.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(users=50, items=20)
        >>> len(tr.Markov().fit(log).recommend(log.users.ids[:2], k=3))
        6
        """
        log = self._kept_log("recommend_histories")
        found = log.users.positions(users, "user", unknown)
        found = found[found >= 0]
        limits = choosing.limits(self, allow, deny, where, per, unknown, boost)
        rows = Histories.of_users(log, found).asked(self._when(as_of))
        first = choosing.top(self, rows, k, limits, hide_seen=hide_seen)
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
        where: str | None = None,
        per: Mapping[str, int] | None = None,
        boost: Wishes | None = None,
        unknown: str = "error",
        as_of: Moment | None = None,
    ) -> pl.DataFrame:
        """The next items after histories of your own.

        Parameters
        ----------
        histories : list of lists
            Each history a list of item ids, oldest first, or of (item id, time); a time is what `as_of` is.
        k, hide_seen, allow, deny, where, per, boost, unknown, as_of
            As for `recommend`.

        Returns
        -------
        polars.DataFrame
            Columns history (its number, from 0), item_id, score, rank.
        """
        given = self._histories_of(histories, unknown, as_of)
        limits = choosing.limits(self, allow, deny, where, per, unknown, boost)
        first = choosing.top(self, given, k, limits, hide_seen=hide_seen)
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
        hide_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: str | None = None,
        boost: Wishes | None = None,
        unknown: str = "error",
        as_of: Moment | None = None,
    ) -> pl.DataFrame:
        """What each row of a history gives to the score of an item, and what boosts add to it.

        Of an item that occurs more than once, the last row counts. A model that gives scores without a history has one
        more row, whose item_id is null. With `boost`, each boost that holds for the item is a row of its own, with the spread of
        the list that the other options leave.

        Returns
        -------
        polars.DataFrame
            Columns item_id, contribution; the contributions add up to the score. With `boost`, a column boost too, which names
            the column and the value: brand=X.
        """
        rows = self._histories_of([history], unknown, as_of)
        if boost is None:
            return self._shares(rows, item)
        allowed = choosing.limits(self, allow, deny, where, None, unknown).allowed
        return self._boosted_shares(rows, item, boost, allowed, hide_seen=hide_seen)

    def explain_user(
        self,
        user: Any,
        item: Any,
        *,
        hide_seen: bool = False,
        allow: Ids | None = None,
        deny: Ids | None = None,
        where: str | None = None,
        boost: Wishes | None = None,
        unknown: str = "error",
        as_of: Moment | None = None,
    ) -> pl.DataFrame:
        """What each row of a user of the training log gives to the score of an item.

        Parameters
        ----------
        user : id
            A user of the training log.
        item : id
            The item whose score is explained.
        hide_seen, allow, deny, where, boost, unknown, as_of
            As for `explain`.

        Returns
        -------
        polars.DataFrame
            What `explain` gives, for the rows of the user; they add up to the score that `recommend` gives the item.

        Examples
        --------
        >>> import talerec as tr
        >>> log = tr.synthetic_log(users=50, items=20)
        >>> model = tr.Markov().fit(log)
        >>> best = model.recommend([1], k=1)
        >>> shares = model.explain_user(1, best["item_id"][0])["contribution"]
        >>> abs(shares.sum() - best["score"][0]) < 1e-6
        True
        """
        log = self._kept_log("explain")
        place = log.users.positions([user], "user", "error")
        rows = Histories.of_users(log, place).asked(self._when(as_of)).slice(0, 1)
        if boost is None:
            return self._shares(rows, item)
        allowed = choosing.limits(self, allow, deny, where, None, unknown).allowed
        return self._boosted_shares(rows, item, boost, allowed, hide_seen=hide_seen)

    def _kept_log(self, instead: str) -> Log:
        """The training histories; an error that names what does without them, if they were not kept."""
        if self.fitted.log is None:
            raise TalerecError(f"this model was saved without histories: use {instead}")
        return self.fitted.log

    def _shares(self, rows: Histories, item: Any) -> pl.DataFrame:
        """What the rows of one history give to the score of an item."""
        fitted = self.fitted
        target = int(fitted.items.positions([item], "item", "error")[0])
        given = self.contributions(self.query(rows), rows, np.array([target]))[0]
        names = frames.names(fitted.items, rows.item)
        if (base := self.base_score(rows, target)) is not None:
            names = names.append(pl.Series([None], dtype=names.dtype))
            given = np.append(given, base)
        return pl.DataFrame({columns.ITEM: names, columns.SHARE: given})

    def _boosted_shares(
        self, rows: Histories, item: Any, boost: Wishes, allowed: Array | None, *, hide_seen: bool
    ) -> pl.DataFrame:
        """The same, and what each boost adds."""
        frame = self._shares(rows, item)
        target = int(self.fitted.items.positions([item], "item", "error")[0])
        added = choosing.boosts_of_target(self, rows, target, boost, allowed, hide_seen=hide_seen)
        return frames.with_boosts(frame, added)

    def _histories_of(
        self, given: Sequence[Sequence[Any]], unknown: str, as_of: Moment | None
    ) -> Histories:
        """Histories that people give, and when they ask."""
        fitted = self.fitted
        return Histories.from_ids(given, fitted.items, unknown, fitted.unit).asked(
            self._when(as_of)
        )

    def _when(self, as_of: Moment | None) -> int | None:
        return None if as_of is None else microseconds(as_of, self.fitted.unit)
